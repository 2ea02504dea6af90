defmodule FlashAttention do
  @moduledoc """
  FlashAttention's forward pass as an XLA custom call.

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

  `FlashAttention.Forward` is the block, and `FlashAttention.Reference` computes the same in plain
  Elixir. The kernel itself is the crate `native/flash_attention`.
  """

  alias EXLA.CustomCall.{Client, Library, Typespec}

  # Each target, which a spec calls, and the symbol of its handler in the library.
  @handlers %{
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
    # and two numbers for each query of a block. It asks XLA for it, as a result that nobody reads.
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
end
