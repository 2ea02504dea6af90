defmodule EXLA.CustomCall.Executable do
  @moduledoc """
  A compiled module, made by `EXLA.CustomCall.Client.compile/3`.

      {:ok, executable} = EXLA.CustomCall.Client.compile(client, module)
      {:ok, [y]} = EXLA.CustomCall.Executable.run(executable, [x])

  Of a module on a mesh (see `EXLA.CustomCall.Mesh`) inputs and results are whole tensors all the same:
  `run/3` hands each device its part, and puts the results together. See the guide to
  [sharding](sharding.md).

  Inputs are buffers, binaries or `Nx.Tensor`s. Results are buffers on the device, see
  `EXLA.CustomCall.Buffer`, or binaries where `results: :binary` asks for them. Binaries hold row-major
  elements in native byte order, whatever the layouts inside the program; see
  `EXLA.CustomCall.Typespec` for the bytes an element takes.

  A program runs on threads of the run time's own: while a device works, no scheduler waits for it.
  """

  alias EXLA.CustomCall.{
    Buffer,
    Client,
    Error,
    Mesh,
    Native,
    Options,
    Sharding,
    SpecTerms,
    Telemetry,
    Typespec
  }

  @enforce_keys [:ref, :client, :parameters, :results]
  defstruct [:ref, :client, :parameters, :results, :mesh, :split, donate: []]

  @typedoc """
  The `:parameters` and `:results` are those of one device: of a program that is split over several,
  the parts. The `:mesh` is that of the module, if it has one and the program runs on it.
  """
  @type t :: %__MODULE__{
          ref: reference(),
          client: Client.t(),
          parameters: [Typespec.t()],
          results: [Typespec.t() | String.t()],
          mesh: Mesh.t() | nil,
          split: map() | nil,
          donate: [non_neg_integer()]
        }

  @typedoc """
  A buffer; a binary; a binary with its type and shape, which are then checked against the
  parameter's; or an `Nx.Tensor`. On a mesh also a list of these, the part of each device.
  """
  @type input ::
          Buffer.t() | binary() | {binary(), EXLA.CustomCall.template()} | struct() | [input()]

  @typedoc """
  What a run gives: buffers, binaries or tensors, as `:results` says; on a mesh a list of buffers, one
  a device.
  """
  @type result :: Buffer.t() | binary() | struct() | [Buffer.t()]

  defmodule Async do
    @moduledoc """
    A run that is under way, see `EXLA.CustomCall.Executable.run_async/3`. The message with its
    answer is `{ref, answer}`, with the struct's `:ref`.
    """

    @enforce_keys [:ref, :ticket, :owner, :executable, :results, :sharded]
    defstruct [:ref, :ticket, :owner, :executable, :results, :sharded]

    @type t :: %__MODULE__{
            ref: reference(),
            ticket: reference(),
            owner: pid(),
            executable: EXLA.CustomCall.Executable.t(),
            results: :buffer | :binary | :tensor,
            sharded: boolean()
          }
  end

  @run_options [results: :buffer, user_data: %{}]

  @doc """
  Runs the executable on its device and waits for the results.

  On a mesh it runs on all devices. An input is then a whole tensor, which is split by the parameter's
  sharding, or a list with the part of each device, in the order of the devices' numbers; results are
  put together, save buffers: `results: :buffer` gives a list for each, which can be an input again.
  What becomes of the others where a handler fails on one device, `run_sharded/3` says.

  ## Options

    * `:results` - `:buffer` (the default) leaves them on the device; `:binary` gives their bytes;
      `:tensor` gives `Nx.Tensor`s, where Nx is there.
    * `:user_data` - what the handlers of this very run get besides operands and attributes: a map of
      binaries by names, such as `%{"com.example.settings" => <<1, 2, 3>>}`. A handler asks for a name;
      see [the guide to handlers](handlers.md#user-data).
    * `:timeout` - how many milliseconds to wait, default `:infinity`. The program runs on after it,
      and its results are dropped.

  ## Errors

  `:argument` for inputs of the wrong count, type or size; `:run` for what goes wrong in the program,
  such as an error that a handler returns, with XLA's words and its status code as `:code`, and
  `:deadline_exceeded` as the code after the time-out. A buffer that was deleted or donated is refused.
  """
  @spec run(t(), [input()], keyword()) :: {:ok, [result()]} | {:error, Error.t()}
  def run(executable, inputs, opts \\ []), do: start_and_await(executable, inputs, opts, false)

  @doc "Like `run/3`, but raises."
  @spec run!(t(), [input()], keyword()) :: [result()]
  def run!(executable, inputs, opts \\ []), do: executable |> run(inputs, opts) |> Error.unwrap!()

  @doc """
  Runs an executable of several devices: one list of inputs for each, in the order of the device
  assignment. Returns one list of results for each. Options as in `run/3`.

  On the CPU one such program of a client is at work at a time; others wait for it. A handler that
  fails on one device leaves the others waiting at the next collective, so that its error does not come
  back: give a `:timeout`. Programs of several devices on that client then wait too, and XLA may end the
  process after 40 seconds. Without a collective behind it the error comes back as on one device.
  """
  @spec run_sharded(t(), [[input()]], keyword()) :: {:ok, [[result()]]} | {:error, Error.t()}
  def run_sharded(executable, inputs, opts \\ []) do
    start_and_await(executable, inputs, opts, true)
  end

  @doc "Like `run_sharded/3`, but raises."
  @spec run_sharded!(t(), [[input()]], keyword()) :: [[result()]]
  def run_sharded!(executable, inputs, opts \\ []) do
    executable |> run_sharded(inputs, opts) |> Error.unwrap!()
  end

  @doc """
  Starts a run and returns at once. The answer comes as a message to the caller; `await/2` waits for
  it.

      {:ok, async} = Executable.run_async(executable, [x])
      {:ok, [y]} = Executable.await(async)

  In a `GenServer`, keep the struct and give the message to `result/2`:

      def handle_info({ref, _} = message, %{async: %{ref: ref} = async} = state) do
        {:ok, results} = Executable.result(async, message)

  Options: `:results` and `:user_data` as in `run/3`, and `sharded: true` for inputs as in `run_sharded/3`. A caller
  that dies meanwhile leaves nothing behind. There is no telemetry span: nobody is there to end it.
  """
  @spec run_async(t(), [input()] | [[input()]], keyword()) ::
          {:ok, Async.t()} | {:error, Error.t()}
  def run_async(executable, inputs, opts \\ []) do
    with {:ok, executable} <- check_executable(executable),
         {:ok, opts} <- Options.validate(opts, [sharded: false] ++ @run_options),
         {:ok, sharded} <- check_sharded(opts[:sharded]) do
      start(executable, inputs, opts, sharded)
    end
  end

  @doc "Like `run_async/3`, but raises."
  @spec run_async!(t(), [input()] | [[input()]], keyword()) :: Async.t()
  def run_async!(executable, inputs, opts \\ []) do
    executable |> run_async(inputs, opts) |> Error.unwrap!()
  end

  @doc """
  Waits for the results of a run that `run_async/3` started, in the process that started it.

  After the time-out, in milliseconds, the run is given up: its results are dropped, and no message
  comes any more.
  """
  @spec await(Async.t(), timeout()) :: {:ok, [result()] | [[result()]]} | {:error, Error.t()}
  def await(async, timeout \\ :infinity)

  def await(%Async{owner: owner}, _timeout) when owner != self() do
    argument("the process that started the run awaits it, that is #{inspect(owner)}")
  end

  def await(%Async{} = async, timeout) do
    with {:ok, timeout} <- Options.timeout(timeout: timeout), do: await_checked(async, timeout)
  end

  def await(other, _timeout) do
    argument("expected the run that run_async/3 started, got: #{inspect(other)}")
  end

  defp await_checked(async, timeout) do
    case Native.answer(async.ref, async.ticket, timeout) do
      :timeout ->
        {:error,
         Error.new(:run, "the program was not done within #{timeout} ms", code: :deadline_exceeded)}

      :gone ->
        argument("the answer of this run was taken, or given up, before")

      answer ->
        finish(async, answer)
    end
  end

  @doc "Like `await/2`, but raises."
  @spec await!(Async.t(), timeout()) :: [result()] | [[result()]]
  def await!(async, timeout \\ :infinity), do: async |> await(timeout) |> Error.unwrap!()

  @doc "The results in the message of a run that `run_async/3` started."
  @spec result(Async.t(), {reference(), term()}) ::
          {:ok, [result()] | [[result()]]} | {:error, Error.t()}
  def result(async, message)

  def result(%Async{ref: ref} = async, {ref, {tag, _value} = answer}) when tag in [:ok, :error] do
    finish(async, Native.from_native(answer))
  end

  def result(other, message) do
    argument(
      "expected the message of a run, {ref, answer} with the :ref of its struct, got: " <>
        "#{inspect(message)} for #{inspect(other)}"
    )
  end

  @doc """
  What is known of the executable. Where the plugin does not tell, a value is `nil`.

    * `:name`, `:replicas`, `:partitions`, `:devices` - the ids of the devices it runs on;
    * `:memory` - bytes: `:generated_code`, `:arguments`, `:results`, `:aliased`, `:temporary`, the
      same on the host with `host_` before the name, and `:peak`;
    * `:cost` - the compiler's estimates by name, such as `"flops"`;
    * `:fingerprint` - bytes that are the same for the same program of the same compiler.
  """
  @spec info(t()) :: {:ok, map()} | {:error, Error.t()}
  def info(executable)

  def info(%__MODULE__{ref: ref}) do
    {name, replicas, partitions, devices, memory, cost, fingerprint} = Native.executable_info(ref)

    keys =
      ~w(generated_code arguments results aliased temporary host_generated_code host_arguments
         host_results host_aliased host_temporary peak)a

    {:ok,
     %{
       name: name,
       replicas: replicas,
       partitions: partitions,
       devices: devices,
       memory: memory && keys |> Enum.zip(memory) |> Map.new(),
       cost: cost && Map.new(cost),
       fingerprint: fingerprint
     }}
  end

  def info(other), do: not_an_executable(other)

  @doc "Like `info/1`, but raises."
  @spec info!(t()) :: map()
  def info!(executable), do: executable |> info() |> Error.unwrap!()

  @doc """
  How the parameters and results of an executable on a mesh are split, each an
  `EXLA.CustomCall.Sharding`, or `nil` for one that XLA chose and that no axes of the mesh describe.

      {:ok, %{results: [sharding]}} = Executable.shardings(executable)
      IO.puts(Sharding.to_table(sharding, {4, 8}))

  They are the compiler's own word, where the plugin has PJRT's extension for it, and the module's
  elsewhere. Without a mesh it is an error of kind `:argument`.
  """
  @spec shardings(t()) ::
          {:ok, %{parameters: [Sharding.t() | nil], results: [Sharding.t() | nil]}}
          | {:error, Error.t()}
  def shardings(executable)

  def shardings(%__MODULE__{split: %{} = split}) do
    {:ok, %{parameters: sharding_of(split.parameters), results: sharding_of(split.results)}}
  end

  def shardings(%__MODULE__{}) do
    argument(
      "the executable is on no mesh; give its module shardings, see EXLA.CustomCall.Sharding"
    )
  end

  def shardings(other), do: not_an_executable(other)

  defp sharding_of(values), do: Enum.map(values, & &1.sharding)

  @doc "Like `shardings/1`, but raises."
  @spec shardings!(t()) :: %{parameters: [Sharding.t() | nil], results: [Sharding.t() | nil]}
  def shardings!(executable), do: executable |> shardings() |> Error.unwrap!()

  @doc """
  The optimised program as HLO text: what the compiler made of the module.
  """
  @spec hlo_text(t()) :: {:ok, String.t()} | {:error, Error.t()}
  def hlo_text(%__MODULE__{ref: ref}), do: Native.from_native(Native.executable_hlo_text(ref))
  def hlo_text(other), do: not_an_executable(other)

  @doc "Like `hlo_text/1`, but raises."
  @spec hlo_text!(t()) :: String.t()
  def hlo_text!(executable), do: executable |> hlo_text() |> Error.unwrap!()

  # What a serialized executable begins with; the number is the version of the format.
  @magic "EXLA.CustomCall.Executable 2\n"

  @doc """
  The executable as bytes, for `deserialize/2` on the same build of the plugin and the same version of
  this package.
  """
  @spec serialize(t()) :: {:ok, binary()} | {:error, Error.t()}
  def serialize(%__MODULE__{} = executable) do
    with {:ok, bytes} <- Native.await(&Native.executable_serialize(executable.ref, &1)) do
      head = :erlang.term_to_binary(head(executable), minor_version: 2)

      body = <<byte_size(head)::32, head::binary, bytes::binary>>
      {:ok, @magic <> :crypto.hash(:sha256, body) <> body}
    end
  end

  def serialize(other), do: not_an_executable(other)

  # Whole types, and the shardings as texts.
  defp head(%{split: nil} = executable) do
    {native(executable.parameters), native(executable.results), executable.donate, nil}
  end

  defp head(%{split: split, mesh: mesh} = executable) do
    texts = fn values -> Enum.map(values, &(&1.sharding && to_string(&1.sharding))) end
    types = fn values -> native(Enum.map(values, & &1.whole)) end

    {types.(split.parameters), types.(split.results), executable.donate,
     {mesh.name, to_string(mesh), texts.(split.parameters), texts.(split.results)}}
  end

  defp native(typespecs), do: Enum.map(typespecs, &Typespec.to_native/1)

  @doc "Like `serialize/1`, but raises."
  @spec serialize!(t()) :: binary()
  def serialize!(executable), do: executable |> serialize() |> Error.unwrap!()

  @doc """
  The executable that `serialize/1` wrote. Its handlers must be loaded before, as for
  `EXLA.CustomCall.Client.compile/3`.

  Bytes that are damaged, of another build of the plugin or of another version of this package are
  refused with the reason. Bytes that somebody made up on purpose are not safe to load: they are
  machine code.
  """
  @spec deserialize(Client.t(), binary()) :: {:ok, t()} | {:error, Error.t()}
  def deserialize(client, bytes)

  def deserialize(%Client{} = client, <<@magic, hash::binary-size(32), body::binary>>) do
    with true <- :crypto.hash(:sha256, body) == hash || damaged(),
         <<size::32, head::binary-size(size), bytes::binary>> <- body,
         {:ok, types, donate} <- read_head(head),
         {:ok, ref} <- Native.await(&Native.client_deserialize(client.ref, bytes, &1)) do
      {:ok, new(ref, client, types, donate)}
    else
      {:error, error} -> {:error, error}
      _ -> damaged()
    end
  end

  def deserialize(%Client{}, other) do
    {:error,
     Error.new(
       :argument,
       "expected the bytes of an executable, as serialize/1 writes them in this version, got: " <>
         inspect(other, limit: 16, printable_limit: 64)
     )}
  end

  def deserialize(other, _bytes) do
    {:error, Error.new(:argument, "expected an EXLA.CustomCall.Client, got: #{inspect(other)}")}
  end

  @doc "Like `deserialize/2`, but raises."
  @spec deserialize!(Client.t(), binary()) :: t()
  def deserialize!(client, bytes), do: client |> deserialize(bytes) |> Error.unwrap!()

  # Numbers, binaries, lists and the atoms :token and nil: nothing that a VM could lack.
  defp read_head(head) do
    with {parameters, results, donate, mesh} <- :erlang.binary_to_term(head, [:safe]),
         true <- Enum.all?([parameters, results, donate], &SpecTerms.proper_list?/1),
         true <- Enum.all?(parameters ++ results, &Typespec.native?/1),
         true <- Enum.all?(donate, &(is_integer(&1) and &1 in 0..(length(parameters) - 1)//1)),
         {:ok, mesh, of_parameters, of_results} <- read_mesh(mesh, parameters, results) do
      {:ok,
       %{
         parameters: Enum.map(parameters, &Typespec.from_native/1),
         results: Enum.map(results, &Typespec.from_native/1),
         mesh: mesh,
         parameter_shardings: of_parameters,
         result_shardings: of_results
       }, donate}
    else
      _ -> damaged()
    end
  rescue
    # Not a term.
    ArgumentError -> damaged()
  end

  defp read_mesh(nil, parameters, results) do
    none = fn types -> Enum.map(types, fn _ -> nil end) end
    {:ok, nil, none.(parameters), none.(results)}
  end

  defp read_mesh({name, text, of_parameters, of_results}, parameters, results)
       when is_binary(name) and length(of_parameters) == length(parameters) and
              length(of_results) == length(results) do
    with {:ok, mesh} <- Mesh.parse(text, name: name) do
      shardings = fn texts ->
        for text <- texts, do: if(text != nil, do: Error.unwrap!(Sharding.parse(text, mesh)))
      end

      {:ok, mesh, shardings.(of_parameters), shardings.(of_results)}
    end
  end

  defp read_mesh(_other, _parameters, _results), do: :error

  defp damaged do
    {:error, Error.new(:compile, "the bytes of the executable are damaged: compile it anew")}
  end

  @doc false
  # `types` are those of the module, or a map with the same fields.
  def new(ref, client, types, donate) do
    # The types of one device are the run time's to know; where it does not, they are the module's.
    {native_parameters, native_results} = Native.executable_types(ref)

    executable = %__MODULE__{
      ref: ref,
      client: client,
      parameters: types(native_parameters, types.parameters),
      results: types(native_results, types.results),
      donate: donate
    }

    if types.mesh, do: on_mesh(executable, types), else: executable
  end

  # What a program needs to know to hand out whole inputs and to put results together.
  defp on_mesh(%{ref: ref} = executable, %{mesh: mesh} = types) do
    size = Mesh.size(mesh)

    case Native.executable_info(ref) do
      {_name, 1, ^size, _devices, _memory, _cost, _fingerprint} ->
        {of_parameters, of_results} =
          case Native.executable_shardings(ref) do
            {:ok, {of_parameters, of_results}} -> {of_parameters, of_results}
            {:error, _} -> {nil, nil}
          end

        split = %{
          parameters:
            splits(
              mesh,
              types.parameters,
              executable.parameters,
              types.parameter_shardings,
              of_parameters
            ),
          results:
            splits(mesh, types.results, executable.results, types.result_shardings, of_results)
        }

        %{executable | mesh: mesh, split: split}

      # Compiled for other devices than those of the mesh.
      _ ->
        executable
    end
  end

  defp splits(mesh, whole, local, given, native) do
    native = native || []

    native =
      if length(native) == length(whole), do: native, else: Enum.map(whole, fn _ -> nil end)

    Enum.zip_with([whole, local, given, native], fn [whole, local, given, native] ->
      sharding = Sharding.of_program(mesh, whole, local, given, native)

      slices =
        sharding &&
          for {_device, slice} <- Sharding.slices(sharding, whole.shape), do: Enum.unzip(slice)

      %{whole: whole, sharding: sharding, slices: slices}
    end)
  end

  defp types(native, types) when is_list(native) and length(native) == length(types) do
    Enum.map(native, &Typespec.from_native/1)
  end

  defp types(_native, types), do: types

  @doc false
  # The typespec and the binary of an input, or an error. The typespec is nil where none is given.
  def split_input(binary) when is_binary(binary), do: {:ok, nil, binary}

  def split_input({binary, template}) when is_binary(binary) do
    with {:ok, typespec} <- Typespec.cast(template), do: {:ok, typespec, binary}
  end

  def split_input(%{__struct__: Nx.Tensor} = tensor) do
    with {:ok, typespec} <- Typespec.cast(tensor),
         {:ok, binary} <- Typespec.from_tensor(tensor, typespec) do
      {:ok, typespec, binary}
    end
  end

  def split_input(other) do
    argument(
      "expected a buffer, a binary, a {binary, template} pair or an Nx.Tensor, got: " <>
        inspect(other)
    )
  end

  defp start_and_await(executable, inputs, opts, sharded) do
    with {:ok, executable} <- check_executable(executable),
         {:ok, opts} <- Options.validate(opts, @run_options ++ [timeout: :infinity]),
         {:ok, timeout} <- Options.timeout(opts) do
      Telemetry.span(:run, %{executable: executable}, fn ->
        with {:ok, async} <- start(executable, inputs, opts, sharded), do: await(async, timeout)
      end)
    end
  end

  defp start(executable, inputs, opts, sharded) do
    with {:ok, results} <- check_results(opts[:results]),
         {:ok, user_data} <- check_user_data(opts[:user_data]),
         {:ok, inputs} <- check_devices(executable, inputs, sharded) do
      ref = make_ref()
      options = {executable.donate, results == :buffer, user_data}

      case Native.executable_run(executable.ref, inputs, options, ref) do
        {:ok, ticket} ->
          {:ok,
           %Async{
             ref: ref,
             ticket: ticket,
             owner: self(),
             executable: executable,
             results: results,
             sharded: sharded
           }}

        {:error, error} ->
          {:error, Error.from_native(error)}
      end
    end
  end

  defp finish(async, {:ok, devices}) do
    devices
    |> map_ok(fn results ->
      map_ok(Enum.zip(results, async.executable.results), &value(async, &1))
    end)
    |> case do
      {:ok, devices} when not async.sharded -> together(async, devices)
      other -> other
    end
  end

  defp finish(_async, {:error, error}), do: {:error, error}

  defp together(%{executable: %{split: nil}}, [results]), do: {:ok, results}

  defp together(%{executable: %{split: split}} = async, devices) do
    devices |> Enum.zip_with(& &1) |> Enum.zip(split.results) |> map_ok(&join(async, &1))
  end

  defp join(%{results: :buffer}, {buffers, _split}), do: {:ok, buffers}
  defp join(_async, {[token | _], %{whole: %{type: :token}}}), do: {:ok, token}

  defp join(_async, {_parts, %{slices: nil, whole: whole}}) do
    argument(
      "no axes of the mesh describe how the result #{inspect(whole)} is split, so its parts cannot be put " <>
        "together; give it a sharding in the module, or use run_sharded/3"
    )
  end

  defp join(async, {parts, %{slices: slices, whole: whole}}) do
    bytes = Typespec.element_bytes(whole)
    dimensions = Tuple.to_list(whole.shape)

    joined =
      if light?(Typespec.byte_size(whole), slices),
        do: Native.tensor_join(parts, bytes, dimensions, slices),
        else: Native.tensor_join_dirty(parts, bytes, dimensions, slices)

    case {Native.from_native(joined), async.results} do
      {{:ok, binary}, :tensor} -> Typespec.to_tensor(binary, whole)
      {answer, _} -> answer
    end
  end

  # What stays well under a millisecond.
  defp light?(bytes, slices), do: bytes <= 64 * 1024 and length(slices) <= 64

  defp value(%{results: :buffer} = async, {ref, typespec}) do
    {:ok, Buffer.new(ref, async.executable.client, typespec)}
  end

  defp value(%{results: :binary}, {binary, _typespec}), do: {:ok, binary}

  # It becomes a tensor when it is whole.
  defp value(%{results: :tensor, sharded: false, executable: %{split: %{}}}, {binary, _typespec}),
    do: {:ok, binary}

  defp value(%{results: :tensor}, {binary, typespec}), do: Typespec.to_tensor(binary, typespec)

  defp check_executable(%__MODULE__{} = executable), do: {:ok, executable}

  defp check_executable(other), do: not_an_executable(other)

  defp not_an_executable(other) do
    argument("expected an EXLA.CustomCall.Executable, got: #{inspect(other)}")
  end

  defp check_sharded(sharded) when is_boolean(sharded), do: {:ok, sharded}

  defp check_sharded(other), do: Options.wrong(:sharded, "a boolean", other)

  defp check_results(results) when results in [:buffer, :binary], do: {:ok, results}

  # Before the run, which may take its inputs.
  defp check_results(:tensor) do
    case Code.ensure_loaded(Nx) do
      {:module, Nx} -> {:ok, :tensor}
      {:error, _reason} -> argument("there is no Nx to make tensors with")
    end
  end

  defp check_results(other) do
    Options.wrong(:results, ":buffer, :binary or :tensor", other)
  end

  defp check_user_data(%{} = data) when not is_struct(data) do
    case Enum.find(data, fn {name, bytes} -> not (is_binary(name) and is_binary(bytes)) end) do
      nil ->
        {:ok, Map.to_list(data)}

      {name, bytes} ->
        user_data("expected :user_data to map binaries to binaries", {name, bytes})
    end
  end

  defp check_user_data(other), do: user_data("expected :user_data to be a map", other)

  defp user_data(expected, got) do
    {:error, Error.new(:argument, "#{expected}, got: #{inspect(got)}", field: :user_data)}
  end

  defp check_devices(%{split: nil} = executable, inputs, false) do
    with {:ok, inputs} <- check(executable, inputs), do: {:ok, [inputs]}
  end

  defp check_devices(%{split: split} = executable, inputs, false) do
    with :ok <- check_count(executable, inputs),
         {:ok, parts} <-
           [executable.parameters, split.parameters, inputs, 0..(length(inputs) - 1)//1]
           |> Enum.zip()
           |> map_ok(fn {parameter, split, input, index} ->
             with {:error, error} <- hand_out(executable, parameter, split, input) do
               argument("input #{index}: #{error.message}")
             end
           end) do
      case parts do
        [] -> {:ok, List.duplicate([], Mesh.size(executable.mesh))}
        parts -> {:ok, Enum.zip_with(parts, & &1)}
      end
    end
  end

  defp check_devices(executable, inputs, true) do
    if SpecTerms.proper_list?(inputs) do
      inputs
      |> Enum.with_index()
      |> map_ok(fn {inputs, device} ->
        with {:error, error} <- check(executable, inputs) do
          argument("device #{device}: #{error.message}")
        end
      end)
    else
      argument("expected a list of inputs for each device, got: #{inspect(inputs)}")
    end
  end

  defp check(%{parameters: parameters} = executable, inputs) do
    with :ok <- check_count(executable, inputs) do
      [parameters, inputs, 0..(length(inputs) - 1)//1]
      |> Enum.zip()
      |> map_ok(fn {parameter, input, index} ->
        with {:error, error} <- check_input(executable, parameter, input) do
          argument("input #{index}: #{error.message}")
        end
      end)
    end
  end

  defp check_count(%{parameters: parameters}, inputs) do
    cond do
      not SpecTerms.proper_list?(inputs) ->
        argument("expected the inputs as a list, got: #{inspect(inputs)}")

      length(inputs) != length(parameters) ->
        argument("the executable takes #{length(parameters)} inputs, got #{length(inputs)}")

      true ->
        :ok
    end
  end

  # The part of each device, of a whole tensor or as given.
  defp hand_out(%{mesh: mesh} = executable, parameter, _split, parts) when is_list(parts) do
    if SpecTerms.proper_list?(parts) and length(parts) == Mesh.size(mesh) do
      parts
      |> Enum.with_index()
      |> map_ok(fn {part, device} ->
        with {:error, error} <- check_input(executable, parameter, part) do
          argument("device #{device}: #{error.message}")
        end
      end)
    else
      argument(
        "expected a whole tensor, or a list with the parts of #{Mesh.size(mesh)} devices, got: #{inspect(parts)}"
      )
    end
  end

  defp hand_out(_executable, _parameter, _split, %Buffer{typespec: typespec}) do
    argument(
      "a buffer is on one device, got #{inspect(typespec)}; give a list with the buffer of each device"
    )
  end

  defp hand_out(_executable, _parameter, %{slices: nil, whole: whole}, _input) do
    argument(
      "no axes of the mesh describe how #{inspect(whole)} is split; give a list with the part of each device"
    )
  end

  defp hand_out(executable, parameter, %{slices: slices, whole: whole}, input) do
    with {:ok, {_native, binary}} <- check_input(executable, whole, input) do
      bytes = Typespec.element_bytes(whole)
      dimensions = Tuple.to_list(whole.shape)
      native = Typespec.to_native(parameter)

      parts =
        if light?(byte_size(binary), slices),
          do: Native.tensor_split(binary, bytes, dimensions, slices),
          else: Native.tensor_split_dirty(binary, bytes, dimensions, slices)

      with {:ok, parts} <- Native.from_native(parts), do: {:ok, Enum.map(parts, &{native, &1})}
    end
  end

  # What the NIF takes: a buffer, or a type and a binary.
  defp check_input(_executable, parameter, %Buffer{typespec: typespec, ref: ref}) do
    if typespec == parameter do
      {:ok, ref}
    else
      argument("the executable takes #{inspect(parameter)}, got #{inspect(typespec)}")
    end
  end

  defp check_input(_executable, parameter, input) do
    with {:ok, typespec, binary} <- split_input(input) do
      cond do
        parameter.type == :token ->
          argument("a token cannot be given from outside; make it in the program")

        match?({kind, _} when kind in [:tuple, :buffer], parameter.type) ->
          argument("#{inspect(parameter)} cannot be given from outside; make it in the program")

        typespec not in [nil, parameter] ->
          argument("the executable takes #{inspect(parameter)}, got #{inspect(typespec)}")

        true ->
          with :ok <- Typespec.check_binary(parameter, binary) do
            {:ok, {Typespec.to_native(parameter), binary}}
          end
      end
    end
  end

  # Maps a list with a function that returns {:ok, value} or an error, which ends it.
  defp map_ok(list, fun) do
    list
    |> Enum.reduce_while({:ok, []}, fn element, {:ok, done} ->
      case fun.(element) do
        {:ok, value} -> {:cont, {:ok, [value | done]}}
        error -> {:halt, error}
      end
    end)
    |> case do
      {:ok, values} -> {:ok, Enum.reverse(values)}
      error -> error
    end
  end

  defp argument(message), do: {:error, Error.new(:argument, message)}

  defimpl Inspect do
    import Inspect.Algebra

    def inspect(executable, opts) do
      {parameters, results, place} =
        case executable do
          %{split: nil} ->
            {executable.parameters, executable.results, ""}

          %{split: split, mesh: mesh} ->
            whole = fn values -> Enum.map(values, & &1.whole) end
            {whole.(split.parameters), whole.(split.results), " on #{inspect(mesh)}"}
        end

      concat([
        "#EXLA.CustomCall.Executable<",
        to_doc(parameters, opts),
        " -> ",
        to_doc(results, opts),
        place <> ">"
      ])
    end
  end
end
