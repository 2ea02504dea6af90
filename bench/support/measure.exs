# What bench/soak.exs and bench/memory.exs share.
defmodule Measure do
  @moduledoc false

  # The command line over the defaults, of which each is a number or a switch.
  def options!(argv, defaults, usage) do
    switches =
      for {name, default} <- defaults,
          do: {name, if(is_boolean(default), do: :boolean, else: :integer)}

    case OptionParser.parse(argv, strict: switches) do
      {given, [], []} ->
        options = Map.merge(defaults, Map.new(given))

        valid? =
          Enum.all?(options, fn {name, value} ->
            least = if name in [:kill_ms, :warm_up, :growth_mib], do: 0, else: 1
            is_boolean(value) or value >= least
          end) and options.warm_up < 100

        if valid?, do: options, else: fail("a number is out of its range.\n\n#{usage}")

      _ ->
        fail(usage)
    end
  end

  # Frees what nobody holds; other threads than the VM's take their time.
  def rest(milliseconds) do
    for _ <- 1..3 do
      Enum.each(Process.list(), &:erlang.garbage_collect/1)
      Process.sleep(milliseconds)
    end
  end

  def resident, do: status("VmRSS", fn -> ps("rss") end) * 1024
  def threads, do: status("Threads", fn -> "?" end)

  # Linux tells in /proc; elsewhere `ps` does.
  defp status(name, otherwise) do
    with {:ok, text} <- File.read("/proc/self/status"),
         [_, number] <- Regex.run(~r/^#{name}:\s+(\d+)/m, text) do
      String.to_integer(number)
    else
      _ -> otherwise.()
    end
  end

  defp ps(column) do
    {text, 0} = System.cmd("ps", ["-o", "#{column}=", "-p", System.pid()])
    text |> String.trim() |> String.to_integer()
  end

  def line(columns), do: Enum.map_join(columns, &String.pad_leading(to_string(&1), 14))
  def mib(bytes), do: Float.round(bytes / (1024 * 1024), 1)
  def now, do: System.monotonic_time(:millisecond)

  def fail(message) do
    IO.puts(:stderr, message)
    System.halt(1)
  end
end
