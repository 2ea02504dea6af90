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

  alias EXLA.CustomCall.{Error, SpecTerms, Typespec}
  alias EXLA.CustomCall.Value.{Function, Operation, Region}

  @enforce_keys [:operation, :index, :typespec]
  defstruct [:operation, :index, :typespec]

  @typedoc "The `:typespec` is `nil` for a value that stands for an operation without results."
  @type t :: %__MODULE__{
          operation: Operation.t(),
          index: non_neg_integer(),
          typespec: Typespec.t() | nil
        }

  @typedoc "Attributes as `{name, text}` pairs of binaries."
  @type attributes :: [{String.t(), binary()}]

  @doc """
  A parameter of a function.

  ## Options

    * `:attributes` - attributes of the parameter, such as
      `[{"sdy.sharding", "#sdy.sharding<@mesh, [{\\"x\\"}]>"}]`.

  ## Examples

      iex> EXLA.CustomCall.Value.parameter(EXLA.CustomCall.Typespec.tensor({:f, 32}, {2}))
      #EXLA.CustomCall.Value<parameter f32[2]>
  """
  @spec parameter(Typespec.t() | map(), keyword()) :: t()
  def parameter(template, opts \\ []) do
    opts = options!(opts, attributes: [])

    %Operation{
      id: make_ref(),
      kind: :parameter,
      results: [Typespec.from(template)],
      attributes: pairs!(opts[:attributes], :parameter_attributes)
    }
    |> one()
  end

  @doc """
  A `stablehlo.custom_call` of `operands` as `spec` says, with results of the given types.

  Operands whose element type differs from the spec's `:operand_element_types` are converted first.
  """
  @spec custom_call([t()], EXLA.CustomCall.Spec.t(), [Typespec.t() | map()]) :: [t()]
  def custom_call(operands, spec, results) do
    operands = values!(operands, "operands")
    results = typespecs!(results)
    types = Error.unwrap!(SpecTerms.check(spec, Enum.map(operands, & &1.typespec)))

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
    opts |> EXLA.CustomCall.Options.validate(defaults) |> Error.unwrap!()
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
