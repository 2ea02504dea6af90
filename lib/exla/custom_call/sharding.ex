defmodule EXLA.CustomCall.Sharding do
  @moduledoc """
  How a tensor is split over the devices of a mesh: for each of its dimensions, the axes that split it.

      iex> alias EXLA.CustomCall.{Mesh, Sharding}
      iex> mesh = Mesh.new(data: 2, model: 2)
      iex> sharding = Sharding.new(mesh, ["data", nil, ["model"]])
      iex> to_string(sharding)
      ~S(#sdy.sharding<@mesh, [{"data"}, {}, {"model"}]>)
      iex> Sharding.local_shape(sharding, {4, 16, 8})
      {2, 16, 4}

  An axis that splits no dimension leaves each device along it with the same part: the tensor is
  replicated over it.

  `to_table/2` and `to_svg/3` show which device has which part.

  Source: Shardy's `TensorShardingAttr`.
  """

  alias EXLA.CustomCall.{Error, Mesh, SpecTerms, Typespec}

  # As many as a type has.
  @most_dimensions 1024

  @enforce_keys [:mesh, :dimensions]
  defstruct [:mesh, :dimensions, replicated: [], unreduced: [], reduction: :sum]

  @typedoc """
  An axis of the mesh, or a part of one: of the axis cut into `pre_size` blocks, `size` blocks of each.
  """
  @type axis :: String.t() | {String.t(), pre_size :: pos_integer(), size :: pos_integer()}

  @typedoc """
    * `:axes` - that split the dimension, the major one first;
    * `:open` - whether Shardy may split it further;
    * `:priority` - when Shardy propagates it; the lower goes first, `nil` with 0.
  """
  @type dimension :: %{axes: [axis()], open: boolean(), priority: non_neg_integer() | nil}

  @typedoc """
    * `:replicated` - axes that no dimension may be split by;
    * `:unreduced`, `:reduction` - axes along which the parts are still to be combined, and how.
  """
  @type t :: %__MODULE__{
          mesh: Mesh.t(),
          dimensions: [dimension()],
          replicated: [axis()],
          unreduced: [axis()],
          reduction: :sum | :max | :min
        }

  @typedoc "The part that one device has: `{start, length}` of each dimension."
  @type slice :: [{non_neg_integer(), non_neg_integer()}]

  @doc """
  A sharding over `mesh`, with for each dimension of the tensor one of

    * `nil` or `[]` - it is not split;
    * an axis or a list of axes, the major one first - it is split by them. An axis is a name, or
      `{name, pre_size, size}` for a part of one;
    * `:open` or `{:open, axes}` - Shardy may split it further;
    * `%{axes: axes, open: open, priority: priority}`.

  ## Options

    * `:replicated` - axes that stay free of this tensor;
    * `:unreduced` - axes along which the parts are still to be summed.

  Raises `ArgumentError` for a sharding that Shardy would refuse:

      iex> alias EXLA.CustomCall.{Mesh, Sharding}
      iex> mesh = Mesh.new(model: 2)
      iex> Sharding.new(mesh, ["model", "model"])
      ** (ArgumentError) a sharding: dimension 1: the axis "model" is used twice; use it for one dimension, or in one of the lists, once

      iex> alias EXLA.CustomCall.{Mesh, Sharding}
      iex> mesh = Mesh.new(model: 2)
      iex> Sharding.new(mesh, ["modle"])
      ** (ArgumentError) a sharding: the mesh "mesh" has no axis "modle"; it has "model"

  ## Examples

      iex> alias EXLA.CustomCall.{Mesh, Sharding}
      iex> mesh = Mesh.new(data: 2, model: 2)
      iex> Sharding.new(mesh, [["data", "model"], :open])
      #EXLA.CustomCall.Sharding<@mesh, [{"data", "model"}, {?}]>
  """
  @spec new(Mesh.t() | map(), list(), keyword()) :: t()
  def new(mesh, dimensions, opts \\ []) do
    opts =
      opts |> EXLA.CustomCall.Options.validate(replicated: [], unreduced: []) |> Error.unwrap!()

    unless SpecTerms.proper_list?(dimensions) do
      raise ArgumentError,
            "expected a sharding's dimensions as a list, got: #{inspect(dimensions)}"
    end

    mesh = Mesh.from(mesh)

    check!(%__MODULE__{
      mesh: mesh,
      dimensions: Enum.map(dimensions, &dimension!/1),
      replicated: axes!(opts[:replicated]),
      unreduced: axes!(opts[:unreduced])
    })
  end

  @doc """
  The sharding of a tensor of this rank that is whole on each device.

  ## Examples

      iex> mesh = EXLA.CustomCall.Mesh.new(x: 2)
      iex> EXLA.CustomCall.Sharding.replicated(mesh, 2)
      #EXLA.CustomCall.Sharding<@mesh, [{}, {}]>
  """
  @spec replicated(Mesh.t() | map(), non_neg_integer()) :: t()
  def replicated(mesh, rank) when is_integer(rank) and rank in 0..@most_dimensions do
    new(mesh, List.duplicate(nil, rank))
  end

  def replicated(_mesh, other) do
    raise ArgumentError,
          "expected a rank from 0 to #{@most_dimensions}, got: #{inspect(other)}"
  end

  @doc """
  A sharding from a sharding, from the list that `new/2` takes, or from the map that Nx takes for an
  input: dimensions, by index or by name, to lists of axes, by index or by name.

  ## Examples

      iex> alias EXLA.CustomCall.{Mesh, Sharding, Typespec}
      iex> mesh = Mesh.new(data: 2, model: 2)
      iex> Sharding.from(%{0 => [0], -1 => ["model"]}, mesh, Typespec.tensor(:f32, {4, 8, 2}))
      #EXLA.CustomCall.Sharding<@mesh, [{"data"}, {}, {"model"}]>
  """
  @spec from(t() | list() | map(), Mesh.t() | map(), EXLA.CustomCall.template()) :: t()
  def from(sharding, mesh, template)

  def from(%__MODULE__{} = sharding, _mesh, template),
    do: check_rank!(formed!(sharding), template)

  def from(list, mesh, template) when is_list(list) do
    mesh |> new(list) |> check_rank!(template)
  end

  def from(%{} = map, mesh, template) when not is_struct(map) do
    mesh = Mesh.from(mesh)
    template = Map.put(template, :shape, Typespec.from(template).shape)
    names = Enum.map(mesh.axes, &elem(&1, 0))

    by_dimension =
      Enum.reduce(map, %{}, fn {dimension, axes}, done ->
        index = index!(dimension, template)

        if is_map_key(done, index) do
          raise ArgumentError, "a sharding: dimension #{index} is given twice in #{inspect(map)}"
        end

        Map.put(done, index, axes |> proper!() |> Enum.map(&nx_axis!(&1, names, mesh)))
      end)

    new(mesh, for(index <- 0..(tuple_size(template.shape) - 1)//1, do: by_dimension[index]))
  end

  def from(other, _mesh, _template) do
    raise ArgumentError,
          "expected an EXLA.CustomCall.Sharding, a list with the axes of each dimension, or a map " <>
            "of dimensions to axes, got: #{inspect(other)}"
  end

  @doc false
  # A struct that somebody wrote by hand may hold anything.
  def formed!(
        %__MODULE__{
          mesh: mesh,
          dimensions: dimensions,
          replicated: replicated,
          unreduced: unreduced
        } = sharding
      ) do
    Mesh.formed!(mesh)

    dimension? = fn
      %{axes: axes, open: open, priority: priority} ->
        axes?(axes, mesh) and is_boolean(open) and
          (priority == nil or (is_integer(priority) and priority >= 0))

      _ ->
        false
    end

    if SpecTerms.proper_list?(dimensions) and Enum.all?(dimensions, dimension?) and
         axes?(replicated, mesh) and axes?(unreduced, mesh) and
         Map.get(sharding, :reduction) in [:sum, :max, :min] do
      sharding
    else
      raise ArgumentError,
            "expected a sharding as EXLA.CustomCall.Sharding.new/3 makes it, got the fields: " <>
              inspect(Map.from_struct(sharding), structs: false)
    end
  end

  def formed!(other) do
    # Not as the struct that it may be, whose fields are looked at to print it.
    raise ArgumentError,
          "expected an EXLA.CustomCall.Sharding, as Sharding.new/3 makes it of a mesh and axes, got: " <>
            inspect(other, structs: false)
  end

  defp axes?(axes, mesh) do
    SpecTerms.proper_list?(axes) and
      Enum.all?(axes, fn
        {name, pre_size, size} ->
          is_integer(pre_size) and is_integer(size) and pre_size > 0 and size > 0 and
            known_size(mesh, name) != nil and rem(known_size(mesh, name), pre_size * size) == 0

        name ->
          known_size(mesh, name) != nil
      end)
  end

  defp known_size(%{axes: axes}, name) do
    with {_, size} <- List.keyfind(axes, name, 0), do: size
  end

  @doc """
  The sharding of a text, as `to_string/1` writes it. Its mesh is one of `meshes`.

  ## Examples

      iex> alias EXLA.CustomCall.{Mesh, Sharding}
      iex> mesh = Mesh.new(x: 2)
      iex> Sharding.parse(~S(#sdy.sharding<@mesh, [{"x"}, {?}]>), mesh)
      {:ok, Sharding.new(mesh, ["x", :open])}
      iex> {:error, error} = Sharding.parse(~S(#sdy.sharding<@ring, [{"x"}]>), mesh)
      iex> error.message
      ~S(a sharding: the mesh: the module has no mesh "ring"; there is "mesh": give it with the module's option meshes)
  """
  @spec parse(binary(), Mesh.t() | [Mesh.t()]) :: {:ok, t()} | {:error, Error.t()}
  def parse(text, meshes) do
    meshes = meshes |> List.wrap() |> Enum.map(&Mesh.from/1)

    with {:ok, {:sharding, mesh, dimensions, replicated, unreduced, reduction}} <-
           Mesh.read(text, meshes, "a sharding", :sharding),
         {:ok, mesh} <- find_mesh(mesh, meshes) do
      {:ok,
       %__MODULE__{
         mesh: mesh,
         dimensions:
           for(
             {axes, open, priority} <- dimensions,
             do: %{axes: axes, open: open, priority: priority}
           ),
         replicated: replicated,
         unreduced: unreduced,
         reduction: reduction
       }}
    end
  end

  @doc """
  The shape of the part that each device has of a tensor of `shape`.

      iex> alias EXLA.CustomCall.{Mesh, Sharding}
      iex> Sharding.local_shape(Sharding.new(Mesh.new(x: 2), ["x"]), {7})
      ** (ArgumentError) dimension 0 of {7} is not a multiple of 2, the devices along "x"; pad it to 8, or leave it whole
  """
  @spec local_shape(t(), tuple()) :: tuple()
  def local_shape(sharding, shape) do
    sharding = formed!(sharding)
    check_shape!(shape)

    [Tuple.to_list(shape), counts(sharding, shape), 0..(tuple_size(shape) - 1)//1]
    |> Enum.zip_with(fn
      [size, count, _] when rem(size, count) == 0 ->
        div(size, count)

      [size, count, index] ->
        axes = Enum.at(sharding.dimensions, index).axes
        names = Enum.map_join(axes, ", ", &inspect(axis_name(&1)))

        raise ArgumentError,
              "dimension #{index} of #{inspect(shape)} is not a multiple of #{count}, the devices along " <>
                "#{names}; pad it to #{(div(size, count) + 1) * count}, or leave it whole"
    end)
    |> List.to_tuple()
  end

  @doc """
  The part of a tensor of `shape` that each device has, in the order of the devices' numbers.

  ## Examples

      iex> alias EXLA.CustomCall.{Mesh, Sharding}
      iex> sharding = Sharding.new(Mesh.new(x: 2, y: 2), ["y", nil])
      iex> Sharding.slices(sharding, {4, 3})
      [{0, [{0, 2}, {0, 3}]}, {1, [{2, 2}, {0, 3}]}, {2, [{0, 2}, {0, 3}]}, {3, [{2, 2}, {0, 3}]}]
  """
  @spec slices(t(), tuple()) :: [{device :: non_neg_integer(), slice()}]
  def slices(sharding, shape) do
    %{mesh: mesh} = formed!(sharding)
    lengths = sharding |> local_shape(shape) |> Tuple.to_list()

    dimensions =
      Enum.map(sharding.dimensions, &Enum.map(&1.axes, fn axis -> digit(mesh, axis) end))

    mesh
    |> Mesh.coordinates()
    |> Enum.map(fn {device, at} ->
      slice =
        Enum.zip_with(dimensions, lengths, fn digits, length ->
          {tile(digits, at) * length, length}
        end)

      {device, slice}
    end)
    |> Enum.sort()
  end

  @doc """
  A picture of the sharding, for a terminal: which devices have which part of a tensor of this shape, or
  of this template.

      tensor    f32[4][8], 128 bytes
      mesh      <["data"=2, "model"=4]>
      sharding  <@mesh, [{"data"}, {"model"}]>
      part      f32[2][2], 16 bytes
      rows      dimension 0, split by "data"
      columns   dimension 1, split by "model"

             0..1   2..3   4..5   6..7
           ┌──────┬──────┬──────┬──────┐
      0..1 │  0   │  1   │  2   │  3   │
           ├──────┼──────┼──────┼──────┤
      2..3 │  4   │  5   │  6   │  7   │
           └──────┴──────┴──────┴──────┘

  Rows and columns are the first two dimensions that are split; each part of a further one has a grid of
  its own. Large meshes are cut, with a note that says what is shown.

  Raises `ArgumentError` for a shape that the sharding does not fit, as `local_shape/2` does.

  ## Examples

      iex> alias EXLA.CustomCall.{Mesh, Sharding}
      iex> sharding = Sharding.new(Mesh.new(data: 2, model: 2), [nil, "model"])
      iex> sharding |> Sharding.to_table({4, 8}) |> String.split("\\n") |> Enum.take(-5)
      ["       0..3   4..7", "     ┌──────┬──────┐", "0..3 │ 0,2  │ 1,3  │", "     └──────┴──────┘", ""]
  """
  @spec to_table(t(), tuple() | EXLA.CustomCall.template()) :: String.t()
  defdelegate to_table(sharding, shape_or_template),
    to: EXLA.CustomCall.Sharding.Table,
    as: :render

  @doc """
  A picture of the sharding as the text of an SVG file: the tensor as a grid, in the colours of the devices
  that have its parts, and the order of each part's elements in memory.

  A part that several devices have is striped in their colours. The picture has no scripts and no fonts of
  its own, follows the reader's light or dark mode, and is cut for large meshes.

  ## Options

    * `:layout` - the dimensions of a part in memory, the one that varies fastest first, as
      `EXLA.CustomCall.Attribute.layouts/1` takes them; default: row-major. A line through each cell runs
      along the elements in this order, and strips below show the elements that each device has with where
      they start. `nil` leaves both out;
    * `:dimensions` - the two dimensions that are drawn, the rows first; default: those that are split, and
      else the last two. The others are at their first part;
    * `:title` - default: the type, the shape and the sharding.

  Raises `ArgumentError` for a shape that the sharding does not fit, as `local_shape/2` does.

  ## Examples

      iex> alias EXLA.CustomCall.{Mesh, Sharding, Typespec}
      iex> sharding = Sharding.new(Mesh.new(model: 2), [nil, "model"])
      iex> svg = Sharding.to_svg(sharding, Typespec.tensor(:f32, {4, 8}), title: "Split by columns")
      iex> svg =~ "<title>Split by columns</title>"
      true
  """
  @spec to_svg(t(), tuple() | EXLA.CustomCall.template(), keyword()) :: String.t()
  defdelegate to_svg(sharding, shape_or_template, opts \\ []),
    to: EXLA.CustomCall.Sharding.Svg,
    as: :render

  # Which part along one dimension a device has: its places along the axes are the digits of a number.
  defp tile(digits, at) do
    Enum.reduce(digits, 0, fn {index, divisor, size}, number ->
      number * size + rem(div(elem(at, index), divisor), size)
    end)
  end

  defp digit(mesh, axis) do
    name = axis_name(axis)
    index = Enum.find_index(mesh.axes, fn {other, _} -> other == name end)
    {_, whole} = Enum.at(mesh.axes, index)

    case axis do
      {_, pre_size, size} -> {index, div(whole, pre_size * size), size}
      _ -> {index, 1, whole}
    end
  end

  @doc false
  # The sharding of a compiled program's parameter or result: what was asked for, if that is what the
  # compiler says (`EXLA.CustomCall.Native.executable_shardings/1`), or what the compiler says in terms of
  # the mesh. `nil` where axes do not describe it.
  def of_program(mesh, whole, local, given, native) do
    # On one device there is one part, however that is said.
    native = if Mesh.size(mesh) == 1, do: :replicated, else: native
    candidates = [given, from_tiles(mesh, native, tuple_size(whole.shape))]

    Enum.find(candidates, fn sharding ->
      sharding != nil and length(sharding.dimensions) == tuple_size(whole.shape) and
        fits?(sharding, native, whole, local)
    end)
  end

  defp fits?(sharding, native, whole, local) do
    counts = counts(sharding, whole.shape)
    sizes = Enum.zip(Tuple.to_list(whole.shape), counts)

    is_struct(local) and Enum.all?(sizes, fn {size, count} -> rem(size, count) == 0 end) and
      local_shape(sharding, whole.shape) == local.shape and
      (native in [nil, :unknown] or tiles(native) == tiles_of(sharding, counts))
  end

  # Which tile each device has, where there is more than one.
  defp tiles_of(sharding, counts) do
    starts =
      for {device, slice} <- slices(sharding, List.to_tuple(counts)),
          into: %{},
          do: {device, Enum.map(slice, &elem(&1, 0))}

    if Enum.all?(counts, &(&1 == 1)), do: :whole, else: starts
  end

  defp tiles(:replicated), do: :whole

  defp tiles({:tiled, dimensions, devices, groups}) do
    if Enum.all?(groups, &match?({:replicated, _}, &1)) do
      width = groups |> Enum.map(&elem(&1, 1)) |> Enum.product()

      if Enum.all?(dimensions, &(&1 == 1)) do
        :whole
      else
        for {device, index} <- Enum.with_index(devices),
            into: %{},
            do: {device, digits(div(index, width), dimensions)}
      end
    end
  end

  defp tiles(_other), do: nil

  defp digits(index, dimensions) do
    {digits, _rest} =
      dimensions |> Enum.reverse() |> Enum.map_reduce(index, &{rem(&2, &1), div(&2, &1)})

    Enum.reverse(digits)
  end

  # An axis splits a dimension if a step along it leads to another tile there; of several, the one whose
  # step is widest is the major one.
  defp from_tiles(mesh, native, rank) do
    case tiles(native) do
      :whole ->
        replicated(mesh, rank)

      %{} = tiles ->
        steps =
          for {{axis, size}, index} <- Enum.with_index(mesh.axes), size > 1 do
            {device, _at} =
              mesh |> Mesh.coordinates() |> Enum.find(fn {_, at} -> unit?(at, index) end)

            {axis, tiles[device]}
          end

        dimensions =
          for dimension <- 0..(rank - 1)//1 do
            steps
            |> Enum.map(fn {axis, at} -> {Enum.at(at || [], dimension, 0), axis} end)
            |> Enum.filter(fn {step, _} -> step > 0 end)
            |> Enum.sort(:desc)
            |> Enum.map(&elem(&1, 1))
          end

        %__MODULE__{mesh: mesh, dimensions: Enum.map(dimensions, &closed/1)}

      nil ->
        nil
    end
  end

  defp unit?(at, index) do
    at
    |> Tuple.to_list()
    |> Enum.with_index()
    |> Enum.all?(fn {place, i} -> place == if(i == index, do: 1, else: 0) end)
  end

  defp check_shape!(shape) do
    unless is_tuple(shape) and Enum.all?(Tuple.to_list(shape), &(is_integer(&1) and &1 >= 0)) do
      raise ArgumentError, "expected a shape as a tuple of sizes, got: #{inspect(shape)}"
    end
  end

  @doc false
  # How many parts each dimension has.
  def counts(%__MODULE__{mesh: mesh, dimensions: dimensions}, shape) do
    if length(dimensions) != tuple_size(shape) do
      raise ArgumentError,
            "a sharding of #{length(dimensions)} dimensions does not fit the shape #{inspect(shape)}"
    end

    for %{axes: axes} <- dimensions, do: axes |> Enum.map(&axis_size(mesh, &1)) |> Enum.product()
  end

  @doc false
  def axis_size(_mesh, {_name, _pre_size, size}), do: size
  def axis_size(mesh, name), do: Mesh.axis_size!(mesh, name)

  @doc false
  def axis_name({name, _pre_size, _size}), do: name
  def axis_name(name), do: name

  @doc false
  # The text without `#sdy.sharding`, as it stands inside `#sdy.sharding_per_value`.
  def body(%__MODULE__{} = sharding) do
    dimensions = Enum.map_join(sharding.dimensions, ", ", &dimension_text/1)

    "<@#{symbol(sharding.mesh.name)}, [#{dimensions}]" <>
      set(", replicated=", sharding.replicated) <>
      set(", unreduced=" <> reduction(sharding.reduction), sharding.unreduced) <> ">"
  end

  @doc false
  def per_value(shardings),
    do: "#sdy.sharding_per_value<[#{Enum.map_join(shardings, ", ", &body/1)}]>"

  defp reduction(:sum), do: ""
  defp reduction(other), do: Atom.to_string(other)

  defp symbol(name) do
    if name =~ ~r/\A[A-Za-z_][A-Za-z0-9_$.]*\z/, do: name, else: Mesh.quoted(name)
  end

  defp dimension_text(%{axes: axes, open: open, priority: priority}) do
    entries = Enum.map(axes, &axis_text/1) ++ if(open, do: ["?"], else: [])
    "{#{Enum.join(entries, ", ")}}#{priority && "p#{priority}"}"
  end

  defp set(_name, []), do: ""
  defp set(name, axes), do: "#{name}{#{Enum.map_join(axes, ", ", &axis_text/1)}}"

  defp axis_text({name, pre_size, size}), do: "#{Mesh.quoted(name)}:(#{pre_size})#{size}"
  defp axis_text(name), do: Mesh.quoted(name)

  defp check!(%{mesh: mesh} = sharding) do
    used =
      Enum.flat_map(sharding.dimensions, & &1.axes) ++ sharding.replicated ++ sharding.unreduced

    for axis <- used, name = axis_name(axis), not List.keymember?(mesh.axes, name, 0) do
      raise ArgumentError, "a sharding: " <> Mesh.no_axis(mesh, name)
    end

    Error.unwrap!(Mesh.read("#sdy.sharding" <> body(sharding), [mesh], "a sharding", :sharding))
    sharding
  end

  defp check_rank!(sharding, template) do
    counts(sharding, Typespec.from(template).shape)
    sharding
  end

  defp find_mesh(name, meshes) when is_binary(name) do
    case Enum.find(meshes, &(&1.name == name)) do
      nil ->
        {:error,
         Error.new(
           :text,
           "a sharding: there is no mesh #{inspect(name)} among " <>
             Enum.map_join(meshes, ", ", &inspect(&1.name))
         )}

      mesh ->
        {:ok, mesh}
    end
  end

  defp find_mesh({:mesh, axes, devices}, _meshes) do
    {:ok, %Mesh{name: "mesh", axes: axes, devices: devices}}
  end

  defp dimension!(nil), do: closed([])
  defp dimension!(:open), do: %{closed([]) | open: true}
  defp dimension!({:open, axes}), do: %{closed(axes) | open: true}

  defp dimension!(%{axes: axes} = dimension) do
    %{
      axes: axes!(axes),
      open: Map.get(dimension, :open, false) == true,
      priority: priority!(Map.get(dimension, :priority))
    }
  end

  defp dimension!(axes), do: closed(axes)

  defp closed(axes), do: %{axes: axes!(axes), open: false, priority: nil}

  defp priority!(nil), do: nil
  defp priority!(priority) when is_integer(priority) and priority >= 0, do: priority

  defp priority!(other) do
    raise ArgumentError, "expected a priority of 0 or more, got: #{inspect(other)}"
  end

  defp axes!(axes), do: axes |> proper!() |> Enum.map(&axis!/1)

  defp proper!(axes) do
    axes = List.wrap(axes)

    unless SpecTerms.proper_list?(axes) do
      raise ArgumentError, "expected a list of axes, got: #{inspect(axes)}"
    end

    axes
  end

  defp axis!({name, pre_size, size})
       when is_integer(pre_size) and is_integer(size) and pre_size > 0 and size > 0 do
    {Mesh.axis_name(name), pre_size, size}
  end

  defp axis!(name), do: Mesh.axis_name(name)

  defp nx_axis!(index, names, mesh) when is_integer(index) do
    if index in 0..(length(names) - 1)//1 do
      Enum.at(names, index)
    else
      raise ArgumentError,
            "a sharding: the mesh #{inspect(mesh.name)} has no axis #{index}; it has #{length(names)}, " <>
              "counted from 0"
    end
  end

  defp nx_axis!(axis, _names, _mesh), do: axis!(axis)

  defp index!(index, %{shape: shape}) when is_integer(index) do
    rank = tuple_size(shape)

    if index in -rank..(rank - 1)//1 do
      if index < 0, do: index + rank, else: index
    else
      raise ArgumentError, "a sharding: there is no dimension #{index} in #{inspect(shape)}"
    end
  end

  defp index!(name, %{names: names} = template) when is_atom(name) do
    case name && Enum.find_index(names, &(&1 == name)) do
      index when is_integer(index) ->
        index

      nil ->
        raise ArgumentError,
              "a sharding: there is no dimension #{inspect(name)} among #{inspect(names)} of " <>
                inspect(template.shape)
    end
  end

  defp index!(other, template) do
    raise ArgumentError,
          "a sharding: expected the index of a dimension, or its name where the template has names, " <>
            "got #{inspect(other)} for #{inspect(template)}"
  end

  defimpl String.Chars do
    alias EXLA.CustomCall.Sharding

    def to_string(sharding), do: "#sdy.sharding" <> Sharding.body(Sharding.formed!(sharding))
  end

  defimpl Inspect do
    def inspect(sharding, opts) do
      EXLA.CustomCall.Sharding.formed!(sharding)
      "#EXLA.CustomCall.Sharding" <> EXLA.CustomCall.Sharding.body(sharding)
    rescue
      # One that somebody wrote by hand, with fields that make no sense.
      ArgumentError -> Inspect.Any.inspect(sharding, opts)
    end
  end
end
