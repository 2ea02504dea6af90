defmodule FlashAttention.TensorParallelTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Client, Executable, Mesh, Typespec}
  alias FlashAttention.{Backward, Floats, Forward, TensorParallel}

  @q Typespec.tensor({:f, 32}, {2, 40, 16, 16})
  @kv Typespec.tensor({:f, 32}, {2, 40, 8, 16})
  @width 24

  setup_all do
    client = Client.new!(plugin: :cpu, options: [cpu_device_count: 8])
    FlashAttention.load!(client)
    %{client: client}
  end

  defp random(shape, seed, variance \\ 1.0) do
    {values, _} =
      Enum.map_reduce(1..Tuple.product(shape), :rand.seed_s(:exsss, seed), fn _, random ->
        :rand.normal_s(0.0, variance, random)
      end)

    Floats.encode(values)
  end

  # The weights as models begin with them, so that what is projected has the size of what it is made of.
  defp inputs do
    weights = random({16, 16, @width}, 4, 1 / (16 * 16))
    [random(@q.shape, 1), random(@kv.shape, 2), random(@kv.shape, 3), weights]
  end

  # The results, and the optimised HLO.
  defp run(client, module, inputs) do
    executable = Client.compile!(client, module)
    {Executable.run!(executable, inputs, results: :binary), Executable.hlo_text!(executable)}
  end

  defp largest_error(found, expected) do
    Floats.largest_error(Floats.decode(found), Floats.decode(expected))
  end

  # Each collective of the program, and each custom call, in the order of the text.
  defp sequence(hlo) do
    ~r/ (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|custom-call)(?:-start)?\(/
    |> Regex.scan(hlo, capture: :all_but_first)
    |> List.flatten()
  end

  # How many heads the calls saw: the backward kernel leaves it in dq_semaphore.
  defp heads_seen(semaphore), do: Enum.uniq(for <<n::32-signed-native <- semaphore>>, do: n)

  for n <- [1, 2, 4, 8], causal <- [false, true] do
    test "on #{n} devices, causal: #{causal}, it is what it is on one, and only the projection communicates",
         %{client: client} do
      block = %Forward{causal: unquote(causal)}
      expected = TensorParallel.forward(block, client, @q, @kv, @width)
      {[projected, out, lse, _], _} = run(client, expected, inputs())

      mesh = Mesh.new(model: unquote(n))
      module = TensorParallel.forward(block, client, @q, @kv, @width, mesh: mesh)
      {[found_projected, found_out, found_lse, _], hlo} = run(client, module, inputs())

      assert largest_error(found_projected, projected) <= 1.0e-5
      assert largest_error(found_out, out) <= 1.0e-5
      assert largest_error(found_lse, lse) <= 1.0e-5

      collectives = if unquote(n) == 1, do: [], else: ["all-reduce"]
      assert sequence(hlo) == ["custom-call" | collectives]
    end

    test "gradients on #{n} devices, causal: #{causal}, are those on one, and nothing communicates",
         %{client: client} do
      causal = unquote(causal)
      forward = TensorParallel.forward(%Forward{causal: causal}, client, @q, @kv, @width)
      [q, k, v, _] = inputs()
      {[_, out, lse, _], _} = run(client, forward, inputs())
      operands = [random(@q.shape, 5), q, k, v, out, lse]

      block = %Backward{causal: causal}
      {expected, _} = run(client, TensorParallel.backward(block, client, @q, @kv), operands)

      mesh = Mesh.new(model: unquote(n))
      module = TensorParallel.backward(block, client, @q, @kv, mesh: mesh)
      {found, hlo} = run(client, module, operands)

      for {found, expected} <- found |> Enum.zip(expected) |> Enum.take(3) do
        assert largest_error(found, expected) <= 1.0e-5
      end

      assert heads_seen(Enum.at(expected, 6)) == [16]
      assert heads_seen(Enum.at(found, 6)) == [div(16, unquote(n))]
      assert sequence(hlo) == ["custom-call"]
    end
  end

  # Why the call is split here, and not left to XLA with the rule that says how.
  test "unsplit, XLA gathers the heads, and every device computes all of them", %{client: client} do
    opts = [mesh: Mesh.new(model: 2), partition: nil]
    module = TensorParallel.backward(%Backward{}, client, @q, @kv, opts)
    [q, k, v, _] = inputs()
    lse = random({2, 16, 40}, 6)
    {results, hlo} = run(client, module, [q, q, k, v, q, lse])
    assert heads_seen(Enum.at(results, 6)) == [16]
    assert "all-gather" in sequence(hlo)
  end

  test "more devices than key heads are refused: a group of query heads is not split", %{
    client: client
  } do
    kv = Typespec.tensor({:f, 32}, {2, 40, 4, 16})

    message =
      ~S(dimension 2 of {2, 40, 4, 16} is not a multiple of 8, the devices along "model"; pad it to 8, or leave it whole)

    assert_raise ArgumentError, message, fn ->
      TensorParallel.forward(%Forward{}, client, @q, kv, @width, mesh: Mesh.new(model: 8))
    end
  end
end
