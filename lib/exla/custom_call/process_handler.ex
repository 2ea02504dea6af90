defmodule EXLA.CustomCall.ProcessHandler do
  @moduledoc """
  Custom calls that Elixir answers: for prototypes, tests, and what has to talk to the rest of a
  system in the middle of a program.

      :ok =
        EXLA.CustomCall.Library.register(client, "double", fn call ->
          [{x, _typespec}] = call.operands
          [for(<<n::float-32-native <- x>>, into: <<>>, do: <<2 * n::float-32-native>>)]
        end)

  A call copies its operands to the process and the results back, and takes some tens of microseconds
  more than a native handler. Where that matters, write the kernel in Rust or C++.

  ## Why it cannot block for ever

  While a call waits for its answer, the thread that runs the program waits. No scheduler does, so the
  function runs. Each call ends by one of:

    * the answer;
    * the time-out, with `:deadline_exceeded`;
    * the death of the process that has the call, with `:unavailable`.

  The function may itself run programs. But a client has a limit of programs in flight, 32 with the CPU
  plugins, and one more waits until another is done: where 32 programs wait for functions that each want
  to run one, they wait until time-outs end them. Let such functions use a client of their own.

  An exception in the function, and an answer of the wrong number of results or bytes, is an error of
  the call.

  ## With a process of one's own

  Registered with a pid instead of a function, the process gets `{:custom_call, responder, operands,
  attributes, results}`. Turn it into a call with `call/1`, and answer with `reply/2`. A process that
  drops the message keeps the call waiting until its garbage is collected, or the time-out.
  """

  use GenServer

  alias EXLA.CustomCall.{Client, Error, Native, Options, SpecTerms, Typespec}

  defmodule Call do
    @moduledoc """
    A custom call that waits for its answer.

      * `:operands` - `{binary, typespec}` for each operand, in row-major order unless the spec has
        other `operand_layouts`. A token has an empty binary.
      * `:attributes` - the spec's attributes by name: integers, floats (or `:nan`, `:infinity`,
        `:neg_infinity`), booleans, binaries, lists and maps.
      * `:results` - the typespec of each result.
    """

    @enforce_keys [:operands, :attributes, :results]
    defstruct [:operands, :attributes, :results]

    @type t :: %__MODULE__{
            operands: [{binary(), Typespec.t()}],
            attributes: %{binary() => term()},
            results: [Typespec.t()]
          }
  end

  @typedoc "What a function answers: the results' binaries, or what went wrong."
  @type answer :: [binary()] | {:ok, [binary()]} | {:error, String.t()}

  @default_timeout 5_000
  @longest_timeout 86_400_000

  @doc false
  # EXLA.CustomCall.Library.register/4.
  @spec register(Client.t(), binary(), (Call.t() -> answer()) | pid(), keyword()) ::
          :ok | {:error, Error.t()}
  def register(client, target, answerer, opts) do
    with {:ok, opts} <- Options.validate(opts, timeout: @default_timeout),
         :ok <- check(client, target, answerer, opts[:timeout]),
         {:ok, pid} <- process(answerer) do
      answer = Native.process_handler_register(client.ref, target, pid, opts[:timeout])

      # Of a function that was registered before, or is not now, nobody needs the process any more.
      case answer do
        {:ok, previous} -> stop(previous)
        {:error, _native} -> stop(pid)
      end

      with {:ok, _previous} <- Native.from_native(answer), do: :ok
    end
  end

  # Only processes that this module started are under the supervisor.
  defp stop(nil), do: :ok

  defp stop(pid) do
    DynamicSupervisor.terminate_child(__MODULE__.Supervisor, pid)
    :ok
  end

  @doc """
  The call in a message `{:custom_call, responder, operands, attributes, results}`.
  """
  @spec call(tuple()) :: Call.t()
  def call(message)

  def call({:custom_call, _responder, operands, attributes, results} = message)
      when is_map(attributes) do
    if list_of?(operands, &operand?/1) and list_of?(results, &Typespec.native?/1) do
      %Call{
        operands: for({binary, type} <- operands, do: {binary, Typespec.from_native(type)}),
        attributes: attributes,
        results: Enum.map(results, &Typespec.from_native/1)
      }
    else
      not_a_message!(message)
    end
  end

  def call(other), do: not_a_message!(other)

  @doc """
  Answers the call of a message. Returns `false` if it waits no more.
  """
  @spec reply(tuple(), answer()) :: boolean()
  def reply(message, answer)

  def reply({:custom_call, responder, _operands, _attributes, _results} = message, answer)
      when is_reference(responder) do
    answer = normalize(answer)

    try do
      Native.process_handler_answer(responder, answer)
    rescue
      # The reference is another one.
      ArgumentError -> not_a_message!(message)
    end
  end

  def reply(other, _answer), do: not_a_message!(other)

  defp operand?({binary, type}), do: is_binary(binary) and Typespec.native?(type)
  defp operand?(_other), do: false

  defp list_of?(list, valid?), do: SpecTerms.proper_list?(list) and Enum.all?(list, valid?)

  @spec not_a_message!(term()) :: no_return()
  defp not_a_message!(other) do
    raise ArgumentError,
          "expected the message {:custom_call, responder, operands, attributes, results}, got: " <>
            inspect(other)
  end

  defp normalize(answer) do
    case answer do
      {:ok, results} -> normalize(results)
      {:error, message} when is_binary(message) -> {:error, message}
      {:error, other} -> {:error, inspect(other)}
      results -> if list_of?(results, &is_binary/1), do: {:ok, results}, else: wrong(results)
    end
  end

  defp wrong(answer) do
    {:error,
     "expected an answer of [binary], {:ok, [binary]} or {:error, message}, got: #{inspect(answer)}"}
  end

  defp check(client, target, answerer, timeout) do
    cond do
      not is_struct(client, Client) ->
        argument("expected an EXLA.CustomCall.Client, got: #{inspect(client)}")

      not is_binary(target) ->
        argument("expected the target as a binary, got: #{inspect(target)}")

      not (is_function(answerer, 1) or is_pid(answerer)) ->
        argument("expected a function of one argument or a pid, got: #{inspect(answerer)}")

      is_pid(answerer) and node(answerer) != node() ->
        argument("expected a pid of this node, got: #{inspect(answerer)}")

      not (is_integer(timeout) and timeout in 1..@longest_timeout) ->
        argument(
          "expected :timeout in milliseconds, 1 to #{@longest_timeout}, got: #{inspect(timeout)}"
        )

      true ->
        :ok
    end
  end

  defp argument(message), do: {:error, Error.new(:argument, message)}

  defp process(pid) when is_pid(pid), do: {:ok, pid}

  defp process(fun) do
    DynamicSupervisor.start_child(__MODULE__.Supervisor, {__MODULE__, fun})
  end

  # The process of a registered function hands each call to a task of its own, so that calls do not
  # wait for each other.

  @doc false
  def child_spec(fun) do
    # A handler that has died is not started again: its target would still name the dead one.
    %{id: __MODULE__, start: {__MODULE__, :start_link, [fun]}, restart: :temporary}
  end

  @doc false
  def start_link(fun), do: GenServer.start_link(__MODULE__, fun)

  @impl true
  def init(fun), do: {:ok, fun}

  # The call goes to the task by message, past the supervisor, and this process hibernates, which
  # collects its garbage: whoever holds the responder keeps the call waiting.
  @impl true
  def handle_info(message, fun) when elem(message, 0) == :custom_call do
    {:ok, pid} = Task.Supervisor.start_child(__MODULE__.Tasks, __MODULE__, :answer_one, [fun])
    send(pid, message)
    {:noreply, fun, :hibernate}
  end

  def handle_info(_message, fun), do: {:noreply, fun}

  @doc false
  def answer_one(fun) do
    receive do
      message when elem(message, 0) == :custom_call -> answer(fun, message)
    end
  end

  # The exception is the call's error, not a crash to be logged.
  defp answer(fun, message) do
    answer =
      try do
        fun.(call(message))
      catch
        kind, reason -> {:error, Exception.format_banner(kind, reason, __STACKTRACE__)}
      end

    reply(message, answer)
  end
end
