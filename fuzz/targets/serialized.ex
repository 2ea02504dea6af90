defmodule Fuzz.Targets.Serialized do
  @moduledoc false

  # Executables as bytes, damaged, through `Executable.deserialize/2`, the NIF's own function, and the
  # cache on disk. Not made up on purpose: bytes behind a checksum that is right are machine code.

  use Fuzz.Target, client: true

  alias EXLA.CustomCall.{Cache, Client, Executable, Native, Typespec, Value}

  @cache Fuzz.Cache

  def generate do
    way = Gen.pick([:deserialize, :native, :disk, :head])

    damage =
      Gen.weighted([
        {1, fn -> :none end},
        {4, fn -> {:flip, :rand.uniform(), Gen.int(0, 7)} end},
        {2, fn -> {:flip_early, Gen.int(0, 200), Gen.int(0, 7)} end},
        {3, fn -> {:cut, :rand.uniform()} end},
        {2, fn -> {:cut_early, Gen.int(0, 200)} end},
        {2, fn -> {:splice, :rand.uniform(), :rand.uniform()} end},
        {2, fn -> {:insert, :rand.uniform(), Gen.bytes()} end},
        {2, fn -> {:overwrite, :rand.uniform(), Gen.bytes()} end},
        {1, fn -> {:append, Gen.bytes()} end},
        {1, fn -> {:instead, Gen.bytes()} end},
        {1, fn -> {:zeros, Gen.int(0, 100_000)} end},
        {1, fn -> {:term, Gen.term(1)} end}
      ])

    {way, if(way == :head, do: head(), else: damage)}
  end

  @types [{17, [4]}, {17, [4]}]
  @mesh {"mesh", ~S(#sdy.mesh<["x"=1]>), [~S(#sdy.sharding<@mesh, [{"x"}]>), nil],
         ["#sdy.sharding<@mesh, [{}]>"]}

  # The part that this package writes, wrong but with the right checksum.
  defp head do
    Gen.weighted([
      {3, fn -> {:parts, Gen.mutate_term({@types, [{17, [4]}], [0], nil}, 6)} end},
      {3, fn -> {:parts, Gen.mutate_term({@types, [{17, [4]}], [], @mesh}, 9)} end},
      {2, fn -> {:bytes, Gen.int(0, 60), Gen.int(0, 255)} end},
      {1, fn -> {:size, Gen.integer()} end},
      {1, fn -> {:parts, Gen.term(2)} end}
    ])
  end

  def setup(env) do
    x = Value.parameter(Env.type())
    y = Value.constant(:binary.copy(<<7>>, 4_096), Typespec.tensor({:u, 8}, {4_096}))

    module =
      EXLA.CustomCall.Module.build!([x], Value.op("stablehlo.negate", [x], [Env.type()]) ++ [y])

    other = Client.compile!(env.client, module)
    directory = Path.join(env.scratch, "cache")
    {:ok, cache} = Cache.start_link(name: @cache, max_entries: 4, directory: directory)
    Process.unlink(cache)
    {:ok, raw} = Native.await(&Native.executable_serialize(env.executable.ref, &1))

    %{
      bytes: Executable.serialize!(env.executable),
      other: Executable.serialize!(other),
      raw: raw,
      directory: directory
    }
  end

  def try({:deserialize, damage}, env, state) do
    bytes = damage(damage, state.bytes, state.other, env)

    with {:ok, executable} <- Executable.deserialize(env.client, bytes) do
      if bytes in [state.bytes, state.other],
        do: run(executable, env),
        else: {:violated, "damaged bytes were taken"}
    end
  end

  def try({:native, damage}, env, state) do
    bytes = damage(damage, state.raw, state.other, env)

    if is_binary(bytes) do
      answer = Native.await(&Native.client_deserialize(env.client.ref, bytes, &1))

      case answer do
        {:ok, _} when bytes != state.raw -> {:violated, "damaged bytes were taken"}
        answer -> answer
      end
    end
  end

  # Whatever is on disk, the executable is there, and right.
  def try({:disk, damage}, env, state) do
    bytes = damage(damage, state.bytes, state.other, env)

    if is_binary(bytes) do
      file = "#{:erlang.unique_integer([:positive])}.executable"
      path = Path.join(state.directory, file)
      File.mkdir_p!(state.directory)
      File.write!(path, bytes)

      disk = %{
        file: file,
        read: &Executable.deserialize(env.client, &1),
        write: &Executable.serialize/1
      }

      Cache.clear(@cache)
      {:ok, executable} = Cache.fetch(@cache, file, disk, fn -> {:ok, env.executable} end)
      written = File.read(path)
      File.rm(path)

      cond do
        bytes == state.other -> :ok
        written != {:ok, state.bytes} -> {:violated, "the file on disk was not made anew"}
        true -> run(executable, env)
      end
    end
  end

  # What is taken has to run, or be refused, whatever its head says.
  def try({:head, change}, env, state) do
    <<"EXLA.CustomCall.Executable 2\n", _hash::binary-size(32), size::32, head::binary-size(size),
      bytes::binary>> = state.bytes

    {size, head} =
      case change do
        {:parts, term} ->
          head = term |> Env.resolve(env) |> :erlang.term_to_binary()
          {byte_size(head), head}

        {:bytes, at, byte} ->
          at = rem(at, size)
          <<before::binary-size(at), _, rest::binary>> = head
          {size, <<before::binary, byte, rest::binary>>}

        {:size, other} ->
          {other, head}
      end

    body = <<size::32, head::binary, bytes::binary>>
    forged = "EXLA.CustomCall.Executable 2\n" <> :crypto.hash(:sha256, body) <> body

    with {:ok, executable} <- Executable.deserialize(env.client, forged) do
      Executable.run(executable, List.duplicate(Env.bytes(), length(executable.parameters)))
    end
  end

  defp run(executable, _env) do
    inputs = List.duplicate(Env.bytes(), length(executable.parameters))

    case Executable.run(executable, inputs, results: :binary) do
      {:ok, [<<_::binary-size(16)>> | _]} -> :ok
      other -> {:violated, "it runs to #{inspect(other)}"}
    end
  end

  defp damage(:none, bytes, _other, _env), do: bytes
  defp damage({:flip, where, bit}, bytes, _other, _env), do: flip(bytes, at(where, bytes), bit)

  defp damage({:flip_early, at, bit}, bytes, _other, _env),
    do: flip(bytes, rem(at, byte_size(bytes)), bit)

  defp damage({:cut, where}, bytes, _other, _env), do: binary_part(bytes, 0, at(where, bytes))

  defp damage({:cut_early, at}, bytes, _other, _env),
    do: binary_part(bytes, 0, rem(at, byte_size(bytes)))

  defp damage({:splice, here, there}, bytes, other, _env) do
    from = at(there, other)
    binary_part(bytes, 0, at(here, bytes)) <> binary_part(other, from, byte_size(other) - from)
  end

  defp damage({:insert, where, more}, bytes, _other, _env) do
    at = at(where, bytes)
    <<before::binary-size(at), rest::binary>> = bytes
    before <> more <> rest
  end

  defp damage({:overwrite, where, more}, bytes, _other, _env) do
    at = at(where, bytes)
    length = min(byte_size(more), byte_size(bytes) - at)
    <<before::binary-size(at), _::binary-size(length), rest::binary>> = bytes
    before <> binary_part(more, 0, length) <> rest
  end

  defp damage({:append, more}, bytes, _other, _env), do: bytes <> more
  defp damage({:instead, other}, _bytes, _other, _env), do: other
  defp damage({:zeros, count}, _bytes, _other, _env), do: :binary.copy(<<0>>, count)
  defp damage({:term, term}, _bytes, _other, env), do: Env.resolve(term, env)

  defp at(where, bytes), do: min(trunc(where * byte_size(bytes)), byte_size(bytes) - 1)

  defp flip(bytes, at, bit) do
    <<before::binary-size(at), byte, rest::binary>> = bytes
    before <> <<Bitwise.bxor(byte, Bitwise.bsl(1, bit))>> <> rest
  end
end
