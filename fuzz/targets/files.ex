defmodule Fuzz.Targets.Files do
  @moduledoc false

  # Paths of plugins and libraries, and files that are neither, or are damaged. Damage is in what the
  # dynamic loader can be kept from: lengths, and the headers. Behind them a shared object is machine
  # code, and what one wrong bit of it does nobody can say beforehand.

  use Fuzz.Target, client: true

  alias EXLA.CustomCall.{Client, Library}

  @kinds [:missing, :directory, :fifo, :device, :text, :empty, :loop, :socket]

  def generate do
    file =
      Gen.weighted([
        {4, fn -> Gen.pick(@kinds) end},
        {3, fn -> {:path, path()} end},
        {3, fn -> {:elf, {:cut, :rand.uniform()}} end},
        {2, fn -> {:elf, {:cut_early, Gen.int(0, 4_096)}} end},
        {6,
         fn -> {:elf, {:header, Gen.list(3, fn -> {Gen.int(0, 63), Gen.int(0, 255)} end)}} end},
        {8,
         fn ->
           {:elf, {:programs, Gen.list(3, fn -> {Gen.int(0, 56 * 12), Gen.int(0, 255)} end)}}
         end},
        {2,
         fn ->
           {:elf, {:sections, Gen.list(3, fn -> {Gen.int(0, 64 * 30), Gen.int(0, 255)} end)}}
         end},
        {1, fn -> {:elf, {:zero_tail, :rand.uniform()}} end},
        {1, fn -> {:bytes, "\x7fELF\x02\x01" <> Gen.bytes(400)} end},
        {1, fn -> {:bytes, Gen.bytes(400)} end}
      ])

    {Gen.pick([:plugin, :library, :library]), file, table()}
  end

  defp path do
    Gen.weighted([
      {2, fn -> Gen.term(1) end},
      {1, fn -> String.duplicate("a", Gen.pick([255, 256, 4_095, 4_096, 5_000, 100_000])) end},
      {1, fn -> String.duplicate("a/", Gen.pick([100, 2_047, 2_048, 50_000])) end},
      {1,
       fn ->
         Gen.pick([
           "",
           ".",
           "..",
           "/",
           "~",
           "libm.so.6",
           "libc",
           "/proc/self/exe",
           "/proc/self/mem",
           "/dev/stdin"
         ])
       end},
      {1, fn -> "a" <> <<0>> <> "b" end},
      {1, fn -> <<255, 254>> end},
      {1, &Gen.bytes/0}
    ])
  end

  # Handlers by name, or none for the library's own table.
  defp table do
    Gen.weighted([
      {3, fn -> nil end},
      {3, fn -> [{Gen.name(), "qr_f32"}] end},
      {3,
       fn ->
         Gen.mutate_term(
           [
             {"target",
              %{execute: "qr_f32", instantiate: "x", state: %{name: "a", id: "b", info: "c"}}}
           ],
           6
         )
       end},
      {1,
       fn ->
         %{"t" => Gen.pick(["", "a\0b", "malloc", "exit", "é", "exla_custom_call_handlers"])}
       end},
      {1, fn -> Gen.term(2) end}
    ])
  end

  def setup(env) do
    source = Application.app_dir(:exla_custom_call, "priv/native/xla_ffi_linalg.so")
    in_scratch = &Path.join(env.scratch, &1)
    File.mkdir_p!(in_scratch.("folder"))
    File.write!(in_scratch.("text"), String.duplicate("not a library\n", 200))
    File.write!(in_scratch.("empty"), "")
    {_, 0} = System.cmd("mkfifo", [in_scratch.("fifo")])
    File.ln_s!("loop", in_scratch.("loop"))
    {:ok, _} = :gen_tcp.listen(0, ifaddr: {:local, String.to_charlist(in_scratch.("socket"))})
    %{elf: File.read!(source), source: source}
  end

  def try({what, file, table}, env, state) do
    {path, made?} = path(file, env, state)

    try do
      load(what, path, Env.resolve(table, env), env)
    after
      if made?, do: File.rm(path)
    end
  end

  defp load(:plugin, path, _table, _env), do: Client.new(plugin: path)
  defp load(:library, path, nil, env), do: Library.load(env.client, path)
  defp load(:library, path, table, env), do: Library.load(env.client, path, table)

  defp path(:missing, env, _state), do: {Path.join(env.scratch, "missing"), false}
  defp path(:directory, env, _state), do: {Path.join(env.scratch, "folder"), false}
  defp path(:device, _env, _state), do: {"/dev/zero", false}
  defp path({:path, path}, env, _state), do: {Env.resolve(path, env), false}

  defp path(kind, env, _state) when is_atom(kind),
    do: {Path.join(env.scratch, Atom.to_string(kind)), false}

  defp path({:bytes, bytes}, env, _state), do: {write(bytes, env), true}
  # One that is whole is loaded where it is: a copy would stay in memory for good.
  defp path({:elf, {_, []}}, _env, state), do: {state.source, false}
  defp path({:elf, damage}, env, state), do: {damage |> damage(state.elf) |> write(env), true}

  defp write(bytes, env) do
    path = Path.join(env.scratch, "#{:erlang.unique_integer([:positive])}.so")
    File.write!(path, bytes)
    path
  end

  defp damage({:cut, where}, elf), do: binary_part(elf, 0, trunc(where * (byte_size(elf) - 1)))
  defp damage({:cut_early, at}, elf), do: binary_part(elf, 0, at)
  defp damage({:header, changes}, elf), do: change(elf, 0, changes)
  defp damage({:programs, changes}, elf), do: change(elf, 64, changes)

  defp damage({:sections, changes}, elf) do
    <<_::binary-size(40), sections::little-64, _::binary>> = elf
    change(elf, sections, changes)
  end

  defp damage({:zero_tail, where}, elf) do
    at = trunc(where * byte_size(elf))
    # The headers stay: what is behind them is not there, as after a power cut.
    at = max(at, 8_192)
    binary_part(elf, 0, at) <> :binary.copy(<<0>>, byte_size(elf) - at)
  end

  defp change(elf, from, changes) do
    Enum.reduce(changes, elf, fn {at, byte}, elf ->
      at = min(from + at, byte_size(elf) - 1)
      <<before::binary-size(at), _, rest::binary>> = elf
      <<before::binary, byte, rest::binary>>
    end)
  end
end
