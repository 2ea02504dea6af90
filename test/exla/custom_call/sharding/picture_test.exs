defmodule EXLA.CustomCall.Sharding.PictureTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Mesh, Sharding, Typespec, XML}
  alias EXLA.CustomCall.Sharding.Picture

  doctest Sharding, only: [to_table: 2, to_svg: 3]

  @assets Path.expand("../../../../guides/assets", __DIR__)

  defp mesh, do: Mesh.new(data: 2, model: 4)

  # The table without the lines above the first empty one.
  defp grids(sharding, shape) do
    [_facts, grids] = sharding |> Sharding.to_table(shape) |> String.split("\n\n", parts: 2)
    grids
  end

  describe "to_table/2" do
    test "shows the tensor, the mesh, the sharding and what each device has" do
      sharding = Sharding.new(mesh(), ["data", "model"])

      assert Sharding.to_table(sharding, Typespec.tensor(:f32, {4, 8})) == """
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
             """
    end

    test "lists the devices that have the same part, neighbours as a range" do
      assert grids(Sharding.new(mesh(), ["data", nil]), {4, 8}) == """
                    0..7
                  ┌──────┐
             0..1 │ 0-3  │
                  ├──────┤
             2..3 │ 4-7  │
                  └──────┘
             """

      assert grids(Sharding.new(mesh(), ["model"]), {8}) == """
               0..1   2..3   4..5   6..7
             ┌──────┬──────┬──────┬──────┐
             │ 0,4  │ 1,5  │ 2,6  │ 3,7  │
             └──────┴──────┴──────┴──────┘
             """
    end

    test "shows a scalar as one cell" do
      assert Sharding.to_table(Sharding.new(mesh(), []), {}) == """
             tensor    {}
             mesh      <["data"=2, "model"=4]>
             sharding  <@mesh, []>
             part      {}

             ┌─────┐
             │ 0-7 │
             └─────┘
             """
    end

    test "shows a tensor that is not split as one cell" do
      assert grids(Sharding.replicated(mesh(), 2), {4, 8}) == """
                    0..7
                  ┌──────┐
             0..3 │ 0-7  │
                  └──────┘
             """
    end

    test "names the dimensions that are not drawn, and the template's names" do
      q = %{type: {:f, 32}, shape: {2, 64, 8, 64}, names: [:batch, nil, :heads, nil]}
      sharding = Sharding.new(Mesh.new(model: 2), [nil, nil, "model", nil])

      assert Sharding.to_table(sharding, q) == """
             tensor    f32[2][64][8][64], 262144 bytes
             mesh      <["model"=2]>
             sharding  <@mesh, [{}, {}, {"model"}, {}]>
             part      f32[2][64][4][64], 131072 bytes
             rows      dimension 2 (heads), split by "model"
             columns   dimension 3, not split

             dimension 0 (batch): 0..1, dimension 1: 0..63
                    0..63
                  ┌───────┐
             0..3 │   0   │
                  ├───────┤
             4..7 │   1   │
                  └───────┘
             """
    end

    test "draws a grid for each part of a third dimension" do
      sharding = Sharding.new(Mesh.new(a: 2, b: 2, c: 2), ["a", "b", "c"])

      assert grids(sharding, {2, 2, 4}) == """
             dimension 2: 0..1
                 0   1
               ┌───┬───┐
             0 │ 0 │ 2 │
               ├───┼───┤
             1 │ 4 │ 6 │
               └───┴───┘

             dimension 2: 2..3
                 0   1
               ┌───┬───┐
             0 │ 1 │ 3 │
               ├───┼───┤
             1 │ 5 │ 7 │
               └───┴───┘
             """
    end

    test "follows the order of the mesh's devices, and parts of axes" do
      mesh = Mesh.new([x: 8], devices: [7, 6, 5, 4, 3, 2, 1, 0])

      assert grids(Sharding.new(mesh, [{"x", 2, 2}, {"x", 1, 2}]), {4, 4}) == """
                    0..1   2..3
                  ┌──────┬──────┐
             0..1 │ 6-7  │ 2-3  │
                  ├──────┼──────┤
             2..3 │ 4-5  │ 0-1  │
                  └──────┴──────┘
             """
    end

    test "says that parts along unreduced axes are still to be combined" do
      sharding = Sharding.new(mesh(), ["data"], unreduced: ["model"])

      assert Sharding.to_table(sharding, {4}) =~
               "the parts are still to be combined along the unreduced axes\n"
    end

    test "shows that parts are empty" do
      assert grids(Sharding.new(mesh(), ["data"]), {0}) == """
               none   none
             ┌──────┬──────┐
             │ 0-3  │ 4-7  │
             └──────┴──────┘
             """
    end

    test "cuts a mesh of 4,096 devices and says what it shows" do
      sharding = Sharding.new(Mesh.new(a: 64, b: 64), ["a", "b"])
      table = Sharding.to_table(sharding, {64, 64})

      assert table =~ "63 │ 4032 │ 4033 │ 4034 │ 4035 │ 4036 │ 4037 │  …   │ 4095 │\n"
      assert table =~ "shown: 15 of the 64 parts of dimension 0\n"
      assert table =~ "shown: 7 of the 64 parts of dimension 1\n"
      assert length(String.split(table, "\n")) == 45
    end

    test "cuts a long list of devices and a long list of grids" do
      table = Sharding.to_table(Sharding.new(Mesh.new(a: 64, b: 64), ["b"]), {64})
      assert table =~ "│  0,64,128,… of 64  │"

      table =
        Sharding.to_table(Sharding.new(Mesh.new(a: 2, b: 2, c: 64), ["a", "b", "c"]), {2, 2, 64})

      assert table =~ "shown: 8 of 64 grids\n"
    end

    test "costs no more for 2^40 devices" do
      sharding = Sharding.new(Mesh.new(a: 2 ** 20, b: 2 ** 20), ["b", nil])

      assert grids(sharding, {2 ** 20, 8}) =~
               "0 │    0,1048576,2097152,… of 1048576    │"
    end
  end

  defp texts(svg, path), do: svg |> XML.parse!() |> XML.select(path) |> Enum.map(&XML.text/1)

  defp attributes(svg, path, name) do
    for {_, %{^name => value}, _} <- svg |> XML.parse!() |> XML.select(path), do: value
  end

  # What the strip of the device at this place says.
  defp strip(svg, index) do
    svg
    |> XML.parse!()
    |> XML.select("g.strip")
    |> Enum.at(index)
    |> XML.select("text")
    |> Enum.map(&XML.text/1)
  end

  describe "to_svg/3" do
    test "has a cell for each part, in the colours of the devices, with their numbers" do
      svg = Sharding.to_svg(Sharding.new(mesh(), ["data", "model"]), {4, 8}, layout: nil)

      assert texts(svg, "g.cell text") == ~w(0 1 2 3 4 5 6 7)

      assert attributes(svg, "g.cell rect", "fill") ==
               ~w(#88CCEE #CC6677 #DDCC77 #117733 #AA4499 #44AA99 #999933 #882255)
    end

    test "stripes a part that several devices have" do
      svg = Sharding.to_svg(Sharding.new(mesh(), ["model"]), {4}, layout: nil)

      assert texts(svg, "g.cell text") == ~w(0,4 1,5 2,6 3,7)
      assert svg |> attributes("g.cell rect", "fill") |> Enum.take(2) == ~w(#88CCEE #AA4499)
    end

    test "goes from dark to light where there are more than ten devices" do
      svg = Sharding.to_svg(Sharding.new(Mesh.new(x: 11), ["x"]), {11}, layout: nil)
      fills = attributes(svg, "g.cell rect", "fill")

      assert length(Enum.uniq(fills)) == 11
      assert {hd(fills), List.last(fills)} == {"#002E6C", "#FFEA46"}
    end

    test "has the index ranges and the axes at the edges" do
      svg = Sharding.to_svg(Sharding.new(mesh(), ["data", "model"]), {4, 8}, layout: nil)
      texts = texts(svg, "text")

      for text <- ["0..1", "2..3", "4..5", "6..7", "\"data\"", "dimension 1, split by \"model\""] do
        assert text in texts
      end
    end

    test "shows the elements of each device in row-major order by default" do
      svg =
        Sharding.to_svg(Sharding.new(mesh(), ["data", "model"]), Typespec.tensor(:f32, {4, 8}))

      assert strip(svg, 0) == [
               "device 0",
               "[0,0]",
               "[0,1]",
               "[1,0]",
               "[1,1]"
             ]

      assert strip(svg, 7) == [
               "device 7",
               "[2,6]",
               "[2,7]",
               "[3,6]",
               "[3,7]"
             ]

      assert "In memory, fastest first, with strides: dimension 1 (1), dimension 0 (2)" in texts(
               svg,
               "text"
             )

      assert svg |> texts("text") |> Enum.take(-6) == ~w(byte 0 4 8 12 16)
    end

    test "shows the elements of each device in the order of the layout" do
      svg = Sharding.to_svg(Sharding.new(mesh(), ["data", "model"]), {4, 8}, layout: [0, 1])

      assert strip(svg, 0) == [
               "device 0",
               "[0,0]",
               "[1,0]",
               "[0,1]",
               "[1,1]"
             ]
    end

    test "runs a line along the dimension that varies fastest" do
      sharding = Sharding.replicated(Mesh.new(x: 1), 2)

      # From the left to the right and then down; from the top to the bottom and then right.
      row_major = Sharding.to_svg(sharding, {2, 2})
      column_major = Sharding.to_svg(sharding, {2, 2}, layout: [0, 1])

      assert ["M" <> _ = path] = attributes(row_major, "path.order", "d")
      assert [[x1, y1], [x2, y1], [x1, y2], [x2, y2]] = points(path)
      assert x1 < x2 and y1 < y2

      assert [path] = attributes(column_major, "path.order", "d")
      assert points(path) == [[x1, y1], [x1, y2], [x2, y1], [x2, y2]]
    end

    test "draws the dimensions that it is told to, and says where the others are" do
      sharding = Sharding.new(mesh(), ["data", nil, "model"])
      svg = Sharding.to_svg(sharding, {2, 3, 8}, dimensions: [1, 2], layout: nil)

      assert texts(svg, "g.cell text") == ~w(0 1 2 3)
      assert "dimension 0 at 0, the first of 2 parts, split by \"data\"" in texts(svg, "text")
    end

    test "has a title and a description for who does not see it" do
      svg = Sharding.to_svg(Sharding.new(mesh(), ["data"]), Typespec.tensor(:f32, {4}))

      assert texts(svg, "title") == [~s(f32[4] as <@mesh, [{"data"}]>)]

      assert texts(svg, "desc") == [
               ~s(tensor f32[4], 16 bytes; mesh <["data"=2, "model"=4]>; sharding <@mesh, [{"data"}]>; ) <>
                 ~s(part f32[2], 8 bytes; dimension 0 is split by "data" into 2; ) <>
                 "in memory, fastest first: dimension 0 (1)"
             ]
    end

    test "escapes what a name or a title holds" do
      mesh = Mesh.new([{"</svg>&'", 2}], name: "]]>")
      svg = Sharding.to_svg(Sharding.new(mesh, ["</svg>&'"]), {2}, title: "<script>\0ü</script>")

      assert texts(svg, "title") == ["<script>\uFFFDü</script>"]
      assert ~S(dimension 0, split by "</svg>&'") in texts(svg, "text")
      assert texts(svg, "script") == []
    end

    test "cuts a mesh of 4,096 devices and says what it shows" do
      svg = Sharding.to_svg(Sharding.new(Mesh.new(a: 64, b: 64), ["a", "b"]), {256, 256})

      assert length(texts(svg, "g.cell")) == 225
      assert length(texts(svg, "g.strip")) == 8
      assert "Shown: 15 of the 64 parts of dimension 0." in texts(svg, "text")
      assert "Shown: 8 of 4096 devices." in texts(svg, "text")
      assert byte_size(svg) < 200_000
    end

    test "draws a scalar and empty parts" do
      assert Sharding.new(mesh(), []) |> Sharding.to_svg({}) |> texts("g.cell text") ==
               ["0-7"]

      svg = Sharding.to_svg(Sharding.new(mesh(), ["data"]), {0})
      assert "The parts are empty." in texts(svg, "text")
    end

    defp points("M" <> path) do
      for point <- String.split(path, "L"),
          do: point |> String.split(" ") |> Enum.map(&elem(Float.parse(&1), 0))
    end
  end

  describe "what does not fit" do
    test "a shape of another rank is an error" do
      message = "a sharding of 1 dimensions does not fit the shape {4, 8}"
      sharding = Sharding.new(mesh(), ["data"])

      assert_raise ArgumentError, message, fn -> Sharding.to_table(sharding, {4, 8}) end
      assert_raise ArgumentError, message, fn -> Sharding.to_svg(sharding, {4, 8}) end
    end

    test "a shape that does not divide is an error" do
      message =
        "dimension 0 of {7} is not a multiple of 2, the devices along \"data\"; pad it to 8, or leave it whole"

      sharding = Sharding.new(mesh(), ["data"])

      assert_raise ArgumentError, message, fn -> Sharding.to_table(sharding, {7}) end
      assert_raise ArgumentError, message, fn -> Sharding.to_svg(sharding, {7}) end
    end

    test "a token is no tensor" do
      assert_raise ArgumentError,
                   "expected a tensor's shape or its template, as a sharding splits tensors, got: " <>
                     "#EXLA.CustomCall.Typespec<token>",
                   fn -> Sharding.to_table(Sharding.new(mesh(), []), Typespec.token()) end
    end

    test "options of another kind are errors that name the option" do
      sharding = Sharding.new(mesh(), ["data", nil])

      for {opts, message} <- [
            {[layout: [0, 2]], "expected a layout to hold each of 0 to 1 once, got: [0, 2]"},
            {[layout: [0]], "expected :layout to hold each of the 2 dimensions once, got: [0]"},
            {[dimensions: [0, 0]],
             "expected :dimensions as the 2 of {4, 8} to draw, counted from 0, the rows first, got: [0, 0]"},
            {[title: 1], "expected :title as a UTF-8 binary, got: 1"},
            {[colour: 1], "unknown option :colour; the options are :layout, :dimensions, :title"}
          ] do
        assert_raise ArgumentError, message, fn -> Sharding.to_svg(sharding, {4, 8}, opts) end
      end
    end
  end

  describe "the devices of the parts" do
    for {name, mesh, dimensions, shape} <- [
          {"two axes", Macro.escape(Mesh.new(data: 2, model: 4)), ["model", "data"], {8, 8}},
          {"two axes on one dimension", Macro.escape(Mesh.new(data: 2, model: 4)),
           [["model", "data"], nil], {8, 8}},
          {"parts of an axis, in an order of its own",
           Macro.escape(Mesh.new([x: 8, y: 3], devices: Enum.to_list(23..0//-1))),
           Macro.escape([{"x", 2, 2}, ["y", {"x", 1, 2}]]), {4, 12}},
          {"axes that split nothing", Macro.escape(Mesh.new(a: 2, b: 2, c: 3, d: 2)),
           ["d", nil, "c"], {2, 5, 3}}
        ] do
      test "are those of slices/2, with #{name}" do
        sharding = Sharding.new(unquote(mesh), unquote(dimensions))
        shape = unquote(Macro.escape(shape))
        picture = Picture.new(sharding, shape)
        devices = Picture.devices(picture, 100)

        slices =
          for {device, tile} <- devices do
            {device, Enum.zip_with(tile, Tuple.to_list(picture.local), &{&1 * &2, &2})}
          end

        assert slices == Sharding.slices(sharding, shape)

        for {tile, holders} <- Enum.group_by(devices, &elem(&1, 1), &elem(&1, 0)) do
          assert {count, ranges} = Picture.holders(picture, tile, 100)
          assert {count, Enum.flat_map(ranges, &Enum.to_list/1)} == {length(holders), holders}
        end
      end
    end
  end

  @tag :tmp_dir
  test "the guides' pictures are what their script draws", %{tmp_dir: folder} do
    script = Path.join(@assets, "pictures.exs")
    argv = System.argv()
    on_exit(fn -> System.argv(argv) end)
    System.argv([folder])
    Code.eval_file(script)

    drawn = folder |> File.ls!() |> Enum.sort()

    assert drawn ==
             @assets
             |> Path.join("*.svg")
             |> Path.wildcard()
             |> Enum.map(&Path.basename/1)
             |> Enum.sort()

    for name <- drawn do
      assert File.read!(Path.join(folder, name)) == File.read!(Path.join(@assets, name)),
             "#{name} is not what guides/assets/pictures.exs draws; run it again"
    end
  end
end
