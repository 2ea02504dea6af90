defmodule EXLA.CustomCall.Sharding.Svg do
  @moduledoc false
  # The picture of a sharding as SVG. Everything is placed by the width of a character: the font is the
  # reader's monospaced one.

  alias EXLA.CustomCall.{Attribute, Error, Mesh, Options, Typespec}
  alias EXLA.CustomCall.Sharding.Picture

  @rows 16
  @columns 16
  @ranges 3
  @stripes 8
  @strips 8
  @elements 7
  @line 96

  @char 7.3
  @margin 20
  @text_line 18
  @label 76

  # Up to ten devices: hues that stay apart for colour-blind readers, in lightness as well.
  @palette ~w(#88CCEE #CC6677 #DDCC77 #117733 #AA4499 #44AA99 #999933 #882255 #6677CC #BBBBBB)
  # More: from dark blue over grey to yellow, which is in order for colour-blind readers too.
  @gradient {{0, 46, 108}, {124, 123, 120}, {255, 234, 70}}

  @style """
  .exla-sharding{font:12px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
  .exla-sharding .page{fill:#fff}
  .exla-sharding text{fill:#1f2328}
  .exla-sharding .dim{fill:#59636e}
  .exla-sharding .title{font-size:15px;font-weight:bold}
  .exla-sharding .label{fill:#fff}
  .exla-sharding .edge{fill:none;stroke:#1f2328}
  .exla-sharding .gap{fill:none;stroke:#8c959f;stroke-dasharray:3 3}
  .exla-sharding .halo{fill:none;stroke:#fff;stroke-width:5;stroke-linejoin:round}
  .exla-sharding .order{fill:none;stroke:#1f2328;stroke-width:1.5;stroke-linejoin:round}
  .exla-sharding .tip{fill:#1f2328;stroke:#fff}
  @media (prefers-color-scheme:dark){
  .exla-sharding .page,.exla-sharding .label{fill:#0d1117}
  .exla-sharding text{fill:#e6edf3}
  .exla-sharding .dim{fill:#9198a1}
  .exla-sharding .edge{stroke:#e6edf3}
  }
  """

  @doc false
  def render(sharding, shape_or_template, opts) do
    opts =
      opts
      |> Options.validate(layout: :row_major, dimensions: nil, title: nil)
      |> Error.unwrap!()

    picture = Picture.new(sharding, shape_or_template, opts[:dimensions])
    layout = layout!(opts[:layout], tuple_size(picture.shape))
    title = title!(opts[:title], picture)

    # Each section is drawn from `y` down: `{elements, width, y of the next}`.
    {sections, {width, y}} =
      [&heading(picture, title, &1), &grid(picture, layout, &1), &memory(picture, layout, &1)]
      |> Enum.map_reduce({0, @margin}, fn draw, {width, y} ->
        {elements, section_width, y} = draw.(y)
        {elements, {max(width, section_width), y}}
      end)

    {width, height} = {ceil(width + 2 * @margin), ceil(y + @margin / 2)}

    IO.iodata_to_binary([
      ~s(<svg xmlns="http://www.w3.org/2000/svg" class="exla-sharding" role="img" ),
      ~s(width="#{width}" height="#{height}" viewBox="0 0 #{width} #{height}">\n),
      ["<title>", escape(title), "</title>\n<desc>", escape(description(picture, layout))],
      ["</desc>\n<style>\n", @style, "</style>\n"],
      ~s(<rect class="page" width="#{width}" height="#{height}"/>\n),
      sections,
      "</svg>\n"
    ])
  end

  defp layout!(nil, _rank), do: nil
  defp layout!(:row_major, rank), do: Enum.to_list((rank - 1)..0//-1)

  defp layout!(layout, rank) do
    # Says what is wrong with a list that no tensor has as its layout.
    Attribute.layouts([layout])

    if length(layout) != rank do
      raise ArgumentError,
            "expected :layout to hold each of the #{rank} dimensions once, got: #{inspect(layout)}"
    end

    layout
  end

  defp title!(nil, %{type: type, shape: shape, sharding: sharding}) do
    tensor =
      if type, do: Typespec.short(%Typespec{type: type, shape: shape}), else: inspect(shape)

    Picture.cut("#{tensor} as #{EXLA.CustomCall.Sharding.body(sharding)}", @line)
  end

  defp title!(title, _picture) do
    unless is_binary(title) and String.valid?(title) do
      raise ArgumentError, "expected :title as a UTF-8 binary, got: #{inspect(title)}"
    end

    Picture.cut(title, @line)
  end

  defp description(picture, layout) do
    facts = for {label, text} <- Picture.facts(picture), do: "#{label} #{text}"

    split =
      for dimension <- picture.drawn, (count = Picture.count(picture, dimension)) > 1 do
        "#{Picture.dimension(picture, dimension)} is #{Picture.split(picture, dimension)} into #{count}"
      end

    order = if layout, do: ["in memory, fastest first: #{order_text(picture, layout)}"], else: []
    Enum.map_join(facts ++ split ++ order, "; ", &(&1 |> String.trim() |> Picture.cut(@line)))
  end

  # Title and facts.

  defp heading(picture, title, y) do
    facts =
      for {label, text} <- Picture.facts(picture) ++ fixed(picture) do
        {label, Picture.cut(text, @line)}
      end

    elements = [
      text(@margin, y + 12, title, class: "title"),
      for {{label, fact}, index} <- Enum.with_index(facts) do
        at = y + 34 + index * @text_line
        [text(@margin, at, label, class: "dim"), text(@margin + @label, at, fact, [])]
      end
    ]

    width = max(text_width(title) * 1.25, @label + widest(Enum.map(facts, &elem(&1, 1))))
    {elements, width, y + 34 + length(facts) * @text_line}
  end

  defp fixed(picture) do
    for dimension <- 0..(tuple_size(picture.shape) - 1)//1, dimension not in picture.drawn do
      part =
        case Picture.count(picture, dimension) do
          1 -> "whole"
          count -> "the first of #{count} parts, #{Picture.split(picture, dimension)}"
        end

      {"",
       "#{Picture.dimension(picture, dimension)} at #{Picture.range(picture, dimension, 0)}, #{part}"}
    end
  end

  # The grid.

  defp grid(picture, layout, y) do
    {rows, columns} = Picture.rows_and_columns(picture)
    across = picture |> Picture.count(columns) |> Picture.places(@columns)
    down = picture |> Picture.count(rows) |> Picture.places(@rows)
    first = Enum.map(picture.counts, fn _ -> 0 end)

    cells =
      for {row, j} <- Enum.with_index(down), {column, i} <- Enum.with_index(across) do
        tile = if :more not in [row, column], do: Picture.at(picture, first, row, column)
        {i, j, tile, tile && Picture.holders_text(picture, tile, @ranges)}
      end

    steps = steps(picture, layout)
    ranges = Enum.map(across, &range(picture, columns, &1))
    labels = Enum.map(down, &range(picture, rows, &1))
    texts = ranges ++ Enum.map(cells, &(elem(&1, 3) || ""))

    width = max(if(steps, do: 104, else: 72), widest(texts) + 16)
    height = if steps, do: if(flat?(steps), do: 60, else: 92), else: 48

    row_names = axis_lines(picture, rows)
    gutter = if rows, do: widest(row_names) + widest(labels) + 34, else: 0
    {left, top} = {@margin + gutter, y + if(columns, do: 52, else: 10)}
    {grid_width, grid_height} = {length(across) * width, length(down) * height}

    elements = [
      if(columns,
        do: column_axis(picture, columns, ranges, {left, top, width, grid_width}),
        else: []
      ),
      if(rows, do: row_axis(row_names, labels, {left, top, height, grid_height}), else: []),
      for {i, j, tile, label} <- cells do
        box = {left + i * width, top + j * height, width, height}
        if tile, do: cell(picture, tile, label, steps, box), else: gap(box)
      end
    ]

    notes =
      for {dimension, limit} <- [{rows, @rows}, {columns, @columns}],
          (count = Picture.count(picture, dimension)) > limit,
          do: "Shown: #{limit - 1} of the #{count} parts of dimension #{dimension}."

    column_width = if columns, do: text_width(column_text(picture, columns)), else: 0
    bottom = top + grid_height + 8

    {[elements, lines(notes, bottom)], gutter + max(grid_width, column_width),
     bottom + length(notes) * @text_line + 8}
  end

  defp range(_picture, nil, _place), do: ""
  defp range(_picture, _dimension, :more), do: "…"
  defp range(picture, dimension, place), do: Picture.range(picture, dimension, place)

  defp column_text(picture, dimension) do
    Picture.cut(
      "#{Picture.dimension(picture, dimension)}, #{Picture.split(picture, dimension)}",
      @line
    )
  end

  defp column_axis(picture, dimension, ranges, {left, top, width, grid_width}) do
    [
      text(left, top - 36, column_text(picture, dimension), []),
      bracket("M#{n(left)} #{n(top - 24)}v-5h#{n(grid_width)}v5"),
      for {range, index} <- Enum.with_index(ranges) do
        text(left + (index + 0.5) * width, top - 8, range, anchor: "middle", class: "dim")
      end
    ]
  end

  defp row_axis(names, ranges, {left, top, height, grid_height}) do
    at = left - widest(ranges) - 20
    middle = top + grid_height / 2 - (length(names) - 1) * 7.5 + 4

    [
      for {name, index} <- Enum.with_index(names) do
        text(at - 10, middle + index * 15, name, anchor: "end")
      end,
      bracket("M#{n(at + 4)} #{n(top)}h-5v#{n(grid_height)}h5"),
      for {range, index} <- Enum.with_index(ranges) do
        text(left - 8, top + (index + 0.5) * height + 4, range, anchor: "end", class: "dim")
      end
    ]
  end

  defp bracket(path), do: ~s(<path class="edge" d="#{path}"/>\n)

  defp axis_lines(_picture, nil), do: []

  defp axis_lines(picture, dimension) do
    split =
      case Picture.axes(picture, dimension) do
        [] -> "not split"
        axes -> axes |> Enum.join(", ") |> Picture.cut(24)
      end

    [Picture.dimension(picture, dimension), split]
  end

  defp gap({x, y, width, height}), do: ~s(<rect class="gap" #{box(x, y, width, height)}/>\n)

  defp cell(picture, tile, label, steps, {x, y, width, height}) do
    {_count, ranges} = Picture.holders(picture, tile, @stripes)
    devices = ranges |> Stream.concat() |> Enum.take(@stripes)
    stripe = width / length(devices)
    label_width = text_width(label) + 10
    middle = if steps, do: y + 14, else: y + height / 2

    [
      ~s(<g class="cell">\n),
      for {device, index} <- Enum.with_index(devices) do
        ~s(<rect fill="#{colour(picture, device)}" #{box(x + index * stripe, y, stripe, height)}/>\n)
      end,
      ~s(<rect class="edge" #{box(x, y, width, height)}/>\n),
      ~s(<rect class="label" rx="4" #{box(x + (width - label_width) / 2, middle - 9, label_width, 18)}/>\n),
      text(x + width / 2, middle + 4, label, anchor: "middle"),
      if(steps, do: order(steps, {x + 12, y + 34, width - 24, height - 46}), else: []),
      "</g>\n"
    ]
  end

  # The order in memory as places in a cell, from 0 to 1 in x and in y: at most four lines of the
  # dimension that varies fastest.
  defp steps(_picture, nil), do: nil

  defp steps(picture, layout) do
    {rows, columns} = Picture.rows_and_columns(picture)
    {n_rows, n_columns} = {extent(picture, rows), extent(picture, columns)}

    cond do
      n_rows * n_columns < 2 -> nil
      rows == nil or first?(layout, columns, rows) -> lines_of(n_columns, n_rows)
      true -> for {x, y} <- lines_of(n_rows, n_columns), do: {y, x}
    end
  end

  defp flat?(steps), do: Enum.all?(steps, fn {_x, y} -> y == 0.5 end)

  defp first?(layout, one, other),
    do: Enum.find_index(layout, &(&1 == one)) < Enum.find_index(layout, &(&1 == other))

  defp extent(_picture, nil), do: 1
  defp extent(picture, dimension), do: min(elem(picture.local, dimension), 4)

  # A dimension of one index lies in the middle, and is no line of its own.
  defp lines_of(1, slow), do: for(place <- 0..(slow - 1), do: {0.5, place(place, slow)})

  defp lines_of(_fast, slow) do
    for place <- 0..(slow - 1), x <- [0, 1], do: {x, place(place, slow)}
  end

  defp place(_place, 1), do: 0.5
  defp place(place, count), do: place / (count - 1)

  defp order(steps, {x, y, width, height}) do
    points = for {fx, fy} <- steps, do: {x + fx * width, y + fy * height}
    path = "M" <> Enum.map_join(points, "L", fn {px, py} -> "#{n(px)} #{n(py)}" end)
    [{x2, y2}, {x1, y1} | _] = Enum.reverse(points)
    {start_x, start_y} = hd(points)

    [
      ~s(<path class="halo" d="#{path}"/>\n<path class="order" d="#{path}"/>\n),
      ~s(<circle class="tip" cx="#{n(start_x)}" cy="#{n(start_y)}" r="4"/>\n),
      ~s(<path class="tip" d="#{tip({x1, y1}, {x2, y2})}"/>\n)
    ]
  end

  # The arrow's head: a triangle whose point lies just beyond the end.
  defp tip({x1, y1}, {x2, y2}) do
    length = :math.sqrt((x2 - x1) ** 2 + (y2 - y1) ** 2)
    {ux, uy} = {(x2 - x1) / length, (y2 - y1) / length}

    corner = fn along, across ->
      "#{n(x2 + ux * along - uy * across)} #{n(y2 + uy * along + ux * across)}"
    end

    "M#{corner.(6, 0)}L#{corner.(-5, 5)}L#{corner.(-5, -5)}Z"
  end

  # The strips.

  defp memory(_picture, nil, y), do: {[], 0, y}

  defp memory(picture, layout, y) do
    count = Tuple.product(picture.local)
    total = Mesh.size(picture.sharding.mesh)

    captions =
      ["In memory, fastest first, with strides: " <> order_text(picture, layout)] ++
        if(count == 0, do: ["The parts are empty."], else: [])

    devices = if count == 0, do: [], else: Picture.devices(picture, @strips)
    elements = Picture.places(count, @elements)

    strips =
      for {device, tile} <- devices do
        {device, Enum.map(elements, &element(picture, layout, tile, &1))}
      end

    labels = Enum.map(strips, fn {device, _} -> "device #{device}" end)
    width = max(48, widest(Enum.flat_map(strips, &elem(&1, 1))) + 14)
    left = @margin + widest(labels) + 12
    top = y + length(captions) * @text_line + 4

    rows =
      for {{device, indices}, row} <- Enum.with_index(strips) do
        strip(picture, device, indices, {left, top + row * 32, width})
      end

    bottom = top + length(strips) * 32
    scale = if strips == [], do: [], else: scale(picture, elements, {left, bottom + 8, width})

    notes =
      if total > @strips and strips != [],
        do: ["Shown: #{@strips} of #{total} devices."],
        else: []

    bottom = if strips == [], do: bottom, else: bottom + 24

    {[lines(captions, y), rows, scale, lines(notes, bottom)],
     Enum.max([widest(captions), left - @margin + length(elements) * width + 40]),
     bottom + length(notes) * @text_line}
  end

  defp strip(picture, device, indices, {left, y, width}) do
    total = length(indices) * width

    [
      ~s(<g class="strip">\n),
      text(left - 10, y + 17, "device #{device}", anchor: "end"),
      ~s(<rect fill="#{colour(picture, device)}" #{box(left, y, total, 26)}/>\n),
      for {index, i} <- Enum.with_index(indices) do
        label_width = text_width(index) + 6
        middle = left + (i + 0.5) * width

        [
          ~s(<rect class="edge" #{box(left + i * width, y, width, 26)}/>\n),
          ~s(<rect class="label" rx="4" #{box(middle - label_width / 2, y + 5, label_width, 16)}/>\n),
          text(middle, y + 17, index, anchor: "middle")
        ]
      end,
      "</g>\n"
    ]
  end

  # Where each element starts, and where the part ends.
  defp scale(picture, elements, {left, y, width}) do
    {unit, bytes} =
      if picture.type,
        do: {"byte", Typespec.element_bytes(%Typespec{type: picture.type, shape: {}})},
        else: {"element", 1}

    starts = elements ++ [List.last(elements) + 1]

    [
      text(left - 10, y + 6, unit, anchor: "end", class: "dim"),
      for {start, index} <- Enum.with_index(starts), start != :more do
        text(left + index * width, y + 6, "#{start * bytes}", anchor: "middle", class: "dim")
      end
    ]
  end

  # The index in the whole tensor of the element that a device has at this place in its memory.
  defp element(_picture, _layout, _tile, :more), do: "…"

  defp element(picture, layout, tile, place) do
    {local, _} =
      Enum.map_reduce(layout, place, fn dimension, left ->
        size = elem(picture.local, dimension)
        {{dimension, rem(left, size)}, div(left, size)}
      end)

    indices =
      for {dimension, index} <- Enum.sort(local),
          do: Enum.at(tile, dimension) * elem(picture.local, dimension) + index

    "[#{Enum.join(indices, ",")}]"
  end

  # With the distance of two neighbours in elements.
  defp order_text(_picture, []), do: "a scalar"

  defp order_text(picture, layout) do
    {texts, _} =
      Enum.map_reduce(layout, 1, fn dimension, stride ->
        name = Enum.at(picture.names, dimension) || "dimension #{dimension}"
        {"#{name} (#{stride})", stride * elem(picture.local, dimension)}
      end)

    texts |> Enum.join(", ") |> Picture.cut(@line)
  end

  # Colours.

  defp colour(%{sharding: %{mesh: mesh}}, device) do
    case Mesh.size(mesh) do
      size when size <= 10 -> Enum.at(@palette, rem(device, 10))
      size -> gradient(min(device / (size - 1), 1.0))
    end
  end

  defp gradient(place) do
    {from, middle, to} = @gradient
    if place < 0.5, do: mix(from, middle, place * 2), else: mix(middle, to, place * 2 - 1)
  end

  defp mix(from, to, share) do
    channels =
      Enum.zip_with(Tuple.to_list(from), Tuple.to_list(to), fn a, b ->
        round(a + (b - a) * share)
      end)

    "#" <> Base.encode16(:erlang.list_to_binary(channels))
  end

  # Elements and numbers.

  defp lines(texts, y) do
    for {line, index} <- Enum.with_index(texts) do
      text(@margin, y + 12 + index * @text_line, line, class: "dim")
    end
  end

  defp text(_x, _y, "", _opts), do: []

  defp text(x, y, content, opts) do
    class = if opts[:class], do: ~s( class="#{opts[:class]}"), else: ""
    anchor = if opts[:anchor], do: ~s( text-anchor="#{opts[:anchor]}"), else: ""

    [
      ~s(<text x="#{n(x)}" y="#{n(y)}"#{class}#{anchor}>),
      escape(content),
      "</text>\n"
    ]
  end

  defp box(x, y, width, height),
    do: ~s(x="#{n(x)}" y="#{n(y)}" width="#{n(width)}" height="#{n(height)}")

  # One digit after the point, so that the same picture is the same text everywhere.
  defp n(number), do: :erlang.float_to_binary(number * 1.0, [:compact, decimals: 1])

  defp text_width(text), do: String.length(text) * @char

  defp widest([]), do: 0
  defp widest(texts), do: texts |> Enum.map(&text_width/1) |> Enum.max()

  # XML has no way to write most control characters.
  defp escape(text) do
    for <<char::utf8 <- text>>, into: "" do
      case char do
        ?& -> "&amp;"
        ?< -> "&lt;"
        ?> -> "&gt;"
        ?" -> "&quot;"
        char when char < 0x20 or char in [0x7F, 0xFFFE, 0xFFFF] -> "\uFFFD"
        char -> <<char::utf8>>
      end
    end
  end
end
