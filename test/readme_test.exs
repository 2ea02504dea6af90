defmodule EXLA.CustomCall.ReadmeTest do
  # Not async: it defines the README's modules and prints.
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO

  @root Path.expand("..", __DIR__)
  @readme File.read!(Path.join(@root, "README.md"))

  @moduletag :tmp_dir
  @moduletag timeout: 300_000

  defp blocks(language) do
    ~r/```#{language}\n(.*?)```/s
    |> Regex.scan(@readme, capture: :all_but_first)
    |> List.flatten()
  end

  # The handler's crate, with the path to this checkout's xla_ffi.
  defp build_handler(folder) do
    [manifest] = blocks("toml")
    [source] = blocks("rust")
    assert manifest =~ ~s("../../exla_custom_call/native/xla_ffi")
    manifest = String.replace(manifest, "../../exla_custom_call", @root)
    File.mkdir_p!(Path.join(folder, "src"))
    File.write!(Path.join(folder, "Cargo.toml"), manifest <> "\n[workspace]\n")
    File.write!(Path.join(folder, "src/lib.rs"), source)
    # The versions that this package has been built with: they are on the machine.
    File.cp!(Path.join(@root, "Cargo.lock"), Path.join(folder, "Cargo.lock"))
    # What has been compiled for it stays from one test to the next.
    target = Path.join(@root, "target/readme")
    args = ["build", "--release", "--quiet", "--offline", "--target-dir", target]
    {output, status} = System.cmd("cargo", args, cd: folder, stderr_to_stdout: true)
    assert {output, status} == {"", 0}
    Path.wildcard(Path.join(target, "release/librow_scale.{so,dylib}")) |> hd()
  end

  test "its example does what it says", %{tmp_dir: folder} do
    library = build_handler(folder)
    [_deps, define, run, lower, refuse, _nx_deps] = blocks("elixir")
    [mlir] = blocks("mlir")
    path = "native/target/release/librow_scale.so"
    assert run =~ path

    Code.eval_string(define)
    {result, binding} = Code.eval_string(String.replace(run, path, library))
    assert expected(run) == inspect(result)

    aliases = "alias EXLA.CustomCall.{Lowering}\n"
    assert capture_io(fn -> Code.eval_string(aliases <> lower, binding) end) == mlir <> "\n"

    {message, _binding} = Code.eval_string(refuse)
    assert expected(refuse) == inspect(message)
  end

  defp expected(block) do
    [_, expected] = Regex.run(~r/^#=> (.*)$/m, block)
    expected
  end
end
