defmodule EXLA.CustomCall.Module do
  @moduledoc """
  A StableHLO module: built from values in one step, checked, and immutable.

      iex> alias EXLA.CustomCall.{Module, Spec, Typespec, Value}
      iex> type = Typespec.tensor({:f, 32}, {2})
      iex> x = Value.parameter(type)
      iex> [y] = Value.custom_call([x], %Spec{call_target_name: "scale"}, [type])
      iex> {:ok, module} = Module.build([x], [y])
      iex> to_string(module)
      ~S'''
      module {
        func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
          %0 = "stablehlo.custom_call"(%arg0) {api_version = 4 : i32, call_target_name = "scale"} : (tensor<2xf32>) -> tensor<2xf32>
          return %0 : tensor<2xf32>
        }
      }
      '''

  A module is kept as MLIR bytecode, checked and ready for the compiler. The MLIR that it was built
  as is freed before `build/3` returns, so a module weighs no more than its bytes.
  """

  alias EXLA.CustomCall.{
    Client,
    Context,
    Error,
    Graph,
    Mesh,
    Native,
    Options,
    Sharding,
    SpecTerms,
    Telemetry,
    Typespec,
    Value,
    Warning
  }

  alias EXLA.CustomCall.Value.Function

  @enforce_keys [:ref, :bytecode, :parameters, :results]
  defstruct [
    :ref,
    :bytecode,
    :parameters,
    :results,
    :mesh,
    parameter_shardings: [],
    result_shardings: [],
    warnings: []
  ]

  @typedoc """
  The parameters and results are those of the module's entry function, whole. The mesh is the one that
  the module's shardings speak of, or `nil`; a sharding is `nil` where none was given.
  """
  @type t :: %__MODULE__{
          ref: reference(),
          bytecode: binary(),
          parameters: [Typespec.t()],
          results: [Typespec.t()],
          mesh: Mesh.t() | nil,
          parameter_shardings: [Sharding.t() | nil],
          result_shardings: [Sharding.t() | nil],
          warnings: [Warning.t()]
        }

  @typedoc "A result of the entry function: a value, with its sharding or its attributes."
  @type result :: Value.t() | {Value.t(), Sharding.t() | Value.attributes()}

  @typedoc """
  A custom call that a module holds. Attribute texts are as MLIR prints them, sorted by name; a type
  that this package does not emit is its text.
  """
  @type custom_call :: %{
          function: binary(),
          call_target_name: binary(),
          api_version: integer(),
          attributes: [{binary(), binary()}],
          backend_config: binary() | nil,
          mlir_attributes: [{binary(), binary()}],
          operands: [Typespec.t() | binary()],
          results: [Typespec.t() | binary()]
        }

  # What is built, printed or read in well under a millisecond stays on the caller's scheduler:
  # at some 15 microseconds an operation and a parser that reads some 100 MB a second.
  @light_operations 24
  @light_bytes 8 * 1024

  @build_options [
    name: nil,
    function: "main",
    attributes: [],
    effects: [],
    functions: [],
    mesh: nil,
    parameter_shardings: [],
    result_shardings: [],
    meshes: [],
    context: nil,
    warnings: :log
  ]

  @doc """
  Builds a module whose entry function has these parameters and results.

  `results` are values, `{value, sharding}` for a result that is to be split over devices, or
  `{value, attributes}` for one with attributes of its own. All that the results depend on is emitted,
  the functions that are called included.

  ## Options

    * `:name` - the module's name, which XLA uses in dumps and profiles. Default: none.
    * `:function` - the name of the entry function, default `"main"`, as XLA wants it.
    * `:attributes` - attributes of the module, such as `[{"mhlo.num_partitions", "2 : i32"}]`.
    * `:effects` - values of operations to emit though no result depends on them, in order.
    * `:functions` - functions to emit though nothing calls them with
      `EXLA.CustomCall.Value.call/2`, such as those that an attribute names.
    * `:mesh` - the `EXLA.CustomCall.Mesh`, or `Nx.Mesh`, that the program runs on. Default: that of
      the shardings in it. `EXLA.CustomCall.Client.compile/3` makes a program with a mesh one of as
      many partitions as the mesh has devices.
    * `:parameter_shardings`, `:result_shardings` - how each is split, as
      `EXLA.CustomCall.Sharding.from/3` takes it, or `nil`: a list no longer than the parameters or
      results. Default: the `:sharding` of each value. A result without one is whole on each device.
    * `:meshes` - device meshes that shardings speak of by name, such as
      `[{"mesh", ~S(#sdy.mesh<["x"=2]>)}]`.
    * `:context` - an `EXLA.CustomCall.Context`; default: a fresh one with the default limits.
    * `:warnings` - what to do about an `EXLA.CustomCall.Warning`: `:log`, the default, writes each to
      the log once; `:ignore`; `:error` refuses the module. They are in the module's `:warnings` in any
      case.

  ## Errors

  A wrong name, text, spec or graph is an `EXLA.CustomCall.Error` that says where and what would be
  right:

      iex> alias EXLA.CustomCall.{Module, Spec, Value}
      iex> spec = %Spec{call_target_name: "scale", attributes: [{"k", "1 : i64}, evil = {"}]}
      iex> {:error, error} = Module.build([], [], effects: Value.custom_call([], spec, []))
      iex> error.message
      ~S(attributes: the text of "k" is not an MLIR attribute: found trailing characters: '}, evil = {', at line 1, column 8: "1 : i64}, evil = {")
      iex> {error.kind, error.field, error.name, error.line, error.column}
      {:text, :attributes, "k", 1, 8}
  """
  @spec build([Value.t()], [result()], keyword()) :: {:ok, t()} | {:error, Error.t()}
  def build(parameters, results, opts \\ []) do
    with {:ok, {context, graph, operations, bytes}, split, warn} <-
           flatten(parameters, results, opts),
         {:ok, {ref, bytecode, warnings}} <-
           Telemetry.span(:build, %{}, fn -> native_build(context, graph, operations, bytes) end),
         warnings = Enum.map(warnings, &Warning.from_native/1),
         :ok <- Warning.handle(warnings, warn) do
      {:ok,
       %__MODULE__{
         ref: ref,
         bytecode: bytecode,
         parameters: Enum.map(parameters, & &1.typespec),
         results: Enum.map(results, &result_typespec/1),
         mesh: split.mesh,
         parameter_shardings: split.parameters,
         result_shardings: split.results,
         warnings: warnings
       }}
    else
      {:error, %Error{} = error} -> {:error, error}
      {:error, native} -> {:error, Error.from_native(native)}
    end
  end

  # The graph for the NIF, its size, and what to do about warnings.
  defp flatten(parameters, results, opts) do
    with {:ok, opts} <- Options.validate(opts, @build_options),
         {:ok, parameters} <- Value.check_values(parameters, "parameters"),
         {:ok, results, result_attributes} <- split_results(results),
         {:ok, results} <- Value.check_values(results, "results"),
         {:ok, split} <- shardings(parameters, results, result_attributes, opts),
         {:ok, effects} <- Value.check_effects(opts[:effects]),
         :ok <- check_name(opts[:name], :name),
         :ok <- check_function_name(opts[:function]),
         :ok <- check_functions(opts[:functions]),
         :ok <- SpecTerms.check_pairs(opts[:attributes], :module_attributes),
         :ok <- SpecTerms.check_pairs(opts[:meshes], :meshes),
         :ok <- check_warnings(opts[:warnings]),
         :ok <- check_entry(opts[:function], parameters ++ results),
         {:ok, context} <- context_ref(opts[:context]),
         main = %Function{
           id: make_ref(),
           name: opts[:function],
           parameters: split.values,
           results: results,
           effects: effects,
           private: false
         },
         {:ok, functions, meshes, operations, bytes} <-
           Graph.flatten(main, split.attributes, opts[:functions]),
         {:ok, mesh, meshes} <- meshes(split.meshes ++ meshes, opts) do
      graph = {opts[:name], opts[:attributes], meshes, functions}
      split = Map.put(split, :mesh, mesh)
      {:ok, {context, graph, operations, bytes}, split, opts[:warnings]}
    end
  end

  # The parameters with their shardings, the results' attributes with theirs, and the meshes of all.
  defp shardings(parameters, results, attributes, opts) do
    mesh = opts[:mesh] && Mesh.from(opts[:mesh])
    given = cast_shardings(opts, :parameter_shardings, parameters, mesh)
    values = Enum.zip_with(parameters, given, &Value.with_sharding/2)
    given = cast_shardings(opts, :result_shardings, results, mesh)

    {attributes, shardings} =
      [results, attributes, given]
      |> Enum.zip_with(&result_sharding/1)
      |> Enum.unzip()

    parameters = Enum.map(values, & &1.sharding)

    {:ok,
     %{
       values: values,
       attributes: attributes,
       parameters: parameters,
       results: shardings,
       meshes:
         for(%{mesh: mesh} <- [%{mesh: mesh} | parameters ++ shardings], mesh != nil, do: mesh)
     }}
  rescue
    error in ArgumentError -> {:error, Error.new(:argument, error.message)}
  end

  defp cast_shardings(opts, option, values, mesh) do
    given = opts[option]

    unless SpecTerms.proper_list?(given) and length(given) <= length(values) do
      raise ArgumentError,
            "expected #{inspect(option)} as a list of at most #{length(values)}, one for each of #{length(values)} " <>
              "values, got: #{inspect(given)}"
    end

    given = given ++ List.duplicate(nil, length(values) - length(given))

    for {sharding, {value, index}} <- Enum.zip(given, Enum.with_index(values)) do
      cond do
        sharding == nil -> nil
        mesh == nil and not is_struct(sharding) -> raise ArgumentError, no_mesh(option, index)
        true -> Sharding.from(sharding, mesh, value.typespec)
      end
    end
  end

  defp no_mesh(option, index) do
    "#{inspect(option)}, at index #{index}: axes are those of a mesh; give the option :mesh"
  end

  # An attribute says it in text already; what is known of the value is said where it is not.
  defp result_sharding([_value, %Sharding{}, %Sharding{} = given]) do
    raise ArgumentError, "a result has two shardings; leave out #{inspect(given)}, or the other"
  end

  defp result_sharding([value, %Sharding{} = sharding, nil]),
    do: result_sharding([value, [], sharding])

  defp result_sharding([value, attributes, given]) do
    written? = List.keymember?(attributes, "sdy.sharding", 0)

    case given || value.sharding do
      nil ->
        {attributes, nil}

      _ when written? and given == nil ->
        {attributes, nil}

      _ when written? ->
        raise ArgumentError,
              "a result has a sharding and the attribute sdy.sharding; leave one out"

      sharding ->
        Value.sharding!(sharding, value.typespec)
        {attributes ++ [{"sdy.sharding", Kernel.to_string(sharding)}], sharding}
    end
  end

  # All meshes by name, with those that the caller wrote as texts, and the one that the program runs on.
  defp meshes(meshes, opts) do
    meshes = Enum.uniq(meshes)
    written = Enum.map(opts[:meshes], &elem(&1, 0))
    names = Enum.map(meshes, & &1.name)

    twice = List.first(names -- Enum.uniq(names))
    sizes = meshes |> Enum.map(&Mesh.size/1) |> Enum.uniq()

    cond do
      twice != nil ->
        [one, other | _] = Enum.filter(meshes, &(&1.name == twice))

        not_one_mesh(
          "two meshes are called #{inspect(twice)}: #{inspect(one)} and #{inspect(other)}; use one, or name them differently"
        )

      length(sizes) > 1 ->
        not_one_mesh(
          "the meshes have different sizes: #{Enum.map_join(meshes, ", ", &inspect/1)}; a program runs on as many " <>
            "devices as each of its meshes has"
        )

      true ->
        native = for mesh <- meshes, mesh.name not in written, do: Mesh.to_native(mesh)
        {:ok, List.first(meshes), opts[:meshes] ++ native}
    end
  end

  defp not_one_mesh(message), do: {:error, Error.new(:graph, message, field: :mesh)}

  defp result_typespec({value, _attributes}), do: value.typespec
  defp result_typespec(value), do: value.typespec

  # PJRT hands in and out tensors only, and takes a tuple apart without a word.
  defp check_entry("main", values) do
    is_one? = &match?({kind, _} when kind in [:tuple, :buffer], &1.typespec.type)

    case Enum.find(values, is_one?) do
      nil ->
        :ok

      %{typespec: typespec} ->
        {:error,
         Error.new(
           :type,
           "#{inspect(typespec)} cannot be a parameter or a result of main; make it in the program, " <>
             "and take a tuple apart with the operation stablehlo.get_tuple_element"
         )}
    end
  end

  defp check_entry(_function, _values), do: :ok

  defp check_warnings(option) when option in [:log, :ignore, :error], do: :ok

  defp check_warnings(other) do
    Options.wrong(:warnings, ":log, :ignore or :error", other)
  end

  @doc "Like `build/3`, but raises `ArgumentError` with the error's message."
  @spec build!([Value.t()], [result()], keyword()) :: t()
  def build!(parameters, results, opts \\ []) do
    parameters |> build(results, opts) |> Error.unwrap!()
  end

  @doc """
  The verdict of `build/3` without a module: what it warns of, or the error.

  Takes the arguments and options of `build/3`; the default of `:warnings` is `:ignore`. And:

    * `:compile` - an `EXLA.CustomCall.Client`, or `{client, options}` with those of
      `EXLA.CustomCall.Client.compile/3`: compile the module in an OS process of its own, see
      `EXLA.CustomCall.Trial`, and answer with what becomes of it.

  ## Examples

      iex> alias EXLA.CustomCall.{Module, Spec, Typespec, Value}
      iex> type = Typespec.tensor(:f32, {2, 3})
      iex> x = Value.parameter(type)
      iex> spec = %Spec{call_target_name: "k", mlir_attributes: [{"operand_layout", "unit"}]}
      iex> {:ok, [warning]} = Module.check([x], Value.custom_call([x], spec, [type]))
      iex> warning.message
      ~S(mlir_attributes: "operand_layout": XLA drops it: nothing of it reaches the HLO; did you mean operand_layouts?)
      iex> layouts = "[dense<[0, 0]> : tensor<2xindex>]"
      iex> spec = %{spec | mlir_attributes: [{"operand_layouts", layouts}, {"result_layouts", layouts}]}
      iex> {:error, error} = Module.check([x], Value.custom_call([x], spec, [type]))
      iex> hd(error.faults).message
      ~S(mlir_attributes: "operand_layouts": element 0: the layout [0, 0]; operand 0 is a tensor<2x3xf32>, so its layout holds each of 0 to 1 once, the dimension that varies fastest first, at line 1, column 2)
  """
  @spec check([Value.t()], [result()], keyword()) ::
          {:ok, [Warning.t()]} | {:error, Error.t()}
  def check(parameters, results, opts \\ []) do
    defaults = Keyword.replace!(@build_options, :warnings, :ignore) ++ [compile: nil]

    with {:ok, opts} <- Options.validate(opts, defaults) do
      {compile, opts} = Keyword.pop(opts, :compile)
      check(parameters, results, opts, compile)
    end
  end

  defp check(parameters, results, opts, nil) do
    with {:ok, {context, graph, operations, bytes}, _split, warn} <-
           flatten(parameters, results, opts),
         {:ok, warnings} <- native_check(context, graph, operations, bytes),
         warnings = Enum.map(warnings, &Warning.from_native/1),
         :ok <- Warning.handle(warnings, warn) do
      {:ok, warnings}
    else
      {:error, %Error{} = error} -> {:error, error}
      {:error, native} -> {:error, Error.from_native(native)}
    end
  end

  defp check(parameters, results, opts, compile) do
    with {:ok, client, compile} <- compile_options(compile),
         {:ok, module} <- build(parameters, results, opts),
         {:ok, {options, _timeout, trial}} <-
           compile |> Keyword.put_new(:trial, true) |> Client.normalize(module),
         :ok <- Client.try_out(client, module, options, trial) do
      {:ok, module.warnings}
    end
  end

  defp compile_options(%Client{} = client), do: {:ok, client, []}

  defp compile_options({%Client{} = client, opts}) when is_list(opts) do
    if Keyword.keyword?(opts), do: {:ok, client, opts}, else: not_to_compile({client, opts})
  end

  defp compile_options(other), do: not_to_compile(other)

  defp not_to_compile(other) do
    Options.wrong(:compile, "an EXLA.CustomCall.Client, or one and a keyword list", other)
  end

  @doc """
  The module as MLIR text. `Kernel.to_string/1` and string interpolation do the same.
  """
  @spec to_string(t()) :: String.t()
  def to_string(%__MODULE__{ref: ref}) do
    with nil <- Native.module_text(ref), do: unwrap_native!(Native.module_to_text_dirty(ref))
  end

  def to_string(other), do: not_a_module!(other)

  @doc """
  The module as MLIR bytecode: what `EXLA.CustomCall.Client.compile/3` hands to XLA.

  ## Examples

      iex> module = EXLA.CustomCall.Module.build!([], [])
      iex> <<"ML", 0xEF, "R", _rest::binary>> = EXLA.CustomCall.Module.to_bytecode(module)
      iex> :ok
      :ok
  """
  @spec to_bytecode(t()) :: binary()
  def to_bytecode(%__MODULE__{bytecode: bytecode}), do: bytecode
  def to_bytecode(other), do: not_a_module!(other)

  @doc """
  The custom calls that the module holds, read back from it, in the order in which it prints.

  ## Examples

      iex> alias EXLA.CustomCall.{Module, Spec, Value}
      iex> spec = %Spec{call_target_name: "k", attributes: [{"b", "true"}, {"a", "1 : i32"}]}
      iex> module = Module.build!([], [], effects: Value.custom_call([], spec, []))
      iex> [call] = Module.custom_calls(module)
      iex> call.attributes
      [{"a", "1 : i32"}, {"b", "true"}]
  """
  @spec custom_calls(t()) :: [custom_call()]
  def custom_calls(%__MODULE__{ref: ref}) do
    calls =
      with nil <- unwrap_native!(Native.module_custom_calls(ref)) do
        unwrap_native!(Native.module_custom_calls_dirty(ref))
      end

    for {function, target, api_version, config, mlir_attributes, operands, results} <- calls do
      {attributes, backend_config} =
        case config do
          :absent -> {[], nil}
          {:dictionary, entries} -> {entries, nil}
          {:bytes, bytes} -> {[], bytes}
        end

      %{
        function: function,
        call_target_name: target,
        api_version: api_version,
        attributes: attributes,
        backend_config: backend_config,
        mlir_attributes: mlir_attributes,
        operands: Enum.map(operands, &Typespec.from_native/1),
        results: Enum.map(results, &Typespec.from_native/1)
      }
    end
  end

  def custom_calls(other), do: not_a_module!(other)

  @spec not_a_module!(term()) :: no_return()
  defp not_a_module!(other) do
    raise ArgumentError, "expected an EXLA.CustomCall.Module, got: #{inspect(other)}"
  end

  # A context that others may be using can keep its caller waiting.
  defp native_build(nil, graph, operations, bytes)
       when operations <= @light_operations and bytes <= @light_bytes do
    Native.module_build(nil, graph)
  end

  defp native_build(context, graph, _operations, _bytes) do
    Native.module_build_dirty(context, graph)
  end

  defp native_check(nil, graph, operations, bytes)
       when operations <= @light_operations and bytes <= @light_bytes do
    Native.module_check(nil, graph)
  end

  defp native_check(context, graph, _operations, _bytes) do
    Native.module_check_dirty(context, graph)
  end

  # What was built is read back without fail, or it is a bug worth a report.
  defp unwrap_native!({:ok, value}), do: value
  defp unwrap_native!({:error, native}), do: raise(Error.from_native(native))

  defp split_results(results) do
    if SpecTerms.proper_list?(results) do
      {values, attributes} =
        results
        |> Enum.map(fn
          {value, attributes} -> {value, attributes}
          value -> {value, []}
        end)
        |> Enum.unzip()

      Enum.find_value(attributes, {:ok, values, attributes}, fn
        %Sharding{} -> nil
        attributes -> with :ok <- SpecTerms.check_pairs(attributes, :result_attributes), do: nil
      end)
    else
      {:error,
       Error.new(:argument, "results: expected a list of values, got: #{inspect(results)}")}
    end
  end

  defp check_function_name(nil), do: not_a_name(nil, :function)
  defp check_function_name(name), do: check_name(name, :function)

  defp check_name(nil, _option), do: :ok
  defp check_name(name, _option) when is_binary(name), do: :ok
  defp check_name(other, option), do: not_a_name(other, option)

  defp not_a_name(other, option) do
    Options.wrong(option, "a binary", other)
  end

  defp check_functions(functions) do
    if SpecTerms.proper_list?(functions) and Enum.all?(functions, &is_struct(&1, Function)) do
      :ok
    else
      Options.wrong(:functions, "a list of EXLA.CustomCall.Value.function/4", functions)
    end
  end

  defp context_ref(nil), do: {:ok, nil}
  defp context_ref(%Context{ref: ref}), do: {:ok, ref}

  defp context_ref(other) do
    Options.wrong(:context, "an EXLA.CustomCall.Context", other)
  end

  defimpl String.Chars do
    def to_string(module), do: EXLA.CustomCall.Module.to_string(module)
  end

  defimpl Inspect do
    import Inspect.Algebra

    def inspect(module, opts) do
      concat([
        "#EXLA.CustomCall.Module<",
        to_doc(module.parameters, opts),
        " -> ",
        to_doc(module.results, opts),
        ">"
      ])
    end
  end
end
