defmodule EXLA.CustomCall.Telemetry do
  @moduledoc """
  Events of the shape that the `:telemetry` library has, without depending on it.

  Name a module with an `execute/3` function, and each step of a call reports to it:

      config :exla_custom_call, telemetry: :telemetry

  or at run time, with `put_module/1`. The module gets an event name, measurements and metadata. Given
  none, nothing is measured.

  ## Events

  Each span is an event when it starts and one when it ends:

  | event | measurements | metadata |
  |---|---|---|
  | `[:exla_custom_call, span, :start]` | `:monotonic_time`, `:system_time` | that of the span |
  | `[:exla_custom_call, span, :stop]` | `:duration`, `:monotonic_time` | the same, with `:error` where it failed |
  | `[:exla_custom_call, span, :exception]` | `:duration`, `:monotonic_time` | the same, with `:kind`, `:reason` and `:stacktrace` |

  Times are in native units, see `System.convert_time_unit/3`.

  | span | what | metadata |
  |---|---|---|
  | `:lower` | the block's implementation and its spec | `:block` |
  | `:build` | the module | |
  | `:compile` | XLA's compiler; not where the cache has the executable | `:client` |
  | `:run` | from the inputs to the results | `:executable` |

  The compile cache reports `[:exla_custom_call, :cache, :hit]`, `:miss`, `:disk_hit` and `:eviction`,
  each with the measurement `:count`.

  A module that raises is the caller's error.
  """

  @key {__MODULE__, :module}

  @typedoc "A module with `execute(event_name, measurements, metadata)`, or `nil` for none."
  @type sink :: module() | nil

  @doc """
  Reports to `module` from now on, or to none where it is `nil`.

  ## Examples

      iex> EXLA.CustomCall.Telemetry.put_module(nil)
      :ok
  """
  @spec put_module(sink()) :: :ok
  def put_module(module) do
    unless module == nil or
             (is_atom(module) and Code.ensure_loaded?(module) and
                function_exported?(module, :execute, 3)) do
      raise ArgumentError,
            "expected a module with execute(event_name, measurements, metadata), got: " <>
              inspect(module)
    end

    :persistent_term.put(@key, module)
  end

  @doc false
  # Reports one event.
  @spec event([atom()], map(), map()) :: :ok
  def event(name, measurements, metadata \\ %{}) do
    with module when module != nil <- :persistent_term.get(@key, nil) do
      module.execute([:exla_custom_call | name], measurements, metadata)
    end

    :ok
  end

  @doc false
  # The result of `fun`, with an event before and after.
  @spec span(atom(), map(), (() -> result)) :: result when result: term()
  def span(name, metadata, fun) do
    case :persistent_term.get(@key, nil) do
      nil -> fun.()
      module -> measured(module, name, metadata, fun)
    end
  end

  defp measured(module, name, metadata, fun) do
    start = System.monotonic_time()

    module.execute(
      [:exla_custom_call, name, :start],
      %{monotonic_time: start, system_time: System.system_time()},
      metadata
    )

    try do
      fun.()
    catch
      kind, reason ->
        metadata = Map.merge(metadata, %{kind: kind, reason: reason, stacktrace: __STACKTRACE__})

        module.execute([:exla_custom_call, name, :exception], ended(start), metadata)
        :erlang.raise(kind, reason, __STACKTRACE__)
    else
      result ->
        metadata =
          case result do
            {:error, error} -> Map.put(metadata, :error, error)
            _ -> metadata
          end

        module.execute([:exla_custom_call, name, :stop], ended(start), metadata)
        result
    end
  end

  defp ended(start) do
    now = System.monotonic_time()
    %{duration: now - start, monotonic_time: now}
  end
end
