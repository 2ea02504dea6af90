defmodule Fuzz.Child do
  @moduledoc false

  # The VM in which inputs are tried. The driver starts it with the path of a job: a term in a file.

  alias Fuzz.{Env, Gen, Journal, Outcome, Shrink}

  # So many findings of one signature are told.
  @most_of_one 3

  def main do
    [path] = :init.get_plain_arguments()
    job = path |> File.read!() |> :erlang.binary_to_term()
    end_with_the_driver()
    {:ok, _} = Application.ensure_all_started(:exla_custom_call)
    load_all_code()
    target = job.target
    env = Env.new(client: target.client?(), scratch: job.directory)
    state = target.setup(env)
    work(job, target, env, state)
    System.halt(0)
  end

  # Its end of the pipe is closed when it ends, however it does.
  defp end_with_the_driver do
    spawn(fn ->
      :eof = IO.read(:stdio, :line)
      System.halt(3)
    end)
  end

  # Loaded later, it would make atoms, and be taken for growth.
  defp load_all_code do
    for application <- [:kernel, :stdlib, :elixir, :logger, :crypto, :exla_custom_call] do
      Application.load(application)
      :code.ensure_modules_loaded(Application.spec(application, :modules))
    end
  end

  defp work(%{mode: :run} = job, target, env, state) do
    journal = Journal.open!(job.journal)
    start = now()
    all = %{job: job, target: target, env: env, state: state, file: journal, warm: nil, told: %{}}

    all =
      each(all, job.from, %Journal{}, start + div(job.milliseconds, 5), start + job.milliseconds)

    {memory, atoms} = at_rest()
    {warm_memory, warm_atoms} = all.warm || {memory, atoms}
    summary = %{memory: memory - warm_memory, atoms: atoms - warm_atoms}
    File.write!(job.summary, :erlang.term_to_binary(summary))
  end

  # Inputs from a file, with their outcomes into another.
  defp work(%{mode: :replay} = job, target, env, state) do
    file = Journal.open!(job.journal)

    outcomes =
      for {input, index} <- Enum.with_index(job.inputs) do
        Journal.write!(file, %Journal{index: index, clock: clock()})
        try_one(target, input, env, state)
      end

    File.write!(job.summary, :erlang.term_to_binary(outcomes))
  end

  # The smallest input found with the same outcome; for those that leave the VM alive.
  defp work(%{mode: :shrink} = job, target, env, state) do
    file = Journal.open!(job.journal)

    same? = fn input ->
      Journal.write!(file, %Journal{index: 0, clock: clock()})

      case try_one(target, input, env, state) do
        {:unexpected, signature, _text} -> signature == job.signature
        _ -> false
      end
    end

    File.write!(job.summary, :erlang.term_to_binary(Shrink.shrink(job.input, same?)))
  end

  defp each(all, index, journal, warm_at, end_at) do
    now = now()

    cond do
      now >= end_at or index - all.job.from >= all.job.most ->
        Journal.write!(all.file, %{journal | index: index, clock: clock()})
        all

      all.warm == nil and now >= warm_at and index > all.job.from ->
        Journal.write!(all.file, %{journal | index: index, clock: clock()})
        each(%{all | warm: at_rest()}, index, journal, warm_at, end_at)

      true ->
        journal = %{journal | index: index, clock: clock()}
        Journal.write!(all.file, journal)
        Gen.seed(all.job.seed, all.target, index)
        input = all.target.generate()
        started = :erlang.monotonic_time(:microsecond)
        outcome = try_one(all.target, input, all.env, all.state)
        took = :erlang.monotonic_time(:microsecond) - started
        {all, journal} = note(all, journal, index, input, outcome)
        journal = %{journal | done: journal.done + 1, slowest: max(journal.slowest, took)}
        each(all, index + 1, journal, warm_at, end_at)
    end
  end

  # In a process of its own, as it would be: what it leaves in its mailbox and its heap ends with it.
  defp try_one(target, input, env, state) do
    me = self()
    tag = make_ref()

    {pid, monitor} =
      spawn_monitor(fn ->
        send(me, {tag, Outcome.of(fn -> target.try(input, env, state) end, target.outcome())})
      end)

    receive do
      {^tag, outcome} ->
        Process.demonitor(monitor, [:flush])
        outcome

      {:DOWN, ^monitor, :process, ^pid, reason} ->
        {:unexpected, :exit, "the process ended: #{inspect(reason)}"}
    end
  end

  defp note(all, journal, _index, _input, :ok), do: {all, %{journal | ok: journal.ok + 1}}

  defp note(all, journal, _index, _input, :refused) do
    {all, %{journal | refused: journal.refused + 1}}
  end

  defp note(all, journal, index, input, {:unexpected, signature, text}) do
    told = Map.get(all.told, signature, 0)

    if told < @most_of_one do
      finding = :erlang.term_to_binary({index, input, signature, text})
      line = <<byte_size(finding)::32, finding::binary>>
      File.write!(all.job.findings, line, [:append])
    end

    all = %{all | told: Map.put(all.told, signature, told + 1)}
    {all, %{journal | unexpected: journal.unexpected + 1}}
  end

  # Resident memory and atoms when nothing is at work.
  defp at_rest do
    EXLA.CustomCall.Cache.clear()

    for _ <- 1..3 do
      Enum.each(Process.list(), &:erlang.garbage_collect/1)
      Process.sleep(100)
    end

    {Fuzz.Driver.resident(System.pid()) || 0, :erlang.system_info(:atom_count)}
  end

  defp now, do: System.monotonic_time(:millisecond)
  # The driver's clock too.
  defp clock, do: System.os_time(:millisecond)
end
