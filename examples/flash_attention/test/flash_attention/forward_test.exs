defmodule FlashAttention.ForwardTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Lowering, Module, Typespec}
  alias FlashAttention.Forward

  @host %{platform: :host}

  defp f32(shape), do: Typespec.tensor({:f, 32}, shape)

  defp lower(block, q, k, v \\ nil, client \\ @host) do
    out = FlashAttention.outputs(f32(q))
    Lowering.lower!(block, out, [f32(q), f32(k), f32(v || k)], client)
  end

  defp call(block, q, k) do
    [call] = Module.custom_calls(lower(block, q, k))
    call
  end

  defp sharding_rule(block, q, k) do
    {_, rule} = List.keyfind(call(block, q, k).mlir_attributes, "sdy.sharding_rule", 0)
    rule
  end

  test "the spec says to the kernel what to compute, and to the compiler how it must be called" do
    call = call(%Forward{causal: true}, {2, 64, 8, 64}, {2, 32, 2, 64})

    assert call.call_target_name == "flash_attention_forward_f32"
    assert call.api_version == 4
    assert call.attributes == [{"causal", "true"}, {"softmax_scale", "1.250000e-01 : f32"}]

    rank_4 = "dense<[3, 2, 1, 0]> : tensor<4xindex>"
    rank_3 = "dense<[2, 1, 0]> : tensor<3xindex>"

    assert call.mlir_attributes == [
             {"operand_layouts", "[#{rank_4}, #{rank_4}, #{rank_4}]"},
             {"result_layouts", "[#{rank_4}, #{rank_3}, #{rank_3}]"},
             {"sdy.sharding_rule",
              "#sdy.op_sharding_rule<([i, j, kp, l], [i, m, k, l], [i, m, k, n])" <>
                "->([i, j, kp, n], [i, kp, j], [i, kp, o]) " <>
                "{i=2, j=64, k=2, l=64, m=32, n=64, o=8320, p=4} " <>
                "need_replication={j, l, m, n, o}, custom>"}
           ]

    assert call.operands == [f32({2, 64, 8, 64}), f32({2, 32, 2, 64}), f32({2, 32, 2, 64})]
    assert call.results == [f32({2, 64, 8, 64}), f32({2, 8, 64}), f32({2, 8, 8320})]
  end

  test "a softmax scale of one's own" do
    call = call(%Forward{softmax_scale: 0.5}, {1, 4, 1, 4}, {1, 4, 1, 4})
    assert {"softmax_scale", "5.000000e-01 : f32"} in call.attributes
  end

  test "queries may be split where the call is not causal" do
    rule = sharding_rule(%Forward{}, {2, 8, 4, 4}, {2, 8, 2, 4})
    assert rule =~ "need_replication={l, m, n, o}"
  end

  # Shardy takes no factor of 1 in a product.
  test "the heads are one factor where each query head has a key head of its own" do
    rule = sharding_rule(%Forward{}, {2, 8, 4, 4}, {2, 8, 4, 4})

    assert rule =~
             "([i, j, k, l], [i, m, k, l], [i, m, k, n])->([i, j, k, n], [i, k, j], [i, k, o])"

    refute rule =~ "p="
  end

  test "the heads are one factor where all query heads share a key head" do
    rule = sharding_rule(%Forward{}, {2, 8, 4, 4}, {2, 8, 1, 4})

    assert rule =~
             "([i, j, p, l], [i, m, k, l], [i, m, k, n])->([i, j, p, n], [i, p, j], [i, p, o])"

    assert rule =~ "k=1"
    assert rule =~ "p=4"
  end

  test "other platforms and types are skipped" do
    shape = {1, 4, 2, 4}
    assert lower(%Forward{}, shape, shape, shape, %{platform: :cuda}) == :skip

    bf16 = Typespec.tensor({:bf, 16}, shape)
    out = FlashAttention.outputs(bf16)
    assert Lowering.lower(%Forward{}, out, [bf16, bf16, bf16], @host) == :skip
  end

  test "shapes that do not go together" do
    q = {2, 8, 4, 16}

    for {q, k, v} <- [
          {q, {3, 8, 2, 16}, {3, 8, 2, 16}},
          {q, {2, 8, 2, 8}, {2, 8, 2, 8}},
          {q, {2, 8, 3, 16}, {2, 8, 3, 16}},
          {q, {2, 8, 0, 16}, {2, 8, 0, 16}},
          {q, {2, 8, 2, 16}, {2, 9, 2, 16}},
          {q, {2, 8, 32}, {2, 8, 32}},
          {{2, 8, 4, 0}, {2, 8, 2, 0}, {2, 8, 2, 0}}
        ] do
      assert_raise ArgumentError,
                   "expected q of {B, S, Hq, D} and k and v of {B, Skv, Hkv, D}, Hq a multiple of Hkv, " <>
                     "got: q #{inspect(q)}, k #{inspect(k)}, v #{inspect(v)}",
                   fn -> lower(%Forward{}, q, k, v) end
    end
  end

  test "outputs of other shapes" do
    q = f32({2, 8, 4, 16})
    {out, lse, _} = FlashAttention.outputs(q)

    assert_raise ArgumentError,
                 "expected the outputs of FlashAttention.outputs/1, of shapes " <>
                   "{{2, 8, 4, 16}, {2, 4, 8}, {2, 4, 5248}}, got: {{2, 8, 4, 16}, {2, 4, 8}, {1}}",
                 fn -> Lowering.lower!(%Forward{}, {out, lse, f32({1})}, [q, q, q], @host) end
  end
end
