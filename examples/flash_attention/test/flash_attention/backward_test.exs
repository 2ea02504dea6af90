defmodule FlashAttention.BackwardTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Lowering, Module, Typespec}
  alias FlashAttention.Backward

  @host %{platform: :host}

  defp f32(shape), do: Typespec.tensor({:f, 32}, shape)

  # The templates of the operands for q and k of these shapes.
  defp operands({batch, queries, heads, _} = q, k) do
    [f32(q), f32(q), f32(k), f32(k), f32(q), f32({batch, heads, queries})]
  end

  defp call(block, q, k) do
    out = FlashAttention.gradients(f32(q), f32(k))
    [call] = Module.custom_calls(Lowering.lower!(block, out, operands(q, k), @host))
    call
  end

  defp sharding_rule(q, k) do
    {_, rule} = List.keyfind(call(%Backward{}, q, k).mlir_attributes, "sdy.sharding_rule", 0)
    rule
  end

  test "the spec says to the kernel what to compute and with which sizes, and to the compiler how" do
    call = call(%Backward{causal: true}, {2, 100, 8, 64}, {2, 32, 2, 64})

    assert call.call_target_name == "flash_attention_backward_f32"
    assert call.api_version == 4

    assert call.attributes == [
             {"causal", "true"},
             {"heads", "8 : i64"},
             {"query_blocks", "2 : i64"},
             {"softmax_scale", "1.250000e-01 : f32"}
           ]

    rank_4 = "dense<[3, 2, 1, 0]> : tensor<4xindex>"
    rank_3 = "dense<[2, 1, 0]> : tensor<3xindex>"
    results = List.duplicate(rank_4, 3) ++ List.duplicate(rank_3, 6)

    assert call.mlir_attributes == [
             {"operand_layouts",
              "[#{rank_4}, #{rank_4}, #{rank_4}, #{rank_4}, #{rank_4}, #{rank_3}]"},
             {"result_layouts", "[#{Enum.join(results, ", ")}]"},
             {"sdy.sharding_rule",
              "#sdy.op_sharding_rule<([i, j, kr, n], [i, j, kr, l], [i, m, k, l], [i, m, k, n], " <>
                "[i, j, kr, n], [i, kr, j])->([i, j, kr, l], [i, m, k, l], [i, m, k, n], " <>
                "[i, kr, j], [i, kr, j], [i, kr, o], [i, kr, p], [i, k, q], [i, k, q]) " <>
                "{i=2, j=100, k=2, l=64, m=32, n=64, o=8192, p=2, q=8192, r=4} " <>
                "need_replication={j, l, m, n, o, p, q, r}, custom>"}
           ]

    assert call.results == [
             f32({2, 100, 8, 64}),
             f32({2, 32, 2, 64}),
             f32({2, 32, 2, 64}),
             f32({2, 8, 100}),
             f32({2, 8, 100}),
             f32({2, 8, 128 * 64}),
             Typespec.tensor({:s, 32}, {2, 8, 2}),
             f32({2, 2, 128 * 64}),
             f32({2, 2, 128 * 64})
           ]
  end

  test "batches and heads may be split where each query head has a key head of its own" do
    assert sharding_rule({2, 8, 4, 4}, {2, 8, 4, 4}) =~
             "need_replication={j, l, m, n, o, p, q}, custom>"
  end

  # The gradients of the shared key head would be a sum over devices.
  test "only batches may be split where all query heads share a key head" do
    rule = sharding_rule({2, 8, 4, 4}, {2, 8, 1, 4})
    assert rule =~ "k=1"
    assert rule =~ "need_replication={j, l, m, n, o, p, q, r}, custom>"
  end

  test "other platforms and types are skipped" do
    {q, k} = {f32({1, 4, 2, 4}), f32({1, 4, 2, 4})}
    out = FlashAttention.gradients(q, k)
    args = operands(q.shape, k.shape)
    assert Lowering.lower(%Backward{}, out, args, %{platform: :cuda}) == :skip

    bf16 = for arg <- args, do: Typespec.tensor({:bf, 16}, arg.shape)
    assert Lowering.lower(%Backward{}, out, bf16, @host) == :skip
    assert Lowering.lower(%Backward{}, put_elem(out, 6, f32({1, 2, 1})), args, @host) == :skip
  end

  test "operands that do not go together" do
    {q, k} = {f32({2, 8, 4, 16}), f32({2, 8, 3, 16})}

    assert_raise ArgumentError,
                 "expected q of {B, S, Hq, D} and k and v of {B, Skv, Hkv, D}, Hq a multiple of Hkv, " <>
                   "got: q {2, 8, 4, 16}, k {2, 8, 3, 16}, v {2, 8, 3, 16}",
                 fn ->
                   out = FlashAttention.gradients(q, k)
                   Lowering.lower!(%Backward{}, out, operands(q.shape, k.shape), @host)
                 end
  end

  test "what is not of a forward pass of this query" do
    q = f32({2, 8, 4, 16})
    out = FlashAttention.gradients(q, q)

    for {index, name, shape} <- [
          {0, "dout", {2, 8, 4, 16}},
          {4, "out", {2, 8, 4, 16}},
          {5, "lse", {2, 4, 8}}
        ] do
      args = List.replace_at(operands(q.shape, q.shape), index, f32({1}))

      assert_raise ArgumentError,
                   "expected #{name} of #{inspect(shape)}, as q is of {2, 8, 4, 16}, got: {1}",
                   fn -> Lowering.lower!(%Backward{}, out, args, @host) end
    end
  end

  test "outputs of other shapes" do
    q = f32({1, 1, 1, 1})
    out = q |> FlashAttention.gradients(q) |> put_elem(6, Typespec.tensor({:s, 32}, {3}))

    assert_raise ArgumentError,
                 "expected the outputs of FlashAttention.gradients/2, of shapes " <>
                   "{{1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 64}, " <>
                   "{1, 1, 1}, {1, 1, 128}, {1, 1, 128}}, got: " <>
                   "{{1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 64}, " <>
                   "{3}, {1, 1, 128}, {1, 1, 128}}",
                 fn -> Lowering.lower!(%Backward{}, out, operands(q.shape, q.shape), @host) end
  end
end
