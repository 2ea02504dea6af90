defmodule EXLA.CustomCall.NativeTest do
  # Not async: atoms and schedulers belong to the whole VM.
  use ExUnit.Case, async: false

  alias EXLA.CustomCall.{Context, Module, Spec, Typespec, Value, XLA}

  @nesting 64

  defp with_text(text) do
    # On the operation, where any attribute of MLIR's own may stand.
    spec = %Spec{call_target_name: "k", mlir_attributes: [{"a", text}]}
    Value.custom_call([], spec, [])
  end

  defp nested(open, middle, close, depth) do
    String.duplicate(open, depth) <> middle <> String.duplicate(close, depth)
  end

  test "200,000 distinct names make no atom" do
    build = fn range ->
      for chunk <- Enum.chunk_every(range, 1_000) do
        attributes = Enum.map(chunk, &{"name #{&1}", "\"text #{&1}\""})
        mlir = Enum.map(chunk, &{"my.name_#{&1}", "\"mlir #{&1}\""})

        spec = %Spec{
          call_target_name: "target #{hd(chunk)}",
          attributes: attributes,
          mlir_attributes: mlir
        }

        [effect] = Value.custom_call([], spec, [])

        module =
          Module.build!([], [], effects: [effect], name: "module #{hd(chunk)}", warnings: :ignore)

        [call] = Module.custom_calls(module)
        assert length(call.attributes) == 1_000
        assert {:error, _} = Module.build([], [], effects: with_text("nonsense #{hd(chunk)}"))
      end
    end

    # Once before, for the atoms of the code itself.
    build.(1..1_000)
    before = :erlang.system_info(:atom_count)
    build.(1..100_000)
    assert :erlang.system_info(:atom_count) == before
  end

  test "texts at the ceiling build on normal and on dirty schedulers" do
    texts = [
      nested("[", "1", "]", @nesting),
      nested("{a = ", "1", "}", @nesting),
      nested("tuple<", "i1", ">", @nesting),
      nested("[{a = ", "1", "}]", div(@nesting, 2)),
      "dense<#{nested("[", "1", "]", @nesting - 1)}> : tensor<#{String.duplicate("1x", @nesting - 1)}i64>",
      "affine_map<(d0) -> (#{String.duplicate("-", @nesting)}d0)>"
    ]

    # Given a context, a module is built on a dirty scheduler.
    for text <- texts, context <- [nil, Context.new!()] do
      assert {:ok, module} =
               Module.build([], [], effects: with_text(text), context: context, warnings: :ignore)

      assert is_binary(to_string(module))
      assert [_] = Module.custom_calls(module)

      # Read and printed on a dirty scheduler: the constant makes the module a heavy one.
      constant = Value.constant(<<0::size(40_000)-unit(8)>>, Typespec.tensor(:u8, {40_000}))

      assert {:ok, heavy} =
               Module.build([], [constant],
                 effects: with_text(text),
                 context: context,
                 warnings: :ignore
               )

      assert to_string(heavy) =~ "stablehlo.custom_call"
      assert [_] = Module.custom_calls(heavy)
    end
  end

  test "regions at the ceiling build and print on dirty schedulers" do
    type = Typespec.tensor({:f, 32}, {})
    x = Value.parameter(type)

    y =
      Enum.reduce(1..@nesting, x, fn _, y ->
        hd(Value.op("stablehlo.case", [x], [type], regions: [Value.region([], fn [] -> [y] end)]))
      end)

    assert length(String.split(to_string(Module.build!([x], [y])), "stablehlo.case")) == 65
  end

  test "normal schedulers run on while a module of many operations is built" do
    type = Typespec.tensor({:f, 32}, {2})
    x = Value.parameter(type)

    y = Enum.reduce(1..50_000, x, fn _, y -> hd(Value.op("stablehlo.tanh", [y], [type])) end)

    {:ok, functions, [], count, bytes} =
      EXLA.CustomCall.Graph.flatten(Value.function("main", [x], [y], private: false), [], [])

    assert {count, bytes} == {50_001, 50_000}
    graph = {nil, [], [], functions}

    # Long schedulings of the caller would show here; the build itself takes some hundred times more.
    :erlang.system_monitor(self(), [{:long_schedule, 50}])
    assert {:ok, _} = EXLA.CustomCall.Native.module_build_dirty(nil, graph)
    :erlang.system_monitor(:undefined)
    refute_received {:monitor, _, :long_schedule, _}
  end

  test "no scheduler, normal or dirty, is held while handlers work" do
    spec = %Spec{call_target_name: "test_sleep_ms", attributes: [{"ms", "100 : i64"}]}
    {input, type} = XLA.f32([1.0])
    x = Value.parameter(type)
    module = Module.build!([x], Value.custom_call([x], spec, [type]))
    executable = EXLA.CustomCall.Client.compile!(XLA.client(), module)
    run = fn -> EXLA.CustomCall.Executable.run_async!(executable, [input], results: :binary) end
    Enum.each([run.()], &EXLA.CustomCall.Executable.await!/1)

    :erlang.system_flag(:scheduler_wall_time, true)
    before = :erlang.statistics(:scheduler_wall_time_all)
    runs = for _ <- 1..64, do: run.()
    results = Enum.map(runs, &EXLA.CustomCall.Executable.await!/1)
    later = :erlang.statistics(:scheduler_wall_time_all)
    :erlang.system_flag(:scheduler_wall_time, false)

    assert results == List.duplicate([input], 64)

    # Held by the handlers, the two schedulers of a machine with two cores would be busy throughout.
    for {{id, active, total}, {id, active_later, total_later}} <-
          Enum.zip(Enum.sort(before), Enum.sort(later)) do
      assert (active_later - active) / max(total_later - total, 1) < 0.7, "scheduler #{id}"
    end
  end

  test "a process that is killed while its call runs harms nothing" do
    spec = %Spec{call_target_name: "test_sleep_ms", attributes: [{"ms", "200 : i64"}]}
    {input, type} = XLA.f32([1.0])

    killed =
      for _ <- 1..10 do
        spawn(fn -> XLA.call(spec, [{input, type}], [type]) end)
      end

    Process.sleep(50)
    Enum.each(killed, &Process.exit(&1, :kill))
    assert XLA.call(spec, [{input, type}], [type]) == {:ok, [input]}
  end

  test "numbers of values may be far apart, and take no memory for what is between" do
    operation = fn number -> {{3, "a.b", []}, [], number, [:token], []} end
    operations = for n <- 1..1_000, do: operation.(n * 4_000_000)
    graph = {nil, [], [], [{"main", false, [], [{:token, []}], operations, [4_000_000_000]}]}
    assert {:ok, _} = EXLA.CustomCall.Native.module_build_dirty(nil, graph)
  end

  test "lists that do not end as lists are refused" do
    alias EXLA.CustomCall.Native
    client = XLA.client().ref
    four = :binary.copy(<<0>>, 16)
    {:ok, plugin} = EXLA.CustomCall.Plugin.resolve(:cpu)
    module = Module.build!([], []).ref

    options = %{
      replicas: 1,
      partitions: 1,
      spmd: false,
      shardy: false,
      propagate_to_outputs: [],
      propagate_to_parameters: [],
      parameter_count: 0,
      result_count: 0,
      device_assignment: nil,
      donate: [],
      xla_options: []
    }

    calls = [
      fn -> Native.client_new(plugin, [{"cpu_device_count", 1} | :tail]) end,
      fn -> Native.client_new(plugin, [{"cpu_device_count", [1 | :tail]}]) end,
      fn -> Native.library_load(client, "none", [{"t", {"f", nil, nil, nil, nil}} | :tail]) end,
      fn -> Native.buffer_from_binary(client, 0, {{17, [4 | :tail]}, four, nil}, :tag) end,
      fn -> Native.buffer_from_binary(client, 0, {{17, [4]}, four, [4 | :tail]}, :tag) end,
      fn -> Native.module_build(nil, {nil, [], [{"f", false, [], [], [], [1 | :tail]}]}) end,
      fn -> Native.module_build(nil, {nil, [{"a", "1"} | :tail], []}) end
      | for {key, value} <- [
              propagate_to_outputs: [true | :tail],
              device_assignment: [[0 | :tail]],
              donate: [0 | :tail],
              xla_options: [{"a", 1} | :tail]
            ] do
          fn -> Native.client_compile(client, module, Map.put(options, key, value), :tag) end
        end
    ]

    for call <- calls do
      refusal =
        try do
          call.()
        rescue
          error in [ArgumentError, ErlangError] -> Map.get(error, :original, :badarg)
        end

      # What the decoders of maps raise, of variants, and of all others.
      assert is_binary(refusal) or refusal in [:invalid_variant, :badarg]
    end
  end

  describe "slices of host tensors" do
    alias EXLA.CustomCall.Native

    # The columns of [[0, 1, 2, 3], [4, 5, 6, 7]] in two halves.
    @columns [{[0, 0], [2, 2]}, {[0, 2], [2, 2]}]

    test "columns are cut out and put together again" do
      tensor = <<0, 1, 2, 3, 4, 5, 6, 7>>
      parts = [<<0, 1, 4, 5>>, <<2, 3, 6, 7>>]
      assert Native.tensor_split(tensor, 1, [2, 4], @columns) == {:ok, parts}
      assert Native.tensor_split_dirty(tensor, 1, [2, 4], @columns) == {:ok, parts}
      assert Native.tensor_join(parts, 1, [2, 4], @columns) == {:ok, tensor}
      assert Native.tensor_join_dirty(parts, 1, [2, 4], @columns) == {:ok, tensor}
    end

    test "what lies in one piece is a part of the tensor's binary" do
      tensor = :binary.copy(<<1::32-native>>, 1_000)
      slices = [{[0, 0], [10, 100]}, {[5, 0], [5, 100]}]
      assert {:ok, [whole, rows]} = Native.tensor_split(tensor, 4, [10, 100], slices)
      assert {whole, byte_size(rows)} == {tensor, 2_000}
      assert :binary.referenced_byte_size(rows) == 4_000
    end

    test "large columns survive" do
      tensor = for n <- 1..50_000, into: <<>>, do: <<n::32-native>>
      slices = [{[0, 0], [500, 60]}, {[0, 60], [500, 40]}, {[0, 60], [500, 40]}]

      assert {:ok, [_, same, same] = parts} =
               Native.tensor_split_dirty(tensor, 4, [500, 100], slices)

      assert Enum.map(parts, &byte_size/1) == [120_000, 80_000, 80_000]
      assert Native.tensor_join_dirty(parts, 4, [500, 100], slices) == {:ok, tensor}
    end

    test "slices that do not fit are refused" do
      message = fn {:error, error} -> EXLA.CustomCall.Error.from_native(error).message end

      assert message.(Native.tensor_split(<<0, 1>>, 1, [2], [{[1], [2]}])) ==
               "slices of a tensor: slice 0 starts at 1 and takes 2 in dimension 0, which has 2"

      assert message.(Native.tensor_join([<<0, 1, 4, 5>>], 1, [2, 4], tl(@columns))) ==
               "slices of a tensor: no slice has the elements that start at [0, 0] and are [2, 2] " <>
                 "in number; the slices have to cover the whole tensor"
    end

    test "terms of another shape are refused" do
      calls = [
        fn -> Native.tensor_split(<<0::4>>, 1, [1], []) end,
        fn -> Native.tensor_split(<<0>>, -1, [1], []) end,
        fn -> Native.tensor_split(<<0>>, 1, [-1], []) end,
        fn -> Native.tensor_split(<<0>>, 1, [1 | :tail], []) end,
        fn -> Native.tensor_split(<<0>>, 1, [1], [{[0], [1 | :tail]}]) end,
        fn -> Native.tensor_split(<<0>>, 1, [1], [{0, 1}]) end,
        fn -> Native.tensor_join([<<0>> | :tail], 1, [1], [{[0], [1]}]) end,
        fn -> Native.tensor_join([:zero], 1, [1], [{[0], [1]}]) end
      ]

      for call <- calls, do: assert_raise(ArgumentError, call)
    end
  end

  describe "shardings of executables" do
    alias EXLA.CustomCall.{Client, Native}

    test "a partitioned program tells where the parts are" do
      client = Client.new!(options: [cpu_device_count: 4])
      matrix = Typespec.tensor({:f, 32}, {4, 4})
      tiled = "\"{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}\""
      x = Value.parameter(matrix, attributes: [{"mhlo.sharding", tiled}])
      y = Value.parameter(matrix, attributes: [{"mhlo.sharding", "\"{replicated}\""}])
      [z] = Value.op("stablehlo.add", [x, y], [matrix])
      module = Module.build!([x, y], [{z, [{"mhlo.sharding", "\"{devices=[2,2]<=[4]}\""}]}])
      executable = Client.compile!(client, module, partitions: 4, shardy: false)

      assert Native.executable_shardings(executable.ref) ==
               {:ok,
                {[{:tiled, [2, 1], [0, 2, 1, 3], [{:replicated, 2}]}, :replicated],
                 [{:tiled, [2, 2], [0, 1, 2, 3], []}]}}
    end

    test "a program for one device tells none" do
      executable = Client.compile!(XLA.client(), Module.build!([], []))
      assert Native.executable_shardings(executable.ref) == {:ok, {nil, nil}}
    end
  end
end
