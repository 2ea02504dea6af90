defmodule FlashAttention.Backward do
  @moduledoc """
  Attention's backward pass, the gradients of what `FlashAttention.Forward` computes, as a block.

  The operands are `dout`, the gradient of `out`, then `q`, `k` and `v` as the forward pass had them,
  and its `out` and `lse`. The results are those of `FlashAttention.gradients/2`: `dq`, `dk` and `dv`, of
  the shapes of `q`, `k` and `v`, and six workspaces, which the kernel needs on its way:

    * `softmax_d` of B, Hq, S: the sums of `dout * out` over D;
    * `softmax_lse_log2` of B, Hq, S: `lse` as a logarithm to base 2;
    * `dq_accum`, sums of `dq`, in blocks of 64 queries;
    * `dq_semaphore`, `s32`: counts for each block of queries how many blocks of keys have been added. In
      the end each element is Hq as the call saw it, from which tests see what a device of several got;
    * `dk_accum` and `dv_accum`, sums of `dk` and `dv` over the query heads that share a key head.

  ## Fields

  Those of `FlashAttention.Forward`. They must be the same as in the forward pass.
  """

  defstruct causal: false, softmax_scale: nil

  @type t :: %__MODULE__{causal: boolean(), softmax_scale: nil | number()}
end

defimpl EXLA.CustomCall, for: FlashAttention.Backward do
  alias EXLA.CustomCall.{Attribute, Spec}
  alias FlashAttention.Shapes

  @f32 {:f, 32}
  @i64 {:s, 64}
  # Of dq, dk, dv, softmax_d, softmax_lse_log2, dq_accum, dq_semaphore, dk_accum and dv_accum.
  @results List.duplicate(@f32, 6) ++ [{:s, 32}, @f32, @f32]

  # What the kernel computes: f32, on the CPU. All else is skipped, and left to other implementations.
  def call(block, out, [_dout, q, k, v, _out, _lse] = args, %{platform: :host})
      when is_tuple(out) do
    if Enum.all?(args, &(&1.type == @f32)) and
         Enum.map(Tuple.to_list(out), & &1.type) == @results do
      Shapes.check_operands!(q, k, v)
      check_forward!(args)
      Shapes.check_results!(out, FlashAttention.gradients(q, k), "gradients/2")
      {:ok, spec(block, out, args)}
    else
      :skip
    end
  end

  def call(_block, _out, _args, _client), do: :skip

  defp spec(block, out, [_dout, q, k | _] = args) do
    {_, queries, query_heads, depth} = q.shape
    scale = FlashAttention.softmax_scale(block, depth)

    %Spec{
      call_target_name: "flash_attention_backward_f32",
      attributes: [
        {"causal", Attribute.boolean(block.causal)},
        {"softmax_scale", Attribute.float(scale, @f32)},
        # Of the operands of this very call: the handler refuses other sizes than those it gets.
        {"query_blocks", Attribute.integer(FlashAttention.blocks(queries), @i64)},
        {"heads", Attribute.integer(query_heads, @i64)}
      ],
      mlir_attributes: [
        {"operand_layouts", Attribute.row_major(args)},
        {"result_layouts", Attribute.row_major(Tuple.to_list(out))},
        {"sdy.sharding_rule", sharding_rule(q, k, out)}
      ]
    }
  end

  # How Shardy may split the call over devices; see the rule of the forward pass. Batches may be split,
  # and key heads together with the query heads that share them. The gradients of keys and values are
  # sums over those query heads, and over all queries: `group` and `queries` need replication here, so
  # that a device has its sums to itself.
  defp sharding_rule(q, k, out) do
    {batch, queries, query_heads, depth} = q.shape
    {_, keys, heads, _} = k.shape
    {_, _, _, _, _, dq_accum, dq_semaphore, dk_accum, _} = out
    {_, _, dq_elements} = dq_accum.shape
    {_, _, query_blocks} = dq_semaphore.shape
    {_, _, kv_elements} = dk_accum.shape

    of_q = [:batch, :queries, [:heads, :group], :depth]
    of_k = [:batch, :keys, :heads, :depth]
    of_v = [:batch, :keys, :heads, :value_depth]
    of_out = [:batch, :queries, [:heads, :group], :value_depth]
    of_lse = [:batch, [:heads, :group], :queries]
    of_dq_accum = [:batch, [:heads, :group], :dq_elements]
    of_dq_semaphore = [:batch, [:heads, :group], :query_blocks]
    of_kv_accum = [:batch, :heads, :kv_elements]

    sizes = [
      batch: batch,
      queries: queries,
      heads: heads,
      depth: depth,
      keys: keys,
      value_depth: depth,
      dq_elements: dq_elements,
      query_blocks: query_blocks,
      kv_elements: kv_elements,
      group: div(query_heads, heads)
    ]

    Attribute.sharding_rule(
      [of_out, of_q, of_k, of_v, of_out, of_lse],
      [of_q, of_k, of_v, of_lse, of_lse, of_dq_accum, of_dq_semaphore, of_kv_accum, of_kv_accum],
      sizes,
      need_replication: Keyword.keys(sizes) -- [:batch, :heads]
    )
  end

  defp check_forward!([dout, q, _, _, out, lse]) do
    {expected_out, expected_lse, _workspace} = FlashAttention.outputs(q)

    for {name, found, expected} <- [
          {"dout", dout, expected_out},
          {"out", out, expected_out},
          {"lse", lse, expected_lse}
        ],
        found.shape != expected.shape do
      raise ArgumentError,
            "expected #{name} of #{inspect(expected.shape)}, as q is of #{inspect(q.shape)}, got: " <>
              inspect(found.shape)
    end
  end
end
