defmodule FlashAttention.Reference do
  @moduledoc """
  What `FlashAttention.Forward` and `FlashAttention.Backward` compute, in plain Elixir: slow, and short
  enough to be believed.
  """

  alias FlashAttention.{Backward, Floats, Forward}

  @type tensor :: {binary(), EXLA.CustomCall.template()}

  @doc """
  Attention of `q`, `k` and `v`, each a binary with its template. Returns `out` and `lse`, each as a
  list in row-major order.
  """
  @spec forward(Forward.t(), tensor(), tensor(), tensor()) :: {[float()], [Floats.value()]}
  def forward(block, q, k, v) do
    {group, scale} = group_and_scale(block, q, k)

    batches =
      Enum.zip_with([bhsd(q), bhsd(k), bhsd(v)], fn [q, k, v] ->
        for {queries, head} <- Enum.with_index(q) do
          softmaxes = softmaxes(queries, Enum.at(k, div(head, group)), scale, block.causal)
          {weights, lse} = Enum.unzip(softmaxes)
          {product(weights, Enum.at(v, div(head, group))), lse}
        end
      end)

    out = for heads <- batches, do: for({out, _} <- heads, do: out)
    lse = for heads <- batches, {_, lse} <- heads, do: lse
    {bshd(out), Enum.concat(lse)}
  end

  @doc """
  The gradients of `q`, `k` and `v` where `dout` is that of attention's `out`, each a binary with its
  template. Returns `dq`, `dk` and `dv`, each as a list in row-major order.
  """
  @spec backward(Backward.t(), tensor(), tensor(), tensor(), tensor()) ::
          {[float()], [float()], [float()]}
  def backward(block, dout, q, k, v) do
    {group, scale} = group_and_scale(block, q, k)

    batches =
      Enum.zip_with([bhsd(dout), bhsd(q), bhsd(k), bhsd(v)], fn [dout, q, k, v] ->
        # The query heads that share a key head.
        [Enum.chunk_every(dout, group), Enum.chunk_every(q, group), k, v]
        |> Enum.zip_with(fn heads -> gradients(heads, scale, block.causal) end)
      end)

    dq = for heads <- batches, do: for({dq, _, _} <- heads, rows <- dq, do: rows)
    dk = for heads <- batches, do: for({_, dk, _} <- heads, do: dk)
    dv = for heads <- batches, do: for({_, _, dv} <- heads, do: dv)
    {bshd(dq), bshd(dk), bshd(dv)}
  end

  defp gradients([dout_heads, query_heads, keys, values], scale, causal) do
    # The rows of all heads, one head after the other: dk and dv are sums over all of them.
    p = for q <- query_heads, {weights, _} <- softmaxes(q, keys, scale, causal), do: weights
    {dout, q} = {Enum.concat(dout_heads), Enum.concat(query_heads)}

    dp = product(dout, transpose(values))

    # A softmax does not change where all its scores grow alike: the mean change is taken off.
    ds =
      Enum.zip_with(p, dp, fn p, dp ->
        mean = dot(p, dp)
        Enum.zip_with(p, dp, &(scale * &1 * (&2 - mean)))
      end)

    dq = ds |> product(keys) |> Enum.chunk_every(query_heads |> hd() |> length())
    {dq, product(transpose(ds), q), product(transpose(p), dout)}
  end

  # For each query of a head the weights of all keys, and its lse.
  defp softmaxes(queries, keys, scale, causal) do
    {query_count, key_count} = {length(queries), length(keys)}

    for {query, index} <- Enum.with_index(queries) do
      visible = if causal, do: max(index + 1 + key_count - query_count, 0), else: key_count
      unseen = List.duplicate(0.0, max(key_count - visible, 0))

      case for key <- Enum.take(keys, visible), do: scale * dot(query, key) do
        [] ->
          {unseen, :neg_infinity}

        scores ->
          # The largest score is subtracted, so that no exponential is too large for a float.
          largest = Enum.max(scores)
          weights = for score <- scores, do: :math.exp(score - largest)
          sum = Enum.sum(weights)
          {for(weight <- weights, do: weight / sum) ++ unseen, largest + :math.log(sum)}
      end
    end
  end

  defp group_and_scale(block, {_, q}, {_, k}) do
    {_, _, query_heads, depth} = q.shape
    {_, _, heads, _} = k.shape
    {div(query_heads, heads), FlashAttention.softmax_scale(block, depth)}
  end

  # The product of two matrices, as lists of rows.
  defp product(a, b) do
    columns = transpose(b)
    for row <- a, do: for(column <- columns, do: dot(row, column))
  end

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

  # And back, as one list.
  defp bshd(batches), do: batches |> Enum.map(&transpose/1) |> List.flatten()
end
