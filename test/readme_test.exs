defmodule EXLA.CustomCall.ReadmeTest do
  # Not async: it defines the README's modules and prints, and there is one sink for telemetry.
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO

  alias EXLA.CustomCall.{Guide, Telemetry}

  @root Path.expand("..", __DIR__)
  @readme File.read!(Path.join(@root, "README.md"))
  @library "native/target/release/librow_scale.so"

  @moduletag :tmp_dir
  @moduletag timeout: 300_000

  defp blocks(language), do: Guide.blocks(@readme, language)

  # The handler's crate, with the path to this checkout's xla_ffi.
  defp build_handler(folder) do
    [manifest] = blocks("toml")
    [source] = blocks("rust")
    assert manifest =~ ~s("../../exla_custom_call/native/xla_ffi")
    manifest = String.replace(manifest, "../../exla_custom_call", @root)
    Guide.build_crate!(folder, "row_scale", manifest, source)
  end

  test "its examples do what it says", %{tmp_dir: folder} do
    on_exit(fn -> Telemetry.put_module(nil) end)
    library = build_handler(folder)
    [mlir] = blocks("mlir")
    elixir = Enum.reject(blocks("elixir"), &(&1 =~ ~r/\A(def deps|config )/))
    assert Enum.any?(elixir, &(&1 =~ @library))
    replace = %{@library => library, "/tmp/my_app" => Path.join(folder, "cache")}

    printed = capture_io(fn -> send(self(), {:checked, Guide.run!(elixir, replace)}) end)

    assert printed == mlir <> "\n"
    assert_received {:checked, checked}
    assert checked == length(Regex.scan(~r/^#=> /m, @readme))
  end

  test "the files that it names are there" do
    for document <- ["README.md" | Path.wildcard(Path.join(@root, "{guides,bench}/*.md"))],
        path = Path.expand(document, @root),
        [link] <- Regex.scan(~r/\]\(([^)#]+)/, File.read!(path), capture: :all_but_first),
        not (link =~ ~r/^https?:/) do
      assert File.exists?(Path.expand(link, Path.dirname(path))), "#{document} names #{link}"
    end
  end
end
