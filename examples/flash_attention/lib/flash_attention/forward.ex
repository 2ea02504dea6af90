defmodule FlashAttention.Forward do
  @moduledoc """
  Attention's forward pass, softmax(softmax_scale * q kᵀ) v, as a block.

  The operands are `q` of B, S, Hq, D and `k` and `v` of B, Skv, Hkv, D: batch, sequence, heads and
  depth (BSHD). Hq is a multiple of Hkv; where it is a larger one, neighbouring query heads share a
  key and value head (GQA). The results are those of `FlashAttention.outputs/1`:

    * `out`, of the shape of `q`;
    * `lse` of B, Hq, S: the logarithm of the sum in each softmax (LSE), which a backward pass needs;
    * a workspace. The first element of each head is Hq as the call saw it, from which tests see what
      a device of several got; the others mean nothing.

  ## Fields

    * `:causal` - whether a query sees only the keys up to its own position, counted from the end: the
      last query sees all keys. Default `false`.
    * `:softmax_scale` - what the scores are multiplied with, default `nil`: 1 / sqrt(D).
  """

  defstruct causal: false, softmax_scale: nil

  @type t :: %__MODULE__{causal: boolean(), softmax_scale: nil | number()}
end

defimpl EXLA.CustomCall, for: FlashAttention.Forward do
  alias EXLA.CustomCall.{Attribute, Spec}
  alias FlashAttention.Shapes

  @f32 {:f, 32}

  # What the kernel computes: f32, on the CPU. All else is skipped, and left to other implementations.
  def call(
        block,
        {%{type: @f32}, %{type: @f32}, %{type: @f32}} = out,
        [%{type: @f32} = q, %{type: @f32} = k, %{type: @f32} = v] = args,
        %{platform: :host}
      ) do
    Shapes.check_operands!(q, k, v)
    Shapes.check_results!(out, FlashAttention.outputs(q), "outputs/1")
    {_, _, _, depth} = q.shape

    {:ok,
     %Spec{
       call_target_name: "flash_attention_forward_f32",
       # For the kernel.
       attributes: [
         {"causal", Attribute.boolean(block.causal)},
         {"softmax_scale", Attribute.float(FlashAttention.softmax_scale(block, depth), @f32)}
       ],
       # For the compiler: whatever the layouts around it, the kernel's operands and results are
       # row-major, and this is how the call may be split over devices.
       mlir_attributes: [
         {"operand_layouts", Attribute.row_major(args)},
         {"result_layouts", Attribute.row_major(Tuple.to_list(out))},
         {"sdy.sharding_rule", sharding_rule(block, q, k, out)}
       ]
     }}
  end

  def call(_block, _out, _args, _client), do: :skip

  # How Shardy may split the call over devices: tensors whose dimensions have a factor in common are
  # split alike. Query head number h * group + g looks at key head h, a product of two factors.
  #
  # Batches and heads have nothing to do with each other, so they may be split, and so may queries:
  # each device then has a workspace of its own. A softmax goes over all
  # keys, and the kernel takes whole heads: those factors need replication. The queries of a causal
  # call do too, since the kernel counts their positions in what it is given.
  defp sharding_rule(block, q, k, {_, _, %{shape: {_, _, workspace}}}) do
    {batch, queries, query_heads, depth} = q.shape
    {_, keys, heads, _} = k.shape
    whole = [:depth, :keys, :value_depth, :workspace]

    Attribute.sharding_rule(
      [
        [:batch, :queries, [:heads, :group], :depth],
        [:batch, :keys, :heads, :depth],
        [:batch, :keys, :heads, :value_depth]
      ],
      [
        [:batch, :queries, [:heads, :group], :value_depth],
        [:batch, [:heads, :group], :queries],
        [:batch, [:heads, :group], :workspace]
      ],
      [
        batch: batch,
        queries: queries,
        heads: heads,
        depth: depth,
        keys: keys,
        value_depth: depth,
        workspace: workspace,
        group: div(query_heads, heads)
      ],
      need_replication: if(block.causal, do: [:queries | whole], else: whole)
    )
  end
end
