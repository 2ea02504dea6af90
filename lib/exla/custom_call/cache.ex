defmodule EXLA.CustomCall.Cache do
  @moduledoc """
  Compiled executables, kept for the next time.

  `EXLA.CustomCall.Runner` compiles through the cache that this package starts. It is keyed by the
  client, the module's bytes and the compile options. A process that finds nothing compiles; others that
  ask for the same meanwhile wait for it. Where the compiling process fails or dies, one of those that
  wait takes over, so an error is never kept.

  It holds the executables that were used last, and with them their clients, which a service makes
  once:

      config :exla_custom_call, cache: [max_entries: 128]

  ## On disk

  With a directory, executables are also written to disk, and a VM that starts anew reads them
  instead of compiling:

      config :exla_custom_call, cache: [directory: "/var/cache/my_app"]

  A file appears under its name only when it is whole. One that is damaged, or of another plugin or
  version of this package, is removed and compiled anew. Whoever can write to the directory can run
  code in the VM: it is to be the service's own. Files are never removed for their age.
  """

  use GenServer

  alias EXLA.CustomCall.{Error, Options, Telemetry}

  @max_entries 128

  @typedoc "What was found, compiled, read from disk and evicted since the cache was started."
  @type stats :: %{
          entries: non_neg_integer(),
          hits: non_neg_integer(),
          misses: non_neg_integer(),
          disk_hits: non_neg_integer(),
          evictions: non_neg_integer()
        }

  @counters %{hits: 1, misses: 2, disk_hits: 3, evictions: 4}
  @events %{hits: :hit, misses: :miss, disk_hits: :disk_hit, evictions: :eviction}

  @doc """
  Starts a cache of its own, apart from the one that `EXLA.CustomCall.Runner` uses.

  ## Options

    * `:name` - the name that the other functions find it by, an atom. Required.
    * `:max_entries` - how many executables it holds, default #{@max_entries}; 0 holds none.
    * `:directory` - where executables are written to as well. Default: nowhere.
  """
  @spec start_link(keyword()) :: GenServer.on_start()
  def start_link(opts) do
    opts =
      opts
      |> Options.validate(name: nil, max_entries: @max_entries, directory: nil)
      |> Error.unwrap!()

    check!(is_atom(opts[:name]) and opts[:name] != nil, :name, "an atom", opts)

    check!(
      is_integer(opts[:max_entries]) and opts[:max_entries] >= 0,
      :max_entries,
      "an integer of 0 or more",
      opts
    )

    check!(
      is_nil(opts[:directory]) or path?(opts[:directory]),
      :directory,
      "a path or nil",
      opts
    )

    GenServer.start_link(__MODULE__, opts, name: opts[:name])
  end

  defp path?(path) do
    is_binary(path) and String.valid?(path) and path != "" and not String.contains?(path, <<0>>)
  end

  defp check!(valid?, name, expected, opts) do
    Error.unwrap!(if valid?, do: :ok, else: Options.wrong(name, expected, opts[name]))
  end

  @doc """
  The executable under `key`, or what `compile` returns, which is then kept where it is
  `{:ok, executable}`.

  `disk` is `nil`, or says how to keep it on disk: `%{file: name, read: fun, write: fun}`, where `read`
  takes the bytes and returns `{:ok, executable}` or `{:error, reason}`, and `write` the executable
  and returns `{:ok, bytes}` or `{:error, reason}`.
  """
  @spec fetch(atom(), term(), nil | map(), (() -> {:ok, term()} | {:error, term()})) ::
          {:ok, term()} | {:error, term()}
  def fetch(cache, key, disk, compile) do
    check_running!(cache)

    unless is_function(compile, 0) do
      raise ArgumentError,
            "expected a function without arguments that compiles, got: #{inspect(compile)}"
    end

    unless disk?(disk) do
      raise ArgumentError,
            "expected nil, or a map with a :file name and functions of one argument to :read and " <>
              ":write, got: #{inspect(disk)}"
    end

    case :ets.lookup(cache, key) do
      [{^key, value, _used}] ->
        # Lost where it was evicted since, which does no harm.
        :ets.update_element(cache, key, {3, now()})
        count(cache, :hits)
        {:ok, value}

      [] ->
        claim(cache, key, disk, compile)
    end
  end

  defp disk?(%{file: file, read: read, write: write}) do
    path?(file) and is_function(read, 1) and is_function(write, 1)
  end

  defp disk?(disk), do: is_nil(disk)

  @doc """
  The counters.

  ## Examples

      iex> %{hits: _, misses: _} = EXLA.CustomCall.Cache.stats()
      iex> :ok
      :ok
  """
  @spec stats(atom()) :: stats()
  def stats(cache \\ __MODULE__) do
    check_running!(cache)
    counters = counters(cache)

    for {name, index} <- @counters, into: %{entries: :ets.info(cache, :size)} do
      {name, :counters.get(counters, index)}
    end
  end

  @doc "Forgets all executables; what is on disk stays."
  @spec clear(atom()) :: :ok
  def clear(cache \\ __MODULE__) do
    check_running!(cache)
    GenServer.call(cache, :clear)
  end

  defp check_running!(cache) do
    unless is_atom(cache) and :ets.whereis(cache) != :undefined do
      raise ArgumentError, "there is no cache #{inspect(cache)}"
    end
  end

  # Asks for the right to compile: it is granted at once, or when whoever has it is done.
  defp claim(cache, key, disk, compile) do
    case GenServer.call(cache, {:claim, key}, :infinity) do
      {:value, value} ->
        count(cache, :hits)
        {:ok, value}

      {:granted, directory} ->
        result =
          try do
            produce(cache, directory, disk, compile)
          catch
            kind, reason ->
              GenServer.cast(cache, {:done, key, :error})
              :erlang.raise(kind, reason, __STACKTRACE__)
          end

        kept = if match?({:ok, _}, result), do: result, else: :error
        evicted = GenServer.call(cache, {:done, key, kept}, :infinity)
        if evicted > 0, do: count(cache, :evictions, evicted)
        result

      # This process compiles the same already: what it asks for inside is not kept.
      :nested ->
        produce(cache, nil, nil, compile)
    end
  end

  defp produce(cache, directory, disk, compile) when is_nil(directory) or is_nil(disk) do
    count(cache, :misses)
    compile.()
  end

  defp produce(cache, directory, disk, compile) do
    path = Path.join(directory, disk.file)

    case read(path, disk) do
      {:ok, value} ->
        count(cache, :disk_hits)
        {:ok, value}

      _ ->
        with {:ok, value} <- produce(cache, nil, nil, compile) do
          write(path, disk, value)
          {:ok, value}
        end
    end
  end

  defp read(path, disk) do
    with {:ok, bytes} <- File.read(path) do
      with {:error, _reason} <- disk.read.(bytes) do
        File.rm(path)
        :error
      end
    end
  end

  # A cache that cannot be written to costs time, never a result.
  defp write(path, disk, value) do
    temporary = "#{path}.#{System.pid()}-#{System.unique_integer([:positive])}.tmp"

    with {:ok, bytes} <- disk.write.(value),
         :ok <- File.mkdir_p(Path.dirname(path)),
         :ok <- File.write(temporary, bytes, [:sync]),
         :ok <- File.rename(temporary, path) do
      :ok
    else
      _ -> File.rm(temporary)
    end
  end

  # Of VMs that ended while they wrote. What is younger than an hour may be another VM's at work.
  defp remove_leftovers(directory) do
    # The directory's name may be a pattern's.
    for {:ok, names} <- [File.ls(directory)],
        name <- names,
        String.ends_with?(name, ".tmp"),
        path = Path.join(directory, name),
        {:ok, %{mtime: written}} <- [File.stat(path, time: :posix)],
        System.os_time(:second) - written > 3600,
        do: File.rm(path)
  end

  defp count(cache, counter, by \\ 1) do
    :counters.add(counters(cache), Map.fetch!(@counters, counter), by)
    Telemetry.event([:cache, Map.fetch!(@events, counter)], %{count: by})
  end

  defp counters(cache), do: :persistent_term.get({__MODULE__, cache})
  defp now, do: System.monotonic_time()

  # The process grants claims and evicts; it neither compiles nor touches files.

  @impl true
  def init(opts) do
    Process.flag(:trap_exit, true)
    name = opts[:name]
    :ets.new(name, [:named_table, :public, read_concurrency: true, write_concurrency: true])

    if opts[:directory], do: remove_leftovers(opts[:directory])

    if :persistent_term.get({__MODULE__, name}, nil) == nil do
      :persistent_term.put({__MODULE__, name}, :counters.new(map_size(@counters), []))
    end

    {:ok,
     %{
       table: name,
       max_entries: opts[:max_entries],
       directory: opts[:directory],
       # Those who compile, by key, as monitors, and those who wait for them, the first first.
       holders: %{},
       pids: %{},
       keys: %{},
       waiting: %{}
     }}
  end

  @impl true
  def handle_call({:claim, key}, {pid, _tag} = from, state) do
    case :ets.lookup(state.table, key) do
      [{^key, value, _used}] ->
        {:reply, {:value, value}, state}

      [] when is_map_key(state.holders, key) and :erlang.map_get(key, state.pids) == pid ->
        {:reply, :nested, state}

      [] when is_map_key(state.holders, key) ->
        waiting = Map.update(state.waiting, key, [from], &(&1 ++ [from]))
        {:noreply, %{state | waiting: waiting}}

      [] ->
        {:reply, {:granted, state.directory}, grant(state, key, pid)}
    end
  end

  def handle_call({:done, key, result}, _from, state) do
    before = :ets.info(state.table, :size)
    state = done(state, key, result)
    added = if match?({:ok, _}, result) and state.max_entries > 0, do: 1, else: 0
    {:reply, before + added - :ets.info(state.table, :size), state}
  end

  def handle_call(:clear, _from, state) do
    :ets.delete_all_objects(state.table)
    {:reply, :ok, state}
  end

  @impl true
  def handle_cast({:done, key, result}, state), do: {:noreply, done(state, key, result)}

  @impl true
  def handle_info({:DOWN, monitor, :process, _pid, _reason}, state) do
    case state.keys do
      %{^monitor => key} -> {:noreply, done(state, key, :error)}
      _ -> {:noreply, state}
    end
  end

  def handle_info(_message, state), do: {:noreply, state}

  defp grant(state, key, pid) do
    monitor = Process.monitor(pid)
    holders = Map.put(state.holders, key, monitor)
    keys = Map.put(state.keys, monitor, key)
    %{state | holders: holders, keys: keys, pids: Map.put(state.pids, key, pid)}
  end

  defp done(state, key, result) do
    {monitor, holders} = Map.pop(state.holders, key)
    if monitor, do: Process.demonitor(monitor, [:flush])
    keys = Map.delete(state.keys, monitor)
    state = %{state | holders: holders, keys: keys, pids: Map.delete(state.pids, key)}
    {waiting, rest} = Map.pop(state.waiting, key, [])
    answer(%{state | waiting: rest}, key, waiting, result)
  end

  defp answer(state, key, waiting, {:ok, value}) do
    keep(state, key, value)
    Enum.each(waiting, &GenServer.reply(&1, {:value, value}))
    state
  end

  defp answer(state, _key, [], :error), do: state

  defp answer(state, key, [{pid, _tag} = next | waiting], :error) do
    GenServer.reply(next, {:granted, state.directory})
    waiting = if waiting == [], do: state.waiting, else: Map.put(state.waiting, key, waiting)
    grant(%{state | waiting: waiting}, key, pid)
  end

  defp keep(%{max_entries: 0}, _key, _value), do: :ok

  defp keep(state, key, value) do
    :ets.insert(state.table, {key, value, now()})

    if :ets.info(state.table, :size) > state.max_entries do
      # Rare, and over a small table: the one whose last use is the longest ago goes.
      {oldest, _} =
        :ets.foldl(
          fn {key, _value, used}, {_, least} = found ->
            if used < least, do: {key, used}, else: found
          end,
          {nil, :infinity},
          state.table
        )

      :ets.delete(state.table, oldest)
    end
  end
end
