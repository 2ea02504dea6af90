defmodule Mix.Tasks.Compile.ExlaCargo.Toolchain do
  @moduledoc """
  Finds what the native build needs, or says what is missing and how to install it.

  LLVM and MLIR 19 are looked for in `EXLA_CUSTOM_CALL_LLVM_PREFIX`, else in `MLIR_SYS_190_PREFIX`,
  else in the places where Debian, Fedora and Homebrew put them. A variable that is set is never
  passed over: when it names a wrong place, the message says so.

  Erlang's headers are a special case. The build does not read them, since rustler carries its own
  copy; a machine without them is told which package has them, and the build goes on.
  """

  @minimum_rust "1.91.0"
  @prefix_variables ~w(EXLA_CUSTOM_CALL_LLVM_PREFIX MLIR_SYS_190_PREFIX)
  @prefixes ~w(/usr/lib/llvm-19 /usr/lib64/llvm19 /opt/homebrew/opt/llvm@19 /usr/local/opt/llvm@19 /usr)
  # One file for each part that distributions package apart: MLIR's C headers, its TableGen sources,
  # its static libraries, and LLVM's TableGen library.
  @headers ~w(mlir-c/IR.h mlir/IR/OpBase.td)
  @archives ~w(libMLIRIR.a libLLVMTableGen.a)

  @doc """
  Checks the tool chain under the environment `env`, a map of strings.

  Returns `{:ok, cargo, cargo_env, notes}` (the program to run, the variables to set for it, and
  lines worth showing that stop nothing) or `{:error, message}`.

  The options stand in for the machine in tests: `:os` (as `:os.type/0` has it), `:prefixes` (where
  to look for LLVM), `:libclang_directories` and `:erlang_root`.
  """
  def check(env, opts \\ []) do
    case Keyword.get_lazy(opts, :os, &:os.type/0) do
      {:win32, _} -> {:error, windows()}
      {:unix, _} -> check_unix(env, opts)
    end
  end

  defp check_unix(env, opts) do
    llvm = llvm(env, Keyword.get(opts, :prefixes, @prefixes))
    compiler = compiler(env)
    directories = Keyword.get(opts, :libclang_directories, libclang_directories())

    parts = [
      cargo: cargo(env),
      llvm: llvm,
      libraries: libraries(llvm, compiler),
      libclang: libclang(env, llvm, directories),
      protoc: protoc(env),
      compiler: compiler
    ]

    headers = erlang_headers(Keyword.get_lazy(opts, :erlang_root, &:code.root_dir/0))

    case for {_part, {:missing, requirement}} <- parts, do: requirement do
      [] ->
        found = for {part, {:ok, value}} <- parts, into: %{}, do: {part, value}
        {:ok, found.cargo, cargo_env(found), Enum.map(headers, &describe/1)}

      missing ->
        {:error, message(missing, headers)}
    end
  end

  defp cargo_env(found) do
    [
      {"MLIR_SYS_190_PREFIX", found.llvm},
      {"TABLEGEN_190_PREFIX", found.llvm},
      {"LIBCLANG_PATH", found.libclang}
    ]
  end

  # Rust

  defp cargo(env) do
    with {:ok, cargo} <- program(env, "CARGO", ["cargo"]),
         {:ok, rustc} <- program(env, "RUSTC", ["rustc"]),
         :ok <- rust_version(rustc) do
      {:ok, cargo}
    else
      {:error, reason} -> {:missing, rust(reason)}
    end
  end

  defp rust_version(rustc) do
    with {:ok, "rustc " <> rest} <- output(rustc, ["--version"]),
         {:ok, version} <- Version.parse(rest |> String.split() |> hd()) do
      if Version.compare(version, @minimum_rust) == :lt do
        {:error, "#{rustc} is version #{version}"}
      else
        :ok
      end
    else
      _ -> {:error, "#{rustc} --version does not answer"}
    end
  end

  # LLVM and MLIR

  defp llvm(env, prefixes) do
    case Enum.find(@prefix_variables, &given?(env, &1)) do
      nil ->
        llvm_in(prefixes)

      variable ->
        prefix = Map.fetch!(env, variable)

        case inspect_prefix(prefix) do
          :ok -> {:ok, prefix}
          {_, reason} -> {:missing, mlir("#{variable} is #{prefix}, but #{reason}")}
        end
    end
  end

  # A place that has LLVM 19 but not all of it says more than the list of the empty ones.
  defp llvm_in(prefixes) do
    inspected = for prefix <- prefixes, do: {prefix, inspect_prefix(prefix)}

    case List.keyfind(inspected, :ok, 1) || Enum.find(inspected, &match?({_, {:part, _}}, &1)) do
      {prefix, :ok} -> {:ok, prefix}
      {_prefix, {:part, reason}} -> {:missing, mlir(reason)}
      nil -> {:missing, mlir("not found in #{Enum.join(prefixes, ", ")}")}
    end
  end

  defp inspect_prefix(prefix) do
    llvm_config = Path.join(prefix, "bin/llvm-config")

    case output(llvm_config, ["--version"]) do
      {:ok, "19." <> _} -> inspect_parts(prefix, llvm_config)
      {:ok, version} -> {:none, "#{llvm_config} is version #{version}"}
      :error -> {:none, "#{llvm_config} is missing or does not run"}
    end
  end

  defp inspect_parts(prefix, llvm_config) do
    with {:ok, libdir} <- output(llvm_config, ["--libdir"]),
         {:ok, includedir} <- output(llvm_config, ["--includedir"]) do
      files =
        Enum.map(@headers, &Path.join(includedir, &1)) ++
          Enum.map(@archives, &Path.join(libdir, &1))

      case Enum.reject(files, &File.regular?/1) do
        [] -> inspect_static(llvm_config)
        absent -> {:part, "#{prefix} has LLVM 19 but lacks #{Enum.join(absent, ", ")}"}
      end
    else
      :error -> {:none, "#{llvm_config} does not name its directories"}
    end
  end

  # llvm-config refuses to answer while a library it was built with, such as Polly, is not installed.
  defp inspect_static(llvm_config) do
    case run(llvm_config, ["--link-static", "--libnames"]) do
      {_, 0} ->
        :ok

      {words, _} ->
        {:part, "#{llvm_config} --link-static answers: #{words |> String.split("\n") |> hd()}"}
    end
  end

  # The libraries that LLVM itself links to: without them only the very last step, the linker, fails.
  defp libraries({:ok, prefix}, {:ok, compiler}) do
    {:ok, flags} =
      output(Path.join(prefix, "bin/llvm-config"), ["--link-static", "--system-libs"])

    case flags |> String.split() |> Enum.reject(&linkable?(compiler, &1)) do
      [] -> {:ok, flags}
      absent -> {:missing, llvm_libraries(Enum.join(absent, " "))}
    end
  end

  defp libraries(_, _), do: {:ok, ""}

  # A compiler answers with a path when it knows the library, and with the bare name when it does not.
  defp linkable?(compiler, "-l" <> name) do
    Enum.any?(["so", "dylib", "tbd", "a"], fn extension ->
      file = "lib#{name}.#{extension}"
      match?({:ok, path} when path != file, output(compiler, ["-print-file-name=#{file}"]))
    end)
  end

  defp linkable?(_compiler, "/" <> _ = path), do: File.exists?(path)
  defp linkable?(_compiler, _flag), do: true

  defp compiler(env) do
    case program(env, "CXX", ["c++", "g++", "clang++"]) do
      {:ok, compiler} -> {:ok, compiler}
      {:error, reason} -> {:missing, cxx(reason)}
    end
  end

  # libclang

  defp libclang(env, llvm, directories) do
    if given?(env, "LIBCLANG_PATH") do
      path = Map.fetch!(env, "LIBCLANG_PATH")

      if File.regular?(path) or has_libclang?(path),
        do: {:ok, path},
        else: {:missing, clang("LIBCLANG_PATH is #{path}, where no libclang is")}
    else
      beside =
        with {:ok, prefix} <- llvm, do: [Path.join(prefix, "lib"), Path.join(prefix, "lib64")]

      directories = if is_list(beside), do: beside ++ directories, else: directories

      case Enum.find(directories, &has_libclang?/1) do
        nil -> {:missing, clang("not found in #{Enum.join(directories, ", ")}")}
        directory -> {:ok, directory}
      end
    end
  end

  defp has_libclang?(directory),
    do: Path.wildcard(Path.join(directory, "libclang{.,-[0-9]*.}{so,dylib}*")) != []

  defp libclang_directories do
    [
      "/usr/lib/llvm-19/lib",
      "/usr/lib64/llvm19/lib64",
      "/usr/lib64",
      "/Library/Developer/CommandLineTools/usr/lib"
    ]
  end

  # protoc

  # Distributions package the .proto files that others import apart from the program.
  defp protoc(env) do
    with {:ok, protoc} <- program(env, "PROTOC", ["protoc"]),
         :ok <- proto_files(env, protoc) do
      {:ok, protoc}
    else
      {:error, reason} -> {:missing, protobuf(reason)}
    end
  end

  # protoc itself looks beside its own folder; the variable is that of Cargo's build script.
  defp proto_files(env, protoc) do
    beside = protoc |> Path.dirname() |> Path.dirname() |> Path.join("include")
    directories = Enum.reject([Map.get(env, "PROTOC_INCLUDE", ""), beside], &(&1 == ""))

    if Enum.any?(directories, &File.regular?(Path.join(&1, "google/protobuf/any.proto"))),
      do: :ok,
      else: {:error, "no google/protobuf/any.proto in #{Enum.join(directories, ", ")}"}
  end

  # Erlang

  defp erlang_headers(root) do
    directories = [
      Path.join(root, "usr/include") | Path.wildcard(Path.join(root, "erts-*/include"))
    ]

    if Enum.any?(directories, &File.regular?(Path.join(&1, "erl_nif.h"))),
      do: [],
      else: [erlang("no erl_nif.h under #{root}")]
  end

  # Programs

  # A program named by its variable, as a path or a name; else the first of `names` on the PATH.
  # rustup's folder is looked in too: a shell that was open before Rust came does not have it yet.
  defp program(env, variable, names) do
    wanted = if given?(env, variable), do: [Map.fetch!(env, variable)], else: names
    path = Map.get(env, "PATH", "") <> ":" <> Path.join(Map.get(env, "HOME", "/"), ".cargo/bin")

    case Enum.find_value(wanted, &find_executable(&1, path)) do
      nil when wanted == names -> {:error, "no #{Enum.join(names, " or ")} on the PATH"}
      nil -> {:error, "#{variable} is #{hd(wanted)}, which is no program"}
      program -> {:ok, program}
    end
  end

  defp find_executable(name, path) do
    case :os.find_executable(String.to_charlist(name), String.to_charlist(path)) do
      false -> nil
      program -> List.to_string(program)
    end
  end

  defp given?(env, variable), do: Map.get(env, variable, "") != ""

  defp output(program, args) do
    case run(program, args) do
      {words, 0} -> {:ok, String.trim(words)}
      _ -> :error
    end
  end

  defp run(program, args) do
    System.cmd(program, args, stderr_to_stdout: true)
  rescue
    ErlangError -> {"", 127}
  end

  # What to install

  defp rust(reason) do
    %{
      what: "Rust 1.91 or later (cargo and rustc): #{reason}",
      debian: "install rustup (https://rustup.rs), then: rustup toolchain install stable",
      fedora: "sudo dnf install rustup && rustup-init",
      macos: "brew install rustup && rustup default stable",
      variable: "CARGO and RUSTC name other programs"
    }
  end

  defp mlir(reason) do
    %{
      what: "LLVM and MLIR 19, with headers and static libraries: #{reason}",
      debian: "sudo apt-get install libmlir-19-dev mlir-19-tools llvm-19-dev libpolly-19-dev",
      fedora:
        "sudo dnf install mlir-devel mlir-static llvm-devel llvm-static (where these are version 19)",
      macos: "brew install llvm@19",
      variable:
        "EXLA_CUSTOM_CALL_LLVM_PREFIX names another prefix, the folder above bin/llvm-config"
    }
  end

  defp llvm_libraries(reason) do
    %{
      what: "the libraries that LLVM links to: #{reason}",
      debian: "sudo apt-get install libzstd-dev zlib1g-dev libxml2-dev libz3-dev",
      fedora: "sudo dnf install libzstd-devel zlib-devel libxml2-devel z3-devel",
      macos: "brew install zstd z3",
      variable: "LIBRARY_PATH names another folder"
    }
  end

  defp clang(reason) do
    %{
      what: "libclang: #{reason}",
      debian: "sudo apt-get install libclang-19-dev",
      fedora: "sudo dnf install clang-devel",
      macos: "brew install llvm@19",
      variable: "LIBCLANG_PATH names another folder"
    }
  end

  defp protobuf(reason) do
    %{
      what: "protoc, the compiler of Protocol Buffers, with its .proto files: #{reason}",
      debian: "sudo apt-get install protobuf-compiler libprotobuf-dev",
      fedora: "sudo dnf install protobuf-compiler protobuf-devel",
      macos: "brew install protobuf",
      variable: "PROTOC names another program, PROTOC_INCLUDE the folder of its .proto files"
    }
  end

  defp cxx(reason) do
    %{
      what: "a C++ compiler: #{reason}",
      debian: "sudo apt-get install build-essential",
      fedora: "sudo dnf install gcc-c++",
      macos: "xcode-select --install",
      variable: "CXX names another program"
    }
  end

  defp erlang(reason) do
    %{
      what: "Erlang's C headers, for NIFs in C (this build goes on without them): #{reason}",
      debian: "sudo apt-get install erlang-dev",
      fedora: "sudo dnf install erlang-erts",
      macos: "brew install erlang",
      variable: "a PATH that leads to another erl names another Erlang"
    }
  end

  defp message(missing, notes) do
    """
    exla_custom_call cannot build its native code: #{count(missing)} missing.

    #{Enum.map_join(missing ++ notes, "\n", &describe/1)}
    In a checkout on Debian or Ubuntu, `make setup` installs all of this except Rust.\
    """
  end

  defp count([_]), do: "one thing is"
  defp count(missing), do: "#{length(missing)} things are"

  defp describe(requirement) do
    """
    * #{requirement.what}
        Debian/Ubuntu: #{requirement.debian}
        Fedora:        #{requirement.fedora}
        macOS:         #{requirement.macos}
        variable:      #{requirement.variable}
    """
  end

  defp windows do
    "exla_custom_call does not build on Windows: it is made for Linux and macOS. " <>
      "Under WSL 2, follow the steps for Debian/Ubuntu."
  end
end
