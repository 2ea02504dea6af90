defmodule EXLA.CustomCall.ExecutableTest do
  use ExUnit.Case, async: true

  import EXLA.CustomCall.XLA, only: [f32: 1, f32: 2, floats: 1, text: 1]

  alias EXLA.CustomCall.{
    Attribute,
    Buffer,
    Client,
    Error,
    Executable,
    Module,
    Spec,
    Typespec,
    Value,
    XLA
  }

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

  describe "functions" do
    test "a region calls one, and the module prints, donates and runs" do
      scalar = Typespec.tensor({:f, 32}, {})
      [a, b] = [Value.parameter(scalar), Value.parameter(scalar)]
      sum = Value.function("sum", [a, b], Value.op("stablehlo.add", [a, b], [scalar]))
      [x, zero] = [Value.parameter(@vector), Value.parameter(scalar)]

      result =
        Value.op("stablehlo.reduce", [x, zero], [scalar],
          attributes: [{"dimensions", "array<i64: 0>"}],
          regions: [Value.region([scalar, scalar], &Value.call(sum, &1))]
        )

      module = Module.build!([x, zero], result)
      assert to_string(module) =~ "func.call @sum" or to_string(module) =~ "call @sum"
      assert Module.custom_calls(module) == []
      executable = Client.compile!(XLA.client(), module, donate: [1])
      inputs = [<<1.0::float-32-native, 2.0::float-32-native>>, <<4.0::float-32-native>>]
      assert Executable.run!(executable, inputs, results: :binary) == [<<7.0::float-32-native>>]
    end
  end

  describe "running" do
    test "a handler computes, from binaries to binaries" do
      {a, _} = f32([1.0, 2.0])
      {b, _} = f32([0.5, 0.25])
      {:ok, [sum]} = Executable.run(add(), [a, b], results: :binary)
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
        assert Executable.run!(executable, [{bytes, typespec}], results: :binary) == [bytes]
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
        assert Executable.run!(executable, [bytes], results: :binary) == [bytes]
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
      assert Executable.run!(Client.compile!(XLA.client(), module), [], results: :binary) == []
      assert calls.() == {:ok, [<<before + 1::64-native>>]}
    end

    test "tokens go into a call and come out of it" do
      x = Value.parameter(@vector)
      [token] = Value.op("stablehlo.create_token", [], [Typespec.token()])

      [_, y] = Value.custom_call([token, x], spec("test_token"), [Typespec.token(), @vector])
      {input, _} = f32([3, 4])
      executable = Client.compile!(XLA.client(), Module.build!([x], [y]))
      assert Executable.run!(executable, [input], results: :binary) == [input]
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

    test "a sharding rule that Shardy would refuse does not reach it" do
      rule = Attribute.sharding_rule([[:a, :b]], [[:a]], a: 2, b: 2)
      spec = spec("test_copy", mlir_attributes: [{"sdy.sharding_rule", rule}])
      {:error, error} = XLA.call(spec, [f32([1, 2])], [@vector])
      assert error.kind == :spec
      assert error.name == "sdy.sharding_rule"

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
               "input 1: expected a buffer, a binary, a {binary, template} pair or an Nx.Tensor, got: 1.0"
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

  describe "asynchronous runs" do
    defp sleep(milliseconds) do
      x = Value.parameter(@vector)
      spec = spec("test_sleep_ms", attributes: [{"ms", "#{milliseconds} : i64"}])
      Client.compile!(XLA.client(), Module.build!([x], Value.custom_call([x], spec, [@vector])))
    end

    test "return at once, and are awaited" do
      {input, _} = f32([1, 2])
      executable = sleep(100)

      {time, {:ok, async}} =
        :timer.tc(fn -> Executable.run_async(executable, [input], results: :binary) end)

      assert time < 50_000
      assert Executable.await(async) == {:ok, [input]}
    end

    test "send a message whose results can be taken in a GenServer" do
      {input, _} = f32([1, 2])
      {:ok, %{ref: ref} = async} = Executable.run_async(sleep(10), [input], results: :binary)
      assert_receive {^ref, _} = message
      assert Executable.result(async, message) == {:ok, [input]}
    end

    test "that are given up send no message" do
      {input, _} = f32([1, 2])
      executable = sleep(100)
      {:ok, async} = Executable.run_async(executable, [input])
      {:error, error} = Executable.await(async, 10)
      assert {error.kind, error.code} == {:run, :deadline_exceeded}
      assert error.message == "the program was not done within 10 ms"
      {:error, error} = Executable.run(executable, [input], timeout: 10)
      assert error.code == :deadline_exceeded
      refute_receive {_, _}, 200
    end

    test "are awaited once, and by the process that started them" do
      {input, _} = f32([1, 2])
      taken = "the answer of this run was taken, or given up, before"
      {:ok, async} = Executable.run_async(sleep(1), [input], results: :binary)
      assert Executable.await(async) == {:ok, [input]}
      assert {:error, %{message: ^taken}} = Executable.await(async, 100)
      assert {:error, %{message: ^taken}} = Executable.await(async)

      {:ok, %{ref: ref} = async} = Executable.run_async(sleep(50), [input], results: :binary)
      assert {:error, %{code: :deadline_exceeded}} = Executable.await(async, 0)
      assert {:error, %{message: ^taken}} = Executable.await(async, 100)

      {:ok, async} = Executable.run_async(sleep(20), [input], results: :binary)
      owner = inspect(self())

      assert {:error,
              %{message: "the process that started the run awaits it, that is " <> ^owner}} =
               Task.await(Task.async(fn -> Executable.await(async, 10) end))

      assert Executable.await(async) == {:ok, [input]}
      assert {:error, %{kind: :argument}} = Executable.result(async, {ref, :junk})
      assert {:error, %{kind: :argument}} = Executable.await(:junk)
      assert {:error, %{kind: :argument}} = Executable.await(async, :soon)
      assert {:error, %{kind: :argument}} = Executable.run_async(sleep(1), [input], sharded: :yes)
    end

    test "come back in any number, errors too" do
      {input, _} = f32([1, 2])
      good = sleep(5)
      x = Value.parameter(@vector)
      fail = Value.custom_call([x], spec("test_fail"), [@vector])
      bad = Client.compile!(XLA.client(), Module.build!([x], fail))

      runs =
        for n <- 1..64,
            do: Executable.run_async!(if(rem(n, 2) == 0, do: good, else: bad), [input])

      for {run, n} <- Enum.with_index(runs, 1) do
        case Executable.await(run) do
          {:ok, [_buffer]} -> assert rem(n, 2) == 0
          {:error, error} -> assert {rem(n, 2), error.code} == {1, :internal}
        end
      end
    end
  end

  describe "several devices" do
    test "replicas run on inputs of their own" do
      x = Value.parameter(@vector)
      module = Module.build!([x], Value.custom_call([x], spec("test_copy"), [@vector]))
      executable = Client.compile!(XLA.client(), module, replicas: 2)
      assert %{replicas: 2, partitions: 1, devices: [0, 1]} = Executable.info!(executable)
      {one, _} = f32([1, 2])
      {two, _} = f32([3, 4])

      assert Executable.run_sharded!(executable, [[one], [two]], results: :binary) == [
               [one],
               [two]
             ]

      {:ok, [[first], [second]]} = Executable.run_sharded(executable, [[one], [two]])
      assert {Buffer.info!(first).device, Buffer.info!(second).device} == {0, 1}
      {:error, error} = Executable.run_sharded(executable, [[one], ["12"]])

      assert error.message ==
               "device 1: input 0: #EXLA.CustomCall.Typespec<f32[2]> takes 8 bytes, got a binary of 2"

      {:error, error} = Executable.run(executable, [one])
      assert error.message == "the executable runs on 2 devices, inputs for 1 were given"
    end

    test "a buffer on another device than its program's is refused, and nothing is left waiting" do
      x = Value.parameter(@vector)
      module = Module.build!([x], Value.custom_call([x], spec("test_copy"), [@vector]))
      executable = Client.compile!(XLA.client(), module, replicas: 2)
      {binary, _} = f32([1, 2])
      buffer = Buffer.from_binary!(XLA.client(), binary, @vector, device: 0)
      {:error, error} = Executable.run_sharded(executable, [[buffer], [buffer]])

      assert error.message ==
               "input 0: the buffer is on device 0, and the program runs on device 1 with it; " <>
                 "copy it there first"

      assert Executable.run_sharded!(executable, [[binary], [binary]],
               results: :binary,
               timeout: 5_000
             ) ==
               [[binary], [binary]]
    end

    test "buffers that are deleted meanwhile leave nothing waiting either" do
      x = Value.parameter(@vector)
      module = Module.build!([x], Value.custom_call([x], spec("test_copy"), [@vector]))
      executable = Client.compile!(XLA.client(), module, replicas: 2)
      {binary, _} = f32([1, 2])

      for _ <- 1..100 do
        buffer = Buffer.from_binary!(XLA.client(), binary, @vector, device: 1)
        deleted = Task.async(fn -> Buffer.delete(buffer) end)

        case Executable.run_sharded(executable, [[binary], [buffer]], timeout: 5_000) do
          {:ok, _} -> :ok
          {:error, error} -> assert error.message =~ "deleted"
        end

        assert Task.await(deleted) == :ok
      end
    end

    test "programs with a collective run many at a time" do
      x = Value.parameter(@vector)
      scalar = Typespec.tensor({:f, 32}, {})

      sum =
        Value.region([scalar, scalar], fn [a, b] ->
          Value.op("stablehlo.add", [a, b], [scalar])
        end)

      reduced =
        Value.op("stablehlo.all_reduce", [x], [@vector],
          attributes: [{"replica_groups", "dense<[[0, 1]]> : tensor<1x2xi64>"}],
          regions: [sum]
        )

      executable = Client.compile!(XLA.client(), Module.build!([x], reduced), replicas: 2)
      {one, _} = f32([1, 2])
      {two, _} = f32([10, 20])
      {expected, _} = f32([11, 22])

      results =
        1..60
        |> Task.async_stream(
          fn _ ->
            Executable.run_sharded!(executable, [[one], [two]], results: :binary, timeout: 20_000)
          end,
          max_concurrency: 60,
          timeout: 30_000
        )
        |> Enum.map(fn {:ok, result} -> result end)

      assert results == List.duplicate([[expected], [expected]], 60)
    end

    test "there can be eight" do
      client = Client.new!(options: [cpu_device_count: 8])
      assert Enum.map(client.devices, & &1.id) == Enum.to_list(0..7)
      x = Value.parameter(@vector)
      module = Module.build!([x], Value.custom_call([x], spec("test_copy"), [@vector]))
      executable = Client.compile!(client, module, replicas: 8)
      inputs = for n <- 1..8, do: [elem(f32([n, n]), 0)]
      assert Executable.run_sharded!(executable, inputs, results: :binary) == inputs
    end

    test "a program that is partitioned takes and gives the parts" do
      x =
        Value.parameter(Typespec.tensor({:f, 32}, {4}),
          attributes: [{"mhlo.sharding", "\"{devices=[2]<=[2]}\""}]
        )

      [y] = Value.op("stablehlo.negate", [x], [x.typespec])
      module = Module.build!([x], [{y, [{"mhlo.sharding", "\"{devices=[2]<=[2]}\""}]}])
      executable = Client.compile!(XLA.client(), module, partitions: 2, shardy: false)
      assert executable.parameters == [@vector]
      assert executable.results == [@vector]
      {one, _} = f32([1, 2])
      {two, _} = f32([3, 4])
      [[a], [b]] = Executable.run_sharded!(executable, [[one], [two]], results: :binary)
      assert {floats(a), floats(b)} == {[-1.0, -2.0], [-3.0, -4.0]}
    end
  end

  describe "user data" do
    @byte Typespec.tensor({:u, 8}, {})

    defp user_data_program(opts \\ []) do
      module = Module.build!([], Value.custom_call([], spec("test_user_data"), [@byte]))
      Client.compile!(XLA.client(), module, opts)
    end

    test "of a run reaches its handlers by name" do
      executable = user_data_program()

      run = fn user_data ->
        Executable.run!(executable, [], user_data: user_data, results: :binary)
      end

      assert run.(%{"test.first" => <<1, 2>>}) == [<<2>>]
      assert run.(%{"test.first" => <<2>>, "test.second" => <<40>>}) == [<<42>>]
      assert run.(%{"test.first" => <<>>, "nobody asks" => <<1>>}) == [<<0>>]
    end

    test "that a handler needs and the run has not is an error of the run" do
      {:error, error} = Executable.run(user_data_program(), [], results: :binary)
      assert {error.kind, error.code} == {:run, :invalid_argument}

      assert error.message =~
               ~s(the handler needs user data "test.first", which this execution was not given)
    end

    test "is that of its own run, where many are under way" do
      executable = user_data_program()

      wrong =
        1..2_000
        |> Task.async_stream(
          fn n ->
            data = %{"test.first" => <<n>>, "test.second" => :binary.copy(<<1>>, n)}
            options = [user_data: data, results: :binary]
            [<<byte>>] = Executable.run!(executable, [], options)
            byte == rem(n + 1, 256)
          end,
          max_concurrency: 200
        )
        |> Enum.reject(&(&1 == {:ok, true}))

      assert wrong == []
    end

    test "reaches the handlers on every device" do
      options = [user_data: %{"test.first" => <<7>>}, results: :binary]
      executable = user_data_program(replicas: 2)
      assert Executable.run_sharded!(executable, [[], []], options) == [[<<7>>], [<<7>>]]
    end

    test "goes with a run that is not waited for" do
      options = [user_data: %{"test.first" => <<9>>}, results: :binary]
      async = Executable.run_async!(user_data_program(), [], options)
      :erlang.garbage_collect()
      assert Executable.await!(async) == [<<9>>]
    end

    test "that is no map of binaries is refused" do
      message = fn user_data ->
        {:error, %{kind: :argument, field: :user_data} = error} =
          Executable.run(user_data_program(), [], user_data: user_data)

        error.message
      end

      assert message.([{"a", "b"}]) == ~S(expected :user_data to be a map, got: [{"a", "b"}])

      assert message.(%{a: "b"}) ==
               ~S(expected :user_data to map binaries to binaries, got: {:a, "b"})

      assert message.(%{"a" => 1}) ==
               ~S(expected :user_data to map binaries to binaries, got: {"a", 1})
    end
  end

  describe "what is known of an executable" do
    test "memory, fingerprint and the optimised program" do
      executable = add()
      info = Executable.info!(executable)
      assert %{replicas: 1, partitions: 1, devices: [0], memory: memory} = info
      assert memory.arguments == 16
      assert memory.results == 8
      assert is_binary(info.fingerprint)
      text = Executable.hlo_text!(executable)
      assert text =~ "custom-call("
      assert text =~ ~s(custom_call_target="test_add_f32")
    end
  end

  describe "serialized executables" do
    test "run again without compiling" do
      bytes = Executable.serialize!(add())
      executable = Executable.deserialize!(XLA.client(), bytes)
      assert executable.parameters == [@vector, @vector]
      {input, _} = f32([1, 2])
      [sum] = Executable.run!(executable, [input, input], results: :binary)
      assert floats(sum) == [2.0, 4.0]
    end

    builds = Enum.map([:jax, :zml], &EXLA.CustomCall.Plugin.resolve(:cpu, build: &1))

    unless Enum.all?(builds, &match?({:ok, _}, &1)),
      do: @tag(skip: "one build of the plugin is there")

    test "are refused by another build of the plugin" do
      [one, other] =
        for build <- [:jax, :zml] do
          {:ok, path} = EXLA.CustomCall.Plugin.resolve(:cpu, build: build)
          Client.new!(plugin: path)
        end

      x = Value.parameter(@vector)
      [y] = Value.op("stablehlo.negate", [x], [@vector])
      bytes = Executable.serialize!(Client.compile!(one, Module.build!([x], [y])))
      assert {:ok, _} = Executable.deserialize(one, bytes)
      {:error, error} = Executable.deserialize(other, bytes)
      assert error.kind == :compile

      assert error.message ==
               "the serialized executable is refused: its PJRT API version is 0.115, here it is 0.106"
    end

    test "are refused when they are damaged, cut off or something else" do
      bytes = Executable.serialize!(add())
      size = byte_size(bytes)

      for at <- [30, 100, div(size, 2), size - 1] do
        <<before::binary-size(at), byte, rest::binary>> = bytes
        damaged = <<before::binary, Bitwise.bxor(byte, 1), rest::binary>>
        {:error, error} = Executable.deserialize(XLA.client(), damaged)
        assert error.message =~ "damaged"
        {:error, error} = Executable.deserialize(XLA.client(), binary_part(bytes, 0, at))
        assert error.message =~ ~r/damaged|expected the bytes/
      end

      # What a head holds is looked at, too.
      <<magic::binary-size(29), _hash::binary-size(32), size::32, _head::binary-size(size),
        rest::binary>> = bytes

      for head <- [
            "junk",
            :erlang.term_to_binary(:a),
            :erlang.term_to_binary({:a, 1, nil}),
            :erlang.term_to_binary({[], [], [7]}),
            :erlang.term_to_binary({[{99, []}], [], []})
          ] do
        body = <<byte_size(head)::32, head::binary, rest::binary>>
        forged = magic <> :crypto.hash(:sha256, body) <> body
        {:error, error} = Executable.deserialize(XLA.client(), forged)
        assert error.message =~ "damaged"
      end

      {:error, error} = Executable.deserialize(XLA.client(), "something else")
      assert error.kind == :argument

      assert error.message ==
               "expected the bytes of an executable, as serialize/1 writes them in this version, got: \"something else\""
    end
  end

  describe "compile options" do
    test "are refused by name" do
      module = Module.build!([], [])

      message = fn opts ->
        {:error, error} = Client.compile(XLA.client(), module, opts)
        assert error.kind == :argument
        error.message
      end

      assert message.(replicas: 0) ==
               "expected :replicas to be an integer from 1 to 65536, got: 0"

      assert message.(spmd: 1) == "expected :spmd to be a boolean, got: 1"

      assert message.(donate: [0]) ==
               "expected :donate to be a list of indexes of the 0 parameters, got: [0]"

      assert message.(device_assignment: [[0, 1]]) ==
               "expected :device_assignment to be a list of 1 lists of 1 device ids, got: [[0, 1]]"

      assert message.(propagate_to_results: [true]) ==
               "expected :propagate_to_results to be a boolean, or a list of 0, got: [true]"

      assert message.(timeout: -1) ==
               "expected :timeout in milliseconds, 0 to 4294967295, or :infinity, got: -1"

      assert message.(xla_options: [xla_dump_to: [1]]) ==
               ~S(expected :xla_options to be without lists, got: [{"xla_dump_to", [1]}])

      assert message.(replica: 1) =~
               "unknown option :replica; the options are :replicas, :partitions, "
    end

    @tag :tmp_dir
    test "of XLA's own reach it", %{tmp_dir: folder} do
      module = Module.build!([], [])
      {:ok, _} = Client.compile(XLA.client(), module, xla_options: [xla_dump_to: folder])
      assert Path.wildcard(Path.join(folder, "*.txt")) != []
    end

    test "that the plugin does not know come back with its words" do
      module = Module.build!([], [])

      {:error, error} =
        Client.compile(XLA.client(), module, xla_options: [xla_no_such_flag: true])

      assert error.kind == :compile
      assert error.message =~ "xla_no_such_flag"
    end
  end

  test "1,000 runs at once from 1,000 processes give the right results" do
    executable = add()

    results =
      1..1_000
      |> Task.async_stream(
        fn n ->
          {input, _} = f32([n, -n])
          [sum] = Executable.run!(executable, [input, input], results: :binary)
          floats(sum) == [2.0 * n, -2.0 * n]
        end,
        max_concurrency: 1_000
      )
      |> Enum.map(fn {:ok, right?} -> right? end)

    assert Enum.all?(results)
  end

  test "a list of donated parameters that is none makes bytes damaged" do
    <<"EXLA.CustomCall.Executable 2\n", _hash::binary-size(32), size::32, head::binary-size(size),
      bytes::binary>> = Executable.serialize!(add())

    {parameters, results, [], nil} = :erlang.binary_to_term(head)

    for parts <- [
          {parameters, results, %{}, nil},
          {parameters, results ++ :tail, [], nil},
          {[:a], [], [], nil},
          {parameters, results, []},
          {parameters, results, [], {"mesh", "#sdy.mesh<>", [nil, nil], [nil]}},
          {parameters, results, [], {"mesh", ~S(#sdy.mesh<["x"=2]>), [nil, "?"], [nil]}},
          {parameters, results, [], {"mesh", ~S(#sdy.mesh<["x"=2]>), [nil | nil], [nil]}},
          {parameters, results, [], {"mesh", ~S(#sdy.mesh<["x"=2]>), [nil, 7], [nil]}},
          {parameters, results, [], {"mesh", ~S(#sdy.mesh<["x"=2]>), [nil, false], [nil]}}
        ] do
      head = :erlang.term_to_binary(parts)
      body = <<byte_size(head)::32, head::binary, bytes::binary>>
      forged = "EXLA.CustomCall.Executable 2\n" <> :crypto.hash(:sha256, body) <> body
      {:error, error} = Executable.deserialize(XLA.client(), forged)
      assert error.message == "the bytes of the executable are damaged: compile it anew"
    end
  end
end
