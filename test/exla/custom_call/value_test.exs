defmodule EXLA.CustomCall.ValueTest do
  use ExUnit.Case, async: true
  doctest EXLA.CustomCall.Value

  import EXLA.CustomCall.XLA, only: [f32: 1, floats: 1]

  alias EXLA.CustomCall.{Client, Executable, Module, Spec, Typespec, Value, XLA}

  @vector Typespec.tensor({:f, 32}, {2})
  @scalar Typespec.tensor({:s, 32}, {})

  defp run(parameters, results, inputs) do
    executable = Client.compile!(XLA.client(), Module.build!(parameters, results))
    Executable.run!(executable, inputs, results: :binary)
  end

  defp tanh(value), do: hd(Value.op("stablehlo.tanh", [value], [value.typespec]))
  defp add(a, b), do: hd(Value.op("stablehlo.add", [a, b], [a.typespec]))

  defp message(fun) do
    assert_raise(ArgumentError, fun).message
  end

  describe "operations" do
    test "any StableHLO operation is emitted, with regions and block arguments" do
      x = Value.parameter(Typespec.tensor({:f, 32}, {2, 3}))
      zero = Value.constant(<<0.0::32-float-native>>, Typespec.tensor({:f, 32}, {}))
      element = Typespec.tensor({:f, 32}, {})
      sum = Value.region([element, element], fn [a, b] -> [add(a, b)] end)

      [rows] =
        Value.op("stablehlo.reduce", [x, zero], [@vector],
          attributes: [{"dimensions", "array<i64: 1>"}],
          regions: [sum]
        )

      {input, _} = f32([1, 2, 3, 4, 5, 6])
      assert [x] |> run([rows], [input]) |> hd() |> floats() == [6.0, 15.0]
    end

    test "a value that is used twice is computed once" do
      x = Value.parameter(@vector)
      y = tanh(x)
      text = to_string(Module.build!([x], [add(y, y)]))
      assert length(String.split(text, "stablehlo.tanh")) == 2
    end

    test "a graph that doubles at every step stays linear" do
      x = Value.parameter(@vector)
      y = Enum.reduce(1..200, x, fn _, y -> add(y, y) end)
      text = to_string(Module.build!([x], [y]))
      assert length(String.split(text, "stablehlo.add")) == 201
      assert inspect(y) == "#EXLA.CustomCall.Value<stablehlo.add f32[2]>"
    end

    test "100,000 operations in a chain build" do
      x = Value.parameter(@vector)
      y = Enum.reduce(1..100_000, x, fn _, y -> tanh(y) end)
      assert byte_size(Module.to_bytecode(Module.build!([x], [y]))) > 100_000
    end

    test "the same result several times, and a parameter as a result, are results" do
      x = Value.parameter(@vector)
      {input, _} = f32([1, 2])
      assert run([x], [x, x], [input]) == [input, input]
    end
  end

  describe "regions" do
    test "what only one branch uses is computed in that branch" do
      predicate = Value.parameter(Typespec.tensor(:pred, {}))
      x = Value.parameter(@vector)
      shared = tanh(x)
      once = add(shared, shared)

      [y] =
        Value.op("stablehlo.if", [predicate], [@vector],
          regions: [
            Value.region([], fn [] -> [once] end),
            Value.region([], fn [] -> [shared] end)
          ]
        )

      assert to_string(Module.build!([predicate, x], [y])) == """
             module {
               func.func @main(%arg0: tensor<i1>, %arg1: tensor<2xf32>) -> tensor<2xf32> {
                 %0 = "stablehlo.tanh"(%arg1) : (tensor<2xf32>) -> tensor<2xf32>
                 %1 = "stablehlo.if"(%arg0) ({
                   %2 = "stablehlo.add"(%0, %0) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
                   "stablehlo.return"(%2) : (tensor<2xf32>) -> ()
                 }, {
                   "stablehlo.return"(%0) : (tensor<2xf32>) -> ()
                 }) : (tensor<i1>) -> tensor<2xf32>
                 return %1 : tensor<2xf32>
               }
             }
             """
    end

    test "a loop runs, with a condition and a body that see values from outside" do
      limit = Value.parameter(@scalar)
      zero = Value.constant(<<0::32-native>>, @scalar)
      one = Value.constant(<<1::32-native>>, @scalar)

      condition =
        Value.region([@scalar], fn [n] ->
          Value.op("stablehlo.compare", [n, limit], [Typespec.tensor(:pred, {})],
            attributes: [{"comparison_direction", "#stablehlo<comparison_direction LT>"}]
          )
        end)

      body = Value.region([@scalar], fn [n] -> [add(n, one)] end)
      [count] = Value.op("stablehlo.while", [zero], [@scalar], regions: [condition, body])
      assert run([limit], [count], [<<7::32-native>>]) == [<<7::32-native>>]
    end

    test "a region ends in the operation that its terminator names" do
      x = Value.parameter(@vector)
      region = Value.region([@vector], fn [local] -> [tanh(local)] end, terminator: "sdy.return")
      [y] = Value.op("sdy.manual_computation", [x], [@vector], regions: [region])
      assert to_string(Module.build!([x], [y])) =~ ~S["sdy.return"(%1) : (tensor<2xf32>) -> ()]
    end

    test "operations without uses belong to a region as its effects" do
      predicate = Value.parameter(Typespec.tensor(:pred, {}))

      spec = %Spec{
        call_target_name: "test_nothing",
        mlir_attributes: [{"has_side_effect", "true"}]
      }

      effects = fn [] -> Value.custom_call([], spec, []) end

      branch = fn opts -> Value.region([], fn [] -> [predicate] end, opts) end

      [y] =
        Value.op("stablehlo.if", [predicate], [Typespec.tensor(:pred, {})],
          regions: [branch.(effects: effects), branch.([])]
        )

      [call] = Module.custom_calls(Module.build!([predicate], [y]))
      assert call.call_target_name == "test_nothing"
    end

    test "an argument of a region cannot leave it" do
      x = Value.parameter(@vector)
      region = Value.region([@vector], fn [a] -> [a] end)
      [escaped] = region.arguments
      [y] = Value.op("stablehlo.case", [x], [@vector], regions: [region])
      {:error, error} = Module.build([x], [add(y, escaped)])
      assert error.kind == :graph
      assert error.message == "an argument of a region is used outside the region"
    end

    test "a region cannot belong to two operations" do
      x = Value.parameter(@vector)
      region = Value.region([], fn [] -> [x] end)
      op = fn -> hd(Value.op("stablehlo.case", [x], [@vector], regions: [region])) end
      {:error, error} = Module.build([x], [add(op.(), op.())])
      assert error.message == "a region belongs to two operations; make one for each"
    end

    test "regions deeper than the limit are refused" do
      x = Value.parameter(@vector)

      y =
        Enum.reduce(1..65, x, fn _, y ->
          hd(
            Value.op("stablehlo.case", [x], [@vector],
              regions: [Value.region([], fn [] -> [y] end)]
            )
          )
        end)

      {:error, error} = Module.build([x], [y])

      assert error.message ==
               "regions nest deeper than 64; move inner computations into functions"
    end
  end

  describe "functions" do
    test "a function is emitted once however often it is called" do
      a = Value.parameter(@vector)
      double = Value.function("double", [a], [add(a, a)])
      x = Value.parameter(@vector)
      [y] = Value.call(double, [x])
      [z] = Value.call(double, [y])
      {input, _} = f32([1, 2])
      assert [x] |> run([z], [input]) |> hd() |> floats() == [4.0, 8.0]
      text = to_string(Module.build!([x], [z]))
      assert length(String.split(text, "func.func private @double")) == 2
    end

    test "a function that nothing calls is emitted when it is asked for" do
      a = Value.parameter(@vector)
      function = Value.function("helper", [a], [a], private: false)
      assert to_string(Module.build!([], [], functions: [function])) =~ "func.func @helper("
    end

    test "two functions of one name are refused" do
      function = fn -> Value.function("f", [], []) end
      {:error, error} = Module.build([], [], functions: [function.(), function.()])

      assert error.message ==
               ~S(the function name "f" names two functions; give each function its own name)
    end

    test "a function uses its own parameters only" do
      x = Value.parameter(@vector)
      {:error, error} = Module.build([], [tanh(x)])

      assert error.message ==
               "main uses a parameter that is not in the list of its parameters; " <>
                 "pass every parameter that a function uses"

      {:error, error} = Module.build([x, x], [x])
      assert error.message == "a parameter of main is in the list of its parameters twice"

      {:error, error} = Module.build([tanh(x)], [x])

      assert error.message ==
               "the parameters of main must be made with EXLA.CustomCall.Value.parameter/2"
    end
  end

  describe "constants" do
    test "every type reaches XLA byte for byte" do
      for type <- Typespec.types() do
        typespec = Typespec.tensor(type, {3})
        size = Typespec.byte_size(typespec)
        # One in the low bits of each element: a value of every type, and true.
        bytes =
          for n <- 1..size, into: <<>>, do: <<if(rem(n, div(size, 3)) == 1, do: 1, else: 0)>>

        bytes = if size == 3, do: <<1, 0, 1>>, else: bytes
        assert run([], [Value.constant(bytes, typespec)], []) == [bytes], inspect(type)
      end
    end

    test "a constant of several megabytes is not written as text" do
      bytes = :crypto.strong_rand_bytes(4_000_000)
      value = Value.constant(bytes, Typespec.tensor({:u, 8}, {4_000_000}))
      module = Module.build!([], [value])
      assert byte_size(Module.to_bytecode(module)) < 4_001_000
    end

    test "the wrong number of bytes is refused" do
      {:error, error} = Module.build([], [Value.constant("12345", @vector)])
      assert error.kind == :type
      assert error.message == "constant: 8 bytes make a tensor<2xf32>, and there are 5"
    end
  end

  describe "terms of the wrong shape" do
    test "are refused when the value is made" do
      x = Value.parameter(@vector)

      assert message(fn -> Value.op(:add, [x, x], [@vector]) end) ==
               ~S(expected the name of an operation as a binary such as "stablehlo.add", got: :add)

      assert message(fn -> Value.op("stablehlo.add", x, [@vector]) end) =~
               "operands: expected a list of values, got: #EXLA.CustomCall.Value<parameter f32[2]>"

      assert message(fn -> Value.op("stablehlo.add", [x, 1], [@vector]) end) ==
               "operands: expected values, got: 1 among them"

      assert message(fn -> Value.op("stablehlo.add", [x, x], @vector) end) =~
               "expected a list of templates"

      assert message(fn -> Value.op("stablehlo.add", [x], [@vector], attributes: %{}) end) ==
               "operation_attributes: expected a list of {name, text} pairs of binaries, got: %{}"

      assert message(fn -> Value.op("stablehlo.case", [x], [@vector], regions: [x]) end) =~
               "expected :regions to be a list of EXLA.CustomCall.Value.region/3"

      assert message(fn -> Value.op("stablehlo.add", [x], [@vector], attr: []) end) ==
               "unknown option :attr; the options are :attributes, :regions"

      assert message(fn -> Value.parameter({:f, 32}) end) =~ "expected a template"
      assert message(fn -> Value.constant([1], @vector) end) =~ "expected a constant as a binary"

      for typespec <- [Typespec.token(), Typespec.tuple([@vector]), Typespec.buffer(:f32, {2})] do
        assert message(fn -> Value.convert(Value.parameter(typespec), :f32) end) ==
                 "expected a tensor to convert to :f32, got: #{inspect(typespec)}"
      end

      assert message(fn -> Value.convert(x, {:buffer, {:f, 64}}) end) =~
               "unknown type {:buffer, {:f, 64}}; the types are"

      assert message(fn -> Value.convert(nil, :f32) end) ==
               "value: expected values, got: nil among them"

      assert message(fn -> Value.op("stablehlo.add", [nil], [@vector]) end) ==
               "operands: expected values, got: nil among them"

      assert message(fn -> Value.call(:f, []) end) ==
               "expected a function of EXLA.CustomCall.Value.function/4, got: :f"

      assert message(fn -> Value.function("f", [], [], private: nil) end) ==
               "expected :private to be a boolean, got: nil"

      assert message(fn -> Value.region([], []) end) ==
               "expected the body of a region to be a function of the region's arguments, got: []"

      assert message(fn -> Value.region([], fn [] -> [] end, effects: []) end) ==
               "expected :effects of a region to be a function of the region's arguments, got: []"
    end

    test "an operation without results is no operand and no result" do
      [effect] = Value.custom_call([], %Spec{call_target_name: "k"}, [])

      assert message(fn -> Value.op("stablehlo.add", [effect], [@vector]) end) ==
               "operands: stablehlo.custom_call has no results; pass its value as an effect"

      {:error, error} = Module.build([], [effect])

      assert error.message ==
               "results: stablehlo.custom_call has no results; pass its value as an effect"
    end

    test "names of any bytes are shown in messages" do
      [effect] = Value.op(<<255>>, [], [])

      assert message(fn -> Value.op("stablehlo.add", [effect], []) end) ==
               "operands: <<255>> has no results; pass its value as an effect"

      x = Value.parameter(@vector)
      {:error, error} = Module.build([x, x], [x], function: <<255>>)
      assert error.message == "a parameter of <<255>> is in the list of its parameters twice"
    end

    test "a value that its operation does not have is refused" do
      x = Value.parameter(@vector)

      for index <- [1, -1, 1.0, nil, 0x1_0000_0000] do
        assert message(fn -> Value.op("stablehlo.abs", [%{x | index: index}], [@vector]) end) ==
                 "operands: parameter has no result #{inspect(index)}, only 1, counted from 0"
      end
    end

    test "operation names that MLIR does not take are refused" do
      build = fn name -> Module.build([], [], effects: Value.op(name, [], [])) end
      {:error, error} = build.("add\"")
      assert {error.kind, error.name} == {:name, "add\""}

      assert error.message ==
               ~S(the operation name "add\"" is not one of MLIR: a dialect, a dot and a name of letters, digits, '_', '$' and '.', as in "stablehlo.add")

      {:error, error} = build.("func.return")
      assert error.message =~ "is emitted from the graph itself"
    end
  end
end
