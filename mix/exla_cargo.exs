Code.require_file("exla_cargo/toolchain.exs", __DIR__)

defmodule Mix.Tasks.Compile.ExlaCargo do
  @moduledoc """
  Builds the NIF and the built-in handlers with Cargo, and puts them into `priv/native`.

  Cargo runs only when something that decides its result has changed since the last build: the
  content of a Rust source, of `Cargo.toml`, `Cargo.lock` or `.cargo/config.toml`, an environment
  variable that the build reads, or a library in `priv` itself. Times do not count, so a git
  checkout or a `touch` that changes no byte builds nothing.

  Before Cargo runs, `Mix.Tasks.Compile.ExlaCargo.Toolchain` looks for what the build needs, and
  says everything that is missing in one message.

  Cargo is the program named by `CARGO`, else `cargo`; `CARGO_TARGET_DIR` moves its output.
  """
  @shortdoc "Builds the native code with Cargo"

  use Mix.Task.Compiler

  alias Mix.Task.Compiler.Diagnostic
  alias Mix.Tasks.Compile.ExlaCargo.Toolchain

  @root Path.expand("..", __DIR__)
  # The NIF, and the handlers for QR, Eigh and LU. Each becomes one library.
  @crates ~w(exla_custom_call xla_ffi_linalg)
  # Programs, each of a crate: what compiles for another process.
  @programs %{"exla_custom_call_worker" => "compile_worker"}
  # The version of the manifest's own form.
  @manifest_version 3
  # What decides the build beside the files. PATH is not here: it differs between shells for reasons
  # that have nothing to do with the build.
  @variables ~w(EXLA_CUSTOM_CALL_LLVM_PREFIX MLIR_SYS_190_PREFIX TABLEGEN_190_PREFIX LIBCLANG_PATH
                PROTOC PROTOC_INCLUDE CARGO CARGO_TARGET_DIR CARGO_BUILD_TARGET RUSTC RUSTFLAGS
                CARGO_ENCODED_RUSTFLAGS RUSTUP_TOOLCHAIN CC CXX)

  @impl true
  def run(_args) do
    fingerprint = fingerprint(@root, System.get_env())

    if up_to_date?(fingerprint) do
      # The structure of another environment's build may still lack its link to priv.
      link_priv()
      {:noop, []}
    else
      build(fingerprint)
    end
  end

  @impl true
  def manifests, do: [manifest()]

  # Cargo's own target directory stays: it is a cache that Cargo checks itself, and minutes of work.
  @impl true
  def clean do
    File.rm(manifest())
    Enum.each(installed(), fn {_built, path} -> File.rm(path) end)
    :ok
  end

  @doc false
  # A hash over everything that decides what Cargo would build in `root` under `env`.
  def fingerprint(root, env) do
    files = for path <- source_files(root), do: {Path.relative_to(path, root), File.read!(path)}

    :crypto.hash(
      :sha256,
      :erlang.term_to_binary({cargo_args(), Map.take(env, @variables), files})
    )
  end

  defp build(fingerprint) do
    with {:ok, cargo, cargo_env} <- toolchain(),
         :ok <- cargo_build(cargo, cargo_env),
         :ok <- install_all(installed()) do
      link_priv()
      write_manifest(fingerprint)
      {:ok, []}
    else
      {:error, message} ->
        Mix.shell().error(message)
        {:error, [diagnostic(message)]}
    end
  end

  defp toolchain do
    with {:ok, cargo, cargo_env, notes} <- Toolchain.check(System.get_env()) do
      Enum.each(notes, &Mix.shell().info/1)
      {:ok, cargo, cargo_env}
    end
  end

  # Cargo writes its progress to stderr, which it inherits from this VM: a terminal shows its bar.
  defp cargo_build(cargo, cargo_env) do
    Mix.shell().info("Compiling the native code (cargo #{Enum.join(cargo_args(), " ")})")

    case System.cmd(cargo, cargo_args(), cd: @root, env: cargo_env, into: IO.stream()) do
      {_, 0} -> :ok
      {_, status} -> {:error, failed(status)}
    end
  end

  defp failed(status) do
    "exla_custom_call: `cargo #{Enum.join(cargo_args(), " ")}` in #{@root} ended with status " <>
      "#{status}; its own words are above"
  end

  # --locked: users build the very dependencies that were tested.
  defp cargo_args do
    ["build", "--release", "--locked"] ++
      Enum.flat_map(@crates ++ Map.values(@programs), &["-p", &1])
  end

  defp install_all([]), do: :ok
  defp install_all([file | rest]), do: with(:ok <- install(file), do: install_all(rest))

  defp install({built, path}) do
    cond do
      not File.regular?(built) -> {:error, not_there(built)}
      same_content?(built, path) -> :ok
      true -> replace(built, path)
    end
  end

  defp not_there(built) do
    "exla_custom_call: Cargo ended well, but #{built} is not there. Where Cargo's own configuration " <>
      "moves its output, set CARGO_TARGET_DIR and CARGO_BUILD_TARGET to the same"
  end

  # A running VM may have the old library mapped: writing into it would crash that VM. A rename
  # leaves it the old file.
  defp replace(built, path) do
    temporary = "#{path}.#{System.pid()}.tmp"
    File.mkdir_p!(Path.dirname(path))
    File.cp!(built, temporary)
    File.rename!(temporary, path)
  end

  defp same_content?(left, right) do
    with {:ok, %{size: size}} <- File.stat(left),
         {:ok, %{size: ^size}} <- File.stat(right) do
      File.read!(left) == File.read!(right)
    else
      _ -> false
    end
  end

  # Mix links priv into the build before the compilers run. On the first compile priv is not there
  # at that time, so it has to be done again.
  defp link_priv, do: Mix.Project.build_structure()

  # What Cargo makes, and where it goes.
  defp installed do
    libraries =
      for crate <- @crates, do: {built("lib#{crate}.#{library_extension()}"), "#{crate}.so"}

    programs = for {program, _crate} <- @programs, do: {built(program), program}

    for {built, name} <- libraries ++ programs do
      {built, Path.join([@root, "priv", "native", name])}
    end
  end

  defp built(file) do
    directory = Path.expand(System.get_env("CARGO_TARGET_DIR", "target"), @root)
    triple = System.get_env("CARGO_BUILD_TARGET", "")
    Path.join([directory, triple, "release", file])
  end

  # The VM looks for a NIF under .so on macOS too, while Cargo calls it .dylib there.
  defp library_extension do
    case :os.type() do
      {:unix, :darwin} -> "dylib"
      _ -> "so"
    end
  end

  defp source_files(root) do
    top = ~w(Cargo.toml Cargo.lock .cargo/config.toml rust-toolchain rust-toolchain.toml)

    (Enum.map(top, &Path.join(root, &1)) ++ Path.wildcard(Path.join(root, "native/*/**")))
    |> Enum.filter(&File.regular?/1)
    |> Enum.reject(&String.contains?(Path.relative_to(&1, root), "/target/"))
    |> Enum.sort()
  end

  # priv belongs to the source, the manifest to one build of it. So the manifest also says which
  # libraries it stands for: another environment may have put a later one there.
  defp up_to_date?(fingerprint) do
    case File.read(manifest()) do
      {:ok, content} ->
        content == manifest_content(fingerprint) and
          Enum.all?(installed(), fn {_built, path} -> File.regular?(path) end)

      {:error, _} ->
        false
    end
  end

  defp write_manifest(fingerprint) do
    File.mkdir_p!(Path.dirname(manifest()))
    File.write!(manifest(), manifest_content(fingerprint))
  end

  defp manifest_content(fingerprint) do
    libraries =
      for {_built, path} <- installed() do
        case File.stat(path, time: :posix) do
          {:ok, stat} -> {stat.size, stat.mtime}
          {:error, _} -> nil
        end
      end

    :erlang.term_to_binary({@manifest_version, fingerprint, libraries})
  end

  defp manifest, do: Path.join(Mix.Project.manifest_path(), "compile.exla_cargo")

  defp diagnostic(message) do
    %Diagnostic{
      compiler_name: "exla_cargo",
      file: Path.join(@root, "Cargo.toml"),
      message: message,
      position: 0,
      severity: :error
    }
  end
end
