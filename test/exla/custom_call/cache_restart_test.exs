defmodule EXLA.CustomCall.CacheRestartTest do
  # The cache on disk across VMs: each program here runs in an OS process of its own.
  use ExUnit.Case, async: true

  @moduletag :tmp_dir
  @moduletag timeout: 120_000

  # Runs QR of a matrix through EXLA.CustomCall.Runner, and prints what the cache did.
  @qr """
  alias EXLA.CustomCall.{Cache, Client, Library, Runner, Typespec}
  client = Client.new!()
  Library.load_builtin!(client)
  matrix = Typespec.tensor({:f, 32}, {2, 2})
  input = for n <- [2.0, 1.0, 1.0, 3.0], into: <<>>, do: <<n::32-float-native>>
  block = %{__struct__: Nx.Block.LinAlg.QR}
  {_q, r} = Runner.run!(block, [{input, matrix}], {matrix, matrix}, client: client)
  numbers = for <<n::32-float-native <- r>>, do: Float.round(abs(n), 4)
  IO.inspect({Map.take(Cache.stats(), [:misses, :disk_hits]), numbers})
  """

  # Writes one entry after the other, as large as executables are.
  @write """
  alias EXLA.CustomCall.Cache
  value = :binary.copy("x", 2_000_000)
  disk = fn n -> %{file: "\#{n}.executable", read: &{:ok, &1}, write: &{:ok, "!" <> &1 <> "!"}} end
  IO.puts("ready")
  for n <- Stream.iterate(0, &(&1 + 1)), do: Cache.fetch(Cache, n, disk.(n), fn -> {:ok, value} end)
  """

  defp arguments(program, folder) do
    paths = Enum.flat_map([:exla_custom_call], &["-pa", to_string(:code.lib_dir(&1, :ebin))])

    start = """
    Application.put_env(:exla_custom_call, :cache, directory: #{inspect(folder)})
    {:ok, _} = Application.ensure_all_started(:exla_custom_call)
    """

    paths ++ ["-e", start <> program]
  end

  defp run(program, folder) do
    {output, 0} = System.cmd("elixir", arguments(program, folder), stderr_to_stdout: true)
    output
  end

  test "a program that was compiled in one VM is not compiled in the next", %{tmp_dir: folder} do
    numbers = "[2.2361, 2.2361, 0.0, 2.2361]"
    assert run(@qr, folder) == "{%{disk_hits: 0, misses: 1}, #{numbers}}\n"
    assert run(@qr, folder) == "{%{disk_hits: 1, misses: 0}, #{numbers}}\n"
  end

  test "a VM that is killed while it writes leaves whole files", %{tmp_dir: folder} do
    port =
      Port.open(
        {:spawn_executable, System.find_executable("elixir")},
        [:binary, :stderr_to_stdout, args: arguments(@write, folder)]
      )

    assert_receive {^port, {:data, "ready" <> _}}, 30_000
    {:os_pid, pid} = Port.info(port, :os_pid)
    Process.sleep(300)
    {_, 0} = System.cmd("kill", ["-9", "#{pid}"])

    whole = "!" <> :binary.copy("x", 2_000_000) <> "!"
    files = Path.wildcard(Path.join(folder, "*.executable"))
    assert length(files) > 1
    assert Enum.all?(files, &(File.read!(&1) == whole))
  end

  test "what a killed VM left half-written is removed when it is old", %{tmp_dir: folder} do
    old = Path.join(folder, "a.executable.1-2.tmp")
    new = Path.join(folder, "b.executable.1-2.tmp")
    Enum.each([old, new], &File.write!(&1, ""))
    File.touch!(old, System.os_time(:second) - 7200)
    name = :"cache_restart_#{System.unique_integer([:positive])}"
    start_supervised!({EXLA.CustomCall.Cache, name: name, directory: folder})
    assert File.ls!(folder) == ["b.executable.1-2.tmp"]
  end
end
