defmodule EXLA.CustomCall.Trial do
  @moduledoc """
  A compilation in an OS process of its own, before the one in this VM.

  XLA's compiler shares the process that calls it: a segmentation fault, a failed check of its own or
  memory that grows without end takes the whole VM with it. The rules that
  `EXLA.CustomCall.Module.build/3` holds every spec against keep away all that is known to do so. Where a
  spec comes from somebody who is not trusted, a trial is the last line of defence: a helper process
  loads the same plugin and compiles the module first, and what becomes of that process is an error
  like others.

      EXLA.CustomCall.Client.compile(client, module, trial: true)
      EXLA.CustomCall.Client.compile(client, module, trial: [timeout: 5_000, max_memory: 1_000_000_000])
      EXLA.CustomCall.Module.check([x], [y], compile: client)

  ## Options

    * `:timeout` - milliseconds for the whole trial, the start of the process included; default
      60,000.
    * `:max_memory` - bytes that the helper process may hold for itself, default 4 GiB, at least
      128 MiB.

  ## What it costs, and what it does not see

  A trial starts a process and loads the plugin, some 0.1 s with the CPU plugin in the file cache, and compiles once more. The
  program is not run. The handlers of your libraries are not loaded: each custom call gets one that says
  no at run time, so that a handler's own code for the stage `instantiate` is not tried.

  ## Errors

  `:compile`, with the code `:aborted` where the process died, `:deadline_exceeded` after the time-out and
  `:resource_exhausted` over the memory. The message has the last lines that XLA wrote. What XLA refuses
  in words is the same error as without a trial.
  """

  alias EXLA.CustomCall.{Client, Error, Module, Native, Options, SpecTerms}

  @default [timeout: 60_000, max_memory: 4 * 1024 * 1024 * 1024]
  @longest 0x7FFF_FFFF
  # The compiler's thread alone has a stack of half of it.
  @least_memory 128 * 1024 * 1024

  # The protocol is described in native/compile_worker.
  @version 1
  @hello 0
  @compile_request 1
  @ready 0
  @failed 1
  @accepted 2
  @refused 3
  @timed_out 4

  # The statuses with which the worker ends itself.
  @memory_status 81
  @exception_status 85

  @doc false
  # The options of a trial, or `nil` for none.
  @spec options(term()) :: {:ok, keyword() | nil} | {:error, Error.t()}
  def options(nil), do: {:ok, nil}
  def options(false), do: {:ok, nil}
  def options(true), do: {:ok, @default}

  def options(opts) do
    if Keyword.keyword?(opts) do
      with {:ok, opts} <- Options.validate(opts, @default),
           {:ok, _} <- Options.integer(opts, :timeout, 1..@longest),
           {:ok, _} <- Options.integer(opts, :max_memory, @least_memory..0x7FFF_FFFF_FFFF_FFFF) do
        {:ok, opts}
      end
    else
      Options.wrong(:trial, "true, false, or a keyword list of :timeout and :max_memory", opts)
    end
  end

  @doc false
  # Compiles in a helper process; `options` are the compile options that the NIF takes.
  @spec run(Client.t(), Module.t(), map(), keyword()) :: :ok | {:error, Error.t()}
  def run(client, module, options, limits) do
    with {:ok, _} <-
           Native.from_native(
             Native.module_check_needs(module.ref, options.shardy, client.api_version)
           ),
         {:ok, program} <- program(module, options.donate),
         {:ok, worker} <- worker() do
      # A process of its own: a port that ends takes its owner along, and its messages are nobody
      # else's.
      caller = self()

      {pid, monitor} =
        spawn_monitor(fn ->
          exit({:trial, attempt(caller, worker, client, module, program, options, limits)})
        end)

      receive do
        {:DOWN, ^monitor, :process, ^pid, {:trial, answer}} -> answer
        {:DOWN, ^monitor, :process, ^pid, reason} -> failed("it ended with #{inspect(reason)}")
      end
    end
  end

  defp program(module, []), do: {:ok, Module.to_bytecode(module)}

  defp program(module, donate) do
    Native.from_native(Native.module_donating(module.ref, donate))
  end

  @doc false
  # The program that compiles for another process.
  def worker do
    path = Path.join(:code.priv_dir(:exla_custom_call), "native/exla_custom_call_worker")

    if File.regular?(path) do
      {:ok, path}
    else
      failed("#{path} is not there; `mix compile` puts it there")
    end
  end

  defp attempt(caller, worker, client, module, program, options, limits) do
    Process.flag(:trap_exit, true)
    caller = Process.monitor(caller)
    stderr = temporary_file()
    deadline = now() + limits[:timeout]

    # The shell gives it a standard error of its own: an Erlang port has none.
    port =
      Port.open({:spawn_executable, "/bin/sh"}, [
        :binary,
        :exit_status,
        :hide,
        {:packet, 4},
        # Where the file is gone, so is who wanted the answer.
        args: ["-c", ~S([ -e "$1" ] && exec "$0" 2>"$1"), worker, stderr]
      ])

    os_pid = port |> Port.info(:os_pid) |> os_pid()

    try do
      state = %{port: port, caller: caller, deadline: deadline, stderr: stderr, limits: limits}

      with :ok <- send_frame(port, hello(client, limits)),
           :ok <- ready(state),
           :ok <- send_frame(port, compile(module, program, options)) do
        compiled(state)
      end
    after
      # Its input ends, and so does the worker, whatever it does, unless somebody has stopped it.
      if Port.info(port) do
        Port.close(port)
        if os_pid, do: System.cmd("kill", ["-KILL", os_pid], stderr_to_stdout: true)
      end

      File.rm(stderr)
    end
  end

  defp os_pid({:os_pid, pid}), do: Integer.to_string(pid)
  defp os_pid(nil), do: nil

  defp send_frame(port, frame) do
    Port.command(port, frame)
    :ok
  rescue
    # It has ended; its last answer or its status says why.
    ArgumentError -> :ok
  end

  defp ready(state) do
    case next(state) do
      {:frame, <<@ready, _rest::binary>>} -> :ok
      {:frame, <<@failed, size::32, reason::binary-size(size)>>} -> failed(reason)
      other -> ended(other, state)
    end
  end

  defp compiled(state) do
    case next(state) do
      {:frame, <<@accepted, _rest::binary>>} ->
        :ok

      {:frame,
       <<@refused, _id::64, code_size::32, code::binary-size(code_size), size::32,
         message::binary-size(size)>>} ->
        # As XLA's words come without a trial.
        {:error, Error.new(:compile, "#{code}: #{message}", code: code(code))}

      {:frame, <<@failed, size::32, reason::binary-size(size)>>} ->
        failed(reason)

      {:frame, <<@timed_out, _rest::binary>>} ->
        too_long(state)

      other ->
        ended(other, state)
    end
  end

  defp next(%{port: port, caller: caller} = state) do
    receive do
      {^port, {:data, frame}} -> {:frame, frame}
      {^port, {:exit_status, status}} -> {:status, status}
      {:EXIT, ^port, _reason} -> next(state)
      {:DOWN, ^caller, :process, _pid, _reason} -> exit(:normal)
    after
      max(state.deadline - now(), 0) -> :timeout
    end
  end

  defp ended(:timeout, state), do: too_long(state)

  defp ended({:status, @memory_status}, state) do
    error(
      :resource_exhausted,
      "XLA's compiler took more than the #{state.limits[:max_memory]} bytes of :max_memory over this " <>
        "module; a process of its own did, and this VM did not compile it",
      state
    )
  end

  defp ended({:status, status}, state) do
    error(
      :aborted,
      "XLA's compiler #{cause(status)} over this module; a process of its own did, and this VM did " <>
        "not compile it",
      state
    )
  end

  defp ended({:frame, _other}, _state), do: failed("its answer is of another version")

  # A shell's status for a signal is 128 and the signal; so is the VM's.
  defp cause(@exception_status), do: "ended by a C++ exception"
  defp cause(134), do: "failed a check of its own (SIGABRT)"
  defp cause(136), do: "divided by zero (SIGFPE)"
  defp cause(137), do: "was killed (SIGKILL), as the system does when memory is short,"
  defp cause(139), do: "read memory that is not there (SIGSEGV)"
  defp cause(status) when status > 128, do: "ended by signal #{status - 128}"
  defp cause(status), do: "ended with status #{status}"

  defp too_long(state) do
    error(
      :deadline_exceeded,
      "XLA's compiler was not done with this module within the #{state.limits[:timeout]} ms of the trial",
      state
    )
  end

  defp error(code, message, state) do
    message =
      case last_words(state.stderr) do
        "" -> message
        words -> message <> ". Its last words: " <> words
      end

    {:error, Error.new(:compile, message, code: code)}
  end

  defp failed(reason) do
    {:error, Error.new(:compile, "the trial's process did not work: #{reason}", code: :internal)}
  end

  @most_words 1_000

  # What a failed check of XLA's wrote.
  defp last_words(path) do
    with {:ok, file} <- File.open(path, [:read, :binary]),
         {:ok, size} <- :file.position(file, :eof),
         {:ok, bytes} <- :file.pread(file, max(size - 16_384, 0), 16_384) do
      File.close(file)
      lines = bytes |> text() |> String.split("\n", trim: true)
      checks = Enum.filter(lines, &(&1 =~ "Check failed" or &1 =~ "what()" or &1 =~ "terminate"))

      if(checks == [], do: Enum.take(lines, -1), else: Enum.take(checks, 1))
      |> Enum.join(" ")
      |> String.slice(0, @most_words)
    else
      _ -> ""
    end
  end

  defp text(bytes) do
    if String.valid?(bytes), do: bytes, else: :unicode.characters_to_binary(bytes, :latin1)
  end

  defp temporary_file do
    name = "exla_custom_call_trial_#{System.pid()}_#{System.unique_integer([:positive])}"
    path = Path.join(System.tmp_dir!(), name)
    File.write!(path, "")
    path
  end

  defp now, do: System.monotonic_time(:millisecond)

  for code <- ~w(cancelled unknown invalid_argument deadline_exceeded not_found already_exists
                 permission_denied resource_exhausted failed_precondition aborted out_of_range
                 unimplemented internal unavailable data_loss unauthenticated)a do
    name = code |> Atom.to_string() |> String.upcase()
    defp code(unquote(name)), do: unquote(code)
  end

  defp code(_other), do: :unknown

  defp hello(client, limits) do
    [
      <<@hello, @version::16>>,
      bytes(client.plugin),
      options_frame(client.create_options),
      <<limits[:max_memory]::64, 0::64, 0::32>>
    ]
  end

  # The time limit is this side's.
  defp compile(module, program, options) do
    [
      <<@compile_request, 1::64, 0::32, 0, options.replicas::32, options.partitions::32>>,
      boolean(options.spmd),
      boolean(options.shardy),
      list(options.propagate_to_outputs, &boolean/1),
      list(options.propagate_to_parameters, &boolean/1),
      <<1, options.result_count::32, 1, options.parameter_count::32>>,
      assignment(options.device_assignment),
      options_frame(options.xla_options),
      module |> targets() |> list(&bytes/1),
      bytes(program)
    ]
  end

  # Handlers of the typed FFI are all that can be registered.
  defp targets(module) do
    for %{api_version: 4, call_target_name: target} <- Module.custom_calls(module), uniq: true do
      target
    end
  end

  defp assignment(nil), do: <<0>>

  defp assignment(rows) do
    [<<1>>, list(rows, fn row -> list(row, &<<&1::32>>) end)]
  end

  defp options_frame(options) do
    list(options, fn {name, value} -> [bytes(name), value(value)] end)
  end

  defp value(value) when is_binary(value), do: [<<0>>, bytes(value)]
  defp value(value) when is_boolean(value), do: [<<4>>, boolean(value)]
  defp value(value) when is_integer(value), do: <<1, value::64>>
  defp value(value) when is_list(value), do: [<<2>>, list(value, &<<&1::64>>)]
  defp value(value) when is_float(value), do: <<3, value::float-64>>

  defp boolean(true), do: <<1>>
  defp boolean(false), do: <<0>>

  defp bytes(binary), do: [<<byte_size(binary)::32>>, binary]

  defp list(list, fun) do
    true = SpecTerms.proper_list?(list)
    [<<length(list)::32>> | Enum.map(list, fun)]
  end
end
