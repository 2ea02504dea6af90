# The pictures of the guides: `mix run guides/assets/pictures.exs` writes them anew.

alias EXLA.CustomCall.{Mesh, Sharding, Typespec}

mesh = Mesh.new(data: 2, model: 4)
q = %{type: {:f, 32}, shape: {2, 64, 8, 64}, names: [:batch, :sequence, :heads, :size]}
part = Typespec.tensor(:f32, {4, 3})
whole = Sharding.new(Mesh.new(model: 1), [nil, nil])

by_heads = fn count ->
  Sharding.to_svg(Sharding.new(Mesh.new(model: count), [nil, nil, "model", nil]), q,
    title: "Attention's q, split by heads over #{count} devices"
  )
end

pictures = %{
  "sharding_data_model.svg" =>
    Sharding.to_svg(Sharding.new(mesh, ["data", "model"]), Typespec.tensor(:f32, {4, 8}),
      layout: nil,
      title: "A tensor over data=2 and model=4"
    ),
  "sharding_heads_2.svg" => by_heads.(2),
  "sharding_heads_8.svg" => by_heads.(8),
  "layout_row_major.svg" => Sharding.to_svg(whole, part, title: "Row-major, layout [1, 0]"),
  "layout_column_major.svg" =>
    Sharding.to_svg(whole, part, layout: [0, 1], title: "Column-major, layout [0, 1]")
}

# Where the pictures go, if not beside this file.
folder = List.first(System.argv()) || __DIR__

for {name, svg} <- pictures, do: File.write!(Path.join(folder, name), svg)
