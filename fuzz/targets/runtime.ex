defmodule Fuzz.Targets.Runtime do
  @moduledoc false

  # Clients, compilations, buffers and runs, with arguments that are right but for a part. Names of XLA's
  # own options are left out: XLA does not check all of their values.

  use Fuzz.Target, client: true

  alias EXLA.CustomCall.{
    Buffer,
    Cache,
    Client,
    Executable,
    Library,
    Lowering,
    ProcessHandler,
    Runner
  }

  alias EXLA.CustomCall.{Module, Native, Plugin, ProcessHandler, Runner, Spec, Telemetry, Value}

  @f32x4 %{type: {:f, 32}, shape: {4}}
  @four :binary.copy(<<0, 0, 128, 63>>, 4)
  @qr {:"$", :qr}
  @square %{type: {:f, 32}, shape: {2, 2}}

  @calls [
    {Client, :new, [[plugin: :cpu, options: [cpu_device_count: 1]]]},
    {Client, :compile,
     [
       {:"$", :client},
       {:"$", :module},
       [
         replicas: 1,
         partitions: 1,
         spmd: false,
         shardy: false,
         propagate_to_results: [true],
         propagate_to_parameters: [true, false],
         device_assignment: [[0]],
         donate: [0],
         xla_options: [],
         timeout: 10_000
       ]
     ]},
    {Client, :compile, [{:"$", :client}, {:"$", :module}, [replicas: 2]]},
    {Client, :compile, [{:"$", :client}, {:"$", :module}, [partitions: 2, shardy: true]]},
    {Client, :info, [{:"$", :client}]},
    {Buffer, :from_binary, [{:"$", :client}, @four, @f32x4, [device: 0]]},
    {Buffer, :from_binary, [{:"$", :client}, @four, @square, [device: 1, strides: [8, 4]]]},
    {Buffer, :from_binary, [{:"$", :client}, <<1, 0, 3>>, %{type: {:u, 2}, shape: {3}}]},
    {Buffer, :from_tensor, [{:"$", :client}, %{type: {:f, 32}, shape: {1}}, [device: 0]]},
    {Buffer, :to_binary, [{:"$", :buffer}]},
    {Buffer, :to_tensor, [{:"$", :buffer}]},
    {Buffer, :to_device, [{:"$", :buffer}, 1]},
    {Buffer, :delete, [{:"$", :buffer}]},
    {Buffer, :deleted?, [{:"$", :buffer}]},
    {Buffer, :info, [{:"$", :buffer}]},
    {Executable, :run,
     [
       {:"$", :executable},
       [@four, {@four, @f32x4}],
       [results: :binary, user_data: %{"a" => "b"}, timeout: 10_000]
     ]},
    {Executable, :run,
     [{:"$", :executable}, [{:"$", :buffer}, {:"$", :deleted_buffer}], [results: :buffer]]},
    {Executable, :run, [{:"$", :donating}, [{:"$", :buffer}, {:"$", :buffer}]]},
    {Executable, :run_sharded,
     [{:"$", :sharded}, [[@four, @four], [@four, {:"$", :buffer}]], [results: :binary]]},
    {Executable, :run_async,
     [{:"$", :executable}, [@four, @four], [results: :binary, sharded: false]]},
    {Executable, :await, [{:"$", :async}, 10_000]},
    {Executable, :result, [{:"$", :async}, {{:"$", :reference}, {:ok, [[@four]]}}]},
    {Executable, :info, [{:"$", :executable}]},
    {Executable, :hlo_text, [{:"$", :executable}]},
    {Executable, :serialize, [{:"$", :executable}]},
    {Executable, :deserialize, [{:"$", :client}, "EXLA.CustomCall.Executable 1\n"]},
    {Library, :load, [{:"$", :client}, "libm.so.6"]},
    {Library, :register, [{:"$", :client}, "t", {:"$", :fun}, [timeout: 100]]},
    {ProcessHandler, :call, [{:custom_call, {:"$", :ticket}, [{"", {17, [4]}}], %{}, [:token]}]},
    {ProcessHandler, :reply, [{:custom_call, {:"$", :ticket}, [], %{}, []}, [@four]]},
    {Runner, :run,
     [
       @qr,
       [{@four, @square}],
       {@square, @square},
       [client: {:"$", :client}, results: :binary, compile: [], name: "m", timeout: 10_000]
     ]},
    {Lowering, :lower, [@qr, {@square, @square}, [@square], %{platform: :host}, [name: "m"]]},
    {Cache, :fetch, [Cache, "key", nil, {:"$", :compile}]},
    {Cache, :fetch,
     [Cache, "key", %{file: "f", read: {:"$", :fun}, write: {:"$", :fun}}, {:"$", :compile}]},
    {Cache, :stats, [Cache]},
    {Cache, :clear, [Cache]},
    {Cache, :start_link, [[name: Fuzz.SomeCache, max_entries: 3, directory: nil]]},
    {Plugin, :resolve, [:cpu, [build: :zml]]},
    {Telemetry, :put_module, [nil]}
  ]

  def generate do
    Gen.weighted([{94, &call/0}, {4, &race/0}, {2, &answer/0}])
  end

  defp call do
    {module, function, arguments} = Gen.pick(@calls)

    arguments =
      Gen.weighted([
        {8, fn -> one_wrong(arguments) end},
        {3, fn -> arguments |> one_wrong() |> one_wrong() end},
        {1, fn -> Enum.map(arguments, fn _ -> Gen.term() end) end},
        {1, fn -> arguments end}
      ])

    {module, function, arguments}
  end

  defp one_wrong(arguments) do
    List.update_at(arguments, Gen.int(0, length(arguments) - 1), &Gen.mutate_term(&1, 8))
  end

  # Several processes at work on the same buffers, which are read, run, copied, donated and deleted.
  defp race do
    {:race,
     for(
       _ <- 1..Gen.int(2, 6),
       do:
         Gen.list(8, fn ->
           {Gen.pick([:read, :run, :copy, :donate, :delete, :drop, :info, :sharded]),
            Gen.int(0, 2)}
         end)
     )}
  end

  # What an Elixir handler answers: as its function, by `reply/2`, or past both.
  defp answer do
    good = Gen.pick([[@four], {:ok, [@four]}, {:error, "no"}])

    {:answer, Gen.pick([:function, :reply, :native]),
     Gen.pick([good, Gen.mutate_term(good), Gen.term(2)])}
  end

  def setup(env) do
    Library.load_builtin!(env.client)
    {:ok, box} = Agent.start(fn -> nil end)
    :ok = Library.register(env.client, "fuzz.function", fn _call -> Agent.get(box, & &1) end)
    replies = spawn(fn -> replies(box) end)
    :ok = Library.register(env.client, "fuzz.reply", replies)

    %{
      qr: %{__struct__: Nx.Block.LinAlg.QR},
      donating: Client.compile!(env.client, env.module, donate: [0, 1]),
      box: box,
      function: Client.compile!(env.client, one_call("fuzz.function")),
      reply: Client.compile!(env.client, one_call("fuzz.reply"))
    }
  end

  defp one_call(target) do
    x = Value.parameter(Env.type())
    Module.build!([x], Value.custom_call([x], %Spec{call_target_name: target}, [Env.type()]))
  end

  defp replies(box) do
    receive do
      {:custom_call, responder, _, _, _} = message ->
        case Agent.get(box, & &1) do
          {:reply, answer} -> ProcessHandler.reply(message, answer)
          {:native, answer} -> Native.process_handler_answer(responder, answer)
        end

        replies(box)
    end
  end

  # Whatever was answered, the run ends, and not by the time-out.
  def try({:answer, how, term}, env, state) do
    term = Env.resolve(term, env)
    Agent.update(state.box, fn _ -> if(how == :function, do: term, else: {how, term}) end)
    executable = if how == :function, do: state.function, else: state.reply

    case Executable.run(executable, [@four], results: :binary) do
      {:error, %{code: :deadline_exceeded}} -> {:violated, "the answer did not arrive"}
      answer -> answer
    end
  end

  def try({:race, scripts}, env, state) do
    buffers = for _ <- 1..3, do: Env.buffer(env)

    scripts
    |> Enum.map(fn steps ->
      Task.async(fn -> Enum.each(steps, &step(&1, buffers, env, state)) end)
    end)
    |> Task.await_many(15_000)
  end

  def try({module, function, arguments}, env, state) do
    Process.flag(:trap_exit, true)
    arguments = arguments |> names(env, state) |> Env.resolve(env)

    if function_exported?(module, function, length(arguments)) do
      module |> apply(function, arguments) |> tidy()
    else
      :ok
    end
  end

  # A cache that was started.
  defp tidy({:ok, pid}) when is_pid(pid), do: GenServer.stop(pid)
  # GenServer.on_start(): the name is taken, or is none.
  defp tidy({:error, {:already_started, _pid}}), do: :ok
  defp tidy(other), do: other

  defp step({:read, at}, buffers, _env, _state),
    do: buffers |> Enum.at(at) |> Buffer.to_binary() |> expect(Env.bytes())

  defp step({:info, at}, buffers, _env, _state), do: buffers |> Enum.at(at) |> Buffer.info()
  defp step({:delete, at}, buffers, _env, _state), do: buffers |> Enum.at(at) |> Buffer.delete()
  defp step({:copy, at}, buffers, _env, _state), do: buffers |> Enum.at(at) |> Buffer.to_device(1)

  defp step({:run, at}, buffers, env, _state) do
    Executable.run(env.executable, [Enum.at(buffers, at), Enum.at(buffers, 0)])
  end

  defp step({:donate, at}, buffers, _env, state) do
    Executable.run(state.donating, [Enum.at(buffers, at), Env.bytes()])
  end

  defp step({:sharded, at}, buffers, env, _state) do
    Executable.run_sharded(env.sharded, [
      [Enum.at(buffers, at), Env.bytes()],
      [Env.bytes(), Env.bytes()]
    ])
  end

  # Started, and never awaited.
  defp step({:drop, at}, buffers, env, _state) do
    Executable.run_async(env.executable, [Enum.at(buffers, at), Env.bytes()])
    :erlang.garbage_collect()
  end

  defp expect({:ok, bytes}, bytes), do: :ok
  defp expect({:error, _}, _bytes), do: :ok

  defp names({:"$", :donating}, _env, state), do: state.donating
  defp names({:"$", :qr}, _env, state), do: state.qr
  defp names({:"$", :compile}, env, _state), do: fn -> {:ok, env.executable} end

  defp names({:"$", :async}, env, _state) do
    Executable.run_async!(env.executable, [@four, @four], results: :binary)
  end

  defp names([head | tail], env, state), do: [names(head, env, state) | names(tail, env, state)]

  defp names(term, env, state) when is_tuple(term) do
    term |> Tuple.to_list() |> names(env, state) |> List.to_tuple()
  end

  defp names(term, env, state) when is_map(term) and not is_struct(term) do
    Map.new(term, &names(&1, env, state))
  end

  defp names(term, _env, _state), do: term
end
