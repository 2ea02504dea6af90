defmodule EXLA.CustomCall.ShardingTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Mesh, Sharding, Typespec}

  doctest EXLA.CustomCall.Sharding

  @mesh Mesh.new(data: 2, model: 4)

  test "a sharding prints as Shardy writes it, and reads back" do
    for {sharding, text} <- [
          {Sharding.new(@mesh, []), "#sdy.sharding<@mesh, []>"},
          {Sharding.new(@mesh, [nil, :open, "data"]),
           ~S(#sdy.sharding<@mesh, [{}, {?}, {"data"}]>)},
          {Sharding.new(@mesh, [{:open, [:model]}, ["data"]]),
           ~S(#sdy.sharding<@mesh, [{"model", ?}, {"data"}]>)},
          {Sharding.new(@mesh, [[{"model", 1, 2}], {"model", 2, 2}]),
           ~S(#sdy.sharding<@mesh, [{"model":(1\)2}, {"model":(2\)2}]>)},
          {Sharding.new(@mesh, [%{axes: ["data"], priority: 1}]),
           ~S(#sdy.sharding<@mesh, [{"data"}p1]>)},
          {Sharding.new(@mesh, [nil], replicated: ["model"]),
           ~S(#sdy.sharding<@mesh, [{}], replicated={"model"}>)},
          {Sharding.new(@mesh, [nil], unreduced: ["model"]),
           ~S(#sdy.sharding<@mesh, [{}], unreduced={"model"}>)},
          {Sharding.new(Mesh.new([x: 2], name: "a mesh"), ["x"]),
           ~S(#sdy.sharding<@"a mesh", [{"x"}]>)}
        ] do
      assert to_string(sharding) == text
      assert Sharding.parse(text, sharding.mesh) == {:ok, sharding}
    end
  end

  test "the maps that Nx takes are taken: dimensions by index or name, axes by index or name" do
    tensor = %{shape: {4, 8, 16}, type: {:f, 32}, names: [:batch, nil, :heads]}
    expected = Sharding.new(@mesh, ["data", nil, "model"])
    assert Sharding.from(%{0 => [0], 2 => [1]}, @mesh, tensor) == expected
    assert Sharding.from(%{-3 => ["data"], heads: :model}, @mesh, tensor) == expected
    assert Sharding.from(["data", nil, "model"], @mesh, tensor) == expected
    assert Sharding.from(expected, nil, tensor) == expected
    assert Sharding.from(%{}, @mesh, tensor) == Sharding.replicated(@mesh, 3)
  end

  describe "refused is" do
    test "an axis that the mesh lacks, an axis used twice, and a part that is the whole" do
      assert_raise ArgumentError,
                   ~S(a sharding: the mesh "mesh" has no axis "x"; it has "data", "model"),
                   fn -> Sharding.new(@mesh, ["x"]) end

      assert_raise ArgumentError, ~r/axis "data" is used twice|was used before/, fn ->
        Sharding.new(@mesh, ["data", "data"])
      end

      assert_raise ArgumentError, ~r/as large as the axis; write the axis itself/, fn ->
        Sharding.new(@mesh, [{"model", 1, 4}])
      end
    end

    test "a shape of another rank, and one that the devices do not divide" do
      assert_raise ArgumentError,
                   "a sharding of 1 dimensions does not fit the shape {2, 2}",
                   fn -> Sharding.local_shape(Sharding.new(@mesh, ["data"]), {2, 2}) end

      assert_raise ArgumentError,
                   ~S(dimension 0 of {6} is not a multiple of 4, the devices along "model"; pad it to 8, or leave it whole),
                   fn -> Sharding.local_shape(Sharding.new(@mesh, ["model"]), {6}) end
    end

    test "a map with a dimension or an axis that is not there, or one given twice" do
      tensor = Typespec.tensor(:f32, {4, 8})

      assert_raise ArgumentError, "a sharding: there is no dimension 2 in {4, 8}", fn ->
        Sharding.from(%{2 => [0]}, @mesh, tensor)
      end

      assert_raise ArgumentError,
                   ~S(a sharding: the mesh "mesh" has no axis 2; it has 2, counted from 0),
                   fn -> Sharding.from(%{0 => [2]}, @mesh, tensor) end

      assert_raise ArgumentError, ~r/dimension 0 is given twice/, fn ->
        Sharding.from(%{0 => [0], -2 => [1]}, @mesh, tensor)
      end

      assert_raise ArgumentError, ~r/or its name where the template has names/, fn ->
        Sharding.from(%{heads: [0]}, @mesh, tensor)
      end
    end
  end

  describe "slices" do
    test "a dimension split by two axes has the major axis first" do
      slices = Sharding.slices(Sharding.new(@mesh, [["data", "model"]]), {16})

      assert for({device, [{start, 2}]} <- slices, do: {device, start}) ==
               [{0, 0}, {1, 2}, {2, 4}, {3, 6}, {4, 8}, {5, 10}, {6, 12}, {7, 14}]

      slices = Sharding.slices(Sharding.new(@mesh, [["model", "data"]]), {16})

      assert for({device, [{start, 2}]} <- slices, do: {device, start}) ==
               [{0, 0}, {1, 4}, {2, 8}, {3, 12}, {4, 2}, {5, 6}, {6, 10}, {7, 14}]
    end

    test "parts of axes split as Shardy splits them: the first is the major one" do
      sharding = Sharding.new(@mesh, [{"model", 2, 2}, {"model", 1, 2}])

      assert for({device, slice} <- Sharding.slices(sharding, {2, 2}), device < 4, do: slice) ==
               [
                 [{0, 1}, {0, 1}],
                 [{1, 1}, {0, 1}],
                 [{0, 1}, {1, 1}],
                 [{1, 1}, {1, 1}]
               ]
    end

    test "the order of the mesh's devices decides which device has which part" do
      mesh = Mesh.new([x: 3], devices: [2, 0, 1])

      assert Sharding.slices(Sharding.new(mesh, ["x"]), {3}) ==
               [{0, [{1, 1}]}, {1, [{2, 1}]}, {2, [{0, 1}]}]
    end
  end
end
