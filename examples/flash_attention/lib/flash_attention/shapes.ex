defmodule FlashAttention.Shapes do
  @moduledoc false

  # What the implementations of both blocks check of the templates they are given.

  @doc "Raises unless `q`, `k` and `v` go together."
  def check_operands!(%{shape: q}, %{shape: k}, %{shape: v}), do: check!(q, k, v)

  @doc "Raises unless `found` has the shapes of `expected`, the templates that `function` returns."
  def check_results!(found, expected, function) do
    if shapes(found) != shapes(expected) do
      raise ArgumentError,
            "expected the outputs of FlashAttention.#{function}, of shapes " <>
              "#{inspect(shapes(expected))}, got: #{inspect(shapes(found))}"
    end
  end

  defp check!({batch, _, query_heads, depth}, {batch, _, heads, depth} = shape, shape)
       when depth > 0 and heads > 0 and rem(query_heads, heads) == 0,
       do: :ok

  defp check!(q, k, v) do
    raise ArgumentError,
          "expected q of {B, S, Hq, D} and k and v of {B, Skv, Hkv, D}, Hq a multiple of Hkv, got: " <>
            "q #{inspect(q)}, k #{inspect(k)}, v #{inspect(v)}"
  end

  defp shapes(templates) do
    templates |> Tuple.to_list() |> Enum.map(& &1.shape) |> List.to_tuple()
  end
end
