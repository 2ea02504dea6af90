defmodule EXLA.CustomCall.Client do
  @moduledoc """
  XLA on a platform: a PJRT plugin with its devices.

      {:ok, client} = EXLA.CustomCall.Client.new(plugin: :cpu)
      client.platform
      #=> :host

  A plugin is a shared object that holds a compiler and a run time for one kind of device. It is
  loaded once and stays loaded. `:cpu` is the plugin that `mix custom_call.install cpu` fetched, or
  that `EXLA_CUSTOM_CALL_PJRT_CPU` names; see `EXLA.CustomCall.Plugin`.

  A client is what an implementation of `EXLA.CustomCall` gets as its last argument: match on its
  `:platform`.
  """

  alias EXLA.CustomCall.{Error, Executable, Module, Native, Options, Plugin}

  @enforce_keys [:ref, :platform]
  defstruct [
    :ref,
    :platform,
    :platform_name,
    :platform_version,
    :plugin,
    :api_version,
    devices: []
  ]

  @typedoc """
    * `:platform` - `:host`, `:cuda`, `:rocm` or `:tpu`; the plugin's own name, a string, for any
      other;
    * `:platform_name`, `:platform_version` - as the plugin gives them;
    * `:plugin` - the path of the shared object;
    * `:api_version` - `{major, minor}` of the PJRT API that the plugin speaks;
    * `:devices` - the devices of the client.
  """
  @type t :: %__MODULE__{
          ref: reference(),
          platform: :host | :cuda | :rocm | :tpu | String.t(),
          platform_name: String.t(),
          platform_version: String.t(),
          plugin: Path.t(),
          api_version: {non_neg_integer(), non_neg_integer()},
          devices: [%{id: integer(), kind: String.t(), addressable: boolean()}]
        }

  @typedoc "An option of the plugin's own: an integer, float, boolean, string or list of integers."
  @type create_option :: {atom() | String.t(), number() | boolean() | String.t() | [integer()]}

  @doc """
  Loads a plugin and makes a client.

  ## Options

    * `:plugin` - `:cpu` (the default), `:cuda`, or the path of a plugin;
    * `:options` - what the plugin itself takes, such as `[cpu_device_count: 2]`, which gives the
      CPU plugin two devices.

  ## Errors

  `:plugin` for a file that is missing, is no shared object or no plugin; `:client` for what the
  plugin refuses, in its own words.
  """
  @spec new(keyword()) :: {:ok, t()} | {:error, Error.t()}
  def new(opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, plugin: :cpu, options: []),
         {:ok, options} <- create_options(opts[:options]),
         {:ok, path} <- resolve(opts[:plugin]),
         {:ok, {ref, {name, version, api_version, devices}}} <- Native.client_new(path, options) do
      {:ok,
       %__MODULE__{
         ref: ref,
         platform: platform(name),
         platform_name: name,
         platform_version: version,
         plugin: path,
         api_version: api_version,
         devices:
           for(
             {id, kind, addressable} <- devices,
             do: %{id: id, kind: kind, addressable: addressable}
           )
       }}
    else
      {:error, %Error{} = error} -> {:error, error}
      {:error, native} -> {:error, Error.from_native(native)}
    end
  end

  @doc "Like `new/1`, but raises."
  @spec new!(keyword()) :: t()
  def new!(opts \\ []), do: opts |> new() |> Error.unwrap!()

  @doc """
  Compiles a module. The compiler runs on a thread of its own; the caller waits for it.

  All handlers that the module calls must be loaded, see `EXLA.CustomCall.Library.load/3`.

  ## Errors

  `:compile`, with XLA's own words and its status code as `:code`.
  """
  @spec compile(t(), Module.t()) :: {:ok, Executable.t()} | {:error, Error.t()}
  def compile(client, module)

  def compile(%__MODULE__{} = client, %Module{} = module) do
    case Native.await(&Native.client_compile(client.ref, module.ref, &1)) do
      {:ok, ref} ->
        {:ok,
         %Executable{
           ref: ref,
           client: client,
           parameters: module.parameters,
           results: module.results
         }}

      {:error, native} ->
        {:error, native |> Error.from_native() |> explain()}
    end
  end

  def compile(%__MODULE__{}, other) do
    {:error, Error.new(:argument, "expected an EXLA.CustomCall.Module, got: #{inspect(other)}")}
  end

  def compile(other, _module) do
    {:error, Error.new(:argument, "expected an EXLA.CustomCall.Client, got: #{inspect(other)}")}
  end

  @doc "Like `compile/2`, but raises."
  @spec compile!(t(), Module.t()) :: Executable.t()
  def compile!(client, module), do: client |> compile(module) |> Error.unwrap!()

  # XLA's words for a target without a handler.
  @no_typed_handler ~r/No FFI handler registered for (.+) on a platform/s
  @no_untyped_handler ~r/No registered implementation for untyped custom call to (.+) for /s

  defp explain(error) do
    error = %{error | message: tidy(error.message)}

    cond do
      found = Regex.run(@no_typed_handler, error.message) ->
        remedy(
          error,
          found,
          "load the library that has its handler with EXLA.CustomCall.Library.load/3 first"
        )

      found = Regex.run(@no_untyped_handler, error.message) ->
        remedy(
          error,
          found,
          "libraries have handlers of the typed FFI, which a spec with api_version: 4 calls"
        )

      true ->
        error
    end
  end

  # XLA ends every refusal of a module with a guess about versions, and a note on who wrote the
  # bytecode, where it has said what is wrong already.
  @asides ~r/^.*(error: Failed to parse using StableHLO|note: in bytecode version).*$/

  defp tidy(message) do
    lines = String.split(message, "\n", trim: true)

    case Enum.reject(lines, &(&1 =~ @asides)) do
      [] -> message
      lines -> Enum.join(lines, "\n")
    end
  end

  defp remedy(error, [_, target], remedy) do
    %{error | name: target, message: "#{error.message}; #{remedy}"}
  end

  defp resolve(plugin) do
    with {:error, message} <- Plugin.resolve(plugin) do
      {:error, Error.new(:plugin, message, field: :plugin)}
    end
  end

  defp platform(name) do
    case String.downcase(name) do
      "cpu" -> :host
      gpu when gpu in ["cuda", "gpu"] -> :cuda
      "rocm" -> :rocm
      "tpu" -> :tpu
      _ -> name
    end
  end

  defp create_options(options) do
    if EXLA.CustomCall.SpecTerms.proper_list?(options) do
      Enum.reduce_while(options, {:ok, []}, fn option, {:ok, done} ->
        case create_option(option) do
          {:ok, option} ->
            {:cont, {:ok, done ++ [option]}}

          :error ->
            {:halt,
             {:error,
              Error.new(
                :argument,
                "expected :options to be {name, value} pairs, the value a 64-bit integer, a float, " <>
                  "a boolean, a string or a list of integers, got: #{inspect(option)}",
                field: :options
              )}}
        end
      end)
    else
      {:error,
       Error.new(
         :argument,
         "expected :options to be a list such as [cpu_device_count: 2], got: #{inspect(options)}",
         field: :options
       )}
    end
  end

  defp create_option({name, value}) when is_atom(name) or is_binary(name) do
    name = to_string(name)
    if String.valid?(name) and option_value?(value), do: {:ok, {name, value}}, else: :error
  end

  defp create_option(_option), do: :error

  defp option_value?(value) when is_boolean(value) or is_float(value), do: true
  defp option_value?(value) when is_integer(value), do: int64?(value)
  defp option_value?(value) when is_binary(value), do: String.valid?(value)

  defp option_value?(value) do
    EXLA.CustomCall.SpecTerms.proper_list?(value) and Enum.all?(value, &int64?/1)
  end

  defp int64?(value) do
    is_integer(value) and value in -0x8000_0000_0000_0000..0x7FFF_FFFF_FFFF_FFFF
  end

  defimpl Inspect do
    def inspect(client, _opts) do
      "#EXLA.CustomCall.Client<#{client.platform_name}, #{length(client.devices)} devices>"
    end
  end
end
