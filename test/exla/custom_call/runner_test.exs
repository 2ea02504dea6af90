defmodule EXLA.CustomCall.RunnerTest do
  use ExUnit.Case, async: true

  import EXLA.CustomCall.XLA, only: [f32: 1, floats: 1]

  alias EXLA.CustomCall.{
    Attribute,
    Buffer,
    Cache,
    Mesh,
    Runner,
    ShardingRule,
    Spec,
    Typespec,
    XLA
  }

  defmodule Scale do
    defstruct factor: 1.0
  end

  defimpl EXLA.CustomCall, for: Scale do
    def call(block, out, [%{type: {:f, 32}}], %{platform: :host}) do
      target = if is_tuple(out), do: "test_shares_memory", else: "test_scale_f32"
      attributes = if is_tuple(out), do: [], else: [{"factor", Attribute.float(block.factor)}]
      {:ok, %Spec{call_target_name: target, attributes: attributes}}
    end

    def call(_block, _out, _args, _client), do: :skip
  end

  @vector Typespec.tensor({:f, 32}, {2})

  defp run(block, args, out, opts \\ [client: XLA.client()]),
    do: Runner.run(block, args, out, opts)

  test "a block runs in one call" do
    {:ok, result} = run(%Scale{factor: 3.0}, [f32([1, 2])], @vector)
    assert floats(result) == [3.0, 6.0]

    assert Runner.run!(%Scale{}, [f32([1, 2])], @vector, client: XLA.client()) ==
             elem(f32([1, 2]), 0)
  end

  test "a tuple of outputs gives a tuple of binaries" do
    {:ok, {same, shared}} = run(%Scale{}, [f32([1, 2])], {@vector, Typespec.tensor(:s32, {})})
    assert floats(same) == [1.0, 2.0]
    assert shared == <<0::32>>
  end

  test "a block that skips is skipped" do
    args = [{<<0::64>>, Typespec.tensor(:f64, {1})}]
    assert run(%Scale{}, args, @vector) == :skip
    assert Runner.run!(%Scale{}, args, @vector, client: XLA.client()) == :skip
  end

  test "errors of every step come back" do
    {:error, error} = run(%Scale{factor: 2.0}, [{<<0>>, @vector}], @vector)

    assert error.message ==
             "input 0: #EXLA.CustomCall.Typespec<f32[2]> takes 8 bytes, got a binary of 1"

    {:error, error} = run(%Scale{}, [<<0::64>>], @vector)

    assert error.message ==
             "operand 0: expected a {binary, template} pair, a buffer or an Nx.Tensor, got: <<0, 0, 0, 0, 0, 0, 0, 0>>"

    {:error, error} = run(%Scale{}, [], @vector, [])

    assert error.message ==
             "expected :client to be an EXLA.CustomCall.Client, such as " <>
               "EXLA.CustomCall.Client.new!(plugin: :cpu), got: nil"
  end

  @tag :tmp_dir
  test "what was compiled is kept, in memory and on disk", %{tmp_dir: folder} do
    name = :"runner_cache_#{System.unique_integer([:positive])}"
    start_supervised!({Cache, name: name, directory: folder}, id: :first)
    opts = [client: XLA.client(), cache: name]
    run = fn factor -> run(%Scale{factor: factor}, [f32([1, 2])], @vector, opts) end

    assert {:ok, result} = run.(2.0)
    assert {:ok, ^result} = run.(2.0)
    assert {:ok, _} = run.(3.0)
    assert %{misses: 2, hits: 1, disk_hits: 0, entries: 2} = Cache.stats(name)
    assert length(File.ls!(folder)) == 2

    # Options that say the same are the same, and a time-out is no part of the program.
    for compile <- [[replicas: 1], [timeout: 60_000, partitions: 1]] do
      assert {:ok, ^result} =
               run(%Scale{factor: 2.0}, [f32([1, 2])], @vector, opts ++ [compile: compile])
    end

    assert %{misses: 2, hits: 3} = Cache.stats(name)

    # As after a restart.
    Cache.clear(name)
    assert {:ok, ^result} = run.(2.0)
    assert %{misses: 2, disk_hits: 1} = Cache.stats(name)

    # Files that are damaged, or of something else, are compiled anew.
    for file <- File.ls!(folder), do: File.write!(Path.join(folder, file), "EXLA?")
    Cache.clear(name)
    assert {:ok, ^result} = run.(2.0)
    assert %{misses: 3, disk_hits: 1} = Cache.stats(name)
  end

  test "several devices are refused before anything is compiled" do
    opts = [client: XLA.client(), compile: [replicas: 2]]
    {:error, error} = run(%Scale{}, [f32([1, 2])], @vector, opts)

    assert error.message ==
             "a block runs on the devices of its mesh, here 1, got 2 replicas and 1 partitions; give the " <>
               "options :mesh and :partition, or use EXLA.CustomCall.Lowering, Client.compile/3 and " <>
               "Executable.run_sharded/3"
  end

  test "a block is split over a mesh, and its inputs and results are whole" do
    mesh = Mesh.new(x: 2)
    rule = ShardingRule.new([[:elements]], [[:elements]], elements: 2)
    opts = [client: XLA.client(), mesh: mesh, partition: %{elements: "x"}, sharding_rule: rule]

    assert run(%Scale{factor: 3.0}, [f32([1, 2])], @vector, opts) ==
             {:ok, <<3.0::32-float-native, 6.0::32-float-native>>}

    assert {:ok, [%Buffer{typespec: part}, %Buffer{}] = parts} =
             run(%Scale{factor: 3.0}, [f32([1, 2])], @vector, opts ++ [results: :buffer])

    assert part.shape == {1}

    assert run(%Scale{factor: 2.0}, [{parts, @vector}], @vector, opts) ==
             {:ok, <<6.0::32-float-native, 12.0::32-float-native>>}
  end

  test "buffers go in and come out" do
    {binary, typespec} = f32([1, 2])
    x = Buffer.from_binary!(XLA.client(), binary, typespec)
    opts = [client: XLA.client(), results: :buffer]
    {:ok, y} = run(%Scale{factor: 3.0}, [x], @vector, opts)
    assert floats(Buffer.to_binary!(y)) == [3.0, 6.0]
  end

  test "without a cache each call compiles" do
    opts = [client: XLA.client(), cache: nil]
    assert {:ok, _} = run(%Scale{}, [f32([1, 2])], @vector, opts)
  end

  test "what is compiled can be tried in a process of its own first" do
    run = fn trial ->
      opts = [client: XLA.client(), cache: nil, compile: [trial: trial]]
      run(%Scale{factor: 3.0}, [f32([1, 2])], @vector, opts)
    end

    {:ok, result} = run.(true)
    assert floats(result) == [3.0, 6.0]
    # Too short for any process.
    {:error, error} = run.(timeout: 1)
    assert {error.kind, error.code} == {:compile, :deadline_exceeded}
  end
end
