defmodule EXLA.CustomCall.Library do
  @moduledoc """
  A shared object with handlers for custom calls.

  A handler is a function of XLA's typed FFI, written in Rust with the crate `xla_ffi`, or in C++ with
  XLA's own headers. Loading a library registers the handlers that its caller names with XLA, for
  the client's platform:

      {:ok, library} =
        EXLA.CustomCall.Library.load(client, "priv/native/libflash_attention.so", %{
          "flash_attention_forward" => "flash_attention_forward_f32"
        })

  A library stays loaded, and its handlers registered, for as long as the VM runs: XLA keeps their
  addresses. They are there for all clients of the same plugin. Loading it again does nothing; a
  target that has another handler already is an error. A library that was rebuilt under the same path
  is loaded anew only after the VM was restarted.

  Handlers are native code in the VM's process: one that writes where it should not ends the VM.
  """

  alias EXLA.CustomCall.{Client, Error, Native, SpecTerms}

  @enforce_keys [:path, :targets]
  defstruct [:path, :targets]

  @typedoc "The library's canonical path, and the targets that were registered."
  @type t :: %__MODULE__{path: Path.t(), targets: [binary()]}

  @doc """
  Loads the shared object at `path`, and registers handlers: a map or list of
  `{target_name, exported_symbol}`. The target name is what a spec calls, any bytes.

  Either all symbols are there, or nothing is registered.

  ## Errors

  `:library` for a file that is missing or is no shared object, a symbol that it does not export, a
  handler that XLA rejects, and a target that has another handler.
  """
  @spec load(Client.t(), Path.t(), %{binary() => String.t()} | [{binary(), String.t()}]) ::
          {:ok, t()} | {:error, Error.t()}
  def load(client, path, handlers)

  def load(%Client{ref: ref}, path, handlers) do
    with {:ok, handlers} <- check_handlers(handlers),
         {:ok, path} <- check_path(path),
         {:ok, path} <- Native.library_load(ref, path, handlers) do
      {:ok, %__MODULE__{path: path, targets: Enum.map(handlers, &elem(&1, 0))}}
    else
      {:error, %Error{} = error} -> {:error, error}
      {:error, native} -> {:error, Error.from_native(native)}
    end
  end

  def load(other, _path, _handlers) do
    {:error, Error.new(:argument, "expected an EXLA.CustomCall.Client, got: #{inspect(other)}")}
  end

  @doc "Like `load/3`, but raises."
  @spec load!(Client.t(), Path.t(), %{binary() => String.t()} | [{binary(), String.t()}]) :: t()
  def load!(client, path, handlers), do: client |> load(path, handlers) |> Error.unwrap!()

  @doc """
  Has an Elixir function or process answer the calls of `target`, see
  `EXLA.CustomCall.ProcessHandler`.

  Registered again, a target has the new one. A target that a library's handler has is refused. Up to
  256 targets can be registered.

  ## Options

    * `:timeout` - milliseconds after which a call that has no answer is an error, default 5,000.
  """
  @spec register(
          Client.t(),
          binary(),
          (EXLA.CustomCall.ProcessHandler.Call.t() -> EXLA.CustomCall.ProcessHandler.answer())
          | pid(),
          keyword()
        ) :: :ok | {:error, Error.t()}
  def register(client, target, fun_or_pid, opts \\ []) do
    EXLA.CustomCall.ProcessHandler.register(client, target, fun_or_pid, opts)
  end

  defp check_handlers(handlers) when is_map(handlers) and not is_struct(handlers) do
    check_handlers(Map.to_list(handlers))
  end

  defp check_handlers(handlers) do
    if SpecTerms.proper_list?(handlers) and Enum.all?(handlers, &handler?/1) do
      {:ok, handlers}
    else
      {:error,
       Error.new(
         :argument,
         "expected handlers as a map of target names to exported symbols, such as " <>
           "%{\"my_kernel\" => \"my_kernel_f32\"}, got: #{inspect(handlers)}"
       )}
    end
  end

  defp handler?({target, symbol}) do
    is_binary(target) and is_binary(symbol) and String.valid?(symbol)
  end

  defp handler?(_other), do: false

  defp check_path(path) do
    if is_binary(path) and String.valid?(path) and not String.contains?(path, <<0>>) do
      {:ok, path}
    else
      {:error,
       Error.new(:argument, "expected the path of a library as a string, got: #{inspect(path)}")}
    end
  end
end
