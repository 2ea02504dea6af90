defmodule Fuzz.Shrink do
  @moduledoc false

  # Smaller terms of the same shape: atoms stay, tuples keep their size.

  @most 400

  def candidates(term), do: term |> smaller() |> Stream.reject(&(&1 == term)) |> Enum.take(@most)

  # The smallest term found on which `same?` still holds, within so many steps.
  def shrink(term, same?, steps \\ 200)
  def shrink(term, _same?, 0), do: term

  def shrink(term, same?, steps) do
    case Enum.find(candidates(term), same?) do
      nil -> term
      smaller -> shrink(smaller, same?, steps - 1)
    end
  end

  defp smaller({:"$", _name}), do: []
  defp smaller(term) when is_integer(term) and term not in 0..1, do: [0, 1, div(term, 2)]

  defp smaller(term) when is_binary(term) and term != "" do
    size = byte_size(term)

    cuts =
      for length <- [div(size, 2), div(size, 4), div(size, 8), 4, 1],
          length > 0 and length < size,
          at <- Enum.take_every(0..(size - length), max(div(size, 24), 1)) do
        <<before::binary-size(at), _::binary-size(length), rest::binary>> = term
        before <> rest
      end

    ["" | cuts]
  end

  defp smaller([_ | _] = term) do
    if List.improper?(term) do
      []
    else
      half = div(length(term), 2)
      indexes = 0..min(length(term) - 1, 40)

      Stream.concat([
        [[], Enum.take(term, half), Enum.drop(term, half)],
        Stream.map(indexes, &List.delete_at(term, &1)),
        Stream.flat_map(indexes, fn index ->
          term |> Enum.at(index) |> smaller() |> Stream.map(&List.replace_at(term, index, &1))
        end)
      ])
    end
  end

  defp smaller(term) when is_tuple(term) do
    Stream.flat_map(0..(tuple_size(term) - 1)//1, fn index ->
      term |> elem(index) |> smaller() |> Stream.map(&put_elem(term, index, &1))
    end)
  end

  defp smaller(term) when is_map(term) and not is_struct(term) do
    keys = Map.keys(term)

    Stream.concat(
      Stream.map(keys, &Map.delete(term, &1)),
      Stream.flat_map(keys, fn key ->
        term |> Map.fetch!(key) |> smaller() |> Stream.map(&Map.put(term, key, &1))
      end)
    )
  end

  defp smaller(_term), do: []
end
