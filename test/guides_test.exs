defmodule EXLA.CustomCall.GuidesTest do
  # Not async: there is one sink for telemetry.
  use ExUnit.Case, async: false

  alias EXLA.CustomCall.{Guide, Telemetry, XLAHeaders}

  @root Path.expand("..", __DIR__)

  @moduletag :tmp_dir
  @moduletag timeout: 300_000

  defp guide(name), do: File.read!(Path.join([@root, "guides", name]))
  defp shown(blocks), do: blocks |> Enum.join() |> then(&length(Regex.scan(~r/^#=> /m, &1)))

  test "guides/runtime.md does what it says", %{tmp_dir: folder} do
    on_exit(fn -> Telemetry.put_module(nil) end)

    blocks =
      "runtime.md" |> guide() |> Guide.blocks("elixir") |> Enum.reject(&(&1 =~ ~r/\Aconfig /))

    assert Guide.run!(blocks, %{"/tmp/my_app" => folder}) == shown(blocks)
  end

  test "guides/checking.md does what it says" do
    blocks = "checking.md" |> guide() |> Guide.blocks("elixir")
    assert Guide.run!(blocks, %{}) == shown(blocks)
  end

  test "guides/sharding.md does what it says" do
    blocks = "sharding.md" |> guide() |> Guide.blocks("elixir")
    assert Guide.run!(blocks, %{}) == shown(blocks)
  end

  test "guides/checking.md has all targets that are XLA's own" do
    source = File.read!(Path.join(@root, "native/stablehlo_custom_call/src/rules/targets.rs"))

    names =
      for [list] <-
            Regex.scan(~r/XLAS_OWN\w*: \[&str; \d+\] = \[(.*?)\];/s, source,
              capture: :all_but_first
            ),
          [name] <- Regex.scan(~r/"(.*?)"/, list, capture: :all_but_first),
          do: name

    assert "TopK" in names and "xla.sdy." in names
    assert Enum.reject(names, &(guide("checking.md") =~ "`#{&1}`")) == []
  end

  test "guides/handlers.md does what it says", %{tmp_dir: folder} do
    text = guide("handlers.md")
    {cpp, others} = text |> Guide.blocks("elixir") |> Enum.split_with(&(&1 =~ "libkernels.so"))

    manifest = """
    [package]
    name = "my_kernels"
    version = "0.1.0"
    edition = "2021"

    [lib]
    crate-type = ["cdylib"]

    [dependencies]
    xla_ffi = { path = "#{@root}/native/xla_ffi" }
    """

    rust = text |> Guide.blocks("rust") |> Enum.join("\n")
    library = Guide.build_crate!(folder, "my_kernels", manifest, rust)
    replace = %{"native/target/release/libmy_kernels.so" => library}

    # Libraries stay loaded, so this one is in no test's folder.
    case build_cpp(Guide.blocks(text, "cpp")) do
      {:ok, path} ->
        blocks = others ++ cpp
        assert Guide.run!(blocks, Map.put(replace, "libkernels.so", path)) == shown(blocks)

      {:error, reason} ->
        IO.puts("\nSkipping the C++ of guides/handlers.md: #{reason}")
        assert Guide.run!(others, replace) == shown(others)
    end
  end

  defp build_cpp(blocks) do
    with compiler when compiler != nil <- System.find_executable(System.get_env("CXX", "g++")),
         {:ok, include} <- XLAHeaders.include() do
      folder = Path.join(System.tmp_dir!(), "exla_custom_call-guide-#{System.pid()}")
      File.mkdir_p!(folder)
      on_exit(fn -> File.rm_rf!(folder) end)
      [source, library] = Enum.map(["kernels.cc", "libkernels.so"], &Path.join(folder, &1))
      File.write!(source, Enum.join(blocks, "\n"))

      arguments =
        ~w(-std=c++17 -shared -fPIC -O2 -isystem #{include} -I #{@root}/include -o) ++
          [library, source]

      assert {"", 0} = System.cmd(compiler, arguments, stderr_to_stdout: true)
      {:ok, library}
    else
      nil -> {:error, "there is no g++"}
      {:error, reason} -> {:error, reason}
    end
  end
end
