defmodule EXLA.CustomCall.Mesh do
  @moduledoc """
  Devices in a grid with named axes: what a sharding splits tensors over.

      iex> mesh = EXLA.CustomCall.Mesh.new(data: 2, model: 4)
      iex> to_string(mesh)
      ~S(#sdy.mesh<["data"=2, "model"=4]>)
      iex> EXLA.CustomCall.Mesh.size(mesh)
      8

  The devices are numbered 0, 1, 2, ... in row-major order of the axes: with the mesh above, device 5
  is at 1 along `"data"` and at 1 along `"model"`. These numbers are those of a program's partitions;
  `:device_assignment` of `EXLA.CustomCall.Client.compile/3` says which device of the client each is.
  `:devices` puts them in another order.

  A mesh has a name, by which shardings in StableHLO speak of it. `EXLA.CustomCall.Module.build/3` puts
  the meshes of all its shardings into the module.

  Source: Shardy's `MeshAttr` and `MeshOp`.
  """

  alias EXLA.CustomCall.{Error, Native, SpecTerms}

  @enforce_keys [:name, :axes]
  defstruct [:name, :axes, devices: []]

  @typedoc """
    * `:name` - what shardings call it;
    * `:axes` - names and sizes, the major axis first;
    * `:devices` - the devices in row-major order of the axes; `[]` for 0, 1, 2, ...
  """
  @type t :: %__MODULE__{
          name: String.t(),
          axes: [{String.t(), pos_integer()}],
          devices: [non_neg_integer()]
        }

  @typedoc "The name of an axis; an atom is short for the string."
  @type axis :: String.t() | atom()

  @doc """
  A mesh with these axes, the major one first: `{name, size}` pairs, or a keyword list.

  ## Options

    * `:name` - default `"mesh"`;
    * `:devices` - the devices in row-major order of the axes, each once. Default: 0, 1, 2, ...

  Raises `ArgumentError` for a mesh that Shardy would refuse:

      iex> EXLA.CustomCall.Mesh.new(data: 2, data: 4)
      ** (ArgumentError) a mesh: axis "data": the mesh has two axes of this name; name each differently

  ## Examples

      iex> EXLA.CustomCall.Mesh.new([{"x", 2}, {"y", 2}], name: "ring", devices: [0, 1, 3, 2])
      #EXLA.CustomCall.Mesh<@ring ["x"=2, "y"=2], device_ids=[0, 1, 3, 2]>
  """
  @spec new([{axis(), pos_integer()}], keyword()) :: t()
  def new(axes, opts \\ []) do
    opts = opts |> EXLA.CustomCall.Options.validate(name: "mesh", devices: []) |> Error.unwrap!()

    Error.unwrap!(check_name(opts[:name]))

    devices = opts[:devices]

    unless SpecTerms.proper_list?(devices) and Enum.all?(devices, &int64?/1) do
      raise ArgumentError, "expected :devices as a list of integers, got: #{inspect(devices)}"
    end

    unless SpecTerms.proper_list?(axes) do
      raise ArgumentError,
            "expected the axes of a mesh as {name, size} pairs, got: #{inspect(axes)}"
    end

    mesh = %__MODULE__{name: opts[:name], axes: Enum.map(axes, &axis!/1), devices: devices}
    check!(mesh)
  end

  @doc """
  A mesh from a mesh, or from an `Nx.Mesh`, whose axes get the names that EXLA gives them: `"axis_0"`,
  `"axis_1"`, ...

  ## Examples

      iex> EXLA.CustomCall.Mesh.from(%{__struct__: Nx.Mesh, name: "mesh", shape: {2, 4}})
      #EXLA.CustomCall.Mesh<@mesh ["axis_0"=2, "axis_1"=4]>
  """
  @spec from(t() | map()) :: t()
  def from(%{__struct__: __MODULE__} = mesh), do: formed!(mesh)

  def from(%{__struct__: Nx.Mesh, name: name, shape: shape}) when is_tuple(shape) do
    axes = shape |> Tuple.to_list() |> Enum.with_index(&{"axis_#{&2}", &1})
    new(axes, name: if(is_atom(name) and name != nil, do: Atom.to_string(name), else: name))
  end

  def from(other) do
    raise ArgumentError,
          "expected an EXLA.CustomCall.Mesh or an Nx.Mesh, got: #{inspect(other)}"
  end

  @doc false
  # A struct that somebody wrote by hand may hold anything.
  def formed!(%{__struct__: __MODULE__, name: name, axes: axes, devices: devices} = mesh) do
    axis? = fn
      {name, size} -> is_binary(name) and int64?(size) and size > 0
      _ -> false
    end

    if is_binary(name) and name != "" and SpecTerms.proper_list?(axes) and
         Enum.all?(axes, axis?) and SpecTerms.proper_list?(devices) and
         Enum.all?(devices, &(int64?(&1) and &1 >= 0)) and
         (devices == [] or axes == [] or length(devices) == product(axes)) do
      mesh
    else
      raise ArgumentError,
            "expected a mesh as EXLA.CustomCall.Mesh.new/2 makes it, got the fields: " <>
              inspect(Map.from_struct(mesh), structs: false)
    end
  end

  def formed!(other) do
    # Not as the struct that it may be, whose fields are looked at to print it.
    raise ArgumentError,
          "expected an EXLA.CustomCall.Mesh, got: #{inspect(other, structs: false)}"
  end

  defp product(axes), do: axes |> Enum.map(&elem(&1, 1)) |> Enum.product()

  @doc """
  The mesh of a text, as `to_string/1` writes it.

  ## Examples

      iex> EXLA.CustomCall.Mesh.parse(~S(#sdy.mesh<["x"=2]>))
      {:ok, EXLA.CustomCall.Mesh.new(x: 2)}
      iex> {:error, error} = EXLA.CustomCall.Mesh.parse(~S(#sdy.mesh<["x"]>))
      iex> {error.message, error.column}
      {~S(a mesh: expected '=' after the name of an axis, found "]", at line 1, column 15), 15}
  """
  @spec parse(binary(), keyword()) :: {:ok, t()} | {:error, Error.t()}
  def parse(text, opts \\ []) do
    with {:ok, opts} <- EXLA.CustomCall.Options.validate(opts, name: "mesh"),
         :ok <- check_name(opts[:name]),
         {:ok, {:mesh, axes, devices}} <- read(text, [], "a mesh", :mesh) do
      {:ok, %__MODULE__{name: opts[:name], axes: axes, devices: devices}}
    end
  end

  @doc """
  How many devices the mesh has.
  """
  @spec size(t()) :: pos_integer()
  def size(mesh) do
    case formed!(mesh) do
      %{axes: [], devices: devices} -> max(length(devices), 1)
      %{axes: axes} -> product(axes)
    end
  end

  @doc """
  The devices in row-major order of the axes. Raises `ArgumentError` for a mesh of more than 1,048,576.

  ## Examples

      iex> EXLA.CustomCall.Mesh.devices(EXLA.CustomCall.Mesh.new(x: 3))
      [0, 1, 2]
  """
  @spec devices(t()) :: [non_neg_integer()]
  def devices(mesh) do
    case formed!(mesh) do
      %{devices: []} -> mesh |> listed!() |> then(&Enum.to_list(0..(&1 - 1)//1))
      %{devices: devices} -> devices
    end
  end

  # A mesh of any size may be written into a module, and its devices may be too many to list.
  @most_listed 1_048_576

  defp listed!(mesh) do
    case size(mesh) do
      size when size <= @most_listed ->
        size

      size ->
        raise ArgumentError,
              "a mesh of #{size} devices is too large to list them; at most #{@most_listed} are listed"
    end
  end

  @doc """
  The devices in groups that differ along `axes` alone, as a collective over these axes wants them.

  ## Examples

      iex> mesh = EXLA.CustomCall.Mesh.new(data: 2, model: 2)
      iex> EXLA.CustomCall.Mesh.groups(mesh, ["data"])
      [[0, 2], [1, 3]]
  """
  @spec groups(t(), [axis()]) :: [[non_neg_integer()]]
  def groups(mesh, axes) do
    %{axes: mesh_axes} = formed!(mesh)

    unless SpecTerms.proper_list?(axes) do
      raise ArgumentError, "expected a list of axes, got: #{inspect(axes)}"
    end

    axes = Enum.map(axes, &axis_name/1)
    for axis <- axes, do: axis_size!(mesh, axis)
    inside = for {{name, _}, index} <- Enum.with_index(mesh_axes), name in axes, do: index

    mesh
    |> coordinates()
    |> Enum.group_by(
      fn {_device, at} -> Enum.reduce(inside, at, &put_elem(&2, &1, 0)) end,
      &elem(&1, 0)
    )
    |> Enum.sort_by(fn {at, _devices} -> at end)
    |> Enum.map(&elem(&1, 1))
  end

  @doc false
  # Each device with its place along each axis, in row-major order of the axes.
  def coordinates(%__MODULE__{axes: axes} = mesh) do
    listed!(mesh)

    places =
      Enum.reduce(axes, [[]], fn {_, n}, done -> for at <- done, i <- 0..(n - 1), do: [i | at] end)

    Enum.zip_with(devices(mesh), places, fn device, at ->
      {device, at |> Enum.reverse() |> List.to_tuple()}
    end)
  end

  @doc false
  def axis_size!(%__MODULE__{axes: axes} = mesh, axis) do
    case List.keyfind(axes, axis, 0) do
      {_, size} -> size
      nil -> raise ArgumentError, no_axis(mesh, axis)
    end
  end

  @doc false
  def no_axis(%__MODULE__{name: name, axes: axes}, axis) do
    names = Enum.map_join(axes, ", ", fn {name, _} -> inspect(name) end)

    "the mesh #{inspect(name)} has no axis #{inspect(axis)}; it has #{if names == "", do: "none", else: names}"
  end

  @doc false
  def axis_name(name) when is_binary(name), do: name
  def axis_name(name) when is_atom(name) and name != nil, do: Atom.to_string(name)

  def axis_name(other) do
    raise ArgumentError, "expected the name of an axis, such as \"model\", got: #{inspect(other)}"
  end

  @doc false
  # The `{name, text}` pair that the NIF takes.
  def to_native(%__MODULE__{name: name} = mesh), do: {name, to_string(mesh)}

  @doc false
  # Reads and checks an attribute of Shardy's, which must be of this kind.
  def read(text, meshes, what, kind) when is_binary(text) do
    case Native.shardy_read(text, Enum.map(meshes, &to_native/1)) do
      {:ok, data} when elem(data, 0) == kind ->
        {:ok, data}

      {:syntax, byte, message} ->
        before = binary_part(text, 0, min(byte, byte_size(text)))
        lines = :binary.split(before, "\n", [:global])
        {line, column} = {length(lines), byte_size(List.last(lines)) + 1}

        {:error,
         Error.new(:text, "#{what}: #{message}, at line #{line}, column #{column}",
           line: line,
           column: column
         )}

      {:faults, data, messages} when elem(data, 0) == kind ->
        errors = Enum.map(messages, &Error.new(:text, "#{what}: #{&1}"))
        {:error, Error.join(errors)}

      _other ->
        {:error,
         Error.new(
           :text,
           "#{what}: expected #{example(kind)}, got: #{inspect(text, printable_limit: 200)}"
         )}
    end
  end

  def read(other, _meshes, what, _kind) do
    {:error, Error.new(:argument, "#{what}: expected a binary, got: #{inspect(other)}")}
  end

  defp example(:mesh), do: ~S(a mesh, such as #sdy.mesh<["x"=2]>)
  defp example(:sharding), do: ~S(a sharding, such as #sdy.sharding<@mesh, [{"x"}, {}]>)
  defp example(:rule), do: "a rule, such as #sdy.op_sharding_rule<([i])->([i]) {i=2}>"

  defp check!(mesh) do
    Error.unwrap!(read(text(mesh), [], "a mesh", :mesh))
    mesh
  end

  defp check_name(name) when is_binary(name) and name != "", do: :ok

  defp check_name(other) do
    {:error,
     Error.new(:argument, "expected the name of a mesh as a binary, got: #{inspect(other)}",
       field: :name
     )}
  end

  defp axis!({name, size}) when is_integer(size) do
    if int64?(size) do
      {axis_name(name), size}
    else
      raise ArgumentError, "a mesh: axis #{inspect(name)} of #{size} is too large"
    end
  end

  defp axis!(other) do
    raise ArgumentError,
          "expected the axes of a mesh as {name, size} pairs, got #{inspect(other)} among them"
  end

  defp int64?(value), do: is_integer(value) and abs(value) < 0x8000_0000_0000_0000

  @doc false
  # A string as MLIR reads it: whatever a name holds, it stays inside its quotes.
  def quoted(name) do
    escaped =
      for <<byte <- name>>, into: "" do
        cond do
          byte in [?", ?\\] -> <<?\\, byte>>
          byte in 0x20..0x7E -> <<byte>>
          true -> "\\" <> Base.encode16(<<byte>>)
        end
      end

    "\"#{escaped}\""
  end

  # The text of what may be at fault.
  defp text(%{axes: axes, devices: devices}) do
    axes = Enum.map_join(axes, ", ", fn {name, size} -> "#{quoted(name)}=#{size}" end)
    devices = if devices == [], do: "", else: ", device_ids=[#{Enum.join(devices, ", ")}]"
    "#sdy.mesh<[#{axes}]#{devices}>"
  end

  @doc false
  def to_text(mesh), do: mesh |> formed!() |> text()

  defimpl String.Chars do
    def to_string(mesh), do: EXLA.CustomCall.Mesh.to_text(mesh)
  end

  defimpl Inspect do
    def inspect(mesh, opts) do
      EXLA.CustomCall.Mesh.formed!(mesh)
      "#sdy.mesh<" <> rest = to_string(mesh)
      "#EXLA.CustomCall.Mesh<@#{mesh.name} #{rest}"
    rescue
      # One that somebody wrote by hand, with fields that make no sense.
      ArgumentError -> Inspect.Any.inspect(mesh, opts)
    end
  end
end
