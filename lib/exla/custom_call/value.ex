defmodule EXLA.CustomCall.Value do
  @moduledoc """
  A value of a graph: what an operation reads and makes.

  A graph is built from values and is plain, immutable data; nothing native happens until
  `EXLA.CustomCall.Module.build/3` sends the whole of it to MLIR at once:

      iex> alias EXLA.CustomCall.{Module, Spec, Typespec, Value}
      iex> type = Typespec.tensor({:f, 32}, {4})
      iex> x = Value.parameter(type)
      iex> [y] = Value.custom_call([x], %Spec{call_target_name: "my_kernel"}, [type])
      iex> [z] = Value.op("stablehlo.add", [x, y], [type])
      iex> module = Module.build!([x], [z])
      iex> to_string(module) =~ "stablehlo.add"
      true

  Operations that make several values return them as a list. An operation without results returns a
  list with one value that stands for the operation alone: pass it as an effect, so that it is part
  of the module.

  An operation lands in the innermost region that holds all of its uses: what only one branch of a
  `stablehlo.if` uses is computed in that branch.

  The functions here raise `ArgumentError` for terms of the wrong shape. What depends on the whole
  graph, and the attribute texts, is checked by `EXLA.CustomCall.Module.build/3`.

  Values share their operands. Sending a value to another process, or printing it with `structs:
  false`, copies whatever is shared once a use; build the module first, and send that.
  """

  alias EXLA.CustomCall.{Attribute, Error, Mesh, Options, Partition, Sharding, Spec, SpecTerms}
  alias EXLA.CustomCall.Typespec
  alias EXLA.CustomCall.Value.{Function, Operation, Region}

  @enforce_keys [:operation, :index, :typespec]
  defstruct [:operation, :index, :typespec, :sharding]

  @typedoc """
  The `:typespec` is `nil` for a value that stands for an operation without results; the `:sharding`
  where none is known.
  """
  @type t :: %__MODULE__{
          operation: Operation.t(),
          index: non_neg_integer(),
          typespec: Typespec.t() | nil,
          sharding: Sharding.t() | nil
        }

  @typedoc "Attributes as `{name, text}` pairs of binaries."
  @type attributes :: [{String.t(), binary()}]

  @doc """
  A parameter of a function.

  ## Options

    * `:sharding` - how it is split over devices, an `EXLA.CustomCall.Sharding`.
    * `:attributes` - attributes of the parameter, such as
      `[{"sdy.sharding", "#sdy.sharding<@mesh, [{\\"x\\"}]>"}]`.

  ## Examples

      iex> EXLA.CustomCall.Value.parameter(EXLA.CustomCall.Typespec.tensor({:f, 32}, {2}))
      #EXLA.CustomCall.Value<parameter f32[2]>
  """
  @spec parameter(Typespec.t() | map(), keyword()) :: t()
  def parameter(template, opts \\ []) do
    opts = options!(opts, attributes: [], sharding: nil)

    %Operation{
      id: make_ref(),
      kind: :parameter,
      results: [Typespec.from(template)],
      attributes: pairs!(opts[:attributes], :parameter_attributes)
    }
    |> one()
    |> with_sharding(opts[:sharding])
  end

  @doc false
  # A parameter that is split this way, if it is not yet.
  def with_sharding(value, nil), do: value
  def with_sharding(%{sharding: sharding} = value, sharding), do: value

  def with_sharding(%{sharding: nil, operation: operation} = value, sharding) do
    sharding = sharding!(sharding, value.typespec)

    if List.keymember?(operation.attributes, "sdy.sharding", 0) do
      raise ArgumentError,
            "a parameter has a :sharding and the attribute sdy.sharding; leave one out"
    end

    attributes = operation.attributes ++ [{"sdy.sharding", to_string(sharding)}]
    operation = %{operation | attributes: attributes, meshes: [sharding.mesh]}
    %{value | operation: operation, sharding: sharding}
  end

  def with_sharding(value, sharding) do
    raise ArgumentError,
          "a parameter has the sharding #{inspect(value.sharding)} already, got: #{inspect(sharding)}"
  end

  @doc false
  def sharding!(sharding, typespec) do
    # The rank, and sizes that the devices divide.
    Sharding.local_shape(sharding, typespec.shape)
    sharding
  end

  @doc """
  A `stablehlo.custom_call` of `operands` as `spec` says, with results of the given types.

  Operands whose element type differs from the spec's `:operand_element_types` are converted first.

  ## Options

  Without options the call is one operation. XLA runs it on whole tensors, on each device, and gathers
  operands that are split: it splits a custom call only with a C++ partitioner that was registered with
  it. `:partition` splits the call here, by its sharding rule, so that each device runs the kernel on
  its own part:

    * `:partition` - which axes of the mesh split which factors of the rule: a map such as
      `%{heads: "model"}`, to an axis or a list of axes, the major one first; or `:auto`, to take those
      that split the operands. A factor is named exactly as in the rule: `"i"`, `"j"`, ... where the
      rule is a text, which has no other names; or by a dimension whose major factor it is: `{:operand, 1, 2}`, `{:result, 0, 0}`. `%{}`
      splits nothing: each device runs the call on the whole, as one with an effect has to be.
    * `:mesh` - the mesh; default: that of the operands' shardings.
    * `:sharding_rule` - an `EXLA.CustomCall.ShardingRule`, or its text; default: that of the spec's
      `mlir_attributes`.
    * `:reduce` - how results are combined where a factor that the call reduces over is split: `:sum`,
      the default, `:product`, `:max`, `:min`, `:and`, `:or`, or `nil` where all devices have the
      result already; or a list of these, one a result.
    * `:local` - a function of the operands' and the results' typespecs on one device to the spec of
      the call on one device, for a spec that depends on sizes. Default: `spec` itself.

  A spec without layouts gets row-major ones, since XLA would otherwise choose them by what it inserts
  around the call. The call is then inside a `sdy.manual_computation` over the axes of the mesh, and its results have a
  `:sharding`. See the guide to [sharding](sharding.md).

  ## Examples

      iex> alias EXLA.CustomCall.{Attribute, Mesh, Sharding, Spec, Typespec, Value}
      iex> rows = Sharding.new(Mesh.new(x: 2), ["x", nil])
      iex> type = Typespec.tensor({:f, 32}, {4, 8})
      iex> rule = Attribute.sharding_rule([[:rows, :columns]], [[:rows, :columns]],
      ...>   [rows: 4, columns: 8], need_replication: [:columns])
      iex> spec = %Spec{call_target_name: "softmax", mlir_attributes: [{"sdy.sharding_rule", rule}]}
      iex> x = Value.parameter(type, sharding: rows)
      iex> [y] = Value.custom_call([x], spec, [type], partition: :auto)
      iex> y.sharding == rows
      true
      iex> Value.custom_call([x], spec, [type], partition: %{"j" => "x"})
      ** (ArgumentError) partition: operand 0, dimension 1 of {4, 8}: the factor j needs replication, so "x" cannot split it: each device needs all of it; split i by "x", or leave it whole
  """
  @spec custom_call([t()], EXLA.CustomCall.Spec.t(), [Typespec.t() | map()], keyword()) :: [t()]
  def custom_call(operands, spec, results, opts \\ []) do
    defaults = [partition: nil, mesh: nil, sharding_rule: nil, reduce: :sum, local: nil]
    opts = options!(opts, defaults)
    operands = values!(operands, "operands")
    results = typespecs!(results)
    types = Error.unwrap!(SpecTerms.check(spec, Enum.map(operands, & &1.typespec)))

    if opts[:partition] do
      partitioned_call(plan!(operands, spec, results, opts), operands, spec, results, opts)
    else
      plain_call(operands, types, spec, results)
    end
  end

  defp plain_call(operands, types, spec, results) do
    operands =
      Enum.zip_with(operands, types, fn
        %{typespec: %{type: type}} = operand, type -> operand
        operand, type -> convert(operand, type)
      end)

    many(%Operation{
      id: make_ref(),
      kind: {:custom_call, spec},
      operands: operands,
      results: results
    })
  end

  defp plan!(operands, spec, results, opts) do
    rule = Error.unwrap!(Partition.rule(opts[:sharding_rule], spec))
    typespecs = Enum.map(operands, & &1.typespec)
    shardings = Enum.map(operands, & &1.sharding)

    rule
    |> Partition.plan(opts[:partition], opts[:mesh], typespecs, shardings, results)
    |> Error.unwrap!()
  end

  # The call on one device's parts, inside the operation that hands out and collects them.
  defp partitioned_call(plan, operands, spec, results, opts) do
    {out_shardings, local_results} = Enum.unzip(plan.results)
    local_operands = Enum.map(plan.operands, &elem(&1, 1))
    reductions = reductions!(opts[:reduce], length(results))

    spec =
      opts[:local]
      |> local_spec(spec, local_operands, local_results)
      |> row_major(local_operands, local_results)

    values =
      if Mesh.size(plan.mesh) == 1 do
        # A program for one device is not partitioned, and XLA leaves such operations in it.
        custom_call(operands, spec, results)
      else
        manual_computation(plan, operands, results, fn arguments ->
          values = custom_call(arguments, spec, local_results)

          # One value that stands for the call, or those of its results.
          if results == [],
            do: values,
            else: Enum.zip_with(values, reductions, &all_reduce(&1, &2, plan))
        end)
      end

    if results == [],
      do: values,
      else: Enum.zip_with(values, out_shardings, &%{&1 | sharding: &2})
  end

  # Around a partitioned call XLA inserts operations of its own, and then chooses the layouts of a call
  # that has none as suits these. A kernel expects what it would get on one device.
  defp row_major(%Spec{mlir_attributes: attributes} = spec, operands, results)
       when is_list(attributes) do
    given? = fn name -> List.keymember?(attributes, name, 0) end

    if given?.("operand_layouts") or given?.("result_layouts") do
      spec
    else
      layouts = [
        {"operand_layouts", Attribute.row_major(operands)},
        {"result_layouts", Attribute.row_major(results)}
      ]

      %{spec | mlir_attributes: attributes ++ layouts}
    end
  end

  defp row_major(spec, _operands, _results), do: spec

  defp manual_computation(plan, operands, results, body) do
    {in_shardings, local_operands} = Enum.unzip(plan.operands)
    out_shardings = Enum.map(plan.results, &elem(&1, 0))

    region =
      if results == [],
        do: region(local_operands, fn _ -> [] end, terminator: "sdy.return", effects: body),
        else: region(local_operands, body, terminator: "sdy.return")

    # All axes, those that split nothing too: along them each device does the same. Left to the SPMD
    # partitioner, a call with an effect would be refused.
    axes = Enum.map_join(plan.mesh.axes, ", ", fn {axis, _size} -> Mesh.quoted(axis) end)

    many(%Operation{
      id: make_ref(),
      kind:
        {:generic, "sdy.manual_computation",
         [
           {"in_shardings", Sharding.per_value(in_shardings)},
           {"out_shardings", Sharding.per_value(out_shardings)},
           {"manual_axes", "#sdy<manual_axes{#{axes}}>"}
         ]},
      operands: operands,
      results: results,
      regions: [region],
      meshes: [plan.mesh]
    })
  end

  # On one device there is nothing left to split.
  defp local_spec(nil, spec, operands, results) do
    local_spec(fn _operands, _results -> spec end, spec, operands, results)
  end

  defp local_spec(fun, _spec, operands, results) when is_function(fun, 2) do
    case fun.(operands, results) do
      %{mlir_attributes: attributes} = spec when is_list(attributes) ->
        if List.keymember?(attributes, "sdy.sharding", 0) do
          raise ArgumentError,
                "partition: the spec has sdy.sharding, which says how its results are split; leave it " <>
                  "out, the partition says it"
        end

        %{spec | mlir_attributes: List.keydelete(attributes, "sdy.sharding_rule", 0)}

      spec ->
        spec
    end
  end

  defp local_spec(other, _spec, _operands, _results) do
    raise ArgumentError,
          "expected :local to be a function of the local operands and results, got: #{inspect(other)}"
  end

  @reductions [
    sum: "stablehlo.add",
    product: "stablehlo.multiply",
    max: "stablehlo.maximum",
    min: "stablehlo.minimum",
    and: "stablehlo.and",
    or: "stablehlo.or"
  ]

  defp reductions!(reduction, count) do
    reductions = if is_list(reduction), do: reduction, else: List.duplicate(reduction, count)
    known = [nil | Keyword.keys(@reductions)]

    unless SpecTerms.proper_list?(reductions) and Enum.all?(reductions, &(&1 in known)) and
             length(reductions) == count do
      raise ArgumentError,
            "expected :reduce to be one of #{Enum.map_join(known, ", ", &inspect/1)}, or a list of one for " <>
              "each of the #{count} results, got: #{inspect(reduction)}"
    end

    reductions
  end

  defp all_reduce(value, nil, _plan), do: value
  defp all_reduce(value, _reduction, %{reduced: []}), do: value

  defp all_reduce(%{typespec: %{type: {kind, _} = type}}, reduction, _plan)
       when (reduction in [:max, :min] and kind == :c) or
              (reduction in [:and, :or] and kind not in [:pred, :s, :u]) do
    raise ArgumentError,
          "reduce: #{inspect(reduction)} does not combine elements of #{inspect(type)}; take :sum or :product"
  end

  defp all_reduce(%{typespec: typespec} = value, reduction, plan) do
    groups = Mesh.groups(plan.mesh, plan.reduced)
    scalar = %{typespec | shape: {}}

    region =
      region([scalar, scalar], fn arguments -> op(@reductions[reduction], arguments, [scalar]) end)

    {rows, columns} = {length(groups), length(hd(groups))}

    one(%Operation{
      id: make_ref(),
      kind:
        {:collective, "stablehlo.all_reduce",
         [
           {"replica_groups",
            "dense<#{inspect(groups, limit: :infinity, charlists: :as_lists)}> : " <>
              "tensor<#{rows}x#{columns}xi64>"},
           {"use_global_device_ids", "unit"}
         ]},
      operands: [value],
      results: [typespec],
      regions: [region]
    })
  end

  @doc """
  The value, split over devices as `sharding` says: a `sdy.sharding_constraint`.

  ## Examples

      iex> alias EXLA.CustomCall.{Mesh, Sharding, Typespec, Value}
      iex> x = Value.parameter(Typespec.tensor({:f, 32}, {4}))
      iex> Value.shard(x, Sharding.new(Mesh.new(x: 2), ["x"])).sharding
      #EXLA.CustomCall.Sharding<@mesh, [{"x"}]>
  """
  @spec shard(t(), Sharding.t()) :: t()
  def shard(value, sharding) do
    [%{typespec: typespec}] = values!([value], "value")
    sharding = sharding!(sharding, typespec)

    value =
      one(%Operation{
        id: make_ref(),
        kind: {:generic, "sdy.sharding_constraint", [{"sharding", to_string(sharding)}]},
        operands: [value],
        results: [typespec],
        meshes: [sharding.mesh]
      })

    %{value | sharding: sharding}
  end

  @doc """
  A `stablehlo.convert` of the value to another element type; the shape stays.

  ## Examples

      iex> alias EXLA.CustomCall.{Typespec, Value}
      iex> Value.convert(Value.parameter(Typespec.tensor({:s, 32}, {2})), {:f, 32})
      #EXLA.CustomCall.Value<stablehlo.convert f32[2]>
  """
  @spec convert(t(), Typespec.type() | atom()) :: t()
  def convert(value, type) do
    [%{typespec: %{type: from, shape: shape} = typespec}] = values!([value], "value")

    if from == :token or match?({kind, _} when kind in [:tuple, :buffer], from) do
      raise ArgumentError,
            "expected a tensor to convert to #{inspect(type)}, got: #{inspect(typespec)}"
    end

    [converted] = op("stablehlo.convert", [value], [Typespec.tensor(type, shape)])
    converted
  end

  @doc """
  Any operation, by its name in MLIR.

  ## Options

    * `:attributes` - `{name, text}` pairs of binaries.
    * `:regions` - a list of regions, see `region/3`.

  ## Examples

      iex> alias EXLA.CustomCall.{Typespec, Value}
      iex> x = Value.parameter(Typespec.tensor({:f, 32}, {2, 3}))
      iex> [y] =
      ...>   Value.op("stablehlo.transpose", [x], [Typespec.tensor({:f, 32}, {3, 2})],
      ...>     attributes: [{"permutation", "array<i64: 1, 0>"}]
      ...>   )
      iex> y
      #EXLA.CustomCall.Value<stablehlo.transpose f32[3][2]>
  """
  @spec op(String.t(), [t()], [Typespec.t() | map()], keyword()) :: [t()]
  def op(name, operands, results, opts \\ []) do
    opts = options!(opts, attributes: [], regions: [])

    unless is_binary(name) do
      raise ArgumentError,
            "expected the name of an operation as a binary such as \"stablehlo.add\", got: " <>
              inspect(name)
    end

    unless SpecTerms.proper_list?(opts[:regions]) and
             Enum.all?(opts[:regions], &is_struct(&1, Region)) do
      raise ArgumentError,
            "expected :regions to be a list of EXLA.CustomCall.Value.region/3, got: " <>
              inspect(opts[:regions])
    end

    many(%Operation{
      id: make_ref(),
      kind: {:generic, name, pairs!(opts[:attributes], :operation_attributes)},
      operands: values!(operands, "operands"),
      results: typespecs!(results),
      regions: opts[:regions]
    })
  end

  @doc """
  A region for `op/4`. The function gets the region's arguments as a list, and returns the list of
  values that the region ends with; values from outside may be used in it.

  ## Options

    * `:terminator` - the operation that ends the region, default `"stablehlo.return"`.
    * `:effects` - values of operations that belong to the region though no result depends on them,
      as a function of the arguments.

  ## Examples

      iex> alias EXLA.CustomCall.{Typespec, Value}
      iex> scalar = Typespec.tensor({:f, 32}, {})
      iex> sum = Value.region([scalar, scalar], fn [a, b] ->
      ...>   Value.op("stablehlo.add", [a, b], [scalar])
      ...> end)
      iex> length(sum.arguments)
      2
  """
  @spec region([Typespec.t() | map()], ([t()] -> [t()]), keyword()) :: Region.t()
  def region(arguments, fun, opts \\ []) do
    opts = options!(opts, terminator: nil, effects: nil)
    check_function!(fun, "the body of a region")
    opts[:effects] && check_function!(opts[:effects], ":effects of a region")
    id = make_ref()

    arguments =
      arguments
      |> typespecs!()
      |> Enum.map(&one(%Operation{id: make_ref(), kind: {:argument, id}, results: [&1]}))

    effects = opts[:effects]

    unless is_nil(opts[:terminator]) or is_binary(opts[:terminator]) do
      raise ArgumentError,
            "expected :terminator to be a binary such as \"sdy.return\", got: " <>
              inspect(opts[:terminator])
    end

    %Region{
      id: id,
      arguments: arguments,
      results: values!(fun.(arguments), "results of a region"),
      effects: if(effects, do: effects!(effects.(arguments)), else: []),
      terminator: opts[:terminator]
    }
  end

  @doc """
  A constant from its bytes: elements in row-major order and native byte order, each as wide as
  `EXLA.CustomCall.Typespec` says. The bytes reach XLA as they are, never as text.

  ## Examples

      iex> alias EXLA.CustomCall.{Typespec, Value}
      iex> Value.constant(<<1.0::32-float-native, 2.0::32-float-native>>, Typespec.tensor({:f, 32}, {2}))
      #EXLA.CustomCall.Value<stablehlo.constant f32[2]>
  """
  @spec constant(binary(), Typespec.t() | map()) :: t()
  def constant(binary, template) do
    typespec = Typespec.from(template)

    unless is_binary(binary) do
      raise ArgumentError, "expected a constant as a binary, got: #{inspect(binary)}"
    end

    one(%Operation{id: make_ref(), kind: {:constant, binary}, results: [typespec]})
  end

  @doc """
  A function that `call/2` can call. It is part of every module that calls it.

  ## Options

    * `:private` - whether it can be called from its module only, default `true`.
    * `:effects` - values of operations that belong to the function though no result depends on
      them.
  """
  @spec function(String.t(), [t()], [t()], keyword()) :: Function.t()
  def function(name, parameters, results, opts \\ []) do
    opts = options!(opts, private: true, effects: [])

    unless is_binary(name) do
      raise ArgumentError, "expected the name of a function as a binary, got: #{inspect(name)}"
    end

    unless is_boolean(opts[:private]) do
      raise ArgumentError, "expected :private to be a boolean, got: #{inspect(opts[:private])}"
    end

    %Function{
      id: make_ref(),
      name: name,
      parameters: values!(parameters, "parameters"),
      results: values!(results, "results"),
      effects: effects!(opts[:effects]),
      private: opts[:private]
    }
  end

  @doc "A call of a function, with its results."
  @spec call(Function.t(), [t()]) :: [t()]
  def call(function, operands)

  def call(%Function{} = function, operands) do
    many(%Operation{
      id: make_ref(),
      kind: {:call, function},
      operands: values!(operands, "operands"),
      results: Enum.map(function.results, & &1.typespec)
    })
  end

  def call(other, _operands) do
    raise ArgumentError,
          "expected a function of EXLA.CustomCall.Value.function/4, got: #{inspect(other)}"
  end

  defp check_function!(fun, place) do
    unless is_function(fun, 1) do
      raise ArgumentError,
            "expected #{place} to be a function of the region's arguments, got: #{inspect(fun)}"
    end
  end

  defp one(operation), do: operation |> many() |> hd()

  defp many(%Operation{results: []} = operation) do
    [%__MODULE__{operation: operation, index: 0, typespec: nil}]
  end

  defp many(%Operation{results: results} = operation) do
    results
    |> Enum.with_index()
    |> Enum.map(fn {typespec, index} ->
      %__MODULE__{operation: operation, index: index, typespec: typespec}
    end)
  end

  @doc false
  def values!(values, place), do: values |> check_values(place) |> Error.unwrap!()

  @doc false
  def check_values(values, place) do
    if SpecTerms.proper_list?(values) do
      Enum.find_value(values, {:ok, values}, fn
        %__MODULE__{operation: %Operation{results: results}, index: index, typespec: %Typespec{}}
        when is_integer(index) and index >= 0 and index < length(results) ->
          nil

        %__MODULE__{operation: %Operation{results: [_ | _]} = operation, index: index} ->
          {:error,
           Error.new(
             :graph,
             "#{place}: #{Operation.name(operation)} has no result #{inspect(index)}, only " <>
               "#{length(operation.results)}, counted from 0"
           )}

        %__MODULE__{operation: %Operation{} = operation} ->
          {:error,
           Error.new(
             :graph,
             "#{place}: #{Operation.name(operation)} has no results; pass its value as an effect"
           )}

        other ->
          {:error,
           Error.new(:argument, "#{place}: expected values, got: #{inspect(other)} among them")}
      end)
    else
      {:error,
       Error.new(:argument, "#{place}: expected a list of values, got: #{inspect(values)}")}
    end
  end

  @doc false
  # A name in a message: any bytes that somebody gave.
  def show(name), do: if(String.printable?(name), do: name, else: inspect(name))

  @doc false
  def effects!(effects), do: effects |> check_effects() |> Error.unwrap!()

  @doc false
  def check_effects(effects) do
    if SpecTerms.proper_list?(effects) and Enum.all?(effects, &is_struct(&1, __MODULE__)) do
      {:ok, effects}
    else
      {:error,
       Error.new(:argument, "effects: expected a list of values, got: #{inspect(effects)}")}
    end
  end

  defp typespecs!(templates) do
    unless SpecTerms.proper_list?(templates) do
      raise ArgumentError, "expected a list of templates, got: #{inspect(templates)}"
    end

    Enum.map(templates, &Typespec.from/1)
  end

  defp pairs!(attributes, field) do
    Error.unwrap!(SpecTerms.check_pairs(attributes, field))
    attributes
  end

  defp options!(opts, defaults) do
    opts |> Options.validate(defaults) |> Error.unwrap!()
  end

  defimpl Inspect do
    # The operands are a graph that shares values: printed in full it could grow without bound.
    def inspect(%{operation: operation, typespec: typespec}, _opts) do
      name = EXLA.CustomCall.Value.Operation.name(operation)

      case typespec do
        nil -> "#EXLA.CustomCall.Value<#{name}>"
        typespec -> "#EXLA.CustomCall.Value<#{name} #{EXLA.CustomCall.Typespec.short(typespec)}>"
      end
    end
  end
end
