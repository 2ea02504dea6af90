defmodule EXLA.CustomCall.AttributeTest do
  use ExUnit.Case, async: true
  doctest EXLA.CustomCall.Attribute

  import EXLA.CustomCall.XLA, only: [text: 1]

  alias EXLA.CustomCall.{Attribute, Client, Module, Spec, Typespec, Value, XLA}

  # What a handler in XLA says that it got.
  defp seen(attributes) do
    spec = %Spec{call_target_name: "test_describe", attributes: attributes}
    {:ok, [described]} = XLA.call(spec, [], [Typespec.tensor({:u, 8}, {4096})])
    ~r/attributes: (.*)$/s |> Regex.run(text(described)) |> Enum.at(1)
  end

  test "a handler sees integers of every width that XLA has" do
    assert seen([
             {"a", Attribute.integer(-128, {:s, 8})},
             {"b", Attribute.integer(-32_768, {:s, 16})},
             {"c", Attribute.integer(-2_147_483_648, :s32)},
             {"d", Attribute.integer(-9_223_372_036_854_775_808)},
             {"e", Attribute.integer(255, {:u, 8})},
             {"f", Attribute.integer(65_535, {:u, 16})},
             {"g", Attribute.integer(4_294_967_295, {:u, 32})},
             {"h", Attribute.integer(18_446_744_073_709_551_615, {:u, 64})}
           ]) ==
             "a=s8 -128, b=s16 -32768, c=s32 -2147483648, d=s64 -9223372036854775808, " <>
               "e=u8 255, f=u16 65535, g=u32 4294967295, h=u64 18446744073709551615"
  end

  test "a handler sees floats, not-a-number and infinities" do
    assert seen([
             {"a", Attribute.float(0.1, {:f, 64})},
             {"b", Attribute.float(-1.5e-30)},
             {"c", Attribute.float(:nan)},
             {"d", Attribute.float(:infinity, {:f, 64})},
             {"e", Attribute.float(:neg_infinity)}
           ]) =~
             ~r/^a=f64 0.1, b=f32 -(1.5e-30|0.0000000000000000000000000000015), c=f32 NaN, d=f64 inf, e=f32 -inf$/
  end

  test "a handler sees booleans, arrays and dictionaries" do
    assert seen([
             {"flag", Attribute.boolean(true)},
             {"list", Attribute.array([1, -2], {:s, 64})},
             {"nested", Attribute.dictionary(%{"size" => Attribute.integer(2, {:s, 32})})}
           ]) == "flag=pred true, list=s64[1,-2], nested={size=s32 2}"
  end

  test "a handler sees every byte of a string" do
    bytes = for byte <- 0..255, into: <<>>, do: <<byte>>
    strings = [bytes, "", "\"}, evil = {\"", "\\", "\n", <<0>>, "é", <<0xFF, 0xFE>>]

    for string <- strings do
      spec = %Spec{
        call_target_name: "test_attr_bytes",
        attributes: [{"s", Attribute.string(string)}]
      }

      assert XLA.call(spec, [], [Typespec.tensor({:u, 8}, {byte_size(string)})]) ==
               {:ok, [string]}
    end
  end

  test "an integer that does not fit, or is none, is refused" do
    assert_raise ArgumentError, "-1 does not fit {:u, 8}, whose values are 0 to 255", fn ->
      Attribute.integer(-1, {:u, 8})
    end

    assert_raise ArgumentError, "expected an integer, got: 1.0", fn -> Attribute.integer(1.0) end

    assert_raise ArgumentError, "expected a type of kind :s, :u, got: {:f, 32}", fn ->
      Attribute.integer(1, {:f, 32})
    end
  end

  test "a float that is too large is refused" do
    assert_raise ArgumentError,
                 "1.0e39 is too large for {:f, 32}, whose greatest value is 3.4028234663852886e38",
                 fn -> Attribute.float(1.0e39) end

    assert_raise ArgumentError, ~r/is too large for {:f, 64}/, fn ->
      Attribute.float(Integer.pow(10, 400), {:f, 64})
    end

    assert_raise ArgumentError,
                 "expected a number that {:f8_e4m3fn, 8} has, got: :infinity",
                 fn ->
                   Attribute.float(:infinity, :f8_e4m3fn)
                 end
  end

  test "strings and booleans take nothing else" do
    assert_raise ArgumentError, "expected a binary, got: :a", fn -> Attribute.string(:a) end
    assert_raise ArgumentError, "expected a boolean, got: 1", fn -> Attribute.boolean(1) end
  end

  test "any name is one of a dictionary's" do
    assert Attribute.dictionary([{"b", "1"}, {"a \"}", "2"}]) ==
             ~S({"a \22}" = 2 : i64, b = 1 : i64})
  end

  test "layouts are of integers" do
    assert_raise ArgumentError,
                 "expected a layout to hold each of 0 to 1 once, got: [1.0, 0]",
                 fn -> Attribute.layouts([[1.0, 0]]) end
  end

  test "an alias is a pair of indices" do
    assert_raise ArgumentError,
                 "expected a {result, operand} pair of indices, the result [] where it is the only one, got: {:x, 0}",
                 fn -> Attribute.output_operand_aliases([{:x, 0}]) end
  end

  test "row_major of a scalar is the empty layout" do
    assert Attribute.row_major([Typespec.tensor({:f, 32}, {})]) == "[dense<> : tensor<0xindex>]"
  end

  test "a sharding rule has Shardy's symbols, also beyond z" do
    sizes = for n <- 1..20, do: {"f#{n}", n + 1}
    dimensions = for n <- 1..17, do: "f#{n}"
    rule = Attribute.sharding_rule([dimensions ++ [["f18", "f19"]]], [["f20"]], sizes)

    assert rule =~
             "<([i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, zz_1])->([z_2]) {i=2, j=3,"

    assert rule =~ "z=19, z_1=20, z_2=21}, custom>"
  end

  test "a factor of 1 has no place in a product, and none at all where it is nowhere else" do
    rule = fn heads, group ->
      Attribute.sharding_rule([[[:heads, :group]], [:heads]], [[:heads]],
        heads: heads,
        group: group
      )
    end

    assert rule.(4, 2) == "#sdy.op_sharding_rule<([ij], [i])->([i]) {i=4, j=2}, custom>"
    assert rule.(4, 1) == "#sdy.op_sharding_rule<([i], [i])->([i]) {i=4}, custom>"
    assert rule.(1, 2) == "#sdy.op_sharding_rule<([j], [i])->([i]) {i=1, j=2}, custom>"
    assert rule.(1, 1) == "#sdy.op_sharding_rule<([i], [i])->([i]) {i=1}, custom>"
  end

  test "the factors of each kind come in the order of the factors" do
    assert Attribute.sharding_rule([[:a, :b, :c, :d]], [[:a]], [a: 2, b: 3, c: 4, d: 5],
             need_replication: [:d, :b],
             reduction: [:c],
             custom: false
           ) ==
             "#sdy.op_sharding_rule<([i, j, k, l])->([i]) {i=2, j=3, k=4, l=5} " <>
               "reduction={k} need_replication={j, l}>"
  end

  test "Shardy takes a rule of every kind" do
    operand = Value.parameter(Typespec.tensor({:f, 32}, {1, 2, 3}))
    result = Typespec.tensor({:f, 32}, {1})

    for kind <- [:reduction, :need_replication, :permutation, :blocked_propagation],
        custom <- [true, false] do
      rule =
        Attribute.sharding_rule([[[:a, :b], :c, :d]], [[:a]], [a: 1, b: 1, c: 2, d: 3], [
          {kind, [:c, :d]},
          {:custom, custom}
        ])

      spec = %Spec{call_target_name: "test_copy", mlir_attributes: [{"sdy.sharding_rule", rule}]}
      module = Module.build!([operand], Value.custom_call([operand], spec, [result]))
      assert {:ok, _} = Client.compile(XLA.client(), module)
    end
  end

  test "a sharding rule that names what is not there is refused" do
    assert_raise ArgumentError,
                 "the factor :b is in no dimension; leave it out, or give it a place",
                 fn -> Attribute.sharding_rule([[:a]], [[:a]], a: 2, b: 2) end

    assert_raise ArgumentError, "reduction: there is no factor :b", fn ->
      Attribute.sharding_rule([[:a]], [[:a]], [a: 2], reduction: [:b])
    end

    assert_raise ArgumentError,
                 "reduction: the factor :a is in a result; what is reduced over is in none",
                 fn -> Attribute.sharding_rule([[:a]], [[:a]], [a: 2], reduction: [:a]) end

    assert_raise ArgumentError, "a factor is given two sizes: [a: 2, a: 3]", fn ->
      Attribute.sharding_rule([[:a]], [[:a]], a: 2, a: 3)
    end

    assert_raise ArgumentError,
                 "expected the size of :a to be an integer of 0 or more, got: -1",
                 fn -> Attribute.sharding_rule([[:a]], [[:a]], a: -1) end

    assert_raise ArgumentError,
                 "unknown option :reduce; the options are :reduction, :need_replication, :permutation, :blocked_propagation, :custom",
                 fn -> Attribute.sharding_rule([[:a]], [[:a]], [a: 1], reduce: [:a]) end
  end

  test "a list that does not end as one is refused in any place of a sharding rule" do
    for {operands, results} <- [
          {[[[:a | :tail]]], []},
          {[[:a | :tail]], []},
          {[[:a] | :tail], []},
          {[], [[[:a | :tail]]]}
        ] do
      assert_raise ArgumentError, ~r/expected a list, got: /, fn ->
        Attribute.sharding_rule(operands, results, a: 2)
      end
    end
  end
end
