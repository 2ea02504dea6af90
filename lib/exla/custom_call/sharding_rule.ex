defmodule EXLA.CustomCall.ShardingRule do
  @moduledoc """
  How an operation may be split over devices, as data.

  A rule names factors: what dimensions of operands and results have in common. Dimensions with a
  factor in common are split alike. A dimension that is the product of several is a list of them, the
  major one first.

      iex> alias EXLA.CustomCall.ShardingRule
      iex> rule = ShardingRule.new(
      ...>   [[:rows, :inner], [:inner, :columns]],
      ...>   [[:rows, :columns]],
      ...>   [rows: 8, inner: 32, columns: 16],
      ...>   reduction: [:inner]
      ...> )
      iex> to_string(rule)
      "#sdy.op_sharding_rule<([i, j], [j, k])->([i, k]) {i=8, j=32, k=16} reduction={j}, custom>"

  Shardy's text calls factors i, j, k, ...: a rule that is read from a text has these names.

  What splitting a factor takes:

  | kind | |
  |---|---|
  | none: pass-through | nothing; each device works on its own part |
  | `:reduction` | the results of the devices are to be combined, by a sum for one |
  | `:need_replication` | it cannot be split: each device needs all of it |
  | `:permutation` | devices exchange data with neighbours |

  Source: Shardy's `OpShardingRuleAttr`.
  """

  alias EXLA.CustomCall.{Error, Mesh, SpecTerms}

  @kinds [:reduction, :need_replication, :permutation, :blocked_propagation]

  @enforce_keys [:operands, :results, :sizes]
  defstruct [:operands, :results, :sizes, custom: true] ++ Enum.map(@kinds, &{&1, []})

  @type factor :: atom() | String.t()

  @typedoc """
    * `:operands`, `:results` - the factors of each dimension of each tensor;
    * `:sizes` - the size of each factor, in the order in which Shardy's text numbers them;
    * `:custom` - whether the rule is a user's own, which Shardy keeps.
  """
  @type t :: %__MODULE__{
          operands: [[[factor()]]],
          results: [[[factor()]]],
          sizes: [{factor(), non_neg_integer()}],
          reduction: [factor()],
          need_replication: [factor()],
          permutation: [factor()],
          blocked_propagation: [factor()],
          custom: boolean()
        }

  @doc """
  A rule. Arguments and options are those of `EXLA.CustomCall.Attribute.sharding_rule/4`, which gives
  its text.

  Raises `ArgumentError` for a rule that makes no sense:

      iex> EXLA.CustomCall.ShardingRule.new([[:a]], [[:a]], [a: 2], reduction: [:a])
      ** (ArgumentError) reduction: the factor :a is in a result; what is reduced over is in none
  """
  @spec new([[dimension]], [[dimension]], [{factor(), non_neg_integer()}], keyword()) :: t()
        when dimension: factor() | [factor()]
  def new(operands, results, sizes, opts \\ []) do
    defaults = Enum.map(@kinds, &{&1, []}) ++ [custom: true]
    opts = opts |> EXLA.CustomCall.Options.validate(defaults) |> Error.unwrap!()
    check_sizes!(sizes)
    known = MapSet.new(sizes, &elem(&1, 0))
    operands = dimensions!(operands, known)
    results = dimensions!(results, known)

    for {name, _} <- sizes, not uses?(operands ++ results, name) do
      raise ArgumentError,
            "the factor #{inspect(name)} is in no dimension; leave it out, or give it a place"
    end

    for kind <- @kinds, name <- list!(opts[kind]), name not in known do
      raise ArgumentError, "#{kind}: there is no factor #{inspect(name)}"
    end

    for name <- opts[:reduction], uses?(results, name) do
      raise ArgumentError,
            "reduction: the factor #{inspect(name)} is in a result; what is reduced over is in none"
    end

    struct!(__MODULE__, [operands: operands, results: results, sizes: sizes] ++ opts)
  end

  @doc """
  The rule of a text, as `to_string/1` writes it. Its factors are `"i"`, `"j"` and so on.

  ## Examples

      iex> alias EXLA.CustomCall.ShardingRule
      iex> {:ok, rule} = ShardingRule.parse("#sdy.op_sharding_rule<([ij])->([i, j]) {i=2, j=3}>")
      iex> {rule.operands, rule.sizes, rule.custom}
      {[[["i", "j"]]], [{"i", 2}, {"j", 3}], false}
  """
  @spec parse(binary()) :: {:ok, t()} | {:error, Error.t()}
  def parse(text) do
    with {:ok, {:rule, operands, results, sizes, kinds, custom}} <-
           Mesh.read(text, [], "a sharding rule", :rule) do
      values = fn values ->
        for value <- values, do: for(factors <- value, do: Enum.map(factors, &symbol/1))
      end

      kinds =
        Enum.zip_with(@kinds, Tuple.to_list(kinds), &{&1, Enum.map(&2, fn i -> symbol(i) end)})

      {:ok,
       struct!(
         __MODULE__,
         [
           operands: values.(operands),
           results: values.(results),
           sizes: Enum.with_index(sizes, &{symbol(&2), &1}),
           custom: custom
         ] ++ kinds
       )}
    end
  end

  @doc false
  # A struct that somebody wrote by hand may hold anything: what makes one looks at all of it.
  def formed!(%__MODULE__{operands: operands, results: results, sizes: sizes} = rule) do
    new(operands, results, sizes, rule |> Map.take([:custom | @kinds]) |> Map.to_list())
  rescue
    error in ArgumentError ->
      reraise ArgumentError, "a sharding rule: #{error.message}", __STACKTRACE__
  end

  def formed!(other) do
    # Not as the struct that it may be, whose fields are looked at to print it.
    raise ArgumentError,
          "expected an EXLA.CustomCall.ShardingRule, got: #{inspect(other, structs: false)}"
  end

  @doc false
  # Shardy's factor symbols: i to z, then z_1, z_2, ...
  def symbol(index) when index < 18, do: <<?i + index>>
  def symbol(index), do: "z_#{index - 17}"

  defp uses?(values, name), do: Enum.any?(values, fn value -> Enum.any?(value, &(name in &1)) end)

  defp check_sizes!(sizes) do
    Enum.each(list!(sizes), fn
      {_name, size} when is_integer(size) and size >= 0 ->
        :ok

      {name, size} ->
        raise ArgumentError,
              "expected the size of #{inspect(name)} to be an integer of 0 or more, got: " <>
                inspect(size)

      other ->
        raise ArgumentError, "expected {factor, size} pairs, got: #{inspect(other)}"
    end)

    names = Enum.map(sizes, &elem(&1, 0))

    if Enum.uniq(names) != names do
      raise ArgumentError, "a factor is given two sizes: #{inspect(sizes)}"
    end
  end

  defp dimensions!(values, known) do
    for value <- list!(values) do
      for dimension <- list!(value) do
        names = dimension |> List.wrap() |> list!()

        for name <- names, name not in known do
          raise ArgumentError, "the factor #{inspect(name)} has no size; give one for each factor"
        end

        names
      end
    end
  end

  defp list!(list) do
    unless SpecTerms.proper_list?(list) do
      raise ArgumentError, "expected a list, got: #{inspect(list)}"
    end

    list
  end

  defimpl String.Chars do
    alias EXLA.CustomCall.ShardingRule

    @kinds [:reduction, :need_replication, :permutation, :blocked_propagation]

    def to_string(rule) do
      ShardingRule.formed!(rule)
      size = Map.new(rule.sizes)
      operands = plain(rule.operands, size)
      results = plain(rule.results, size)
      used = Enum.concat(Enum.concat(operands ++ results))
      sizes = Enum.filter(rule.sizes, fn {name, _} -> name in used end)

      symbols =
        sizes
        |> Enum.with_index()
        |> Map.new(fn {{name, _}, index} -> {name, ShardingRule.symbol(index)} end)

      size_texts = Enum.map_join(sizes, ", ", fn {name, size} -> "#{symbols[name]}=#{size}" end)

      sets =
        for kind <- @kinds,
            # In the order of the factors, as Shardy wants them.
            set = Enum.filter(sizes, fn {name, _} -> name in Map.fetch!(rule, kind) end),
            set != [],
            into: "" do
          " #{kind}={#{Enum.map_join(set, ", ", fn {name, _} -> symbols[name] end)}}"
        end

      custom = if rule.custom, do: ", custom", else: ""

      "#sdy.op_sharding_rule<(#{mappings(operands, symbols)})->(#{mappings(results, symbols)}) " <>
        "{#{size_texts}}#{sets}#{custom}>"
    end

    # Shardy takes no factor of size 1 in a product.
    defp plain(values, sizes) do
      for value <- values do
        for factors <- value do
          case Enum.reject(factors, &(sizes[&1] == 1)) do
            [] -> Enum.take(factors, 1)
            larger -> larger
          end
        end
      end
    end

    defp mappings(values, symbols) do
      Enum.map_join(values, ", ", fn dimensions ->
        texts =
          Enum.map_join(dimensions, ", ", fn factors -> Enum.map_join(factors, &symbols[&1]) end)

        "[#{texts}]"
      end)
    end
  end

  defimpl Inspect do
    def inspect(rule, opts) do
      EXLA.CustomCall.ShardingRule.formed!(rule)
      "#sdy.op_sharding_rule" <> text = to_string(rule)
      "#EXLA.CustomCall.ShardingRule" <> text
    rescue
      # One that somebody wrote by hand, with fields that make no sense.
      ArgumentError -> Inspect.Any.inspect(rule, opts)
    end
  end
end
