defmodule FlashAttention.Floats do
  @moduledoc """
  Lists of floats and the binaries of `f32` tensors.
  """

  @type value :: float() | :infinity | :neg_infinity | :nan

  @doc """
  The binary of a list of numbers.

  ## Examples

      iex> FlashAttention.Floats.encode([1, 0.5]) |> FlashAttention.Floats.decode()
      [1.0, 0.5]
  """
  @spec encode([number()]) :: binary()
  def encode(list), do: for(value <- list, into: <<>>, do: <<value::float-32-native>>)

  @doc """
  The list of the values in a binary. What is no number becomes an atom, as in Nx.
  """
  @spec decode(binary()) :: [value()]
  def decode(binary), do: for(<<bytes::binary-4 <- binary>>, do: value(bytes))

  defp value(<<value::float-32-native>>), do: value
  defp value(<<0x7F800000::32-native>>), do: :infinity
  defp value(<<0xFF800000::32-native>>), do: :neg_infinity
  defp value(<<_::32>>), do: :nan

  @doc """
  The largest difference between two lists of values. Values that are no numbers differ by nothing
  from the same, and by infinity, which is an atom and larger than all numbers, from others.

  ## Examples

      iex> FlashAttention.Floats.largest_error([1.0, :neg_infinity], [1.5, :neg_infinity])
      0.5

      iex> FlashAttention.Floats.largest_error([:nan], [1.0])
      :infinity
  """
  @spec largest_error([value()], [value()]) :: float() | :infinity
  def largest_error(left, right) when length(left) == length(right) do
    [left, right] |> Enum.zip_with(&difference/1) |> Enum.max(fn -> 0.0 end)
  end

  defp difference([same, same]), do: 0.0
  defp difference([a, b]) when is_float(a) and is_float(b), do: abs(a - b)
  defp difference([_, _]), do: :infinity
end
