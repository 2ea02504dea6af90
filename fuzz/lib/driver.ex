defmodule Fuzz.Driver do
  @moduledoc false

  # Starts the children, watches them, and tells what it saw.

  alias Fuzz.{Gen, Journal, Shrink}

  @usage """
  mix run --no-start fuzz/fuzz.exs [options]

    --target NAME       one of %TARGETS%; default all
    --seconds N         how long all targets together, default 600
    --inputs N          at most so many inputs a target
    --seed N            default: another one each time, which is printed
    --from N            the first input's number, default 0
    --hang-ms N         an input that takes longer is a hang, default 20000
    --memory-mib N      a child that takes more is ended, and its input a crash, default 3000
    --shrink            make the findings smaller; takes half a minute a finding at most
    --replay FILE       try one finding again, and tell what becomes of it
  """

  @switches [
    target: :keep,
    seconds: :integer,
    inputs: :integer,
    seed: :integer,
    from: :integer,
    hang_ms: :integer,
    memory_mib: :integer,
    shrink: :boolean,
    replay: :string
  ]

  @defaults %{seconds: 600, inputs: 1_000_000_000, from: 0, hang_ms: 20_000, memory_mib: 3_000}

  @columns [
    {"target", 14},
    {"inputs", 9},
    {"seconds", 9},
    {"ok", 9},
    {"refused", 9},
    {"crashes", 9},
    {"hangs", 7},
    {"unexpected", 12},
    {"slowest ms", 12},
    {"MiB", 8},
    {"atoms", 7}
  ]

  # A target that has crashed so often has been heard.
  @most_crashes 12
  @start_ms 60_000
  @poll_ms 50
  @shrink_ms 30_000

  def main(argv, targets, directory, beams) do
    status =
      try do
        case options(argv, targets) do
          {:ok, options, chosen} ->
            options = Map.merge(options, %{directory: directory, beams: beams})
            if options[:replay], do: replay(options), else: fuzz(options, chosen)

          :error ->
            names = Enum.map_join(targets, ", ", &name/1)
            IO.puts(:stderr, String.replace(@usage, "%TARGETS%", names))
            2
        end
      after
        File.rm_rf!(directory)
      end

    System.halt(status)
  end

  defp options(argv, targets) do
    with {given, [], []} <- OptionParser.parse(argv, strict: @switches),
         names =
           for({:target, names} <- given, name <- String.split(names, ",", trim: true), do: name),
         names = if(names == [], do: Enum.map(targets, &name/1), else: names),
         chosen = Enum.map(names, fn name -> Enum.find(targets, &(name(&1) == name)) end),
         false <- nil in chosen do
      seed = :erlang.phash2({System.os_time(), System.pid()}, 1_000_000)
      {:ok, @defaults |> Map.put(:seed, seed) |> Map.merge(Map.new(given)), chosen}
    else
      _ -> :error
    end
  end

  def name(target), do: target |> Module.split() |> List.last() |> Macro.underscore()

  defp fuzz(options, targets) do
    IO.puts("seed #{options.seed}, #{options.seconds} seconds for #{length(targets)} targets")
    each = div(options.seconds * 1000, length(targets))
    IO.puts(line(Enum.map(@columns, &elem(&1, 0))))
    reports = Enum.map(targets, &target(&1, options, each))
    total(reports)
    reports |> Enum.flat_map(& &1.findings) |> Enum.each(&tell(&1, options))
    if Enum.all?(reports, &clean?/1), do: 0, else: 1
  end

  defp clean?(report), do: report.findings == [] and report.atoms < 16

  # One target

  defp target(target, options, milliseconds) do
    report = %{
      target: target,
      done: 0,
      ok: 0,
      refused: 0,
      crashes: 0,
      hangs: 0,
      unexpected: 0,
      slowest: 0,
      memory: 0,
      atoms: 0,
      milliseconds: 0,
      findings: []
    }

    start = now()
    report = children(report, options, options.from, start + milliseconds)
    report = %{report | milliseconds: now() - start, findings: Enum.reverse(report.findings)}
    row(report)
    report
  end

  # One child after the other, each from where the one before ended.
  defp children(report, options, from, end_at) do
    left = end_at - now()
    most = options.inputs - (from - options.from)

    if left < 200 or most <= 0 or report.crashes + report.hangs >= @most_crashes do
      report
    else
      job = %{
        mode: :run,
        target: report.target,
        seed: options.seed,
        from: from,
        most: most,
        milliseconds: left
      }

      {ending, journal, files} = child(job, options)
      report = report |> count(journal) |> collect(files, options)

      case ending do
        :done ->
          summary(report, files)

        {how, detail} when journal.index >= 0 ->
          report
          |> lost(how, detail, journal.index, options)
          |> children(options, journal.index + 1, end_at)

        {how, detail} ->
          IO.puts(:stderr, "#{name(report.target)}: the child did not start: #{how} #{detail}")
          lost(report, how, detail, nil, options)
      end
    end
  end

  defp count(report, journal) do
    %{
      report
      | done: report.done + journal.done,
        ok: report.ok + journal.ok,
        refused: report.refused + journal.refused,
        unexpected: report.unexpected + journal.unexpected,
        slowest: max(report.slowest, journal.slowest)
    }
  end

  defp summary(report, files) do
    %{memory: memory, atoms: atoms} = files.summary |> File.read!() |> :erlang.binary_to_term()
    %{report | memory: report.memory + memory, atoms: report.atoms + atoms}
  end

  defp collect(report, files, options) do
    case File.read(files.findings) do
      {:ok, bytes} ->
        for <<size::32, finding::binary-size(size) <- bytes>>, reduce: report do
          report ->
            {index, input, signature, text} = :erlang.binary_to_term(finding)
            known? = Enum.any?(report.findings, &(&1.signature == signature))

            if known? do
              report
            else
              finding = %{
                target: report.target,
                how: :unexpected,
                signature: signature,
                index: index,
                input: input,
                text: text
              }

              %{report | findings: [smaller(finding, options) | report.findings]}
            end
        end

      {:error, _} ->
        report
    end
  end

  defp lost(report, how, detail, index, options) do
    input =
      if index do
        Gen.seed(options.seed, report.target, index)
        report.target.generate()
      end

    finding = %{
      target: report.target,
      how: how,
      signature: {how, detail.status},
      index: index,
      input: input,
      text: detail.text
    }

    counter = if how == :hang, do: :hangs, else: :crashes
    told = Enum.count(report.findings, &(&1.signature == finding.signature))
    finding = if told < 3 and index, do: smaller(finding, options), else: finding
    report |> Map.update!(counter, &(&1 + 1)) |> Map.update!(:findings, &[finding | &1])
  end

  # One child: `{:done | {:crash | :hang | :memory, detail}, journal, files}`

  defp child(job, options) do
    number = System.unique_integer([:positive])
    path = fn name -> Path.join(options.directory, "#{number}.#{name}") end

    files = %{
      journal: path.("journal"),
      summary: path.("summary"),
      findings: path.("findings"),
      log: path.("log")
    }

    directory = path.("scratch")
    File.mkdir_p!(directory)
    job = job |> Map.merge(files) |> Map.put(:directory, directory)
    File.write!(path.("job"), :erlang.term_to_binary(job))
    port = start(path.("job"), files.log, options)
    {:os_pid, pid} = Port.info(port, :os_pid)
    ending = watch(port, pid, files, options, now())
    File.rm_rf!(directory)
    {ending, Journal.read(files.journal), files}
  end

  # `exec`, so that the port's process is the VM itself.
  defp start(job, log, options) do
    script = ~S(log=$1; shift; exec "$@" >"$log" 2>&1)

    paths =
      Enum.flat_map(
        [String.to_charlist(options.beams) | :code.get_path()],
        &["-pa", to_string(&1)]
      )

    arguments =
      ["-c", script, "sh", log, Path.join([:code.root_dir(), "bin", "erl"]), "-noshell"] ++
        paths ++ ["-s", "Elixir.Fuzz.Child", "main", "-extra", job]

    Port.open({:spawn_executable, System.find_executable("sh")}, [
      :exit_status,
      :binary,
      args: arguments,
      env: [{~c"ERL_CRASH_DUMP_SECONDS", ~c"0"}]
    ])
  end

  defp watch(port, pid, files, options, started) do
    receive do
      {^port, {:exit_status, 0}} -> :done
      {^port, {:exit_status, status}} -> {:crash, detail(status, files)}
      {^port, {:data, _}} -> watch(port, pid, files, options, started)
    after
      @poll_ms ->
        journal = Journal.read(files.journal)
        memory = resident(pid) || 0

        cond do
          memory > options.memory_mib * 1024 * 1024 ->
            stop(port, pid)
            {:memory, %{detail("#{div(memory, 1024 * 1024)} MiB", files) | status: :memory}}

          journal.index < 0 and now() - started > @start_ms ->
            stop(port, pid)
            {:hang, detail(:start, files)}

          journal.index >= 0 and System.os_time(:millisecond) - journal.clock > options.hang_ms ->
            stop(port, pid)
            {:hang, detail(:time, files)}

          true ->
            watch(port, pid, files, options, started)
        end
    end
  end

  # Erlang's port adds 128 to a signal.
  defp detail(status, files) do
    log =
      case File.read(files.log) do
        {:ok, log} -> log |> String.split("\n") |> Enum.take(-12) |> Enum.join("\n")
        {:error, _} -> ""
      end

    signal =
      if is_integer(status) and status > 128,
        do: "signal #{status - 128}",
        else: "status #{inspect(status)}"

    %{status: status, text: "#{signal}\n#{String.slice(log, 0, 3_000)}"}
  end

  defp stop(port, pid) do
    System.cmd("kill", ["-KILL", "#{pid}"], stderr_to_stdout: true)

    receive do
      {^port, {:exit_status, _}} -> :ok
    end
  end

  # Smaller findings

  defp smaller(finding, %{shrink: true} = options),
    do: shrink(finding, options, now() + @shrink_ms)

  defp smaller(finding, _options), do: finding

  defp shrink(%{how: :unexpected} = finding, options, _end_at) do
    job = %{
      mode: :shrink,
      target: finding.target,
      input: finding.input,
      signature: finding.signature
    }

    case child(job, options) do
      {:done, _journal, files} ->
        %{finding | input: files.summary |> File.read!() |> :erlang.binary_to_term()}

      _ ->
        finding
    end
  end

  # All smaller inputs one after the other in one child: the first that it dies over goes on.
  defp shrink(finding, options, end_at) do
    candidates = Shrink.candidates(finding.input)
    job = %{mode: :replay, target: finding.target, inputs: candidates}

    with true <- now() < end_at,
         [_ | _] <- candidates,
         {{how, %{status: status}}, journal, _files} <- child(job, options),
         true <- {how, status} == finding.signature and journal.index >= 0 do
      shrink(%{finding | input: Enum.at(candidates, journal.index)}, options, end_at)
    else
      _ -> finding
    end
  end

  # Again

  defp replay(options) do
    finding = options.replay |> File.read!() |> :erlang.binary_to_term()
    IO.puts("#{name(finding.target)}: #{show(finding.input)}")
    job = %{mode: :replay, target: finding.target, inputs: [finding.input]}

    case child(job, options) do
      {:done, _journal, files} ->
        [outcome] = files.summary |> File.read!() |> :erlang.binary_to_term()
        IO.puts("now: #{describe(outcome)}")
        if match?({:unexpected, _, _}, outcome), do: 1, else: 0

      {{how, detail}, _journal, _files} ->
        IO.puts("now: #{how}, #{detail.text}")
        1
    end
  end

  defp describe({:unexpected, _signature, text}), do: "unexpected: #{printable(text)}"
  defp describe(outcome), do: outcome

  # Telling

  defp total(reports) do
    sum = fn key -> reports |> Enum.map(&Map.fetch!(&1, key)) |> Enum.sum() end
    keys = [:done, :milliseconds, :ok, :refused, :crashes, :hangs, :unexpected, :memory, :atoms]
    slowest = reports |> Enum.map(& &1.slowest) |> Enum.max()
    all = keys |> Map.new(&{&1, sum.(&1)}) |> Map.merge(%{target: nil, slowest: slowest})
    row(all)
  end

  defp row(report) do
    IO.puts(
      line([
        if(report.target, do: name(report.target), else: "in all"),
        report.done,
        Float.round(report.milliseconds / 1000, 1),
        report.ok,
        report.refused,
        report.crashes,
        report.hangs,
        report.unexpected,
        Float.round(report.slowest / 1000, 1),
        Float.round(report.memory / (1024 * 1024), 1),
        report.atoms
      ])
    )
  end

  defp line([first | rest]) do
    [{_, width} | widths] = @columns

    cells =
      Enum.zip_with(rest, widths, fn cell, {_, width} -> String.pad_leading("#{cell}", width) end)

    Enum.join([String.pad_trailing(first, width) | cells])
  end

  defp tell(finding, options) do
    folder = Path.expand("../findings", __DIR__)
    File.mkdir_p!(folder)
    label = "#{name(finding.target)}-#{options.seed}-#{finding.index}"
    file = Path.join(folder, "#{label}.etf")
    File.write!(file, :erlang.term_to_binary(Map.take(finding, [:target, :input])))

    IO.puts("""

    == #{name(finding.target)}: #{finding.how}, seed #{options.seed}, input #{finding.index}
    #{show(finding.input)}
    #{printable(finding.text)}
    again: mix run --no-start fuzz/fuzz.exs --replay #{Path.relative_to_cwd(file)}\
    """)
  end

  defp show(input) do
    input |> inspect(limit: 200, printable_limit: 2_000) |> String.slice(0, 3_000)
  end

  # A message can hold any bytes.
  defp printable(text) do
    if String.valid?(text),
      do: text,
      else: inspect(text, binaries: :as_strings, printable_limit: 4_000)
  end

  @doc false
  # Bytes of memory of a process, where the system tells.
  def resident(pid) do
    with {:ok, text} <- File.read("/proc/#{pid}/status"),
         [_, number] <- Regex.run(~r/^VmRSS:\s+(\d+)/m, text) do
      String.to_integer(number) * 1024
    else
      _ -> nil
    end
  end

  defp now, do: System.monotonic_time(:millisecond)
end
