defmodule EXLA.CustomCall.ProcessHandlerTest do
  use ExUnit.Case, async: true

  import EXLA.CustomCall.XLA, only: [f32: 1, f32: 2, floats: 1]

  alias EXLA.CustomCall.{Attribute, Library, ProcessHandler, Spec, Typespec, XLA}

  @vector Typespec.tensor({:f, 32}, {2})

  defp register(fun_or_pid, opts \\ []) do
    target = "process_handler_#{System.unique_integer([:positive])}"
    assert Library.register(XLA.client(), target, fun_or_pid, opts) == :ok
    target
  end

  defp call(target, inputs \\ [], results \\ [@vector], attributes \\ []) do
    XLA.call(%Spec{call_target_name: target, attributes: attributes}, inputs, results)
  end

  defp double(call) do
    [{x, _typespec}] = call.operands
    [for(<<n::float-32-native <- x>>, into: <<>>, do: <<2 * n::float-32-native>>)]
  end

  test "a function answers a call" do
    {:ok, [result]} = call(register(&double/1), [f32([1, 2])])
    assert floats(result) == [2.0, 4.0]
  end

  test "it sees operands, attributes and results" do
    test = self()

    target =
      register(fn call ->
        send(test, call)
        Enum.map(call.results, &:binary.copy(<<0>>, Typespec.byte_size(&1)))
      end)

    attributes = [
      {"bytes", Attribute.string(<<0, 255>>)},
      {"flag", "true"},
      {"int", "-3 : i32"},
      {"list", "array<i64: 1, 2>"},
      {"scale", "0.5 : f32"},
      {"nan", Attribute.float(:nan)},
      {"nested", "{a = 1 : i64}"}
    ]

    inputs = [f32([1, 2], {2, 1}), {<<7>>, Typespec.tensor(:u8, {})}]
    {:ok, _} = call(target, inputs, [@vector, Typespec.tensor(:bf16, {3})], attributes)

    assert_receive %ProcessHandler.Call{} = call
    assert call.operands == inputs
    assert call.results == [@vector, Typespec.tensor(:bf16, {3})]

    assert call.attributes == %{
             "bytes" => <<0, 255>>,
             "flag" => true,
             "int" => -3,
             "list" => [1, 2],
             "scale" => 0.5,
             "nan" => :nan,
             "nested" => %{"a" => 1}
           }
  end

  test "an exception in the function is the call's error" do
    {:error, error} = call(register(fn _ -> raise "boom" end))
    assert {error.kind, error.code} == {:run, :internal}
    assert error.message == "INTERNAL: ** (RuntimeError) boom"
    {:error, error} = call(register(fn _ -> exit(:gone) end))
    assert error.message == "INTERNAL: ** (exit) :gone"
  end

  test "an error that the function answers is the call's" do
    {:error, error} = call(register(fn _ -> {:error, "not today"} end))
    assert error.message == "INTERNAL: not today"
  end

  test "an answer of the wrong shape, count or size is an error" do
    {:error, error} = call(register(fn _ -> :done end))

    assert error.message ==
             "INTERNAL: expected an answer of [binary], {:ok, [binary]} or {:error, message}, got: :done"

    {:error, error} = call(register(fn _ -> [] end))
    assert error.message == "INVALID_ARGUMENT: expected 1 results, got 0"
    {:error, error} = call(register(fn _ -> ["12345"] end))
    assert error.message == "INVALID_ARGUMENT: result 0: expected 8 bytes, got 5"
  end

  test "a call that nobody answers in time is an error" do
    target = register(fn _ -> Process.sleep(:infinity) end, timeout: 50)
    {:error, error} = call(target)
    assert error.code == :deadline_exceeded
    assert error.message == "DEADLINE_EXCEEDED: no answer within 50 ms"
  end

  test "a process that dies with a call ends it at once" do
    target = register(fn _ -> Process.exit(self(), :kill) end, timeout: 60_000)
    {:error, error} = call(target)
    assert error.code == :unavailable
    assert error.message == "UNAVAILABLE: the process that answers it has died"
  end

  test "a process of one's own answers, and a dead one is an error" do
    pid =
      spawn(fn ->
        receive do
          message -> ProcessHandler.reply(message, double(ProcessHandler.call(message)))
        end
      end)

    target = register(pid)
    {:ok, [result]} = call(target, [f32([1, 2])])
    assert floats(result) == [2.0, 4.0]
    {:error, error} = call(target, [f32([1, 2])])
    assert error.message == "UNAVAILABLE: the process that answers it is not alive"
  end

  test "a call is answered once" do
    test = self()

    pid =
      spawn(fn ->
        receive do
          message ->
            zeros = [<<0::64>>]

            send(
              test,
              {ProcessHandler.reply(message, zeros), ProcessHandler.reply(message, zeros)}
            )
        end
      end)

    assert {:ok, _} = call(register(pid))
    assert_receive {true, false}
  end

  test "registered again, a target has the new function" do
    target = register(fn _ -> {:error, "old"} end)
    assert Library.register(XLA.client(), target, &double/1) == :ok
    assert {:ok, _} = call(target, [f32([1, 2])])
  end

  test "the process of a function that was replaced, or refused, ends" do
    count = fn -> DynamicSupervisor.count_children(ProcessHandler.Supervisor).active end
    target = register(&double/1)
    before = count.()
    for _ <- 1..20, do: assert(Library.register(XLA.client(), target, &double/1) == :ok)
    assert {:error, _} = Library.register(XLA.client(), "test_copy", &double/1)
    assert_in_delta count.(), before, 10
  end

  test "a function can run programs itself" do
    inner = register(&double/1)

    outer =
      register(fn call ->
        {:ok, results} = call(inner, call.operands)
        results
      end)

    {:ok, [result]} = call(outer, [f32([1, 2])])
    assert floats(result) == [2.0, 4.0]
  end

  test "many calls are answered at once" do
    target =
      register(fn call ->
        Process.sleep(100)
        double(call)
      end)

    {time, results} =
      :timer.tc(fn ->
        1..32
        |> Task.async_stream(fn n -> call(target, [f32([n, n])]) end, max_concurrency: 32)
        |> Enum.map(fn {:ok, {:ok, [result]}} -> floats(result) end)
      end)

    assert results == for(n <- 1..32, do: [2.0 * n, 2.0 * n])
    # One after the other they would take more than 3 seconds.
    assert time < 2_000_000
  end

  test "wrong arguments are refused" do
    message = fn client, target, answerer, opts ->
      {:error, error} = Library.register(client, target, answerer, opts)
      assert error.kind == :argument
      error.message
    end

    client = XLA.client()

    assert message.(nil, "t", &double/1, []) == "expected an EXLA.CustomCall.Client, got: nil"
    assert message.(client, :t, &double/1, []) == "expected the target as a binary, got: :t"

    assert message.(client, "t", :f, []) ==
             "expected a function of one argument or a pid, got: :f"

    assert message.(client, "t", &double/1, timeout: 0) ==
             "expected :timeout in milliseconds, 1 to 86400000, got: 0"

    assert message.(client, "t", &double/1, time: 1) ==
             "unknown option :time; the options are :timeout"
  end

  test "what is no message of a call is refused" do
    message = fn fun -> assert_raise(ArgumentError, fun).message end

    expected =
      "expected the message {:custom_call, responder, operands, attributes, results}, got: "

    for {operands, results} <- [
          {[{"", {17, [4]}} | :tail], []},
          {[{"", {99, []}}], []},
          {[{"", {-1, []}}], []},
          {[:operand], []},
          {[], [:token | :tail]},
          {[], [""]},
          {[], :results}
        ] do
      call = {:custom_call, make_ref(), operands, %{}, results}
      assert message.(fn -> ProcessHandler.call(call) end) =~ expected
    end

    for responder <- [make_ref(), XLA.client().ref] do
      call = {:custom_call, responder, [], %{}, []}
      assert message.(fn -> ProcessHandler.reply(call, []) end) =~ expected
    end
  end
end
