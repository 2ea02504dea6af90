defmodule EXLA.CustomCall.ExecutableTest do
  use ExUnit.Case, async: true

  import EXLA.CustomCall.XLA, only: [f32: 1, f32: 2, floats: 1, text: 1]

  alias EXLA.CustomCall.{Attribute, Client, Error, Executable, Module, Spec, Typespec, Value, XLA}

  @vector Typespec.tensor({:f, 32}, {2})

  defp spec(target, fields \\ []), do: struct!(%Spec{call_target_name: target}, fields)

  defp add do
    parameters = [Value.parameter(@vector), Value.parameter(@vector)]
    values = Value.custom_call(parameters, spec("test_add_f32"), [@vector])
    Client.compile!(XLA.client(), Module.build!(parameters, values))
  end

  defp refusal(inputs) do
    {:error, error} = Executable.run(add(), inputs)
    assert error.kind == :argument
    assert_raise ArgumentError, error.message, fn -> Executable.run!(add(), inputs) end
    error.message
  end

  describe "running" do
    test "a handler computes, from binaries to binaries" do
      {a, _} = f32([1.0, 2.0])
      {b, _} = f32([0.5, 0.25])
      {:ok, [sum]} = Executable.run(add(), [a, b])
      assert floats(sum) == [1.5, 2.25]
    end

    test "a handler sees operands, results and attributes" do
      attributes = [{"causal", "true"}, {"scale", Attribute.float(0.5)}]
      inputs = [f32([1, 2, 3, 4, 5, 6], {2, 3}), {<<7::32-native>>, Typespec.tensor(:s32, {})}]
      results = [Typespec.tensor(:u8, {256}), Typespec.tensor(:bf16, {2, 2})]

      {:ok, [described, _]} =
        XLA.call(spec("test_describe", attributes: attributes), inputs, results)

      assert text(described) ==
               "operands: f32[2,3], s32[]; results: u8[256], bf16[2,2]; " <>
                 "attributes: causal=pred true, scale=f32 0.5"
    end

    test "values of every type come back as they were" do
      for type <- Typespec.types(), shape <- [{}, {3}, {2, 0}] do
        typespec = Typespec.tensor(type, shape)
        bytes = :binary.copy(<<0>>, Typespec.byte_size(typespec))
        x = Value.parameter(typespec)
        executable = Client.compile!(XLA.client(), Module.build!([x], [x]))
        assert Executable.run!(executable, [{bytes, typespec}]) == [bytes]
      end
    end

    test "elements of less than a byte take one byte each" do
      for {type, bytes} <- [
            {{:s, 4}, <<-8::8, 7, 0>>},
            {{:u, 4}, <<15, 1, 0>>},
            {{:s, 2}, <<-2::8, 1, 0>>},
            {{:u, 2}, <<3, 1, 0>>}
          ] do
        typespec = Typespec.tensor(type, {3})
        x = Value.parameter(typespec)
        executable = Client.compile!(XLA.client(), Module.build!([x], [x]))
        assert Executable.run!(executable, [bytes]) == [bytes]
      end
    end

    test "operands are converted before the call" do
      inputs = [{<<1::64-native, 2::64-native>>, Typespec.tensor(:s64, {2})}]
      spec = spec("test_scale_f32", attributes: [{"factor", "1.5 : f32"}])
      spec = %{spec | operand_element_types: [{:f, 32}]}
      {:ok, [result]} = XLA.call(spec, inputs, [@vector])
      assert floats(result) == [1.5, 3.0]
    end

    test "zero operands, zero results and 200 operands run" do
      {:ok, [result]} = XLA.call(spec("test_iota"), [], [Typespec.tensor(:f32, {4})])
      assert floats(result) == [0.0, 1.0, 2.0, 3.0]

      inputs = for n <- 1..200, do: f32([n, 1])
      {:ok, [result]} = XLA.call(spec("test_sum_all"), inputs, [@vector])
      assert floats(result) == [20_100.0, 200.0]

      nothing = spec("test_nothing", mlir_attributes: [{"has_side_effect", "true"}])
      module = Module.build!([], [], effects: Value.custom_call([], nothing, []))
      calls = fn -> XLA.call(spec("test_call_count"), [], [Typespec.tensor(:s64, {})]) end
      {:ok, [<<before::64-native>>]} = calls.()
      assert Executable.run!(Client.compile!(XLA.client(), module), []) == []
      assert calls.() == {:ok, [<<before + 1::64-native>>]}
    end

    test "tokens go into a call and come out of it" do
      x = Value.parameter(@vector)
      [token] = Value.op("stablehlo.create_token", [], [Typespec.token()])

      [_, y] = Value.custom_call([token, x], spec("test_token"), [Typespec.token(), @vector])
      {input, _} = f32([3, 4])
      executable = Client.compile!(XLA.client(), Module.build!([x], [y]))
      assert Executable.run!(executable, [input]) == [input]
    end

    test "inputs and results survive their origin" do
      {input, type} = f32(Enum.to_list(1..10_000))
      {:ok, [result]} = XLA.call(spec("test_copy"), [{input, type}], [type])
      :erlang.garbage_collect()
      assert result == input
    end
  end

  describe "mlir_attributes" do
    test "operand_layouts make the handler see columns first" do
      spec =
        spec("test_physical_order",
          mlir_attributes: [
            {"operand_layouts", Attribute.layouts([[0, 1]])},
            {"result_layouts", Attribute.layouts([[0]])}
          ]
        )

      input = f32([0, 1, 2, 3, 4, 5], {2, 3})
      {:ok, [seen]} = XLA.call(spec, [input], [Typespec.tensor(:f32, {6})])
      assert floats(seen) == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    end

    test "without layouts, or with row-major ones, the handler sees rows first" do
      input = f32([0, 1, 2, 3, 4, 5], {2, 3})
      result = Typespec.tensor(:f32, {6})
      {_, type} = input

      layouts = [
        {"operand_layouts", Attribute.row_major([type])},
        {"result_layouts", Attribute.row_major([result])}
      ]

      for mlir_attributes <- [[], layouts] do
        spec = spec("test_physical_order", mlir_attributes: mlir_attributes)
        {:ok, [seen]} = XLA.call(spec, [input], [result])
        assert floats(seen) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
      end
    end

    test "result_layouts say how the handler writes" do
      spec =
        spec("test_iota",
          mlir_attributes: [
            {"operand_layouts", "[]"},
            {"result_layouts", Attribute.layouts([[0, 1]])}
          ]
        )

      {:ok, [result]} = XLA.call(spec, [], [Typespec.tensor(:f32, {2, 3})])
      assert floats(result) == [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]
    end

    test "output_operand_aliases make a result share its operand's memory" do
      {_, type} = input = f32([1, 2])
      results = [type, Typespec.tensor(:s32, {})]
      aliases = {"output_operand_aliases", Attribute.output_operand_aliases([{0, 0}])}
      shares = spec("test_shares_memory")

      assert {:ok, [_, <<0::32-native>>]} = XLA.call(shares, [input], results)
      shares = %{shares | mlir_attributes: [aliases]}
      assert {:ok, [result, <<1::32-native>>]} = XLA.call(shares, [input], results)
      assert floats(result) == [1.0, 2.0]
    end

    test "a sharding rule that Shardy refuses is refused with Shardy's words" do
      rule = Attribute.sharding_rule([[:a, :b]], [[:a]], a: 2, b: 2)
      spec = spec("test_copy", mlir_attributes: [{"sdy.sharding_rule", rule}])
      {:error, error} = XLA.call(spec, [f32([1, 2])], [@vector])
      assert error.kind == :compile
      assert error.message =~ "mapping"

      rule = Attribute.sharding_rule([[:a]], [[:a]], a: 2)
      spec = spec("test_copy", mlir_attributes: [{"sdy.sharding_rule", rule}])
      assert {:ok, _} = XLA.call(spec, [f32([1, 2])], [@vector])
    end
  end

  describe "errors" do
    test "inputs of the wrong count are refused" do
      assert refusal([]) == "the executable takes 2 inputs, got 0"
      assert refusal([<<0::64>>, <<0::64>>, <<0::64>>]) == "the executable takes 2 inputs, got 3"
      assert refusal(:x) == "expected the inputs as a list, got: :x"
    end

    test "inputs of the wrong type or shape are refused" do
      assert refusal([<<0::64>>, {<<0::128>>, Typespec.tensor({:f, 64}, {2})}]) ==
               "input 1: the executable takes #EXLA.CustomCall.Typespec<f32[2]>, " <>
                 "got #EXLA.CustomCall.Typespec<f64[2]>"

      assert refusal([{<<0::64>>, %{type: {:f, 32}, shape: {1, 2}}}, <<0::64>>]) =~
               "input 0: the executable takes"

      assert refusal([<<0::64>>, 1.0]) ==
               "input 1: expected a binary, a {binary, template} pair or an Nx.Tensor, got: 1.0"
    end

    test "inputs of the wrong byte size are refused" do
      assert refusal([<<0::64>>, <<0::72>>]) ==
               "input 1: #EXLA.CustomCall.Typespec<f32[2]> takes 8 bytes, got a binary of 9"
    end

    test "an error that a handler returns comes with its code and words" do
      fail = fn attributes ->
        {:error, error} = XLA.call(spec("test_fail", attributes: attributes), [], [@vector])
        error
      end

      error = fail.([{"code", "3 : i32"}, {"message", Attribute.string("bad \"shape\" é")}])
      assert {error.kind, error.code} == {:run, :invalid_argument}
      assert error.message == "INVALID_ARGUMENT: bad \"shape\" é"
      assert fail.([{"code", "8 : i32"}]).code == :resource_exhausted

      assert_raise Error, ~r/INTERNAL: test_fail was called/, fn ->
        [] |> (&XLA.call(spec("test_fail"), &1, [@vector])).() |> Error.unwrap!()
      end
    end

    test "a handler that finds the wrong operands says which" do
      {:error, error} =
        XLA.call(spec("test_add_f32"), [f32([1]), {<<0::64>>, Typespec.tensor(:f64, {1})}], [
          Typespec.tensor(:f32, {1})
        ])

      assert error.message == "INVALID_ARGUMENT: operand 1 (b): expected f32, found f64"
    end

    @tag :capture_log
    test "a panic in a handler is an error" do
      {:error, error} = XLA.call(spec("test_panic"), [], [@vector])
      assert {error.kind, error.code} == {:run, :internal}
      assert error.message == "INTERNAL: the handler panicked: boom from test_panic"
    end
  end

  test "1,000 runs from 100 processes give the right results" do
    executable = add()

    results =
      1..1_000
      |> Task.async_stream(
        fn n ->
          {input, _} = f32([n, -n])
          [sum] = Executable.run!(executable, [input, input])
          floats(sum) == [2.0 * n, -2.0 * n]
        end,
        max_concurrency: 100
      )
      |> Enum.map(fn {:ok, right?} -> right? end)

    assert Enum.all?(results)
  end
end
