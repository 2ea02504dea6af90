defmodule Fuzz.Syntax do
  @moduledoc false

  # Texts in MLIR's syntax for attributes, right or nearly so.

  alias Fuzz.Gen

  @tokens ~w([ ] { } < > \( \) : , = - + * -> :: ? @ # ! " \\ 0x 1.0 1e9 : i32 : f32 true unit dense< array<
             sparse< affine_map< affine_set< tensor< vector< memref< complex< tuple< loc\( opaque<
             dense_resource< distinct[ strided< x ? index i1 i129 f32 bf16 none d0 s0 mod floordiv ceildiv
             == >= <= #sdy. #stablehlo. !stablehlo.token // /* */ \0 \n \xff é) ++
            [
              "\0",
              "\n",
              "\xff",
              "é",
              " ",
              "\\00",
              "\\\"",
              "0x",
              "-9223372036854775808",
              "unknown"
            ]

  # A whole text, sometimes mutated, sometimes no text at all.
  def text do
    Gen.weighted([
      {8, fn -> attribute(Gen.int(0, 4)) end},
      {8, fn -> Gen.mutate(attribute(Gen.int(0, 3)), @tokens) end},
      {2, fn -> Enum.join(Gen.list(12, fn -> Gen.pick(@tokens) end), Gen.pick({"", " "})) end},
      {1, fn -> Gen.bytes(200) end},
      {1, fn -> deep() end},
      {1, fn -> long() end},
      {2, fn -> Fuzz.Syntax.sharding() end}
    ])
  end

  def mutate(text), do: Gen.mutate(text, @tokens)

  def attribute(depth) do
    Gen.weighted([
      {4, fn -> "#{number()} : #{type(min(depth, 1))}" end},
      {2, &number/0},
      {3, &quoted/0},
      {1, fn -> Gen.pick(~w(true false unit)) end},
      {2, fn -> type(depth) end},
      {nested(depth), fn -> "[#{commas(fn -> attribute(depth - 1) end)}]" end},
      {nested(depth), fn -> "{#{commas(fn -> entry(depth - 1) end)}}" end},
      {3, &dense/0},
      {2, &array/0},
      {2, &affine/0},
      {1, &symbol/0},
      {2, fn -> dialect(depth) end},
      {1, &location/0},
      {1, fn -> "opaque<#{quoted()}, \"0x#{hex()}\"> : #{type(1)}" end},
      {1, fn -> "dense_resource<#{identifier()}> : #{type(1)}" end},
      {1, fn -> "sparse<#{elements(2)}, #{elements(1)}> : #{type(1)}" end},
      {1, fn -> "distinct[#{number()}]<#{attribute(0)}>" end},
      {1, fn -> "strided<[#{commas(&dimension/0)}], offset: #{dimension()}>" end}
    ])
  end

  defp nested(depth), do: if(depth > 0, do: 4, else: 0)
  defp commas(fun), do: Enum.join(Gen.list(5, fun), ", ")

  defp entry(depth) do
    key = Gen.weighted([{6, &identifier/0}, {2, &quoted/0}, {1, fn -> "a.b" end}])
    if Gen.chance(85), do: "#{key} = #{attribute(depth)}", else: key
  end

  def number do
    Gen.weighted([
      {6, fn -> Integer.to_string(Gen.integer()) end},
      {3, fn -> Float.to_string(Gen.float()) end},
      {2, fn -> "0x#{hex()}" end},
      {1, fn -> "#{Gen.int(0, 99)}." end},
      {1,
       fn -> "#{Gen.int(0, 9)}.#{Gen.int(0, 9)}e#{Gen.pick({"", "+", "-"})}#{Gen.int(0, 999)}" end},
      {1, fn -> "-" <> "0x#{hex()}" end},
      {1, fn -> "1" <> String.duplicate("0", Gen.int(1, 1100)) end},
      {1, fn -> Gen.pick({"true", "nan", "inf", "-", "1.0.0", "00", "-0"}) end}
    ])
  end

  defp hex do
    Gen.weighted([
      {6, fn -> Base.encode16(:rand.bytes(Gen.int(0, 16))) end},
      {1, fn -> Gen.pick({"7FC00000", "7F800000", "FFFFFFFFFFFFFFFF", "0", "F"}) end},
      {1, fn -> String.duplicate("A", Gen.int(0, 300)) end}
    ])
  end

  def quoted do
    inner =
      Gen.weighted([
        {5, &Gen.word/0},
        {2, fn -> Gen.bytes(16) end},
        {2,
         fn -> Gen.pick({"\\22", "\\0A", "\\n", "\\t", "\\", "\\\\", "\\\"", "\\FF", "\\0"}) end},
        {1, fn -> "0x#{hex()}" end},
        {1, fn -> "[[[{{{<<<" end}
      ])

    if Gen.chance(95), do: "\"#{inner}\"", else: "\"#{inner}"
  end

  defp identifier, do: Gen.pick(~w(a b c key x1 _y a$ dense array i32 mod custom factor_sizes))

  def type(depth) do
    Gen.weighted([
      {5, &element/0},
      {5, fn -> "tensor<#{dimensions()}#{element()}>" end},
      {1, fn -> "tensor<#{dimensions()}#{element()}, #{attribute(0)}>" end},
      {1, fn -> "tensor<*x#{element()}>" end},
      {1, fn -> "vector<#{dimensions()}#{element()}>" end},
      {1, fn -> "vector<[#{Gen.int(0, 9)}]x#{element()}>" end},
      {1,
       fn ->
         "memref<#{dimensions()}#{element()}#{Gen.pick({"", ", 1", ", #{affine()}", ", strided<[1]>"})}>"
       end},
      {1, fn -> "complex<#{if depth > 0, do: type(depth - 1), else: element()}>" end},
      {1, fn -> "tuple<#{commas(fn -> type(max(depth - 1, 0)) end)}>" end},
      {1,
       fn ->
         "(#{commas(fn -> type(max(depth - 1, 0)) end)}) -> #{Gen.pick({"()", element(), "(#{element()}, #{element()})"})}"
       end},
      {1, fn -> "!stablehlo.token" end},
      {1, fn -> "!a.b<#{quoted()}>" end},
      {1, fn -> "!opaque<\"a\">" end}
    ])
  end

  defp element do
    Gen.weighted([
      {8,
       fn ->
         Gen.pick(
           ~w(i1 i2 i4 i8 i16 i32 i64 ui8 si32 f16 bf16 f32 f64 index none f8E5M2 f8E4M3FN)
         )
       end},
      {1,
       fn ->
         Gen.pick(~w(f8E4M3 f8E3M4 f8E4M3B11FNUZ tf32 f80 f128 i128 i3 i7 i0 si1 ui1 ui128))
       end},
      {1, fn -> "i#{Gen.int(0, 200)}" end},
      {1, fn -> "complex<#{Gen.pick(~w(f32 f64 i32 i1 index bf16 complex<f32>))}>" end}
    ])
  end

  defp dimensions, do: Enum.map_join(Gen.list(4, &dimension/0), &"#{&1}x")

  defp dimension do
    Gen.weighted([
      {8, fn -> Gen.int(0, 4) end},
      {1, fn -> "?" end},
      {1, fn -> Gen.pick([4_294_967_296, 9_223_372_036_854_775_807, 1_000_000, -1, 65_536]) end}
    ])
  end

  defp dense do
    shaped =
      Gen.pick([
        fn -> "tensor<#{dimensions()}#{element()}>" end,
        fn -> type(1) end,
        fn -> "vector<#{dimensions()}#{element()}>" end
      ])

    "dense<#{elements(Gen.int(0, 3))}> : #{shaped.()}"
  end

  defp elements(0) do
    Gen.weighted([
      {5, &number/0},
      {1, fn -> "" end},
      {1, fn -> "\"0x#{hex()}\"" end},
      {1, fn -> "(#{number()}, #{number()})" end},
      {1, fn -> Gen.pick({"true", "false"}) end},
      {1, &quoted/0}
    ])
  end

  defp elements(depth),
    do: "[#{commas(fn -> elements(if(Gen.chance(90), do: depth - 1, else: 0)) end)}]"

  defp array do
    element =
      if Gen.chance(70),
        do: Gen.pick(~w(i1 i8 i16 i32 i64 si32 ui8 f16 bf16 f32 f64)),
        else: element()

    value =
      Gen.pick([
        &number/0,
        fn -> Integer.to_string(Gen.int(-9, 99)) end,
        fn -> "1.5" end,
        fn -> Gen.pick({"true", "false"}) end
      ])

    values = commas(if(Gen.chance(80), do: value, else: &number/0))
    Gen.pick({"array<#{element}: #{values}>", "array<#{element}>", "array<#{values}>"})
  end

  def affine do
    dims = Enum.map_join(0..Gen.int(0, 3)//1, ", ", &"d#{&1}")
    symbols = Gen.pick({"", "[]", "[s0]", "[s0, s1]"})

    Gen.pick([
      fn ->
        "affine_map<(#{dims})#{symbols} -> (#{commas(fn -> expression(Gen.int(0, 4)) end)})>"
      end,
      fn -> "affine_set<(#{dims})#{symbols} : (#{commas(&constraint/0)})>" end
    ]).()
  end

  defp constraint,
    do: "#{expression(Gen.int(0, 3))} #{Gen.pick(~w(== >= <= < >))} #{expression(1)}"

  defp expression(0) do
    Gen.weighted([
      {5, fn -> Gen.pick(~w(d0 d1 d2 s0 s1 d9)) end},
      {3, fn -> Integer.to_string(Gen.integer()) end},
      {1, fn -> "symbol(d0)" end}
    ])
  end

  defp expression(depth) do
    Gen.weighted([
      {6,
       fn ->
         "#{expression(depth - 1)} #{Gen.pick(~w(+ - * mod floordiv ceildiv))} #{expression(Gen.int(0, depth - 1))}"
       end},
      {3, fn -> "(#{expression(depth - 1)})" end},
      {2, fn -> "-#{expression(depth - 1)}" end},
      {1, fn -> expression(0) end}
    ])
  end

  defp symbol,
    do:
      Enum.map_join(1..Gen.int(1, 3), "::", fn _ ->
        "@" <> Gen.pick([&identifier/0, &quoted/0]).()
      end)

  defp dialect(depth) do
    inner =
      Gen.pick([
        fn -> "" end,
        fn -> "<#{attribute(min(depth, 1))}>" end,
        fn -> "<#{quoted()}>" end,
        fn -> "<[{(->)}]>" end
      ])

    body = Gen.pick(["a.b", "stablehlo.x", "sdy.y", "a", "builtin.z", "func.q", "mhlo.r"])
    Gen.pick({"#", "#", "!"}) <> body <> inner.()
  end

  defp location do
    Gen.pick([
      fn -> "loc(unknown)" end,
      fn -> "loc(#{quoted()})" end,
      fn -> "loc(#{quoted()}:#{number()}:#{number()})" end,
      fn -> "loc(fused<#{attribute(0)}>[#{quoted()}, unknown])" end,
      fn -> "loc(callsite(#{quoted()} at unknown))" end,
      fn -> "loc(#{quoted()}(unknown))" end
    ]).()
  end

  # Brackets, operators and arrows up to the limit and far beyond.
  defp deep do
    depth = Gen.pick([10, 60, 63, 64, 65, 66, 200, 5_000, 100_000])

    {open, middle, close} =
      Gen.pick([
        {"[", "1", "]"},
        {"{a = ", "1", "}"},
        {"#a.b<", "1", ">"},
        {"tuple<", "i1", ">"},
        {"complex<", "f32", ">"},
        {"(i1) -> (", "i1", ")"},
        {"() -> ", "()", ""},
        {"affine_map<(d0) -> (-", "d0", ")>"},
        {"-", "1", ""},
        {"loc(callsite(\"a\" at ", "unknown", "))"},
        {"loc(fused[", "unknown", "])"},
        {"distinct[0]<", "1", ">"},
        {"@a::", "@b", ""},
        {"tensor<1x", "i1", ">"},
        {"memref<2xi1, ", "1", ">"},
        {"dense<[", "1", "]>"},
        {"!a.b<", "x", ">"},
        {"(", "i1", ") -> i1"},
        {"opaque<\"a\", \"0x\"> : tensor<1xi1, ", "1", ">"}
      ])

    String.duplicate(open, depth) <> middle <> String.duplicate(close, depth)
  end

  defp long do
    count = Gen.pick([100, 1_000, 1_025, 10_000])

    Gen.pick([
      fn -> "[" <> Enum.join(List.duplicate(attribute(0), min(count, 1_000)), ", ") <> "]" end,
      fn -> String.duplicate("a", count) end,
      fn -> "\"" <> String.duplicate("\\00", count) <> "\"" end,
      fn -> "1" <> String.duplicate("7", count) end,
      fn -> "tensor<" <> String.duplicate("1x", count) <> "i1>" end,
      fn -> "dense<1> : tensor<" <> String.duplicate("1x", count) <> "i1>" end,
      fn -> "vector<" <> String.duplicate("1x", count) <> "i1>" end,
      fn -> "affine_map<(" <> Enum.map_join(0..count, ", ", &"d#{&1}") <> ") -> (d0)>" end,
      fn ->
        "affine_map<(d0) -> (" <> Enum.join(List.duplicate("d0 mod 3", count), ", ") <> ")>"
      end,
      fn -> "array<i64: " <> Enum.join(List.duplicate("1", count), ", ") <> ">" end,
      fn ->
        "dense<[" <> Enum.join(List.duplicate("1", count), ", ") <> "]> : tensor<#{count}xi32>"
      end,
      fn -> "{" <> Enum.map_join(1..count, ", ", &"k#{&1} = 1") <> "}" end,
      fn -> "@a" <> String.duplicate("::@b", count) end,
      fn -> "strided<[" <> Enum.join(List.duplicate("1", count), ", ") <> "]>" end,
      fn -> "tuple<" <> Enum.join(List.duplicate("i1", count), ", ") <> ">" end
    ]).()
  end

  # Shardy's texts, and StableHLO's.

  def sharding do
    text =
      Gen.pick([
        &rule/0,
        &tensor_sharding/0,
        fn -> "#sdy.sharding_per_value<[#{commas(&bare_sharding/0)}]>" end,
        fn -> "#sdy.manual_axes{\"#{axis()}\"}" end,
        fn -> "#sdy<manual_axes{\"#{axis()}\"}>" end,
        fn -> "#sdy.mesh<[#{commas(fn -> "\"#{axis()}\"=#{Gen.int(-1, 4)}" end)}]>" end,
        fn ->
          "#stablehlo.output_operand_alias<output_tuple_indices = [#{Gen.int(-1, 2)}], operand_index = #{number()}, operand_tuple_indices = []>"
        end,
        fn -> "\"{devices=[2,1]<=[2]}\"" end
      ]).()

    if Gen.chance(50),
      do:
        Gen.mutate(
          text,
          ~w([ ] { } < > @ : = i j k z_1 custom reduction -> ? \( \) 0 -1 "x" "y" p0 p99999999999)
        ),
      else: text
  end

  defp tensor_sharding, do: "#sdy.sharding<#{bare_sharding()}>"

  defp bare_sharding do
    "<@mesh, [#{commas(fn -> "{#{commas(fn -> "\"#{axis()}\"" <> Gen.pick({"", ":(1)2", ":(0)0"}) end)}#{Gen.pick({"", "?"})}}#{Gen.pick({"", "p0", "p1", "p99999999999999999999"})}" end)}]#{Gen.pick({"", ", replicated={\"x\"}", ", unreduced={\"y\"}"})}>"
  end

  defp axis, do: Gen.pick(["x", "y", "z", "", "x\\22", "é"])
  defp factor, do: Gen.pick(~w(i j k l z z_1 z_2 z_99999999999999999999 ij jk i_1 I 1))
  defp mapping, do: "[#{commas(fn -> Enum.join(for(_ <- 1..Gen.int(1, 2), do: factor())) end)}]"

  defp rule do
    sizes =
      commas(fn -> "#{factor()}=#{Gen.pick([1, 2, 3, 0, -1, 99_999_999_999_999_999_999])}" end)

    sets =
      for kind <- ~w(reduction need_replication permutation blocked_propagation),
          Gen.chance(25),
          into: "",
          do: " #{kind}={#{commas(&factor/0)}}"

    "#sdy.op_sharding_rule<(#{commas(&mapping/0)})->(#{commas(&mapping/0)}) {#{sizes}}#{sets}#{Gen.pick({"", ", custom"})}>"
  end
end
