defmodule EXLA.CustomCall.Sharding.Picture do
  @moduledoc false
  # What a picture of a sharding shows, for `Table` and `Svg`: which devices have which tile, which part of
  # each dimension that is, and which two dimensions are drawn.
  #
  # A device's number in row-major order of the mesh's axes is a number in mixed radix, whose digits
  # ("segments") are the parts of axes that split dimensions, and what is left of the axes. A tile fixes
  # the digits that split; the devices that have it count through the others. So one tile's devices cost
  # the number of axes, not the number of devices.

  alias EXLA.CustomCall.{Mesh, Sharding, Typespec}

  @enforce_keys [:sharding, :shape, :local, :counts, :type, :names, :segments, :drawn]
  defstruct @enforce_keys

  @doc false
  def new(sharding, shape_or_template, dimensions \\ nil) do
    sharding = Sharding.formed!(sharding)
    {type, shape, names} = tensor!(shape_or_template)
    local = Sharding.local_shape(sharding, shape)
    counts = Sharding.counts(sharding, shape)

    %__MODULE__{
      sharding: sharding,
      shape: shape,
      local: local,
      counts: counts,
      type: type,
      names: names,
      segments: segments(sharding),
      drawn: if(dimensions, do: drawn!(dimensions, shape), else: drawn(counts))
    }
  end

  defp tensor!(shape) when is_tuple(shape) do
    # The type is of no account: this checks the shape.
    Typespec.tensor(:u8, shape)
    {nil, shape, names(nil, tuple_size(shape))}
  end

  defp tensor!(template) do
    case Typespec.from(template) do
      %{type: {name, size}} = typespec when is_atom(name) and is_integer(size) ->
        {typespec.type, typespec.shape, names(template, tuple_size(typespec.shape))}

      other ->
        raise ArgumentError,
              "expected a tensor's shape or its template, as a sharding splits tensors, got: " <>
                inspect(other)
    end
  end

  # A template that has names, as an `Nx.Tensor`: `nil` for a dimension without.
  defp names(%{names: names}, rank) when is_list(names) and length(names) == rank do
    Enum.map(names, &if(is_atom(&1) and &1 != nil, do: name(&1)))
  end

  defp names(_template, rank), do: List.duplicate(nil, rank)

  defp name(atom),
    do: atom |> Atom.to_string() |> String.replace(~r/[[:cntrl:]]/u, "?") |> cut(24)

  # The first two that are split; where fewer are, the last ones as well.
  defp drawn(counts) do
    {split, whole} =
      counts |> Enum.with_index() |> Enum.split_with(fn {count, _} -> count > 1 end)

    (split ++ Enum.reverse(whole)) |> Enum.take(2) |> Enum.map(&elem(&1, 1)) |> Enum.sort()
  end

  defp drawn!(dimensions, shape) do
    rank = tuple_size(shape)
    indices = 0..(rank - 1)//1

    unless EXLA.CustomCall.SpecTerms.proper_list?(dimensions) and
             length(dimensions) == min(rank, 2) and
             Enum.all?(dimensions, &(&1 in indices)) and Enum.uniq(dimensions) == dimensions do
      raise ArgumentError,
            "expected :dimensions as the #{min(rank, 2)} of #{inspect(shape)} to draw, " <>
              "counted from 0, the rows first, got: #{inspect(dimensions)}"
    end

    dimensions
  end

  # `{size, dimension, weight}`, the major one first: a step along the segment is `weight` tiles along
  # the dimension, which is `nil` for a segment that splits none.
  defp segments(%{mesh: mesh, dimensions: dimensions}) do
    used =
      for {%{axes: axes}, dimension} <- Enum.with_index(dimensions),
          {axis, weight} <- weights(mesh, axes),
          do: {axis, dimension, weight}

    Enum.flat_map(mesh.axes, fn {name, whole} ->
      parts =
        for {axis, dimension, weight} <- used, Sharding.axis_name(axis) == name do
          {pre_size(axis), Sharding.axis_size(mesh, axis), dimension, weight}
        end

      {segments, done} =
        Enum.flat_map_reduce(Enum.sort(parts), 1, fn {before, size, dimension, weight}, done ->
          {[{div(before, done), nil, 0}, {size, dimension, weight}], before * size}
        end)

      segments ++ [{div(whole, done), nil, 0}]
    end)
    |> Enum.reject(fn {size, _, _} -> size == 1 end)
  end

  defp weights(mesh, axes) do
    {weighted, _} =
      axes |> Enum.reverse() |> Enum.map_reduce(1, &{{&1, &2}, &2 * Sharding.axis_size(mesh, &1)})

    weighted
  end

  defp pre_size({_name, pre_size, _size}), do: pre_size
  defp pre_size(_name), do: 1

  @doc false
  # The devices that have a tile, given as its place along each dimension: how many there are, and the
  # first `limit` ranges of their numbers.
  def holders(%{segments: segments, sharding: %{mesh: mesh}}, tile, limit) do
    # The major segment first: `{size, step}` of the free ones, and the number where they are all 0.
    {free, {first, _}} =
      segments
      |> Enum.reverse()
      |> Enum.flat_map_reduce({0, 1}, fn
        {size, nil, _}, {first, step} ->
          {[{size, step}], {first, step * size}}

        {size, dimension, weight}, {first, step} ->
          {[], {first + rem(div(Enum.at(tile, dimension), weight), size) * step, step * size}}
      end)

    count = free |> Enum.map(&elem(&1, 0)) |> Enum.product()

    case mesh.devices do
      [] ->
        {run, free} = run(free, 1)
        starts = Enum.map(0..(min(div(count, run), limit) - 1), &(first + offset(free, &1)))
        {count, Enum.map(starts, &(&1..(&1 + run - 1)))}

      # In an order of its own: all of the tile's devices, to sort them.
      devices ->
        devices = List.to_tuple(devices)
        numbers = Enum.map(0..(count - 1), &elem(devices, first + offset(free, &1)))
        {count, numbers |> Enum.sort() |> ranges() |> Enum.take(limit)}
    end
  end

  # The minor segments that are free together make a run of consecutive numbers.
  defp run([{size, step} | free], step), do: run(free, step * size)
  defp run(free, length), do: {length, free}

  defp offset(free, index) do
    {offset, _} =
      Enum.reduce(free, {0, index}, fn {size, step}, {offset, index} ->
        {offset + rem(index, size) * step, div(index, size)}
      end)

    offset
  end

  defp ranges(numbers) do
    numbers
    |> Enum.chunk_while(
      nil,
      fn
        number, first..last//_ when number == last + 1 -> {:cont, first..number}
        number, nil -> {:cont, number..number}
        number, range -> {:cont, range, number..number}
      end,
      &{:cont, &1, nil}
    )
  end

  @doc false
  # `0-3`, `0,2`, or where there are more than `limit` ranges, `0,2,4,… of 64`.
  def holders_text(picture, tile, limit) do
    {count, ranges} = holders(picture, tile, limit)
    shown = ranges |> Enum.map(&Range.size/1) |> Enum.sum()

    Enum.map_join(ranges, ",", fn
      device..device//_ -> "#{device}"
      first..last//_ -> "#{first}-#{last}"
    end) <> if(shown < count, do: ",… of #{count}", else: "")
  end

  @doc false
  # The first `limit` devices by number, each with its tile.
  def devices(%{sharding: %{mesh: mesh}} = picture, limit) do
    case mesh.devices do
      [] -> Enum.map(0..(min(Mesh.size(mesh), limit) - 1), &{&1, &1})
      devices -> devices |> Enum.with_index() |> Enum.sort() |> Enum.take(limit)
    end
    |> Enum.map(fn {device, index} -> {device, tile(picture, index)} end)
  end

  defp tile(picture, index) do
    start = List.duplicate(0, tuple_size(picture.shape))

    {tile, _} =
      picture.segments
      |> Enum.reverse()
      |> Enum.reduce({start, index}, fn
        {size, nil, _}, {tile, index} ->
          {tile, div(index, size)}

        {size, dimension, weight}, {tile, index} ->
          {List.update_at(tile, dimension, &(&1 + rem(index, size) * weight)), div(index, size)}
      end)

    tile
  end

  @doc false
  # The indices that the tile at `place` has along a dimension.
  def range(%{local: local}, dimension, place) do
    case elem(local, dimension) do
      0 -> "none"
      1 -> "#{place}"
      length -> "#{place * length}..#{(place + 1) * length - 1}"
    end
  end

  @doc false
  # The places 0 to `count - 1`, with `:more` for what does not fit between the first ones and the last.
  def places(count, limit) when count <= limit, do: Enum.to_list(0..(count - 1))
  def places(count, limit), do: Enum.to_list(0..(limit - 3)) ++ [:more, count - 1]

  @doc false
  def count(_picture, nil), do: 1
  def count(picture, dimension), do: Enum.at(picture.counts, dimension)

  @doc false
  # The rows' dimension and the columns'; a tensor of one dimension is a row.
  def rows_and_columns(%{drawn: [rows, columns]}), do: {rows, columns}
  def rows_and_columns(%{drawn: [columns]}), do: {nil, columns}
  def rows_and_columns(%{drawn: []}), do: {nil, nil}

  @doc false
  # The tile with the drawn dimensions at these places.
  def at(picture, tile, row, column) do
    {rows, columns} = rows_and_columns(picture)
    tile |> put(rows, row) |> put(columns, column)
  end

  defp put(tile, nil, _place), do: tile
  defp put(tile, dimension, place), do: List.replace_at(tile, dimension, place)

  @doc false
  # `dimension 2 (heads)`
  def dimension(%{names: names}, index) do
    case Enum.at(names, index) do
      nil -> "dimension #{index}"
      name -> "dimension #{index} (#{name})"
    end
  end

  @doc false
  # The axes that split a dimension, as its sharding's text has them.
  def axes(%{sharding: %{dimensions: dimensions}}, index) do
    Enum.map(Enum.at(dimensions, index).axes, fn
      {name, pre_size, size} -> "#{Mesh.quoted(name)}:(#{pre_size})#{size}"
      name -> Mesh.quoted(name)
    end)
  end

  @doc false
  def split(picture, index) do
    case axes(picture, index) do
      [] -> "not split"
      axes -> "split by #{Enum.join(axes, ", ")}"
    end
  end

  @doc false
  # What is drawn, in words: `{label, text}`.
  def facts(%{sharding: %{mesh: mesh} = sharding} = picture) do
    "#sdy.mesh" <> axes = to_string(mesh)

    [
      {"tensor", size(picture, picture.shape)},
      {"mesh", axes},
      {"sharding", Sharding.body(sharding)},
      {"part", size(picture, picture.local)}
    ] ++
      if(sharding.unreduced == [],
        do: [],
        else: [{"", "the parts are still to be combined along the unreduced axes"}]
      )
  end

  defp size(%{type: nil}, shape), do: inspect(shape)

  defp size(%{type: type}, shape) do
    typespec = %Typespec{type: type, shape: shape}
    "#{Typespec.short(typespec)}, #{Typespec.byte_size(typespec)} bytes"
  end

  @doc false
  def cut(text, limit) do
    if String.length(text) > limit, do: String.slice(text, 0, limit - 1) <> "…", else: text
  end
end
