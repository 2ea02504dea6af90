defmodule FlashAttention.Reference do
  @moduledoc """
  What `FlashAttention.Forward` computes, in plain Elixir: slow, and short enough to be believed.
  """

  alias FlashAttention.{Floats, Forward}

  @type tensor :: {binary(), EXLA.CustomCall.template()}

  @doc """
  Attention of `q`, `k` and `v`, each a binary with its template. Returns `out` and `lse`, each as a
  list in row-major order.
  """
  @spec forward(Forward.t(), tensor(), tensor(), tensor()) :: {[float()], [Floats.value()]}
  def forward(block, q, k, v) do
    {_, %{shape: {_, _, query_heads, depth}}} = q
    {_, %{shape: {_, _, heads, _}}} = k
    group = div(query_heads, heads)
    scale = Forward.softmax_scale(block, depth)

    batches =
      Enum.zip_with([bhsd(q), bhsd(k), bhsd(v)], fn [q, k, v] ->
        for {queries, head} <- Enum.with_index(q) do
          keys = Enum.at(k, div(head, group))
          values = Enum.at(v, div(head, group))
          attention(queries, keys, values, scale, block.causal)
        end
      end)

    out = for heads <- batches, do: for(rows <- heads, do: for({out, _} <- rows, do: out))
    lse = for heads <- batches, rows <- heads, {_, lse} <- rows, do: lse
    {out |> Enum.map(&transpose/1) |> List.flatten(), lse}
  end

  # For each query of a head its row of out and its lse.
  defp attention(queries, keys, values, scale, causal) do
    columns = transpose(values)
    {query_count, key_count} = {length(queries), length(keys)}

    for {query, index} <- Enum.with_index(queries) do
      visible = if causal, do: max(index + 1 + key_count - query_count, 0), else: key_count

      case for key <- Enum.take(keys, visible), do: scale * dot(query, key) do
        [] ->
          {Enum.map(query, fn _ -> 0.0 end), :neg_infinity}

        scores ->
          # The largest score is subtracted, so that no exponential is too large for a float.
          largest = Enum.max(scores)
          weights = for score <- scores, do: :math.exp(score - largest)
          sum = Enum.sum(weights)
          {for(column <- columns, do: dot(weights, column) / sum), largest + :math.log(sum)}
      end
    end
  end

  # As long as the shorter one: weights are those of the visible keys only.
  defp dot(a, b), do: Enum.zip_reduce(a, b, 0.0, fn x, y, sum -> sum + x * y end)

  defp transpose(rows), do: Enum.zip_with(rows, & &1)

  # For each batch and head a list of rows, from a tensor of batch, sequence, head and depth.
  defp bhsd({binary, %{shape: {_, sequence, heads, depth}}}) do
    binary
    |> Floats.decode()
    |> Enum.chunk_every(depth)
    |> Enum.chunk_every(heads)
    |> Enum.chunk_every(sequence)
    |> Enum.map(&transpose/1)
  end
end
