defmodule EXLA.CustomCall.MeshTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.Mesh

  doctest EXLA.CustomCall.Mesh

  test "a mesh prints as Shardy writes it, and reads back" do
    for mesh <- [
          Mesh.new([{"x", 2}]),
          Mesh.new([data: 2, model: 4], name: "tp"),
          Mesh.new([x: 2, y: 2], devices: [3, 2, 1, 0]),
          Mesh.new([{"a \"b\" {c}", 2}]),
          Mesh.new([]),
          Mesh.new([], devices: [5])
        ] do
      assert Mesh.parse(to_string(mesh), name: mesh.name) == {:ok, mesh}
    end
  end

  test "an Nx mesh is taken by its fields, with EXLA's names of the axes" do
    nx = %{__struct__: Nx.Mesh, name: "mesh", shape: {2, 4}}
    assert Mesh.from(nx) == Mesh.new([{"axis_0", 2}, {"axis_1", 4}])
  end

  describe "refused is" do
    test "an axis of no devices" do
      assert_raise ArgumentError,
                   ~S(a mesh: axis "x": its size is 0; a size is 1 or more),
                   fn -> Mesh.new(x: 0) end
    end

    test "a list that leaves out a device" do
      assert_raise ArgumentError,
                   "a mesh: device_ids: 1 device is listed and the axes span 2; list every device once, or none",
                   fn -> Mesh.new([x: 2], devices: [0]) end
    end

    test "several faults, all at once" do
      message = """
      2 faults:
        1. a mesh: device_ids: device 7 is beyond the 2 of the mesh, 0 to 1
        2. a mesh: device_ids: device 7 is beyond the 2 of the mesh, 0 to 1\
      """

      assert_raise ArgumentError, message, fn -> Mesh.new([x: 2], devices: [7, 7]) end
    end

    test "what is no axis, no name and no mesh" do
      assert_raise ArgumentError, ~r/expected the axes of a mesh as {name, size} pairs/, fn ->
        Mesh.new(%{x: 2})
      end

      assert_raise ArgumentError, ~r/got {"x", "2"} among them/, fn -> Mesh.new([{"x", "2"}]) end
      assert_raise ArgumentError, ~r/expected the name of an axis/, fn -> Mesh.new([{7, 2}]) end
      assert_raise ArgumentError, ~r/the name of a mesh/, fn -> Mesh.new([x: 2], name: nil) end
      assert_raise ArgumentError, ~r/an Nx.Mesh, got: {2, 4}/, fn -> Mesh.from({2, 4}) end
    end

    test "a text of another attribute" do
      assert {:error, %{kind: :text, message: message}} = Mesh.parse("#sdy.sharding<@m, []>")

      assert message ==
               ~S(a mesh: expected a mesh, such as #sdy.mesh<["x"=2]>, got: "#sdy.sharding<@m, []>")

      assert {:error, %{kind: :argument}} = Mesh.parse(:mesh)
    end
  end

  test "the devices of a mesh that is too large are not listed, though it may be written" do
    mesh = Mesh.new(x: 1_000_000, y: 1_000_000)
    assert to_string(mesh) == ~S(#sdy.mesh<["x"=1000000, "y"=1000000]>)

    for list <- [&Mesh.devices/1, &Mesh.groups(&1, ["x"])] do
      assert_raise ArgumentError,
                   "a mesh of 1000000000000 devices is too large to list them; at most 1048576 are listed",
                   fn -> list.(mesh) end
    end
  end

  test "a mesh that somebody wrote by hand is looked at before it is used" do
    mesh = %{Mesh.new(x: 2) | axes: [{"x", 0}]}

    assert_raise ArgumentError, ~r/as EXLA.CustomCall.Mesh.new\/2 makes it/, fn ->
      Mesh.size(mesh)
    end

    assert inspect(mesh) =~ "%EXLA.CustomCall.Mesh{"
  end

  test "a mesh of 65,536 devices is printed and read in no time to speak of" do
    mesh = Mesh.new([x: 256, y: 256], devices: Enum.reverse(0..65_535))
    assert Mesh.size(mesh) == 65_536
    assert {:ok, ^mesh} = Mesh.parse(to_string(mesh))
  end
end
