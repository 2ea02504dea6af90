defmodule EXLA.CustomCall.Attribute do
  @moduledoc """
  MLIR attribute texts from Elixir terms.

  The functions return binaries for the `attributes` and `mlir_attributes` of an
  `EXLA.CustomCall.Spec`, and raise `ArgumentError` for a term that has no such attribute:

      iex> alias EXLA.CustomCall.{Attribute, Spec}
      iex> spec = %Spec{
      ...>   call_target_name: "attention",
      ...>   attributes: [
      ...>     {"causal", Attribute.boolean(true)},
      ...>     {"softmax_scale", Attribute.float(0.125, {:f, 32})}
      ...>   ],
      ...>   mlir_attributes: [
      ...>     {"operand_layouts", Attribute.layouts([[1, 0], [0]])},
      ...>     {"result_layouts", Attribute.layouts([[1, 0]])}
      ...>   ]
      ...> }
      iex> spec.attributes
      [{"causal", "true"}, {"softmax_scale", "0.125 : f32"}]

  Types are Nx types, as in `EXLA.CustomCall.Typespec`.
  """

  alias EXLA.CustomCall.{Error, Native, SpecTerms, Typespec}

  @doc """
  An integer of the given type, default `{:s, 64}`; refused when it does not fit.

  ## Examples

      iex> EXLA.CustomCall.Attribute.integer(42)
      "42 : i64"

      iex> EXLA.CustomCall.Attribute.integer(255, {:u, 8})
      "255 : ui8"

      iex> EXLA.CustomCall.Attribute.integer(256, {:u, 8})
      ** (ArgumentError) 256 does not fit {:u, 8}, whose values are 0 to 255
  """
  @spec integer(integer(), Typespec.type() | atom()) :: String.t()
  def integer(value, type \\ {:s, 64}) do
    type = type!(type, [:s, :u])
    "#{integer_literal(value, type)} : #{Typespec.element_text(type)}"
  end

  @doc """
  A float of the given type, default `{:f, 32}`. Takes integers and `:nan`, `:infinity` and
  `:neg_infinity` too; refuses what is too large for the type.

  ## Examples

      iex> EXLA.CustomCall.Attribute.float(0.5)
      "0.5 : f32"

      iex> EXLA.CustomCall.Attribute.float(1, {:f, 64})
      "1.0 : f64"

      iex> EXLA.CustomCall.Attribute.float(:neg_infinity)
      "0xFF800000 : f32"
  """
  @spec float(number() | :nan | :infinity | :neg_infinity, Typespec.type() | atom()) :: String.t()
  def float(value, type \\ {:f, 32}) do
    type = type!(type, [:f, :bf, :f8_e4m3fn])
    "#{float_literal(value, type)} : #{Typespec.element_text(type)}"
  end

  @doc ~S"""
  A string of any bytes.

  ## Examples

      iex> EXLA.CustomCall.Attribute.string("say \"hi\"\n")
      ~S("say \22hi\22\0A")
  """
  @spec string(binary()) :: String.t()
  def string(value) when is_binary(value) do
    escaped =
      for <<byte <- value>>, into: "" do
        if byte in 0x20..0x7E and byte not in [?", ?\\] do
          <<byte>>
        else
          "\\" <> Base.encode16(<<byte>>)
        end
      end

    "\"" <> escaped <> "\""
  end

  def string(other), do: raise(ArgumentError, "expected a binary, got: #{inspect(other)}")

  @doc """
  A boolean.

  ## Examples

      iex> EXLA.CustomCall.Attribute.boolean(false)
      "false"
  """
  @spec boolean(boolean()) :: String.t()
  def boolean(value) when is_boolean(value), do: Atom.to_string(value)
  def boolean(other), do: raise(ArgumentError, "expected a boolean, got: #{inspect(other)}")

  @doc """
  A one-dimensional array of numbers or booleans, which a handler gets as an array.

  ## Examples

      iex> EXLA.CustomCall.Attribute.array([1, 2, 3], {:s, 32})
      "array<i32: 1, 2, 3>"

      iex> EXLA.CustomCall.Attribute.array([true, false], {:pred, 8})
      "array<i1: true, false>"

      iex> EXLA.CustomCall.Attribute.array([], {:f, 32})
      "array<f32>"
  """
  @spec array([number() | boolean()], Typespec.type() | atom()) :: String.t()
  def array(values, type) do
    # MLIR has arrays of signless integers only.
    type = type!(type, [:s, :f, :bf, :pred])
    text = Typespec.element_text(type)

    case values |> list!() |> Enum.map(&literal(&1, type)) do
      [] -> "array<#{text}>"
      literals -> "array<#{text}: #{Enum.join(literals, ", ")}>"
    end
  end

  @doc """
  A dense tensor of numbers or booleans: a flat list in row-major order, and its type and shape.

  ## Examples

      iex> EXLA.CustomCall.Attribute.dense([1, 2, 3, 4], %{type: {:s, 64}, shape: {2, 2}})
      "dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>"

      iex> EXLA.CustomCall.Attribute.dense([1], %{type: {:s, 64}, shape: {2, 2}})
      ** (ArgumentError) expected 4 values for tensor<2x2xi64>, got 1
  """
  @spec dense([number() | boolean()], Typespec.t() | map()) :: String.t()
  def dense(values, template) do
    typespec = Typespec.from(template)
    type = type!(typespec.type, [:s, :u, :f, :bf, :f8_e4m3fn, :pred])
    literals = values |> list!() |> Enum.map(&literal(&1, type))
    expected = Tuple.product(typespec.shape)

    if length(literals) != expected do
      raise ArgumentError,
            "expected #{expected} values for #{Typespec.to_text(typespec)}, got #{length(literals)}"
    end

    "dense<#{nest(literals, Tuple.to_list(typespec.shape))}> : #{Typespec.to_text(typespec)}"
  end

  @doc """
  A dictionary of attribute texts: a map, or a list of `{name, text}` pairs.

  The texts are parsed, each alone, as those of a spec are.

  ## Examples

      iex> alias EXLA.CustomCall.Attribute
      iex> Attribute.dictionary(%{"size" => Attribute.integer(2), "same" => Attribute.boolean(true)})
      "{same = true, size = 2 : i64}"

      iex> EXLA.CustomCall.Attribute.dictionary([{"a", "1 : i64, evil = 2"}])
      ** (ArgumentError) dictionary: the text of "a" is not an MLIR attribute: found trailing characters: ', evil = 2', at line 1, column 8: "1 : i64, evil = 2"
  """
  @spec dictionary(%{String.t() => binary()} | [{String.t(), binary()}]) :: String.t()
  def dictionary(entries) when is_map(entries) and not is_struct(entries) do
    entries |> Map.to_list() |> dictionary()
  end

  def dictionary(entries) do
    Error.unwrap!(SpecTerms.check_pairs(entries, :dictionary))

    entries |> Native.attribute_dictionary() |> Native.from_native() |> Error.unwrap!()
  end

  @doc """
  Layouts for `operand_layouts` or `result_layouts`: a list with one layout a value, each the
  dimensions from the fastest varying in memory to the slowest. `[]` is a scalar or a token.

  Source: StableHLO specification, `custom_call`, where a layout is `minor_to_major`.

  ## Examples

      iex> EXLA.CustomCall.Attribute.layouts([[1, 0], [0, 1], []])
      "[dense<[1, 0]> : tensor<2xindex>, dense<[0, 1]> : tensor<2xindex>, dense<> : tensor<0xindex>]"

      iex> EXLA.CustomCall.Attribute.layouts([[0, 2]])
      ** (ArgumentError) expected a layout to hold each of 0 to 1 once, got: [0, 2]
  """
  @spec layouts([[non_neg_integer()]]) :: String.t()
  def layouts(layouts), do: "[#{layouts |> list!() |> Enum.map_join(", ", &layout/1)}]"

  @doc """
  Row-major layouts for these values: the last dimension varies fastest, as in Nx.

  ## Examples

      iex> alias EXLA.CustomCall.{Attribute, Typespec}
      iex> Attribute.row_major([Typespec.tensor({:f, 32}, {2, 3}), Typespec.tensor({:f, 32}, {4})])
      "[dense<[1, 0]> : tensor<2xindex>, dense<[0]> : tensor<1xindex>]"
  """
  @spec row_major([Typespec.t() | map()]) :: String.t()
  def row_major(templates) do
    templates
    |> list!()
    |> Enum.map(fn template ->
      Enum.to_list((tuple_size(Typespec.from(template).shape) - 1)..0//-1)
    end)
    |> layouts()
  end

  @doc """
  `output_operand_aliases`: which result shares the memory of which operand.

  Each entry is `{result, operand}`, two indices; the result of a call with a single result is `[]`.

  Source: StableHLO specification, `custom_call`, `output_operand_alias`.

  ## Examples

      iex> EXLA.CustomCall.Attribute.output_operand_aliases([{[], 1}])
      "[#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 1, operand_tuple_indices = []>]"

      iex> EXLA.CustomCall.Attribute.output_operand_aliases([{0, 2}])
      "[#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 2, operand_tuple_indices = []>]"
  """
  @spec output_operand_aliases([{[] | non_neg_integer(), non_neg_integer()}]) :: String.t()
  def output_operand_aliases(aliases) do
    "[#{aliases |> list!() |> Enum.map_join(", ", &operand_alias/1)}]"
  end

  @doc """
  `sdy.sharding_rule`: how Shardy may split the call, as factors that dimensions have in common.

  Operands and results are lists of dimensions; a dimension is the name of its factor, or a list of
  names, major first, where it is a product of factors. `sizes` gives each factor's size, in the
  order in which factors are numbered. A factor of size 1 is left out of products, where Shardy does
  not take it.

  Without options every factor is pass-through: splitting it needs no communication.

  Source: Shardy's `OpShardingRuleAttr`, whose text begins with `#sdy.op_sharding_rule`.

  ## Options

    * `:reduction` - factors that the call reduces over: split, their results must be summed.
    * `:need_replication` - factors that cannot be split: what the call computes needs all of them,
      as a softmax needs all keys.
    * `:permutation` - factors that can be split if data is exchanged between neighbours.
    * `:blocked_propagation` - factors along which no sharding is propagated.
    * `:custom` - whether the rule is one of the user's, which Shardy keeps; default `true`, as it is
      one.

  ## Examples

      iex> EXLA.CustomCall.Attribute.sharding_rule(
      ...>   [[:batch, [:heads, :group]], [:batch, :heads]],
      ...>   [[:batch, [:heads, :group]]],
      ...>   batch: 2, heads: 4, group: 3
      ...> )
      "#sdy.op_sharding_rule<([i, jk], [i, j])->([i, jk]) {i=2, j=4, k=3}, custom>"

      iex> EXLA.CustomCall.Attribute.sharding_rule([[:rows, :columns]], [[:rows]],
      ...>   [rows: 2, columns: 3], reduction: [:columns]
      ...> )
      "#sdy.op_sharding_rule<([i, j])->([i]) {i=2, j=3} reduction={j}, custom>"

      iex> EXLA.CustomCall.Attribute.sharding_rule([[:a]], [[:b]], a: 2)
      ** (ArgumentError) the factor :b has no size; give one for each factor
  """
  @spec sharding_rule([[dimension]], [[dimension]], [{factor, non_neg_integer()}], keyword()) ::
          String.t()
        when factor: atom() | String.t(), dimension: factor | [factor]
  def sharding_rule(operands, results, sizes, opts \\ []) do
    to_string(EXLA.CustomCall.ShardingRule.new(operands, results, sizes, opts))
  end

  defp layout(dimensions) do
    rank = length(list!(dimensions))

    if Enum.sort(dimensions) !== Enum.to_list(0..(rank - 1)//1) do
      raise ArgumentError,
            "expected a layout to hold each of 0 to #{rank - 1} once, got: " <>
              inspect(dimensions, charlists: :as_lists)
    end

    values = if rank == 0, do: "", else: "[#{Enum.join(dimensions, ", ")}]"
    "dense<#{values}> : tensor<#{rank}xindex>"
  end

  defp operand_alias({result, operand})
       when (result == [] or (is_integer(result) and result >= 0)) and is_integer(operand) and
              operand >= 0 do
    "#stablehlo.output_operand_alias<output_tuple_indices = [#{result}], " <>
      "operand_index = #{operand}, operand_tuple_indices = []>"
  end

  defp operand_alias(other) do
    raise ArgumentError,
          "expected a {result, operand} pair of indices, the result [] where it is the only one, " <>
            "got: #{inspect(other)}"
  end

  defp literal(value, {:pred, _}) when is_boolean(value), do: Atom.to_string(value)

  defp literal(value, {:pred, _}) do
    raise ArgumentError, "expected a boolean, got: #{inspect(value)}"
  end

  defp literal(value, {kind, _} = type) when kind in [:s, :u], do: integer_literal(value, type)
  defp literal(value, type), do: float_literal(value, type)

  defp integer_literal(value, {kind, size} = type) when is_integer(value) do
    {least, greatest} =
      case kind do
        :s -> {-Integer.pow(2, size - 1), Integer.pow(2, size - 1) - 1}
        :u -> {0, Integer.pow(2, size) - 1}
      end

    if value < least or value > greatest do
      raise ArgumentError,
            "#{value} does not fit #{inspect(type)}, whose values are #{least} to #{greatest}"
    end

    Integer.to_string(value)
  end

  defp integer_literal(value, _type) do
    raise ArgumentError, "expected an integer, got: #{inspect(value)}"
  end

  # Bits of not-a-number, infinity and its opposite, and the largest finite value.
  @floats %{
    {:f, 8} => {"0x7E", "0x7C", "0xFC", 57_344.0},
    {:f8_e4m3fn, 8} => {"0x7F", nil, nil, 448.0},
    {:f, 16} => {"0x7E00", "0x7C00", "0xFC00", 65_504.0},
    {:bf, 16} => {"0x7FC0", "0x7F80", "0xFF80", 3.3895313892515355e38},
    {:f, 32} => {"0x7FC00000", "0x7F800000", "0xFF800000", 3.4028234663852886e38},
    {:f, 64} =>
      {"0x7FF8000000000000", "0x7FF0000000000000", "0xFFF0000000000000", 1.7976931348623157e308}
  }

  defp float_literal(value, type) do
    {nan, infinity, neg_infinity, greatest} = Map.fetch!(@floats, type)

    case value do
      :nan ->
        nan

      :infinity when is_binary(infinity) ->
        infinity

      :neg_infinity when is_binary(neg_infinity) ->
        neg_infinity

      number when is_number(number) ->
        finite_literal(number, type, greatest)

      other ->
        raise ArgumentError, "expected a number that #{inspect(type)} has, got: #{inspect(other)}"
    end
  end

  defp finite_literal(number, type, greatest) do
    if abs(number) > greatest do
      raise ArgumentError,
            "#{number} is too large for #{inspect(type)}, whose greatest value is #{greatest}"
    end

    Float.to_string(number * 1.0)
  end

  defp nest([literal], []), do: literal
  defp nest([], _dimensions), do: ""

  defp nest(literals, [_ | inner]) do
    size = Enum.product(inner)
    "[#{literals |> Enum.chunk_every(size) |> Enum.map_join(", ", &nest(&1, inner))}]"
  end

  defp type!(type, kinds) do
    {kind, _} = type = Error.unwrap!(Typespec.cast_type(type))

    unless kind in kinds do
      raise ArgumentError,
            "expected a type of kind #{Enum.map_join(kinds, ", ", &inspect/1)}, got: #{inspect(type)}"
    end

    type
  end

  defp list!(list) do
    unless SpecTerms.proper_list?(list) do
      raise ArgumentError, "expected a list, got: #{inspect(list)}"
    end

    list
  end
end
