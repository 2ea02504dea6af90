# Builds modules that all differ for a long time, and fails if memory grew. See bench/README.md;
# `make memory` and `make memory-short` run it.
Code.require_file("support/measure.exs", __DIR__)

defmodule Memory do
  @moduledoc false

  import Measure

  alias EXLA.CustomCall.{Context, Module, Spec, Typespec, Value}

  @usage """
  mix run bench/memory.exs [options]

    --builds N          how many modules are built in each way, default 1000000
    --warm-up PERCENT   the share of them that comes before memory is measured, default 20
    --growth-mib N      how much memory may grow after that, default 32
    --processes N       how many processes build at once, default 8
    --kill-ms N         one of them is killed each time so many milliseconds have passed, default 20;
                        0 kills none
    --sample-ms N       how often memory is printed, default 1000
    --for-good          the shared context does not rotate: then memory grows, and this has to fail
  """

  @defaults %{
    builds: 1_000_000,
    warm_up: 20,
    growth_mib: 32,
    processes: 8,
    kill_ms: 20,
    sample_ms: 1_000,
    for_good: false
  }

  # Counters of what is done.
  @begun 1
  @built 2
  @killed 3

  def main(argv) do
    options = options!(argv, @defaults, @usage)
    start = now()

    IO.puts(
      line(["seconds", "contexts", "built", "killed", "rotations", "resident MiB", "VM's MiB"])
    )

    grown = for way <- [:fresh, :shared], do: {way, measure(way, options, start)}

    for {way, bytes} <- grown, bytes > options.growth_mib * 1024 * 1024 do
      fail("with #{way} contexts memory grew by more than #{options.growth_mib} MiB")
    end
  end

  defp measure(way, options, start) do
    state = %{
      way: way,
      context: if(way == :shared, do: shared(options)),
      counters: :counters.new(3, []),
      start: start
    }

    warm_up = div(options.builds * options.warm_up, 100)
    phase(state, options, warm_up)
    before = at_rest(state)
    phase(state, options, options.builds)
    later = at_rest(state)

    IO.puts("""
    #{way}: #{mib(before)} MiB after #{warm_up} builds, #{mib(later)} MiB after #{options.builds}, \
    #{mib(later - before)} MiB more\
    """)

    later - before
  end

  defp shared(%{for_good: true}), do: Context.new!(rotate_after: :infinity)
  defp shared(%{for_good: false}), do: Context.new!()

  # Builds until so many are begun, with a process killed now and then.
  defp phase(state, options, goal) do
    work(state, options, goal, [], %{sampled: now(), killed: now()})
  end

  defp work(state, options, goal, workers, times) do
    times = times |> sample(state, options) |> kill(state, options, workers)

    {alive, gone} = Enum.split_with(workers, fn {pid, _} -> Process.alive?(pid) end)
    Enum.each(gone, &ended/1)

    if :counters.get(state.counters, @begun) >= goal do
      Enum.each(alive, &ended/1)
    else
      missing = options.processes - length(alive)
      new = for _ <- 1..missing//1, do: spawn_monitor(fn -> worker(state, goal) end)
      Process.sleep(5)
      work(state, options, goal, new ++ alive, times)
    end
  end

  defp ended({pid, monitor}) do
    receive do
      {:DOWN, ^monitor, :process, ^pid, reason} when reason in [:killed, :normal] -> :ok
      {:DOWN, ^monitor, :process, ^pid, reason} -> fail("a process ended: #{inspect(reason)}")
    end
  end

  defp kill(times, state, %{kill_ms: kill_ms}, [_ | _] = workers) when kill_ms > 0 do
    if now() - times.killed >= kill_ms do
      {pid, _} = Enum.random(workers)
      Process.exit(pid, :kill)
      :counters.add(state.counters, @killed, 1)
      %{times | killed: now()}
    else
      times
    end
  end

  defp kill(times, _state, _options, _workers), do: times

  # A module in a hundred is read back.
  defp worker(state, goal) do
    if :counters.get(state.counters, @begun) < goal do
      :counters.add(state.counters, @begun, 1)
      n = System.unique_integer([:positive, :monotonic])
      module = build(n, state.context)
      if rem(n, 100) == 0, do: check(module, n)
      :counters.add(state.counters, @built, 1)
      worker(state, goal)
    end
  end

  # Its names, values and types are those of no other module.
  defp build(n, context) do
    type = Typespec.tensor({:f, 32}, {n})
    x = Value.parameter(type)

    spec = %Spec{
      call_target_name: "target_#{n}",
      attributes: [{"name_#{n}", "#{n} : i64"}, {"text", "\"the text #{n}\""}],
      mlir_attributes: [
        {"layouts_#{n}", "[dense<#{n}> : tensor<1xindex>]"},
        {"mhlo.note_#{n}", "{a = [#{n}.5 : f32, @symbol_#{n}], b = tensor<#{n}x#{n}xi8>}"}
      ]
    }

    Module.build!([x], Value.custom_call([x], spec, [type]), context: context, warnings: :ignore)
  end

  defp check(module, n) do
    type = Typespec.tensor({:f, 32}, {n})

    [%{call_target_name: target, attributes: attributes, operands: [^type], results: [^type]}] =
      Module.custom_calls(module)

    ^target = "target_#{n}"
    ^attributes = Enum.sort([{"name_#{n}", "#{n} : i64"}, {"text", "\"the text #{n}\""}])
    true = to_string(module) =~ "@symbol_#{n}], b = tensor<#{n}x#{n}xi8>}"
  end

  # Resident memory when nothing is built and what nobody holds is freed.
  defp at_rest(state) do
    rest(100)
    print(state)
    resident()
  end

  defp sample(times, state, %{sample_ms: sample_ms}) do
    if now() - times.sampled >= sample_ms do
      print(state)
      %{times | sampled: now()}
    else
      times
    end
  end

  defp print(%{counters: counters, context: context} = state) do
    IO.puts(
      line([
        Float.round((now() - state.start) / 1000, 1),
        state.way,
        :counters.get(counters, @built),
        :counters.get(counters, @killed),
        if(context, do: Context.stats(context).rotations, else: "-"),
        mib(resident()),
        mib(:erlang.memory(:total))
      ])
    )
  end
end

Memory.main(System.argv())
