defmodule Fuzz.Env do
  @moduledoc false

  # What inputs name by `{:"$", name}`: processes, references, functions, and resources of every kind,
  # made once a child. Deleted and donated ones are made anew each time.

  alias EXLA.CustomCall.{Buffer, Client, Context, Executable, Module, Typespec, Value}

  @type_ Typespec.tensor({:f, 32}, {4})
  @bytes for n <- 1..4, into: <<>>, do: <<n * 1.0::float-32-native>>

  defstruct [
    :client,
    :executable,
    :sharded,
    :module,
    :context,
    :port,
    :dead_pid,
    :ticket,
    :scratch
  ]

  # With no client, names of what needs one stand for plain references.
  def new(opts) do
    {dead_pid, monitor} = spawn_monitor(fn -> :ok end)
    receive do: ({:DOWN, ^monitor, _, _, _} -> :ok)

    env = %__MODULE__{
      module: module(),
      context: Context.new!(),
      port: hd(Port.list()),
      dead_pid: dead_pid,
      ticket: make_ref(),
      scratch: opts[:scratch]
    }

    if opts[:client], do: with_client(env), else: env
  end

  defp with_client(env) do
    client = Client.new!(plugin: :cpu, options: [cpu_device_count: 2])
    executable = Client.compile!(client, env.module)
    sharded = Client.compile!(client, env.module, replicas: 2)
    async = Executable.run_async!(executable, [@bytes, @bytes])
    {:ok, _} = Executable.await(async)
    %{env | client: client, executable: executable, sharded: sharded, ticket: async.ticket}
  end

  def type, do: @type_
  def bytes, do: @bytes

  def module do
    [x, y] = [Value.parameter(@type_), Value.parameter(@type_)]
    Module.build!([x, y], Value.op("stablehlo.add", [x, y], [@type_]))
  end

  def buffer(env), do: Buffer.from_binary!(env.client, @bytes, @type_)

  # The term with the names in it replaced.
  def resolve({:"$", name}, env), do: special(name, env)
  def resolve([head | tail], env), do: [resolve(head, env) | resolve(tail, env)]

  def resolve(term, env) when is_tuple(term) do
    term |> Tuple.to_list() |> resolve(env) |> List.to_tuple()
  end

  def resolve(%_{} = struct, _env), do: struct
  def resolve(term, env) when is_map(term), do: Map.new(term, &resolve(&1, env))
  def resolve(term, _env), do: term

  defp special({:bits, count, bytes}, _env), do: <<0::size(count), bytes::binary>>

  # Shares the memory of a larger one.
  defp special({:sub, bytes, at}, _env) do
    at = min(at, byte_size(bytes))
    binary_part(:binary.copy(bytes, 20), at, byte_size(bytes))
  end

  defp special(:reference, _env), do: make_ref()
  defp special(:pid, _env), do: self()
  defp special(:dead_pid, env), do: env.dead_pid
  # A pid of a node that is not there, in the external term format.
  defp special(:external_pid, _env) do
    :erlang.binary_to_term(<<131, 88, 119, 7, "a@b.org", 0::32, 0::32, 1::32>>)
  end

  defp special(:port, env), do: env.port
  defp special(:fun, _env), do: fn _ -> :ok end
  defp special(:fun_2, _env), do: fn _, _ -> :ok end
  defp special(:module, env), do: env.module
  defp special(:module_ref, env), do: env.module.ref
  defp special(:context, env), do: env.context
  defp special(:context_ref, env), do: env.context.ref
  defp special(:ticket, env), do: env.ticket
  defp special(_name, %{client: nil}), do: make_ref()
  defp special(:client, env), do: env.client
  defp special(:client_ref, env), do: env.client.ref
  defp special(:executable, env), do: env.executable
  defp special(:executable_ref, env), do: env.executable.ref
  defp special(:sharded, env), do: env.sharded
  defp special(:buffer, env), do: buffer(env)
  defp special(:buffer_ref, env), do: buffer(env).ref

  defp special(:deleted_buffer, env) do
    buffer = buffer(env)
    :ok = Buffer.delete(buffer)
    buffer
  end

  defp special(:deleted_buffer_ref, env), do: special(:deleted_buffer, env).ref

  defp special({:buffer, bytes, type, shape}, env),
    do: Buffer.from_binary!(env.client, bytes, Typespec.tensor(type, shape))
end
