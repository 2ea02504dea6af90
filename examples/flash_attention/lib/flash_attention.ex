defmodule FlashAttention do
  @moduledoc """
  FlashAttention's forward and backward pass as XLA custom calls.

      alias EXLA.CustomCall.{Client, Runner, Typespec}

      client = Client.new!(plugin: :cpu)
      FlashAttention.load!(client)

      q = Typespec.tensor({:f, 32}, {2, 64, 8, 64})
      kv = Typespec.tensor({:f, 32}, {2, 64, 2, 64})

      {out, lse, _workspace} =
        Runner.run!(
          %FlashAttention.Forward{causal: true},
          [{q_binary, q}, {k_binary, kv}, {v_binary, kv}],
          FlashAttention.outputs(q),
          client: client
        )

  `FlashAttention.Forward` and `FlashAttention.Backward` are the blocks, and `FlashAttention.Reference`
  computes the same in plain Elixir. The kernel itself is the crate `native/flash_attention`.
  """

  alias EXLA.CustomCall.{Client, Library, Typespec}
  alias FlashAttention.{Backward, Forward}

  # Each target, which a spec calls, and the symbol of its handler in the library.
  @handlers %{
    "flash_attention_backward_f32" => "flash_attention_backward_f32",
    "flash_attention_forward_f32" => "flash_attention_forward_f32",
    "layout_probe_f32" => "layout_probe_f32"
  }

  @doc """
  Loads the library with the kernel, and registers its handlers for the client's platform.
  """
  @spec load!(Client.t()) :: Library.t()
  def load!(client) do
    path = Application.app_dir(:flash_attention, "priv/native/libflash_attention.so")
    Library.load!(client, path, @handlers)
  end

  @doc """
  The templates of the results for a query of B, S, Hq and D: `{out, lse, workspace}`.

  ## Examples

      iex> q = EXLA.CustomCall.Typespec.tensor({:f, 32}, {2, 16, 8, 64})
      iex> {_out, lse, _workspace} = FlashAttention.outputs(q)
      iex> lse
      #EXLA.CustomCall.Typespec<f32[2][8][16]>
  """
  @spec outputs(EXLA.CustomCall.template()) :: {Typespec.t(), Typespec.t(), Typespec.t()}
  def outputs(%{type: type, shape: {batch, queries, heads, depth}}) do
    # The kernel's scratch memory, for each head: a block of keys and one of scores, 64 by 64 of them,
    # and two numbers for each query of a block. It asks XLA for it, as one more result.
    workspace = 64 * (depth + 66)

    {
      Typespec.tensor(type, {batch, queries, heads, depth}),
      Typespec.tensor(type, {batch, heads, queries}),
      Typespec.tensor(type, {batch, heads, workspace})
    }
  end

  def outputs(other) do
    raise ArgumentError,
          "expected the template of a query of B, S, Hq and D, got: #{inspect(other)}"
  end

  @doc """
  The templates of the results of `FlashAttention.Backward` for a query of B, S, Hq and D and keys of B,
  Skv, Hkv and D: `{dq, dk, dv, softmax_d, softmax_lse_log2, dq_accum, dq_semaphore, dk_accum, dv_accum}`.

  ## Examples

      iex> q = EXLA.CustomCall.Typespec.tensor({:f, 32}, {2, 100, 8, 64})
      iex> k = EXLA.CustomCall.Typespec.tensor({:f, 32}, {2, 16, 2, 64})
      iex> gradients = FlashAttention.gradients(q, k)
      iex> elem(gradients, 1)
      #EXLA.CustomCall.Typespec<f32[2][16][2][64]>
      iex> elem(gradients, 6)
      #EXLA.CustomCall.Typespec<s32[2][8][2]>
  """
  @spec gradients(EXLA.CustomCall.template(), EXLA.CustomCall.template()) :: tuple()
  def gradients(
        %{type: type, shape: {batch, queries, query_heads, depth} = q},
        %{shape: {_, keys, heads, _} = k}
      ) do
    query_blocks = blocks(queries)
    # Besides the sums of each block, room for the block of keys that is worked on.
    kv_accum = {batch, heads, (blocks(keys) + 1) * 64 * depth}

    {
      Typespec.tensor(type, q),
      Typespec.tensor(type, k),
      Typespec.tensor(type, k),
      Typespec.tensor({:f, 32}, {batch, query_heads, queries}),
      Typespec.tensor({:f, 32}, {batch, query_heads, queries}),
      Typespec.tensor({:f, 32}, {batch, query_heads, query_blocks * 64 * depth}),
      Typespec.tensor({:s, 32}, {batch, query_heads, query_blocks}),
      Typespec.tensor({:f, 32}, kv_accum),
      Typespec.tensor({:f, 32}, kv_accum)
    }
  end

  def gradients(q, k) do
    raise ArgumentError,
          "expected the templates of a query of B, S, Hq and D and of keys of B, Skv, Hkv and D, got: " <>
            "#{inspect(q)} and #{inspect(k)}"
  end

  @doc """
  How many blocks of 64 the kernel makes of a sequence.

  ## Examples

      iex> FlashAttention.blocks(65)
      2
  """
  @spec blocks(non_neg_integer()) :: non_neg_integer()
  def blocks(length), do: div(length + 63, 64)

  @doc """
  The softmax scale of a block for heads of `depth` elements.

  ## Examples

      iex> FlashAttention.softmax_scale(%FlashAttention.Forward{}, 64)
      0.125
  """
  @spec softmax_scale(Forward.t() | Backward.t(), pos_integer()) :: number()
  def softmax_scale(%{softmax_scale: nil}, depth), do: 1 / :math.sqrt(depth)
  def softmax_scale(%{softmax_scale: scale}, _depth), do: scale
end
