defmodule EXLA.CustomCall.Sharding.Table do
  @moduledoc false
  # The picture of a sharding for a terminal.

  alias EXLA.CustomCall.Sharding.Picture

  # What a terminal has room for.
  @rows 16
  @columns 8
  @grids 8
  @ranges 3
  @line 100

  @doc false
  def render(sharding, shape_or_template) do
    picture = Picture.new(sharding, shape_or_template)
    {rows, columns} = Picture.rows_and_columns(picture)

    facts =
      Picture.facts(picture) ++
        for {label, dimension} <- [{"rows", rows}, {"columns", columns}], dimension do
          {label,
           "#{Picture.dimension(picture, dimension)}, #{Picture.split(picture, dimension)}"}
        end

    lines =
      Enum.map(facts, fn {label, text} ->
        String.pad_trailing(label, 10) <> Picture.cut(text, @line - 10)
      end) ++
        Enum.flat_map(tiles(picture), &["" | grid(picture, &1)]) ++ notes(picture)

    Enum.map_join(lines, &(String.trim_trailing(&1) <> "\n"))
  end

  # One tile for each grid: the dimensions that are not drawn at all of their places, the last one fastest.
  defp tiles(picture) do
    undrawn = undrawn(picture)
    grids = grids(picture)

    for index <- 0..(min(grids, @grids) - 1) do
      {tile, _} =
        undrawn
        |> Enum.reverse()
        |> Enum.reduce({Enum.map(picture.counts, fn _ -> 0 end), index}, fn dimension,
                                                                            {tile, index} ->
          count = Picture.count(picture, dimension)
          {List.replace_at(tile, dimension, rem(index, count)), div(index, count)}
        end)

      tile
    end
  end

  defp undrawn(picture), do: Enum.to_list(0..(tuple_size(picture.shape) - 1)//1) -- picture.drawn

  defp grids(picture),
    do: picture |> undrawn() |> Enum.map(&Picture.count(picture, &1)) |> Enum.product()

  defp grid(picture, tile) do
    {rows, columns} = Picture.rows_and_columns(picture)
    across = picture |> Picture.count(columns) |> Picture.places(@columns)
    down = picture |> Picture.count(rows) |> Picture.places(@rows)

    header = Enum.map(across, &range(picture, columns, &1))
    labels = Enum.map(down, &range(picture, rows, &1))
    cells = for row <- down, do: for(column <- across, do: cell(picture, tile, row, column))

    gutter = width(labels)
    cell = width([header | cells] |> List.flatten()) + 2
    indent = String.duplicate(" ", if(gutter == 0, do: 0, else: gutter + 1))
    rule = List.duplicate(String.duplicate("─", cell), length(across))

    above =
      if columns, do: ["#{indent} " <> Enum.map_join(header, " ", &center(&1, cell))], else: []

    body =
      labels
      |> Enum.zip_with(cells, fn label, row ->
        label = if gutter == 0, do: "", else: String.pad_leading(label, gutter) <> " "
        "#{label}│#{Enum.map_join(row, "│", &center(&1, cell))}│"
      end)
      |> Enum.intersperse("#{indent}├#{Enum.join(rule, "┼")}┤")

    fixed(picture, tile) ++
      above ++
      ["#{indent}┌#{Enum.join(rule, "┬")}┐"] ++ body ++ ["#{indent}└#{Enum.join(rule, "┴")}┘"]
  end

  defp fixed(picture, tile) do
    case undrawn(picture) do
      [] ->
        []

      dimensions ->
        [
          Enum.map_join(dimensions, ", ", fn dimension ->
            place = Enum.at(tile, dimension)

            "#{Picture.dimension(picture, dimension)}: #{Picture.range(picture, dimension, place)}"
          end)
        ]
    end
  end

  defp range(_picture, nil, _place), do: ""
  defp range(_picture, _dimension, :more), do: "…"
  defp range(picture, dimension, place), do: Picture.range(picture, dimension, place)

  defp cell(_picture, _tile, row, column) when :more in [row, column], do: "…"

  defp cell(picture, tile, row, column) do
    Picture.holders_text(picture, Picture.at(picture, tile, row, column), @ranges)
  end

  defp notes(picture) do
    {rows, columns} = Picture.rows_and_columns(picture)

    notes =
      for {dimension, limit} <- [{rows, @rows}, {columns, @columns}],
          (count = Picture.count(picture, dimension)) > limit,
          do: "shown: #{limit - 1} of the #{count} parts of dimension #{dimension}"

    notes =
      case grids(picture) do
        count when count > @grids -> notes ++ ["shown: #{@grids} of #{count} grids"]
        _ -> notes
      end

    if notes == [], do: [], else: ["" | notes]
  end

  defp width(texts), do: texts |> Enum.map(&String.length/1) |> Enum.max()

  defp center(text, width) do
    left = div(width - String.length(text), 2)
    String.pad_trailing(String.duplicate(" ", left) <> text, width)
  end
end
