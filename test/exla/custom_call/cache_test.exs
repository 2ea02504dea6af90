defmodule EXLA.CustomCall.CacheTest do
  use ExUnit.Case, async: true
  doctest EXLA.CustomCall.Cache

  alias EXLA.CustomCall.Cache

  @moduletag :tmp_dir

  # A cache of its own for each test, and what a test compiles: a number that counts.
  setup context do
    name = :"cache_#{System.unique_integer([:positive])}"
    start_supervised!({Cache, [name: name] ++ options(context[:cache], context)})
    {:ok, counter} = Agent.start_link(fn -> 0 end)

    compile = fn ->
      Process.sleep(20)
      {:ok, Agent.get_and_update(counter, &{&1 + 1, &1 + 1})}
    end

    %{name: name, compile: compile, compiled: fn -> Agent.get(counter, & &1) end}
  end

  defp options(:small, _context), do: [max_entries: 2]
  defp options(:none, _context), do: [max_entries: 0]
  defp options(:disk, context), do: [directory: context.tmp_dir]
  defp options(nil, _context), do: []

  # Executables on disk are terms here, behind a byte that says that they are whole.
  defp on_disk(file) do
    %{
      file: file,
      write: fn value -> {:ok, "!" <> :erlang.term_to_binary(value)} end,
      read: fn
        "!" <> bytes -> {:ok, {:read, :erlang.binary_to_term(bytes)}}
        _ -> {:error, :damaged}
      end
    }
  end

  test "what was compiled is there the next time", context do
    assert Cache.fetch(context.name, :a, nil, context.compile) == {:ok, 1}
    assert Cache.fetch(context.name, :a, nil, context.compile) == {:ok, 1}
    assert Cache.fetch(context.name, :b, nil, context.compile) == {:ok, 2}

    assert Cache.stats(context.name) ==
             %{entries: 2, hits: 1, misses: 2, disk_hits: 0, evictions: 0}
  end

  test "of many that miss at once one compiles and the others wait", context do
    results =
      1..50
      |> Task.async_stream(fn _ -> Cache.fetch(context.name, :a, nil, context.compile) end,
        max_concurrency: 50
      )
      |> Enum.map(fn {:ok, result} -> result end)

    assert results == List.duplicate({:ok, 1}, 50)
    assert %{hits: 49, misses: 1} = Cache.stats(context.name)
  end

  test "an error is not kept, and the next one that waits compiles", context do
    test = self()

    fail = fn ->
      send(test, :started)
      Process.sleep(50)
      {:error, :no}
    end

    first = Task.async(fn -> Cache.fetch(context.name, :a, nil, fail) end)
    assert_receive :started
    second = Task.async(fn -> Cache.fetch(context.name, :a, nil, context.compile) end)
    assert Task.await(first) == {:error, :no}
    assert Task.await(second) == {:ok, 1}
    assert Cache.stats(context.name).entries == 1
  end

  test "a process that dies or raises while it compiles hands over", context do
    test = self()

    hang = fn ->
      send(test, :started)
      Process.sleep(:infinity)
    end

    pid = spawn(fn -> Cache.fetch(context.name, :a, nil, hang) end)
    assert_receive :started

    waiting =
      for _ <- 1..3, do: Task.async(fn -> Cache.fetch(context.name, :a, nil, context.compile) end)

    Process.sleep(20)
    Process.exit(pid, :kill)
    assert Task.await_many(waiting) == List.duplicate({:ok, 1}, 3)

    assert_raise RuntimeError, fn ->
      Cache.fetch(context.name, :b, nil, fn -> raise "no" end)
    end

    assert Cache.fetch(context.name, :b, nil, context.compile) == {:ok, 2}
  end

  @tag cache: :small
  test "the one whose last use is the longest ago goes first", context do
    fetch = &Cache.fetch(context.name, &1, nil, context.compile)
    assert [fetch.(:a), fetch.(:b), fetch.(:a), fetch.(:c)] == [ok: 1, ok: 2, ok: 1, ok: 3]
    assert [fetch.(:a), fetch.(:b)] == [ok: 1, ok: 4]
    assert %{entries: 2, evictions: 2} = Cache.stats(context.name)
  end

  @tag cache: :none
  test "a cache of no entries keeps none", context do
    assert Cache.fetch(context.name, :a, nil, context.compile) == {:ok, 1}
    assert Cache.fetch(context.name, :a, nil, context.compile) == {:ok, 2}
  end

  test "what a process asks for inside its own compilation does not wait for it", context do
    fetch = &Cache.fetch(context.name, :a, nil, &1)
    assert fetch.(fn -> fetch.(context.compile) end) == {:ok, 1}
    assert fetch.(context.compile) == {:ok, 1}
  end

  test "there must be such a cache" do
    for fun <- [&Cache.stats/1, &Cache.clear/1, &Cache.fetch(&1, :a, nil, fn -> {:ok, 1} end)] do
      assert_raise ArgumentError, "there is no cache :nope", fn -> fun.(:nope) end
    end
  end

  test "it can be cleared", context do
    Cache.fetch(context.name, :a, nil, context.compile)
    assert Cache.clear(context.name) == :ok
    assert Cache.fetch(context.name, :a, nil, context.compile) == {:ok, 2}
  end

  test "the name of its directory may look like a pattern, and what was left there unfinished goes",
       context do
    directory = Path.join(context.tmp_dir, "B{*")
    File.mkdir_p!(directory)
    [old, new] = for name <- ["old.tmp", "new.tmp"], do: Path.join(directory, name)
    Enum.each([old, new], &File.write!(&1, ""))
    File.touch!(old, System.os_time(:second) - 7_200)
    start_supervised!({Cache, name: :pattern_cache, directory: directory}, id: :pattern_cache)
    assert File.ls!(directory) == ["new.tmp"]
  end

  @tag cache: :disk
  test "what is on disk is read instead of compiled", context do
    assert Cache.fetch(context.name, :a, on_disk("a"), context.compile) == {:ok, 1}
    assert File.ls!(context.tmp_dir) == ["a"]
    Cache.clear(context.name)
    assert Cache.fetch(context.name, :a, on_disk("a"), context.compile) == {:ok, {:read, 1}}
    assert %{misses: 1, disk_hits: 1} = Cache.stats(context.name)
  end

  @tag cache: :disk
  test "a damaged file is removed and compiled anew", context do
    path = Path.join(context.tmp_dir, "a")
    File.write!(path, "damaged")
    assert Cache.fetch(context.name, :a, on_disk("a"), context.compile) == {:ok, 1}
    assert File.read!(path) == "!" <> :erlang.term_to_binary(1)
  end

  @tag cache: :disk
  test "a directory that cannot be written to costs no result", context do
    File.rm_rf!(context.tmp_dir)
    File.write!(context.tmp_dir, "a file is in its place")
    assert Cache.fetch(context.name, :a, on_disk("a"), context.compile) == {:ok, 1}
    File.rm!(context.tmp_dir)
  end

  test "options are refused by name" do
    assert_raise ArgumentError,
                 "unknown option :size; the options are :name, :max_entries, :directory",
                 fn -> Cache.start_link(name: :x, size: 1) end

    assert_raise ArgumentError, "expected :name to be an atom, got: nil", fn ->
      Cache.start_link([])
    end

    assert_raise ArgumentError,
                 "expected :max_entries to be an integer of 0 or more, got: :x",
                 fn ->
                   Cache.start_link(name: :x, max_entries: :x)
                 end
  end

  test "what is no compilation, and what is no place on disk, is refused", context do
    message = fn disk, compile ->
      assert_raise(ArgumentError, fn -> Cache.fetch(context.name, :a, disk, compile) end).message
    end

    assert message.(nil, :compile) ==
             "expected a function without arguments that compiles, got: :compile"

    for disk <- [:disk, %{file: "a"}, Map.put(on_disk("a"), :file, <<"a", 0>>)] do
      assert message.(disk, context.compile) =~
               "expected nil, or a map with a :file name and functions of one argument to :read and " <>
                 ":write, got: "
    end
  end

  test "a directory that is no path is refused" do
    for directory <- [<<255>>, <<"a", 0>>, "", 1] do
      assert_raise ArgumentError, ~r/expected :directory to be a path or nil, got: /, fn ->
        Cache.start_link(name: :cache_of_no_directory, directory: directory)
      end
    end
  end
end
