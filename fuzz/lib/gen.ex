defmodule Fuzz.Gen do
  @moduledoc false

  # Random data from the process's own generator: seeded before each input, so that a seed and a number
  # name an input. No function here makes an atom, and no input holds a process, a reference or a
  # function: such things stand in it as `{:"$", name}`, which `Fuzz.Env.resolve/2` replaces, so that every
  # input can be written to a file and read back.

  def seed(seed, target, index) do
    :rand.seed(:exsss, {seed, :erlang.phash2(target), index})
    :ok
  end

  def int(least, greatest), do: least + :rand.uniform(greatest - least + 1) - 1
  def chance(percent), do: :rand.uniform(100) <= percent

  def pick(tuple) when is_tuple(tuple), do: elem(tuple, int(0, tuple_size(tuple) - 1))
  def pick([_ | _] = list), do: Enum.at(list, int(0, length(list) - 1))

  # One of `{weight, fun}`.
  def weighted(choices) do
    total = Enum.reduce(choices, 0, fn {weight, _}, sum -> sum + weight end)
    weighted(choices, :rand.uniform(total))
  end

  defp weighted([{weight, fun} | _], at) when at <= weight, do: fun.()
  defp weighted([{weight, _} | rest], at), do: weighted(rest, at - weight)

  # Small mostly, and sometimes up to the most.
  def count(most) do
    case int(1, 10) do
      10 -> int(0, most)
      _ -> int(0, min(most, 4))
    end
  end

  def list(most, fun), do: for(_ <- 1..count(most)//1, do: fun.())

  @edges [
    0,
    1,
    -1,
    2,
    3,
    7,
    8,
    127,
    128,
    255,
    256,
    -128,
    65_535,
    65_536,
    0x7FFF_FFFF,
    0x8000_0000,
    -0x8000_0000,
    0xFFFF_FFFF,
    0x1_0000_0000,
    0x7FFF_FFFF_FFFF_FFFF,
    0x8000_0000_0000_0000,
    -0x8000_0000_0000_0000,
    -0x8000_0000_0000_0001,
    0xFFFF_FFFF_FFFF_FFFF,
    0x1_0000_0000_0000_0000
  ]

  def integer do
    weighted([
      {5, fn -> int(0, 4) end},
      {3, fn -> pick(@edges) end},
      {1, fn -> pick(@edges) + int(-2, 2) end},
      {1, fn -> int(-1000, 1000) end},
      {1, fn -> Bitwise.bsl(1, int(64, 2000)) * pick([1, -1]) end}
    ])
  end

  def float do
    pick([
      0.0,
      -0.0,
      1.0,
      -1.5,
      0.1,
      1.0e308,
      -1.0e308,
      5.0e-324,
      3.4028234663852886e38,
      3.5e38,
      65_504.0,
      65_520.0,
      1.0e-45,
      :rand.normal(),
      :rand.normal() * 1.0e20
    ])
  end

  def bytes(most \\ 64) do
    case int(1, 30) do
      1 -> :binary.copy(<<int(0, 255)>>, int(0, 20_000))
      2 -> ""
      _ -> :rand.bytes(count(most))
    end
  end

  @words ~w(a b k x main add scale stablehlo.add stablehlo.custom_call sdy.sharding mhlo.sharding
            call_target_name api_version backend_config mhlo.backend_config operand_layouts
            result_layouts output_operand_aliases has_side_effect called_computations sym_name
            sym_visibility function_type arg_attrs res_attrs callee value custom_call_schedule jax.buffer_donor
            tf.aliasing_output mhlo.num_partitions é €)

  def word, do: pick(@words)

  # A name: a word mostly, and otherwise what no name should be.
  def name do
    weighted([
      {12, &word/0},
      {2, fn -> word() <> Integer.to_string(int(0, 9)) end},
      {1, fn -> word() <> <<0>> end},
      {1, fn -> "" end},
      {1, fn -> bytes(12) end},
      {1, fn -> "\xff" <> word() end},
      {1, fn -> String.duplicate(word(), int(1, 2000)) end},
      {1, fn -> mutate(word()) end}
    ])
  end

  # Any term at all.
  def term(depth \\ 3) do
    weighted([
      {4, &integer/0},
      {2, &float/0},
      {4, fn -> bytes() end},
      {2, &name/0},
      {4, &atom/0},
      {2, &special/0},
      {1, fn -> {:"$", {:bits, int(1, 7), bytes(8)}} end},
      {1, fn -> {:"$", {:sub, bytes(40), int(0, 8)}} end},
      {1, &charlist/0},
      {if(depth > 0, do: 5, else: 0), fn -> list(6, fn -> term(depth - 1) end) end},
      {if(depth > 0, do: 2, else: 0), fn -> improper(depth - 1) end},
      {if(depth > 0, do: 4, else: 0),
       fn -> 5 |> list(fn -> term(depth - 1) end) |> List.to_tuple() end},
      {if(depth > 0, do: 2, else: 0),
       fn -> Map.new(list(4, fn -> {term(depth - 1), term(depth - 1)} end)) end},
      {if(depth > 0, do: 1, else: 0), fn -> nested(int(1, 3000)) end},
      {if(depth > 0, do: 1, else: 0), fn -> List.duplicate(term(0), int(1, 3000)) end}
    ])
  end

  @atoms [
    nil,
    true,
    false,
    :ok,
    :error,
    :token,
    :default,
    :infinity,
    :nan,
    :neg_infinity,
    :f32,
    :s64,
    :pred,
    :cpu,
    :cuda,
    :host,
    :undefined,
    :binary,
    :buffer,
    :tensor,
    :"",
    :"a b",
    Nx.Tensor,
    String,
    :code
  ]

  def atom, do: pick(@atoms)
  def charlist, do: String.to_charlist(pick({"abc", "1 : i64", ""}))

  @specials [
    :reference,
    :pid,
    :dead_pid,
    :port,
    :fun,
    :fun_2,
    :client,
    :client_ref,
    :buffer,
    :buffer_ref,
    :deleted_buffer_ref,
    :executable,
    :executable_ref,
    :module,
    :module_ref,
    :context,
    :context_ref,
    :ticket,
    :external_pid
  ]

  def special, do: {:"$", pick(@specials)}

  def improper(depth), do: [term(depth) | pick({1, :tail, "tail", {}})]

  # Lists, tuples or maps, one in the other.
  def nested(depth) do
    wrap = pick([fn x -> [x] end, fn x -> {x} end, fn x -> %{0 => x} end])
    Enum.reduce(1..depth//1, pick({0, "x", :a}), fn _, x -> wrap.(x) end)
  end

  # The term with one part of it replaced by any other.
  def mutate_term(term, depth \\ 4) do
    cond do
      depth == 0 or chance(15) ->
        term(2)

      is_list(term) and term != [] and List.improper?(term) == false ->
        at = int(0, length(term) - 1)

        case int(1, 8) do
          1 -> List.delete_at(term, at)
          2 -> List.insert_at(term, at, Enum.at(term, at))
          3 -> List.insert_at(term, at, term(1))
          4 -> term ++ pick({:tail, "t", 1})
          _ -> List.update_at(term, at, &mutate_term(&1, depth - 1))
        end

      is_tuple(term) and tuple_size(term) > 0 and elem(term, 0) != :"$" ->
        at = int(0, tuple_size(term) - 1)

        case int(1, 10) do
          1 -> Tuple.delete_at(term, at)
          2 -> Tuple.insert_at(term, at, term(1))
          _ -> put_elem(term, at, mutate_term(elem(term, at), depth - 1))
        end

      is_map(term) and map_size(term) > 0 ->
        key = pick(Map.keys(term))

        case int(1, 6) do
          1 when key != :__struct__ -> Map.delete(term, key)
          2 -> Map.put(term, term(1), term(1))
          _ when key != :__struct__ -> Map.update!(term, key, &mutate_term(&1, depth - 1))
          _ -> term
        end

      is_integer(term) ->
        pick([term + 1, term - 1, -term, integer(), term(1)])

      is_binary(term) ->
        pick([mutate(term), term(1)])

      true ->
        term(1)
    end
  end

  # The bytes with some small change, or several.
  def mutate(bytes, tokens \\ []) do
    Enum.reduce(1..pick({1, 1, 1, 2, 3, 5})//1, bytes, fn _, bytes ->
      mutate_once(bytes, tokens)
    end)
  end

  defp mutate_once("", tokens), do: token(tokens)

  defp mutate_once(bytes, tokens) do
    size = byte_size(bytes)
    at = int(0, size - 1)
    length = int(0, min(size - at, pick({1, 4, 16, 256})))
    <<before::binary-size(at), part::binary-size(length), rest::binary>> = bytes

    case int(1, 8) do
      1 -> before <> rest
      2 -> before <> part <> part <> rest
      3 -> before <> :rand.bytes(length) <> rest
      4 -> before <> token(tokens) <> part <> rest
      5 -> before <> token(tokens) <> rest
      6 -> before <> :binary.copy(part, int(1, 100)) <> rest
      7 -> before
      8 -> flip(bytes, at)
    end
  end

  defp flip(bytes, at) do
    <<before::binary-size(at), byte, rest::binary>> = bytes
    before <> <<Bitwise.bxor(byte, Bitwise.bsl(1, int(0, 7)))>> <> rest
  end

  defp token([]), do: <<pick({0, 255, ?", ?[, ?{, ?<, ?>, ?:, ?0, ?-, int(0, 255)})>>
  defp token(tokens), do: if(chance(70), do: pick(tokens), else: token([]))
end
