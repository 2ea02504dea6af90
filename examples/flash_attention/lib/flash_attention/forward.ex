defmodule FlashAttention.Forward do
  @moduledoc """
  Attention's forward pass, softmax(softmax_scale * q kᵀ) v, as a block.

  The operands are `q` of B, S, Hq, D and `k` and `v` of B, Skv, Hkv, D: batch, sequence, heads and
  depth (BSHD). Hq is a multiple of Hkv; where it is a larger one, neighbouring query heads share a
  key and value head (GQA). The results are those of `FlashAttention.outputs/1`:

    * `out`, of the shape of `q`;
    * `lse` of B, Hq, S: the logarithm of the sum in each softmax (LSE), which a backward pass needs;
    * a workspace, whose contents mean nothing.

  ## Fields

    * `:causal` - whether a query sees only the keys up to its own position, counted from the end: the
      last query sees all keys. Default `false`.
    * `:softmax_scale` - what the scores are multiplied with, default `nil`: 1 / sqrt(D).
  """

  defstruct causal: false, softmax_scale: nil

  @type t :: %__MODULE__{causal: boolean(), softmax_scale: nil | number()}

  @doc """
  The softmax scale of a block for heads of `depth` elements.

  ## Examples

      iex> FlashAttention.Forward.softmax_scale(%FlashAttention.Forward{}, 64)
      0.125
  """
  @spec softmax_scale(t(), pos_integer()) :: number()
  def softmax_scale(%__MODULE__{softmax_scale: nil}, depth), do: 1 / :math.sqrt(depth)
  def softmax_scale(%__MODULE__{softmax_scale: scale}, _depth), do: scale
end

defimpl EXLA.CustomCall, for: FlashAttention.Forward do
  alias EXLA.CustomCall.{Attribute, Spec}
  alias FlashAttention.Forward

  @f32 {:f, 32}

  # What the kernel computes: f32, on the CPU. All else is skipped, and left to other implementations.
  def call(
        block,
        {%{type: @f32}, %{type: @f32}, %{type: @f32}} = out,
        [%{type: @f32} = q, %{type: @f32} = k, %{type: @f32} = v] = args,
        %{platform: :host}
      ) do
    check_shapes!(q.shape, k.shape, v.shape)
    check_outputs!(out, q)
    {_, _, _, depth} = q.shape

    {:ok,
     %Spec{
       call_target_name: "flash_attention_forward_f32",
       # For the kernel.
       attributes: [
         {"causal", Attribute.boolean(block.causal)},
         {"softmax_scale", Attribute.float(Forward.softmax_scale(block, depth), @f32)}
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
  # each device then has a workspace of its own, whose contents nobody reads. A softmax goes over all
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

  defp check_shapes!({batch, _, query_heads, depth}, {batch, _, heads, depth} = shape, shape)
       when depth > 0 and heads > 0 and rem(query_heads, heads) == 0,
       do: :ok

  defp check_shapes!(q, k, v) do
    raise ArgumentError,
          "expected q of {B, S, Hq, D} and k and v of {B, Skv, Hkv, D}, Hq a multiple of Hkv, got: " <>
            "q #{inspect(q)}, k #{inspect(k)}, v #{inspect(v)}"
  end

  defp check_outputs!(out, q) do
    expected = shapes(FlashAttention.outputs(q))

    if shapes(out) != expected do
      raise ArgumentError,
            "expected the outputs of FlashAttention.outputs/1, of shapes #{inspect(expected)}, got: " <>
              inspect(shapes(out))
    end
  end

  defp shapes({out, lse, workspace}), do: {out.shape, lse.shape, workspace.shape}
end
