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

  alias EXLA.CustomCall.{
    Error,
    Executable,
    Mesh,
    Module,
    Native,
    Options,
    Plugin,
    SpecTerms,
    Telemetry,
    Trial
  }

  @compile_options [
    replicas: 1,
    partitions: nil,
    spmd: nil,
    shardy: nil,
    propagate_to_results: false,
    propagate_to_parameters: false,
    device_assignment: nil,
    donate: [],
    xla_options: [],
    timeout: :infinity,
    trial: false
  ]

  @enforce_keys [:ref, :platform]
  defstruct [
    :ref,
    :platform,
    :platform_name,
    :platform_version,
    :plugin,
    :api_version,
    devices: [],
    create_options: []
  ]

  @typedoc """
    * `:platform` - `:host`, `:cuda`, `:rocm` or `:tpu`; the plugin's own name, a string, for any
      other;
    * `:platform_name`, `:platform_version` - as the plugin gives them;
    * `:plugin` - the path of the shared object;
    * `:api_version` - `{major, minor}` of the PJRT API that the plugin speaks;
    * `:devices` - the devices of the client;
    * `:create_options` - what it was made with.
  """
  @type t :: %__MODULE__{
          ref: reference(),
          platform: :host | :cuda | :rocm | :tpu | String.t(),
          platform_name: String.t(),
          platform_version: String.t(),
          plugin: Path.t(),
          api_version: {non_neg_integer(), non_neg_integer()},
          devices: [%{id: integer(), kind: String.t(), addressable: boolean()}],
          create_options: [{String.t(), number() | boolean() | String.t() | [integer()]}]
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
         {:ok, options} <- create_options(opts[:options], :options),
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
         create_options: options,
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

  ## Options

    * `:replicas`, `:partitions` - on how many devices the program runs: copies of it on different
      data, and parts that it is split into. Default: 1 replica, and as many partitions as the module's
      mesh has devices, 1 where it has none.
    * `:spmd` - split by XLA's SPMD partitioner; default: whether there are several partitions.
    * `:shardy` - read the `sdy` attributes of the module; default: as `:spmd`.
    * `:propagate_to_results`, `:propagate_to_parameters` - whether the partitioner may choose the
      sharding of a result or parameter that has none: one boolean for all, or a list. Default
      `false`.
    * `:device_assignment` - device ids, a list of partitions for each replica. Default: the plugin
      chooses.
    * `:donate` - indexes of parameters whose memory the program may use for its results. A buffer
      that is given for one cannot be used afterwards; a binary can, since it is copied.
    * `:xla_options` - XLA's own options by name, such as `[xla_dump_to: "/tmp/dump"]`, where the
      plugin takes them. XLA does not check all of them: a value that makes no sense, such as a
      negative count, can end the VM.
    * `:timeout` - how many milliseconds to wait, default `:infinity`. The compiler runs on after it,
      and what it makes is dropped.
    * `:trial` - compile in an OS process of its own first, for a module that is not trusted: `true`,
      or the options of `EXLA.CustomCall.Trial`. Default `false`.

  ## Errors

  `:compile`, with XLA's own words and its status code as `:code`; `:deadline_exceeded` as the code
  after the time-out.
  """
  @spec compile(t(), Module.t(), keyword()) :: {:ok, Executable.t()} | {:error, Error.t()}
  def compile(client, module, opts \\ [])

  def compile(%__MODULE__{} = client, %Module{} = module, opts) do
    with {:ok, normalized} <- normalize(opts, module) do
      compile_normalized(client, module, normalized)
    end
  end

  def compile(%__MODULE__{}, other, _opts) do
    {:error, Error.new(:argument, "expected an EXLA.CustomCall.Module, got: #{inspect(other)}")}
  end

  def compile(other, _module, _opts) do
    {:error, Error.new(:argument, "expected an EXLA.CustomCall.Client, got: #{inspect(other)}")}
  end

  @doc "Like `compile/3`, but raises."
  @spec compile!(t(), Module.t(), keyword()) :: Executable.t()
  def compile!(client, module, opts \\ []) do
    client |> compile(module, opts) |> Error.unwrap!()
  end

  @doc false
  # A trial, if there is to be one.
  def try_out(_client, _module, _options, nil), do: :ok

  def try_out(client, module, options, trial) do
    with {:error, error} <- Trial.run(client, module, options, trial) do
      {:error, explain(error)}
    end
  end

  @doc false
  # The options as the NIF takes them, the same for all ways to write them, the time to wait, and the
  # options of the trial.
  def normalize(opts, module) do
    with {:ok, opts} <- Options.validate(opts, @compile_options),
         {:ok, timeout} <- Options.timeout(opts),
         {:ok, trial} <- Trial.options(opts[:trial]),
         {:ok, options} <- compile_options(opts, module) do
      {:ok, {options, timeout, trial}}
    end
  end

  @doc false
  def compile_normalized(client, module, {options, timeout, trial}) do
    with :ok <- try_out(client, module, options, trial) do
      Telemetry.span(:compile, %{client: client}, fn ->
        native_compile(client, module, options, timeout)
      end)
    end
  end

  defp native_compile(client, module, options, timeout) do
    case Native.await(&Native.client_compile(client.ref, module.ref, options, &1), timeout) do
      {:ok, ref} ->
        {:ok, Executable.new(ref, client, module, options.donate)}

      {:error, error} ->
        {:error, explain(error)}

      :timeout ->
        {:error,
         Error.new(:compile, "the compiler was not done within #{timeout} ms",
           code: :deadline_exceeded
         )}
    end
  end

  @doc """
  What the plugin and the client tell of themselves.

    * `:platform_name`, `:platform_version`, `:api_version`, `:plugin`: as in the client;
    * `:attributes` - the plugin's own, by name: `"xla_version"`, `"stablehlo_current_version"`,
      `"stablehlo_minimum_version"`, ...;
    * `:extensions` - those of the PJRT API that the plugin has, known and unknown ones: `:kind` is
      the number in the PJRT header, `:name` the header's name for it or `nil`;
    * `:devices` - with `:id`, `:kind`, `:addressable`, `:local_hardware_id` and `:description`;
    * `:memories` - memory spaces, with the ids of the `:devices` that can use them and of those
      that they are the `:default_of`;
    * `:process_index` - of this process, among those that share the devices.
  """
  @spec info(t()) :: {:ok, map()} | {:error, Error.t()}
  def info(%__MODULE__{} = client) do
    with {:ok, {attributes, extensions, devices, memories, process_index}} <-
           Native.from_native(Native.client_info(client.ref)) do
      {:ok,
       %{
         platform_name: client.platform_name,
         platform_version: client.platform_version,
         api_version: client.api_version,
         plugin: client.plugin,
         process_index: process_index,
         attributes: Map.new(attributes),
         extensions:
           for({kind, name, size} <- extensions, do: %{kind: kind, name: name, struct_size: size}),
         devices:
           for {id, kind, addressable, hardware_id, description} <- devices do
             %{
               id: id,
               kind: kind,
               addressable: addressable,
               local_hardware_id: hardware_id,
               description: description
             }
           end,
         memories:
           for {id, kind, devices, default_of} <- memories do
             %{id: id, kind: kind, devices: devices, default_of: default_of}
           end
       }}
    end
  end

  def info(other) do
    {:error, Error.new(:argument, "expected an EXLA.CustomCall.Client, got: #{inspect(other)}")}
  end

  @doc "Like `info/1`, but raises."
  @spec info!(t()) :: map()
  def info!(client), do: client |> info() |> Error.unwrap!()

  # More devices than any machine has, and few enough for the plugin to say so itself.
  @most_devices 65_536

  defp compile_options(opts, module) do
    parameters = length(module.parameters)
    results = length(module.results)
    partitions = if module.mesh, do: Mesh.size(module.mesh), else: 1
    opts = if opts[:partitions], do: opts, else: Keyword.put(opts, :partitions, partitions)
    spmd = if opts[:spmd] == nil, do: opts[:partitions] != 1, else: opts[:spmd]

    with {:ok, replicas} <- Options.integer(opts, :replicas, 1..@most_devices),
         {:ok, partitions} <- Options.integer(opts, :partitions, 1..@most_devices),
         {:ok, spmd} <- flag(spmd, :spmd),
         {:ok, shardy} <- flag(if(opts[:shardy] == nil, do: spmd, else: opts[:shardy]), :shardy),
         :ok <- check_mesh(module.mesh, replicas, partitions, spmd and shardy),
         {:ok, to_results} <- flags(opts, :propagate_to_results, results),
         {:ok, to_parameters} <- flags(opts, :propagate_to_parameters, parameters),
         {:ok, assignment} <- assignment(opts[:device_assignment], replicas, partitions),
         {:ok, donate} <- donate(opts[:donate], parameters),
         {:ok, xla_options} <- xla_options(opts[:xla_options]) do
      {:ok,
       %{
         replicas: replicas,
         partitions: partitions,
         spmd: spmd,
         shardy: shardy,
         propagate_to_outputs: to_results,
         propagate_to_parameters: to_parameters,
         parameter_count: parameters,
         result_count: results,
         device_assignment: assignment,
         donate: donate,
         xla_options: xla_options
       }}
    end
  end

  # XLA would say it in words of its own, or not at all.
  defp check_mesh(nil, _replicas, _partitions, _shardy), do: :ok

  defp check_mesh(mesh, replicas, partitions, shardy) do
    size = Mesh.size(mesh)

    cond do
      {replicas, partitions} != {1, size} ->
        mismatch(
          :partitions,
          "1 replica of #{size} partitions, got #{replicas} of #{partitions}; leave the options out"
        )

      size > 1 and not shardy ->
        mismatch(:shardy, "Shardy, which reads its shardings; leave :spmd and :shardy out")

      true ->
        :ok
    end
  end

  defp mismatch(field, needs) do
    {:error,
     Error.new(:argument, "the module is on a mesh, and so it needs #{needs}", field: field)}
  end

  defp flag(value, _name) when is_boolean(value), do: {:ok, value}
  defp flag(other, name), do: Options.wrong(name, "a boolean", other)

  defp flags(opts, name, count) do
    case opts[name] do
      false ->
        {:ok, []}

      true ->
        {:ok, [true]}

      flags when is_list(flags) and length(flags) == count ->
        if Enum.all?(flags, &is_boolean/1),
          do: {:ok, flags},
          else: Options.wrong(name, "a boolean, or a list of #{count}", flags)

      other ->
        Options.wrong(name, "a boolean, or a list of #{count}", other)
    end
  end

  defp assignment(nil, _replicas, _partitions), do: {:ok, nil}

  defp assignment(assignment, replicas, partitions) do
    valid? =
      list_of?(assignment, replicas, fn ids ->
        list_of?(ids, partitions, &(is_integer(&1) and &1 in 0..0x7FFF_FFFF))
      end)

    if valid? do
      {:ok, assignment}
    else
      Options.wrong(
        :device_assignment,
        "a list of #{replicas} lists of #{partitions} device ids",
        assignment
      )
    end
  end

  defp list_of?(list, count, valid?) do
    SpecTerms.proper_list?(list) and length(list) == count and Enum.all?(list, valid?)
  end

  defp donate(indexes, count) do
    valid? =
      SpecTerms.proper_list?(indexes) and
        Enum.all?(indexes, &(is_integer(&1) and &1 >= 0 and &1 < count))

    if valid? do
      {:ok, indexes |> Enum.uniq() |> Enum.sort()}
    else
      Options.wrong(:donate, "a list of indexes of the #{count} parameters", indexes)
    end
  end

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

  defp create_options(options, field) do
    if SpecTerms.proper_list?(options) do
      Enum.reduce_while(options, {:ok, []}, fn option, {:ok, done} ->
        case create_option(option) do
          {:ok, option} ->
            {:cont, {:ok, [option | done]}}

          :error ->
            {:halt,
             {:error,
              Error.new(
                :argument,
                "expected #{inspect(field)} to be {name, value} pairs, the value a 64-bit integer, " <>
                  "a float, a boolean, a string or a list of integers, got: #{inspect(option)}",
                field: field
              )}}
        end
      end)
      |> case do
        {:ok, options} -> {:ok, Enum.reverse(options)}
        error -> error
      end
    else
      {:error,
       Error.new(
         :argument,
         "expected #{inspect(field)} to be a list such as [cpu_device_count: 2], got: " <>
           inspect(options),
         field: field
       )}
    end
  end

  # As create options, but for lists, which XLA's own options are not.
  defp xla_options(options) do
    with {:ok, options} <- create_options(options, :xla_options) do
      case Enum.find(options, fn {_name, value} -> is_list(value) end) do
        nil -> {:ok, options}
        {name, list} -> Options.wrong(:xla_options, "without lists", [{name, list}])
      end
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
    SpecTerms.proper_list?(value) and Enum.all?(value, &int64?/1)
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
