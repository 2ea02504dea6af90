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

    {:ok, functions, count, bytes} =
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
end
