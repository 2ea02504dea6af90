defmodule EXLA.CustomCall.MixCompilerTest do
  use ExUnit.Case, async: true

  alias Mix.Tasks.Compile.ExlaCargo.Toolchain

  @moduletag :tmp_dir
  @root Path.expand("../../..", __DIR__)

  defp script(path, body) do
    File.mkdir_p!(Path.dirname(path))
    File.write!(path, "#!/bin/sh\n" <> body)
    File.chmod!(path, 0o755)
    path
  end

  defp touch(path) do
    File.mkdir_p!(Path.dirname(path))
    File.write!(path, "")
  end

  describe "the tool chain check" do
    # A machine with everything, made of empty files and scripts. `llvm_config` answers with
    # `version`; the compiler knows the library z alone.
    setup %{tmp_dir: tmp_dir} do
      bin = Path.join(tmp_dir, "bin")
      prefix = Path.join(tmp_dir, "llvm")
      script(Path.join(bin, "cargo"), "")
      script(Path.join(bin, "rustc"), "echo 'rustc 1.95.0 (59807616e 2026-04-14)'")
      script(Path.join(bin, "protoc"), "")
      touch("#{tmp_dir}/include/google/protobuf/any.proto")

      script(Path.join(bin, "c++"), """
      case $1 in
        -print-file-name=libz.so) echo /lib/libz.so ;;
        *) echo "${1#-print-file-name=}" ;;
      esac
      """)

      llvm_config(prefix, "19.1.7")
      for header <- ~w(mlir-c/IR.h mlir/IR/OpBase.td), do: touch("#{prefix}/include/#{header}")
      for archive <- ~w(libMLIRIR.a libLLVMTableGen.a), do: touch("#{prefix}/lib/#{archive}")
      touch("#{prefix}/lib/libclang.so")
      touch("#{tmp_dir}/erlang/usr/include/erl_nif.h")

      %{
        bin: bin,
        prefix: prefix,
        env: %{"PATH" => bin, "HOME" => tmp_dir},
        opts: [
          os: {:unix, :linux},
          prefixes: [prefix],
          libclang_directories: [],
          erlang_root: "#{tmp_dir}/erlang"
        ]
      }
    end

    defp llvm_config(prefix, version, libnames \\ "echo libLLVMCore.a") do
      script(Path.join(prefix, "bin/llvm-config"), """
      case "$*" in
        --version) echo #{version} ;;
        --libdir) echo #{prefix}/lib ;;
        --includedir) echo #{prefix}/include ;;
        *--system-libs) echo "-lz" ;;
        *--libnames) #{libnames} ;;
      esac
      """)
    end

    test "sets what the build scripts need", %{env: env, opts: opts, bin: bin, prefix: prefix} do
      assert Toolchain.check(env, opts) ==
               {:ok, "#{bin}/cargo",
                [
                  {"MLIR_SYS_190_PREFIX", prefix},
                  {"TABLEGEN_190_PREFIX", prefix},
                  {"LIBCLANG_PATH", "#{prefix}/lib"}
                ], []}
    end

    test "takes the prefix that EXLA_CUSTOM_CALL_LLVM_PREFIX names before any other", context do
      %{env: env, opts: opts, prefix: prefix} = context

      env =
        Map.merge(env, %{
          "EXLA_CUSTOM_CALL_LLVM_PREFIX" => prefix,
          "MLIR_SYS_190_PREFIX" => "/nowhere"
        })

      assert {:ok, _cargo, [{"MLIR_SYS_190_PREFIX", ^prefix} | _], []} =
               Toolchain.check(env, Keyword.put(opts, :prefixes, []))
    end

    test "says in one message everything that a bare machine has to install", context do
      %{opts: opts, tmp_dir: tmp_dir} = context
      env = %{"PATH" => "#{tmp_dir}/nowhere", "HOME" => tmp_dir}

      opts =
        Keyword.merge(opts,
          prefixes: ["/nowhere/llvm-19", "/nowhere/llvm19"],
          libclang_directories: ["/nowhere/lib"],
          erlang_root: "/nowhere/erlang"
        )

      assert {:error, message} = Toolchain.check(env, opts)

      assert message == """
             exla_custom_call cannot build its native code: 5 things are missing.

             * Rust 1.91 or later (cargo and rustc): no cargo on the PATH
                 Debian/Ubuntu: install rustup (https://rustup.rs), then: rustup toolchain install stable
                 Fedora:        sudo dnf install rustup && rustup-init
                 macOS:         brew install rustup && rustup default stable
                 variable:      CARGO and RUSTC name other programs

             * LLVM and MLIR 19, with headers and static libraries: not found in /nowhere/llvm-19, /nowhere/llvm19
                 Debian/Ubuntu: sudo apt-get install libmlir-19-dev mlir-19-tools llvm-19-dev libpolly-19-dev
                 Fedora:        sudo dnf install mlir-devel mlir-static llvm-devel llvm-static (where these are version 19)
                 macOS:         brew install llvm@19
                 variable:      EXLA_CUSTOM_CALL_LLVM_PREFIX names another prefix, the folder above bin/llvm-config

             * libclang: not found in /nowhere/lib
                 Debian/Ubuntu: sudo apt-get install libclang-19-dev
                 Fedora:        sudo dnf install clang-devel
                 macOS:         brew install llvm@19
                 variable:      LIBCLANG_PATH names another folder

             * protoc, the compiler of Protocol Buffers, with its .proto files: no protoc on the PATH
                 Debian/Ubuntu: sudo apt-get install protobuf-compiler libprotobuf-dev
                 Fedora:        sudo dnf install protobuf-compiler protobuf-devel
                 macOS:         brew install protobuf
                 variable:      PROTOC names another program, PROTOC_INCLUDE the folder of its .proto files

             * a C++ compiler: no c++ or g++ or clang++ on the PATH
                 Debian/Ubuntu: sudo apt-get install build-essential
                 Fedora:        sudo dnf install gcc-c++
                 macOS:         xcode-select --install
                 variable:      CXX names another program

             * Erlang's C headers, for NIFs in C (this build goes on without them): no erl_nif.h under /nowhere/erlang
                 Debian/Ubuntu: sudo apt-get install erlang-dev
                 Fedora:        sudo dnf install erlang-erts
                 macOS:         brew install erlang
                 variable:      a PATH that leads to another erl names another Erlang

             In a checkout on Debian or Ubuntu, `make setup` installs all of this except Rust.\
             """
    end

    test "goes on without the headers of Erlang, which rustler carries, but names their package",
         %{env: env, opts: opts} do
      assert {:ok, _cargo, _env, [note]} =
               Toolchain.check(env, Keyword.put(opts, :erlang_root, "/nowhere/erlang"))

      assert note =~ "no erl_nif.h under /nowhere/erlang"
      assert note =~ "Debian/Ubuntu: sudo apt-get install erlang-dev"
    end

    test "says so when a variable names a prefix with another LLVM", context do
      %{env: env, opts: opts, tmp_dir: tmp_dir} = context
      llvm_config("#{tmp_dir}/llvm-18", "18.1.8")
      env = Map.put(env, "EXLA_CUSTOM_CALL_LLVM_PREFIX", "#{tmp_dir}/llvm-18")
      assert {:error, message} = Toolchain.check(env, opts)

      assert message =~
               "* LLVM and MLIR 19, with headers and static libraries: " <>
                 "EXLA_CUSTOM_CALL_LLVM_PREFIX is #{tmp_dir}/llvm-18, but " <>
                 "#{tmp_dir}/llvm-18/bin/llvm-config is version 18.1.8\n"
    end

    test "says which parts an LLVM 19 lacks", %{env: env, opts: opts, prefix: prefix} do
      File.rm!("#{prefix}/include/mlir-c/IR.h")
      File.rm!("#{prefix}/lib/libMLIRIR.a")
      assert {:error, message} = Toolchain.check(env, opts)

      assert message =~
               "#{prefix} has LLVM 19 but lacks #{prefix}/include/mlir-c/IR.h, #{prefix}/lib/libMLIRIR.a\n"
    end

    test "says so when llvm-config misses a library that it was built with", context do
      %{env: env, opts: opts, prefix: prefix} = context
      llvm_config(prefix, "19.1.7", "echo 'llvm-config: error: missing: libPolly.a'; exit 1")
      assert {:error, message} = Toolchain.check(env, opts)

      assert message =~
               "bin/llvm-config --link-static answers: llvm-config: error: missing: libPolly.a\n"

      assert message =~ "libpolly-19-dev"
    end

    test "says which of the libraries that LLVM links to are missing", context do
      %{env: env, opts: opts, bin: bin} = context
      script(Path.join(bin, "c++"), ~S(echo "${1#-print-file-name=}"))
      assert {:error, message} = Toolchain.check(env, opts)
      assert message =~ "one thing is missing.\n\n* the libraries that LLVM links to: -lz\n"
      assert message =~ "zlib1g-dev"
    end

    test "says so when the .proto files of protoc are missing", context do
      %{env: env, opts: opts, tmp_dir: tmp_dir} = context
      File.rm!("#{tmp_dir}/include/google/protobuf/any.proto")
      assert {:error, message} = Toolchain.check(env, opts)
      assert message =~ ": no google/protobuf/any.proto in #{tmp_dir}/include\n"
      assert message =~ "libprotobuf-dev"
    end

    test "says so when Rust is too old", %{env: env, opts: opts, bin: bin} do
      script(Path.join(bin, "rustc"), "echo 'rustc 1.85.0 (4d91de4e4 2025-02-17)'")
      assert {:error, message} = Toolchain.check(env, opts)

      assert message =~
               "* Rust 1.91 or later (cargo and rustc): #{bin}/rustc is version 1.85.0\n"
    end

    test "says so when a variable names what is not there", %{env: env, opts: opts} do
      env = Map.merge(env, %{"PROTOC" => "/nowhere/protoc", "LIBCLANG_PATH" => "/nowhere/lib"})

      assert {:error, message} = Toolchain.check(env, opts)
      assert message =~ "* libclang: LIBCLANG_PATH is /nowhere/lib, where no libclang is\n"

      assert message =~
               "* protoc, the compiler of Protocol Buffers, with its .proto files: PROTOC is /nowhere/protoc, which is no program\n"
    end

    test "does not try on Windows", %{env: env, opts: opts} do
      assert Toolchain.check(env, Keyword.put(opts, :os, {:win32, :nt})) ==
               {:error,
                "exla_custom_call does not build on Windows: it is made for Linux and macOS. " <>
                  "Under WSL 2, follow the steps for Debian/Ubuntu."}
    end
  end

  describe "mix compile" do
    # The package with one Elixir module, one Rust source, and a Cargo that writes down that it ran and
    # makes its library from that source.
    setup %{tmp_dir: tmp_dir} do
      project = Path.join(tmp_dir, "project")
      File.mkdir_p!(Path.join(project, "lib"))

      for name <- ["mix.exs", "mix"],
          do: File.cp_r!(Path.join(@root, name), Path.join(project, name))

      # What the package's application starts.
      File.write!(Path.join(project, "lib/a.ex"), """
      defmodule EXLA.CustomCall.Application do
        use Application
        def start(_type, _args), do: Supervisor.start_link([], strategy: :one_for_one)
      end
      """)

      File.write!(Path.join(project, "Cargo.toml"), "")
      source = Path.join(project, "native/exla_custom_call/src/lib.rs")
      File.mkdir_p!(Path.dirname(source))
      File.write!(source, "one")

      cargo =
        script(Path.join(tmp_dir, "cargo"), """
        echo "$@" >> "#{tmp_dir}/calls"
        grep -q wrong "#{source}" && exit 101
        mkdir -p target/release
        for extension in so dylib; do
          cp "#{source}" target/release/libexla_custom_call.$extension
          cp "#{source}" target/release/libxla_ffi_linalg.$extension
          cp "#{source}" target/release/exla_custom_call_worker
        done
        """)

      %{project: project, source: source, cargo: cargo}
    end

    defp compile(context, opts \\ []) do
      env = [
        {"CARGO", context.cargo},
        {"CARGO_TARGET_DIR", nil},
        {"CARGO_BUILD_TARGET", nil},
        {"MIX_ENV", Keyword.get(opts, :env, "dev")}
      ]

      System.cmd("mix", Keyword.get(opts, :task, ["compile"]),
        cd: Keyword.get(opts, :cd, context.project),
        env: env,
        stderr_to_stdout: true
      )
    end

    defp cargo_calls(%{tmp_dir: tmp_dir}) do
      tmp_dir |> Path.join("calls") |> File.read!() |> String.split("\n", trim: true)
    end

    # What :code.priv_dir/1 leads to, in the build of that environment.
    defp nif(%{project: project}, env \\ "dev") do
      File.read!("#{project}/_build/#{env}/lib/exla_custom_call/priv/native/exla_custom_call.so")
    end

    test "puts the library into the priv of the build, the first time too", context do
      assert {_, 0} = compile(context)
      assert nif(context) == "one"

      assert cargo_calls(context) == [
               "build --release --locked -p exla_custom_call -p xla_ffi_linalg -p compile_worker"
             ]
    end

    test "runs no Cargo again, not even when a source was touched", context do
      assert {_, 0} = compile(context)
      File.touch!(context.source, System.os_time(:second) + 10)
      assert {"", 0} = compile(context)
      assert length(cargo_calls(context)) == 1
    end

    test "runs Cargo again when a Rust source has changed", context do
      assert {_, 0} = compile(context)
      File.write!(context.source, "two")
      assert {_, 0} = compile(context)
      assert nif(context) == "two"
      assert length(cargo_calls(context)) == 2
    end

    test "runs Cargo again when the library is gone, and after mix clean", context do
      assert {_, 0} = compile(context)
      File.rm!(Path.join(context.project, "priv/native/exla_custom_call.so"))
      assert {_, 0} = compile(context)
      assert nif(context) == "one"
      assert {_, 0} = compile(context, task: ["clean"])
      assert Path.wildcard(Path.join(context.project, "priv/native/*")) == []
      assert {_, 0} = compile(context)
      assert nif(context) == "one"
      assert length(cargo_calls(context)) == 3
    end

    test "does not take the library of a later build in another environment for its own",
         context do
      assert {_, 0} = compile(context)
      File.write!(context.source, "three")
      assert {_, 0} = compile(context, env: "prod")
      assert nif(context, "prod") == "three"
      File.write!(context.source, "one")
      assert {_, 0} = compile(context)
      assert nif(context) == "one"
    end

    test "replaces the library by another file, so that a VM keeps the one it has", context do
      library = Path.join(context.project, "priv/native/exla_custom_call.so")
      assert {_, 0} = compile(context)
      before = File.stat!(library).inode
      File.write!(context.source, "two")
      assert {_, 0} = compile(context)
      assert File.stat!(library).inode != before

      assert Enum.sort(File.ls!(Path.dirname(library))) ==
               ["exla_custom_call.so", "exla_custom_call_worker", "xla_ffi_linalg.so"]
    end

    test "fails when Cargo does, and tries again the next time", context do
      File.write!(context.source, "wrong")
      assert {output, 1} = compile(context)

      assert output =~
               "exla_custom_call: `cargo build --release --locked -p exla_custom_call -p xla_ffi_linalg -p compile_worker` in " <>
                 "#{context.project} ended with status 101; its own words are above\n"

      File.write!(context.source, "right")
      assert {_, 0} = compile(context)
      assert nif(context) == "right"
    end

    test "fails with the message of the tool chain check before Cargo runs", context do
      context = %{context | cargo: "/nowhere/cargo"}
      assert {output, 1} = compile(context)
      assert output =~ "exla_custom_call cannot build its native code: one thing is missing.\n"
      assert output =~ "CARGO is /nowhere/cargo, which is no program\n"
      refute File.exists?(Path.join(context.tmp_dir, "calls"))
    end

    test "builds as a dependency by path", context do
      dependent = Path.join(context.tmp_dir, "dependent")
      File.mkdir_p!(dependent)

      File.write!(Path.join(dependent, "mix.exs"), """
      defmodule Dependent.MixProject do
        use Mix.Project

        def project do
          [app: :dependent, version: "1.0.0", deps: [{:exla_custom_call, path: "../project"}]]
        end
      end
      """)

      nif = ~S[Application.app_dir(:exla_custom_call, "priv/native/exla_custom_call.so")]
      task = ["run", "-e", "IO.puts(File.read!(#{nif}))"]
      assert {output, 0} = compile(context, cd: dependent, task: task)
      assert output |> String.split("\n", trim: true) |> List.last() == "one"
      assert {"one\n", 0} = compile(context, cd: dependent, task: task)
      assert length(cargo_calls(context)) == 1
    end
  end
end
