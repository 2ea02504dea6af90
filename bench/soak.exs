# Runs and compiles for a long time, kills processes meanwhile, and fails if memory grew. See
# bench/README.md; `make soak` and `make soak-short` run it.
Code.require_file("support/measure.exs", __DIR__)

defmodule Soak do
  @moduledoc false

  import Measure

  alias EXLA.CustomCall.{Buffer, Cache, Client, Error, Executable, Library, Module}
  alias EXLA.CustomCall.{Runner, Typespec, Value}

  @usage """
  mix run bench/soak.exs [options]

    --runs N            how many runs, default 100000
    --compilations N    how many compilations, default 2000
    --warm-up PERCENT   the share of both that comes before memory is measured, default 20
    --growth-mib N      how much memory may grow after that, default 64
    --processes N       how many processes work at once, default 8
    --kill-ms N         one of them is killed each time so many milliseconds have passed and
                        something was done since the last, default 20; 0 kills none
    --sample-ms N       how often memory is printed, default 1000
  """

  @defaults %{
    runs: 100_000,
    compilations: 2_000,
    warm_up: 20,
    growth_mib: 64,
    processes: 8,
    kill_ms: 20,
    sample_ms: 1_000
  }

  @vector Typespec.tensor({:f, 32}, {4096})
  @matrix Typespec.tensor({:f, 32}, {4, 4})
  @half Typespec.tensor({:f, 32}, {64})
  @qr %{__struct__: Nx.Block.LinAlg.QR}
  @cache Soak.Cache

  # Counters of what is done.
  @runs 1
  @compilations 2
  @killed 3

  def main(argv) do
    options = options!(argv, @defaults, @usage)
    state = setup()
    IO.puts("#{line(["seconds", "runs", "compilations", "killed", "resident MiB", "threads"])}")

    warm = fn count -> div(count * options.warm_up, 100) end
    phase(state, options, warm.(options.runs), warm.(options.compilations))
    before = at_rest(state)
    IO.puts("warm: #{mib(before)} MiB at rest")
    {runs_before, compilations_before} = done(state)

    phase(state, options, options.runs, options.compilations)
    later = at_rest(state)
    {runs, compilations} = done(state)
    grown = later - before

    IO.puts("""
    done: #{mib(later)} MiB at rest, #{mib(grown)} MiB more than when it was warm, for \
    #{runs - runs_before} runs and #{compilations - compilations_before} compilations since
    In all #{runs} runs and #{compilations} compilations; #{:counters.get(state.counters, @killed)} \
    processes were killed.\
    """)

    if grown > options.growth_mib * 1024 * 1024 do
      fail("memory grew by more than #{options.growth_mib} MiB")
    end
  end

  # What all processes share.
  defp setup do
    client = Client.new!(plugin: :cpu, options: [cpu_device_count: 2])
    Library.load_builtin!(client)
    {:ok, _} = Cache.start_link(name: @cache, max_entries: 8)

    :ok =
      Library.register(client, "soak.negate", fn call ->
        [{x, _}] = call.operands
        [for(<<n::float-32-native <- x>>, into: <<>>, do: <<-n::float-32-native>>)]
      end)

    spec = %EXLA.CustomCall.Spec{call_target_name: "soak.negate"}
    x = Value.parameter(@half)
    by_process = Module.build!([x], Value.custom_call([x], spec, [@half]))

    %{
      client: client,
      start: now(),
      counters: :counters.new(3, []),
      negate: Client.compile!(client, negation(@vector)),
      donate: Client.compile!(client, negation(@vector), donate: [0]),
      sharded: Client.compile!(client, negation(@vector), replicas: 2),
      by_process: Client.compile!(client, by_process)
    }
  end

  defp negation(type) do
    x = Value.parameter(type)
    Module.build!([x], Value.op("stablehlo.negate", [x], [type]))
  end

  # Works until so much is done, with a process killed now and then.
  defp phase(state, options, runs, compilations) do
    goal = %{runs: runs, compilations: compilations}

    work(%{
      state: state,
      options: options,
      goal: goal,
      workers: [],
      sampled: now(),
      killed: {now(), 0}
    })
  end

  defp work(%{state: state, options: options, goal: goal} = all) do
    all = all |> sample() |> kill()
    {alive, gone} = Enum.split_with(all.workers, fn {pid, _} -> Process.alive?(pid) end)

    for {_, monitor} <- gone do
      receive do
        {:DOWN, ^monitor, :process, _, reason} when reason in [:killed, :normal, :noproc] -> :ok
        {:DOWN, ^monitor, :process, _, reason} -> fail("a process ended: #{inspect(reason)}")
      end
    end

    if finished?(state, goal) do
      for {pid, monitor} <- alive do
        receive do
          {:DOWN, ^monitor, :process, ^pid, _} -> :ok
        end
      end
    else
      missing = options.processes - length(alive)
      new = for _ <- 1..missing//1, do: spawn_monitor(fn -> worker(state, goal) end)
      Process.sleep(5)
      work(%{all | workers: alive ++ new})
    end
  end

  defp kill(%{options: %{kill_ms: 0}} = all), do: all

  # What a killed process had the compiler do goes on: without the second condition a slow machine
  # would compile for the dead only.
  defp kill(%{options: options, workers: [_ | _] = workers, killed: {killed, work}} = all) do
    {runs, compilations} = done(all.state)

    if now() - killed >= options.kill_ms and runs + compilations >= work + options.processes do
      {pid, _} = Enum.random(workers)
      Process.exit(pid, :kill)
      :counters.add(all.state.counters, @killed, 1)
      %{all | killed: {now(), runs + compilations}}
    else
      all
    end
  end

  defp kill(all), do: all

  defp worker(state, goal) do
    unless finished?(state, goal) do
      {runs, compilations} = done(state)

      # Both come to their ends at the same time.
      if compilations < goal.compilations and
           (runs >= goal.runs or compilations * goal.runs <= runs * goal.compilations) do
        compile(state)
        :counters.add(state.counters, @compilations, 1)
      else
        run(state, :rand.uniform(8))
        :counters.add(state.counters, @runs, 1)
      end

      worker(state, goal)
    end
  end

  defp finished?(state, goal) do
    {runs, compilations} = done(state)
    runs >= goal.runs and compilations >= goal.compilations
  end

  defp done(state) do
    {:counters.get(state.counters, @runs), :counters.get(state.counters, @compilations)}
  end

  # Binaries in, a binary out.
  defp run(state, kind) when kind in 1..2 do
    {x, minus_x} = vector()
    expect(Executable.run!(state.negate, [x], results: :binary), [minus_x])
  end

  # Buffers from one run to the next.
  defp run(state, 3) do
    {x, _} = vector()
    buffer = Buffer.from_binary!(state.client, x, @vector)
    [y] = Executable.run!(state.negate, [buffer])
    [z] = Executable.run!(state.negate, [y])
    expect(Buffer.to_binary!(z), x)
  end

  # A donated buffer.
  defp run(state, 4) do
    {x, minus_x} = vector()
    buffer = Buffer.from_binary!(state.client, x, @vector)
    [y] = Executable.run!(state.donate, [buffer])
    expect({Buffer.to_binary!(y), Buffer.deleted?(buffer)}, {minus_x, true})
  end

  # Two devices.
  defp run(state, 5) do
    {x, minus_x} = vector()
    results = Executable.run_sharded!(state.sharded, [[x], [minus_x]], results: :binary)
    expect(results, [[minus_x], [x]])
  end

  # A run that nobody waits for.
  defp run(state, 6) do
    {x, minus_x} = vector()
    async = Executable.run_async!(state.negate, [x], results: :binary)

    case Executable.await(async, 0) do
      {:ok, results} -> expect(results, [minus_x])
      {:error, %Error{code: :deadline_exceeded}} -> :ok
    end
  end

  # A handler of the package's own, through the cache, and one whose call is an error.
  defp run(state, 7) do
    x =
      for n <- 0..15, into: <<>>, do: <<if(rem(n, 5) == 0, do: 2.0, else: 0.0)::float-32-native>>

    opts = [client: state.client, cache: @cache]
    {q, r} = Runner.run!(@qr, [{x, @matrix}], {@matrix, @matrix}, opts)
    expect({byte_size(q), byte_size(r)}, {64, 64})
    {:error, error} = Runner.run(@qr, [{x, @matrix}], {@matrix, @vector}, opts)
    expect({error.kind, error.code}, {:run, :invalid_argument})
  end

  # A handler in Elixir.
  defp run(state, 8) do
    x = :binary.copy(<<1.0::float-32-native>>, 64)
    minus_x = :binary.copy(<<-1.0::float-32-native>>, 64)
    expect(Executable.run!(state.by_process, [x], results: :binary), [minus_x])
  end

  # Programs that differ in a constant: by themselves, serialized and read back, or through a cache
  # that soon forgets them.
  defp compile(state) do
    {x, minus_x} = vector()
    module = module()

    executable =
      case :rand.uniform(3) do
        1 ->
          Client.compile!(state.client, module)

        2 ->
          bytes = state.client |> Client.compile!(module) |> Executable.serialize!()
          Executable.deserialize!(state.client, bytes)

        3 ->
          key = Module.to_bytecode(module)

          {:ok, executable} =
            Cache.fetch(@cache, key, nil, fn -> Client.compile(state.client, module) end)

          executable
      end

    expect(Executable.run!(executable, [x], results: :binary), [minus_x])
  end

  # y = (x + c) - c - x - x, of small whole numbers, so without rounding.
  defp module do
    constant = :binary.copy(<<:rand.uniform(1_000_000) * 1.0::float-32-native>>, 4096)
    x = Value.parameter(@vector)
    c = Value.constant(constant, @vector)
    op = fn name, a, b -> "stablehlo.#{name}" |> Value.op([a, b], [@vector]) |> hd() end
    y = "add" |> op.(x, c) |> then(&op.("subtract", &1, c))
    Module.build!([x], [y |> then(&op.("subtract", &1, x)) |> then(&op.("subtract", &1, x))])
  end

  # 16 KiB, each time of another number.
  defp vector do
    n = :rand.uniform(1_000) * 1.0
    {:binary.copy(<<n::float-32-native>>, 4096), :binary.copy(<<-n::float-32-native>>, 4096)}
  end

  defp expect(same, same), do: :ok
  defp expect(_found, _expected), do: exit(:wrong_result)

  # Resident memory when nothing runs and what nobody holds is freed.
  defp at_rest(state) do
    Cache.clear(@cache)

    rest(300)
    print(state)
    resident()
  end

  defp sample(%{options: %{sample_ms: sample_ms}} = all) do
    if now() - all.sampled >= sample_ms do
      print(all.state)
      %{all | sampled: now()}
    else
      all
    end
  end

  defp print(state) do
    {runs, compilations} = done(state)
    killed = :counters.get(state.counters, @killed)
    seconds = Float.round((now() - state.start) / 1000, 1)
    IO.puts(line([seconds, runs, compilations, killed, mib(resident()), threads()]))
  end
end

Soak.main(System.argv())
