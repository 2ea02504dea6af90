defmodule Fuzz.Targets.Builders do
  @moduledoc false

  # The functions that make texts, types and values from terms, with terms that are right but for a part,
  # and with any.

  use Fuzz.Target

  alias EXLA.CustomCall.{Attribute, Context, Mesh, Module, Sharding, ShardingRule, Spec, Typespec}
  alias EXLA.CustomCall.Value

  @mesh %Mesh{name: "mesh", axes: [{"x", 2}, {"y", 4}], devices: [7, 6, 5, 4, 3, 2, 1, 0]}
  @sharding %Sharding{
    mesh: @mesh,
    dimensions: [%{axes: ["x", {"y", 1, 2}], open: true, priority: 1}],
    replicated: [{"y", 2, 2}]
  }
  @rule %ShardingRule{
    operands: [[[:rows]]],
    results: [[[:rows]]],
    sizes: [rows: 4],
    blocked_propagation: [:rows]
  }

  @typespecs [
    %{type: {:f, 32}, shape: {2, 2}},
    %{type: :s64, shape: {}},
    %{type: {:pred, 8}, shape: {3}},
    %{type: :token, shape: {}},
    %{type: {:c, 64}, shape: {0, 2}},
    %{type: {:u, 4}, shape: {1}}
  ]

  @types [{:f, 32}, {:s, 8}, :u4, {:f8_e4m3fn, 8}, {:bf, 16}, {:pred, 8}, {:c, 64}]

  @calls [
    {Attribute, :integer, [1, {:s, 64}]},
    {Attribute, :integer, [1]},
    {Attribute, :float, [1.5, {:f, 32}]},
    {Attribute, :float, [:nan, {:f8_e4m3fn, 8}]},
    {Attribute, :string, ["text"]},
    {Attribute, :boolean, [true]},
    {Attribute, :array, [[1, 2, 3], {:s, 32}]},
    {Attribute, :array, [[true, false], :pred]},
    {Attribute, :dense, [[1, 2, 3, 4], %{type: {:s, 64}, shape: {2, 2}}]},
    {Attribute, :dense, [[1.0, :nan], %{type: {:f, 16}, shape: {2}}]},
    {Attribute, :dictionary, [[{"a", "1 : i64"}, {"b", "[true]"}]]},
    {Attribute, :dictionary, [%{"a" => "1 : i64"}]},
    {Attribute, :layouts, [[[1, 0], [0, 1], []]]},
    {Attribute, :row_major, [[%{type: {:f, 32}, shape: {2, 3}}]]},
    {Attribute, :output_operand_aliases, [[{[], 1}, {0, 2}]]},
    {Attribute, :sharding_rule,
     [
       [[:batch, [:heads, :group]], [:batch, :heads]],
       [[:batch, [:heads, :group]]],
       [batch: 2, heads: 4, group: 3]
     ]},
    {Attribute, :sharding_rule,
     [
       [[:i, "k"], ["k", :j]],
       [[:i, :j]],
       [{:i, 2}, {"k", 3}, {:j, 4}],
       [
         reduction: ["k"],
         need_replication: [:i],
         permutation: [:j],
         blocked_propagation: [],
         custom: false
       ]
     ]},
    {Typespec, :tensor, [{:f, 32}, {2, 3}]},
    {Typespec, :from, [%{type: {:s, 64}, shape: {4}}]},
    {Typespec, :cast, [%{type: {:f, 32}, shape: {2, 1}}]},
    {Typespec, :byte_size, [%{type: {:bf, 16}, shape: {2, 3}}]},
    {Typespec, :to_text, [%{type: {:bf, 16}, shape: {2, 3}}]},
    {Typespec, :byte_size, [{:"$", {:typespec, {:bf, 16}, {2, 3}}}]},
    {Typespec, :to_text, [{:"$", {:typespec, :f32, {2, 3}}}]},
    {Context, :new, [[max_nesting: 10, max_text_bytes: 100]]},
    {Context, :new!, [[max_nesting: 64]]},
    {Value, :parameter, [%{type: {:f, 32}, shape: {2}}, [attributes: [{"sdy.sharding", "1"}]]]},
    {Value, :constant, ["abcd", %{type: {:u, 8}, shape: {4}}]},
    {Value, :convert, [{:"$", :value}, {:f, 64}]},
    {Value, :op,
     [
       "stablehlo.add",
       [{:"$", :value}, {:"$", :value}],
       [%{type: {:f, 32}, shape: {4}}],
       [attributes: [{"a", "1"}], regions: []]
     ]},
    {Value, :region,
     [[%{type: {:f, 32}, shape: {}}], {:"$", :identity}, [terminator: "sdy.return"]]},
    {Value, :function, ["f", [{:"$", :value}], [{:"$", :value}], [private: false, effects: []]]},
    {Value, :call, [{:"$", :function}, [{:"$", :value}]]},
    {Value, :custom_call,
     [
       [{:"$", :value}],
       {:"$",
        {:spec,
         %{
           call_target_name: "k",
           attributes: [{"a", "1 : i64"}],
           mlir_attributes: [{"b", "true"}],
           operand_element_types: [{:f, 16}],
           api_version: 4,
           backend_config: nil
         }}},
       [%{type: {:f, 32}, shape: {4}}]
     ]},
    {Value, :custom_call,
     [
       [{:"$", :value}],
       {:"$", {:spec, %{call_target_name: "k", mlir_attributes: []}}},
       [%{type: {:f, 32}, shape: {4}}],
       [partition: %{rows: "x"}, mesh: @mesh, sharding_rule: @rule, reduce: [:max]]
     ]},
    {Value, :shard, [{:"$", :value}, @sharding]},
    {Value, :parameter, [%{type: {:f, 32}, shape: {4}}, [sharding: @sharding]]},
    {Mesh, :new, [[{"x", 2}, {:y, 2}], [name: "m", devices: [3, 1, 2, 0]]]},
    {Mesh, :from, [%{__struct__: Nx.Mesh, name: "m", shape: {2, 2}}]},
    {Mesh, :from, [@mesh]},
    {Mesh, :size, [@mesh]},
    {Mesh, :devices, [@mesh]},
    {Mesh, :groups, [@mesh, ["x", :y]]},
    {Mesh, :parse, [~S(#sdy.mesh<["x"=2], device_ids=[1, 0]>), [name: "m"]]},
    {Sharding, :new, [@mesh, ["x", nil, {:open, ["y"]}, []], [replicated: [], unreduced: []]]},
    {Sharding, :replicated, [@mesh, 2]},
    {Sharding, :from, [%{0 => [0], -1 => "y"}, @mesh, %{type: {:f, 32}, shape: {4, 8}}]},
    {Sharding, :from, [@sharding, @mesh, %{type: {:f, 32}, shape: {4}}]},
    {Sharding, :parse, [~S(#sdy.sharding<@mesh, [{"x"}, {?}]>), @mesh]},
    {Sharding, :local_shape, [@sharding, {4}]},
    {Sharding, :slices, [@sharding, {4}]},
    {Sharding, :to_table, [@sharding, {4}]},
    {Sharding, :to_svg, [@sharding, {4}, [layout: [0], dimensions: [0], title: "t"]]},
    {ShardingRule, :new,
     [[[:a, [:b, :c]]], [[:a]], [a: 2, b: 3, c: 4], [reduction: [:b], custom: false]]},
    {ShardingRule, :parse, ["#sdy.op_sharding_rule<([i, jk])->([i]) {i=2, j=3, k=4}>"]},
    {Module, :build,
     [
       [{:"$", :value}],
       [{{:"$", :value}, @sharding}],
       [mesh: @mesh, parameter_shardings: [%{0 => [0]}], result_shardings: [["x"]]]
     ]},
    {Module, :build,
     [
       [{:"$", :value}],
       [{{:"$", :value}, [{"a", "1"}]}],
       [name: "m", function: "main", attributes: [], effects: [], functions: [], context: nil]
     ]},
    {Module, :build, [[], [], [functions: [{:"$", :function}], context: {:"$", :context}]]},
    {Module, :to_string, [{:"$", :module}]},
    {Module, :to_bytecode, [{:"$", :module}]},
    {Module, :custom_calls, [{:"$", :module}]}
  ]

  def generate do
    {module, function, arguments} = Gen.pick(@calls)

    arguments =
      Gen.weighted([
        {8, fn -> Gen.mutate_term(arguments, 7) end},
        {2, fn -> Enum.map(arguments, fn _ -> Gen.term() end) end},
        {2, fn -> Enum.map(arguments, &swap/1) end}
      ])

    # The count of arguments is the function's.
    arguments = if proper?(arguments), do: arguments, else: []
    {module, function, arguments}
  end

  defp proper?(arguments), do: is_list(arguments) and not List.improper?(arguments)

  defp swap(%{type: _, shape: _}), do: Gen.pick(@typespecs)
  defp swap(type) when type in @types, do: Gen.pick(@types)
  defp swap(list) when is_list(list), do: if(Gen.chance(50), do: Enum.reverse(list), else: list)

  defp swap({:"$", {:typespec, type, shape}}) do
    {:"$", {:typespec, Gen.mutate_term(type), Gen.mutate_term(shape)}}
  end

  defp swap(other), do: if(Gen.chance(50), do: Gen.term(1), else: other)

  def setup(_env) do
    value = Value.parameter(Env.type())
    %{value: value, function: Value.function("f", [value], [value])}
  end

  def try({module, function, arguments}, env, state) do
    arguments = arguments |> names(state) |> Env.resolve(env)

    if function_exported?(module, function, length(arguments)) do
      apply(module, function, arguments)
    else
      :ok
    end
  end

  defp names({:"$", name}, state) when name in [:value, :function], do: Map.fetch!(state, name)
  defp names({:"$", :identity}, _state), do: & &1

  defp names({:"$", {:spec, fields}}, state) when is_map(fields) do
    fields = for {key, value} <- fields, is_atom(key), do: {key, names(value, state)}
    struct(Spec, fields)
  end

  defp names({:"$", {:typespec, type, shape}}, _state) do
    %Typespec{type: type, shape: shape}
  end

  defp names([head | tail], state), do: [names(head, state) | names(tail, state)]

  defp names(term, state) when is_tuple(term) do
    term |> Tuple.to_list() |> names(state) |> List.to_tuple()
  end

  defp names(term, state) when is_map(term) and not is_struct(term) do
    Map.new(term, &names(&1, state))
  end

  defp names(term, _state), do: term
end
