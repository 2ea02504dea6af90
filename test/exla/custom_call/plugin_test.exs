defmodule EXLA.CustomCall.PluginTest do
  # Not async: the variables that name plugins belong to the whole VM.
  use ExUnit.Case, async: false

  alias EXLA.CustomCall.Plugin

  @moduletag :tmp_dir
  @variables ~w(EXLA_CUSTOM_CALL_PJRT_CPU EXLA_CUSTOM_CALL_PJRT_CUDA)

  setup %{tmp_dir: tmp_dir} do
    kept = Map.take(System.get_env(), @variables)
    Enum.each(@variables, &System.delete_env/1)

    on_exit(fn ->
      Enum.each(@variables, &System.delete_env/1)
      System.put_env(kept)
    end)

    %{cache: Path.join(tmp_dir, "cache"), build: small_build(tmp_dir)}
  end

  # A wheel like the real ones, with a member that does not deflate into one chunk.
  defp small_build(tmp_dir) do
    content = for n <- 1..200_000, into: <<>>, do: <<n::32>>
    other = {~c"pjrt/__init__.py", "# nothing"}

    {:ok, {_, wheel}} =
      :zip.zip(~c"w.whl", [other, {~c"pjrt/plugin.so", content}, other], [:memory])

    File.write!(Path.join(tmp_dir, "source.whl"), wheel)

    %{
      requirement: "small-pjrt-cpu==1.0",
      wheel: "small_pjrt_cpu-1.0-py3-none-any.whl",
      wheel_size: byte_size(wheel),
      sha256: Base.encode16(:crypto.hash(:sha256, wheel), case: :lower),
      member: "pjrt/plugin.so",
      file: "plugin.so",
      file_size: 800_000,
      command: "mix custom_call.install cpu",
      content: content
    }
  end

  # A python3 whose pip writes its arguments down and then does what `download` says, a shell command
  # that knows the folder to download to as $dest.
  defp python(tmp_dir, download) do
    path = Path.join(tmp_dir, "python3")

    File.write!(path, """
    #!/bin/sh
    [ "$3" = --version ] && exit 0
    echo "$@" >> "#{tmp_dir}/calls"
    while [ "$1" != --dest ]; do shift; done
    dest=$2
    #{download}
    """)

    File.chmod!(path, 0o755)
    path
  end

  defp pip_calls(tmp_dir) do
    case File.read(Path.join(tmp_dir, "calls")) do
      {:ok, calls} -> calls |> String.split("\n", trim: true) |> length()
      {:error, :enoent} -> 0
    end
  end

  defp files(folder) do
    folder |> Path.join("**") |> Path.wildcard(match_dot: true) |> Enum.filter(&File.regular?/1)
  end

  describe "resolve/2" do
    test "gives a path back as it is" do
      assert Plugin.resolve("/nowhere/plugin.so") == {:ok, "/nowhere/plugin.so"}
    end

    test "says what to set where there is no home" do
      kept = Map.take(System.get_env(), ["HOME", "XDG_CACHE_HOME"])
      Enum.each(["HOME", "XDG_CACHE_HOME"], &System.delete_env/1)
      on_exit(fn -> System.put_env(kept) end)

      assert Plugin.resolve(:cpu) ==
               {:error,
                "there is no folder for caches, since neither HOME nor XDG_CACHE_HOME is set: set " <>
                  "one of them, or EXLA_CUSTOM_CALL_PJRT_CPU to the path of the CPU plugin"}
    end

    test "takes the plugin that the variable names", %{tmp_dir: tmp_dir} do
      path = Path.join(tmp_dir, "source.whl")
      System.put_env("EXLA_CUSTOM_CALL_PJRT_CPU", path)
      System.put_env("EXLA_CUSTOM_CALL_PJRT_CUDA", path)
      assert Plugin.resolve(:cpu) == {:ok, path}
      assert Plugin.resolve(:cuda) == {:ok, path}
    end

    test "says so when the variable names no file" do
      System.put_env("EXLA_CUSTOM_CALL_PJRT_CPU", "/nowhere/plugin.so")

      assert Plugin.resolve(:cpu) ==
               {:error, "EXLA_CUSTOM_CALL_PJRT_CPU is /nowhere/plugin.so, where no file is"}
    end

    test "says how to get the CPU plugin when there is none", %{cache: cache} do
      assert Plugin.resolve(:cpu, cache: cache) ==
               {:error,
                "no CPU plugin at #{cache}/plugins/cpu/pjrt_c_api_cpu_plugin.so: run " <>
                  "`mix custom_call.install cpu` (in a checkout of this package `make plugin` does " <>
                  "too), or set EXLA_CUSTOM_CALL_PJRT_CPU to the path of one"}
    end

    test "looks for another build under another name, whatever the variable says", %{
      cache: cache,
      tmp_dir: tmp_dir
    } do
      System.put_env("EXLA_CUSTOM_CALL_PJRT_CPU", Path.join(tmp_dir, "source.whl"))

      assert Plugin.resolve(:cpu, build: :zml, cache: cache) ==
               {:error,
                "no CPU plugin at #{cache}/plugins/cpu/pjrt_c_api_cpu_plugin_zml.so: run " <>
                  "`mix custom_call.install cpu --build zml` (in a checkout of this package " <>
                  "`make plugin` does too), or set EXLA_CUSTOM_CALL_PJRT_CPU to the path of one"}
    end

    test "refuses a plugin that was cut off", %{cache: cache} do
      path = Path.join(cache, "plugins/cpu/pjrt_c_api_cpu_plugin.so")
      File.mkdir_p!(Path.dirname(path))
      File.write!(path, "half of it")

      assert Plugin.resolve(:cpu, cache: cache) ==
               {:error,
                "the plugin #{path} has 10 bytes instead of 201600336, so it is not whole: run " <>
                  "`mix custom_call.install cpu` to fetch it again"}
    end

    test "says what to set for CUDA" do
      assert Plugin.resolve(:cuda) ==
               {:error,
                "no CUDA plugin: set EXLA_CUSTOM_CALL_PJRT_CUDA to the path of one, such as " <>
                  "xla_cuda_plugin.so of the wheel jax-cuda13-pjrt"}
    end

    test "refuses options that are none" do
      for opts <- [0, [{:build, :zml} | :tail], [:build]] do
        assert {:error, message} = Plugin.resolve(:cpu, opts)
        assert message =~ "expected options as a keyword list such as [build: :zml], found "
      end

      assert {:error, "expected :cache to be the path of a folder, found 1"} =
               Plugin.resolve(:cpu, cache: 1)
    end

    test "refuses what is no plugin and no build" do
      assert Plugin.resolve(:gpu) ==
               {:error, "a plugin is :cpu, :cuda or the path of a shared object, found :gpu"}

      assert Plugin.resolve(:cpu, build: :new) ==
               {:error, "a build of the CPU plugin is :jax or :zml, found :new"}
    end
  end

  describe "install/2" do
    test "fetches the wheel with pip, unpacks the plugin, and keeps nothing else", context do
      %{cache: cache, build: build, tmp_dir: tmp_dir} = context
      python = python(tmp_dir, ~s(cp "#{tmp_dir}/source.whl" "$dest/#{build.wheel}"))
      path = Path.join(cache, "plugins/cpu/plugin.so")

      assert install(build, cache: cache, python: python) == {:ok, path}
      assert File.read!(path) == build.content
      assert files(cache) == [path]

      assert File.read!(Path.join(tmp_dir, "calls")) =~
               "-m pip download --quiet --disable-pip-version-check --progress-bar off " <>
                 "--no-cache-dir --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 --dest "
    end

    test "fetches nothing the second time", %{cache: cache, build: build, tmp_dir: tmp_dir} do
      python = python(tmp_dir, ~s(cp "#{tmp_dir}/source.whl" "$dest/#{build.wheel}"))
      assert {:ok, path} = install(build, cache: cache, python: python)
      assert install(build, cache: cache, python: python) == {:ok, path}
      assert pip_calls(tmp_dir) == 1
    end

    test "fetches anew when it is told to", %{cache: cache, build: build, tmp_dir: tmp_dir} do
      python = python(tmp_dir, ~s(cp "#{tmp_dir}/source.whl" "$dest/#{build.wheel}"))
      {:ok, path} = Plugin.install_build(build, cache: cache, python: python)
      File.write!(path, :binary.copy(<<0>>, build.file_size))
      assert {:ok, ^path} = Plugin.install_build(build, cache: cache, python: python, force: true)
      assert File.read!(path) == build.content
    end

    test "fetches again what was cut off", %{cache: cache, build: build, tmp_dir: tmp_dir} do
      python = python(tmp_dir, ~s(cp "#{tmp_dir}/source.whl" "$dest/#{build.wheel}"))
      assert {:ok, path} = install(build, cache: cache, python: python)
      File.write!(path, "half of it")
      assert install(build, cache: cache, python: python) == {:ok, path}
      assert File.read!(path) == build.content
    end

    test "refuses and removes a wrong wheel that pip brings", context do
      %{cache: cache, build: build, tmp_dir: tmp_dir} = context
      python = python(tmp_dir, ~s(printf abc > "$dest/#{build.wheel}"))
      assert {:error, message} = install(build, cache: cache, python: python)

      assert message =~
               "#{build.wheel} is not the file it should be, and was removed: its SHA-256 is " <>
                 "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad (3 bytes), " <>
                 "expected #{build.sha256} (#{build.wheel_size} bytes)"

      assert files(cache) == []
    end

    test "takes a wheel put there by hand without asking pip", context do
      %{cache: cache, build: build, tmp_dir: tmp_dir} = context
      File.mkdir_p!(Plugin.downloads(cache: cache))
      File.cp!("#{tmp_dir}/source.whl", Path.join(Plugin.downloads(cache: cache), build.wheel))
      path = Path.join(cache, "plugins/cpu/plugin.so")

      assert install(build, cache: cache, python: python(tmp_dir, "exit 1")) == {:ok, path}
      assert File.read!(path) == build.content
      assert files(cache) == [path]
      assert pip_calls(tmp_dir) == 0
    end

    test "refuses and removes a truncated wheel put there by hand", context do
      %{cache: cache, build: build, tmp_dir: tmp_dir} = context
      by_hand = Path.join(Plugin.downloads(cache: cache), build.wheel)
      File.mkdir_p!(Path.dirname(by_hand))
      File.write!(by_hand, binary_part(File.read!("#{tmp_dir}/source.whl"), 0, 1000))
      hash = Base.encode16(:crypto.hash(:sha256, File.read!(by_hand)), case: :lower)

      assert install(build, cache: cache, python: python(tmp_dir, "exit 1")) ==
               {:error,
                "#{by_hand} is not the file it should be, and was removed: its SHA-256 is #{hash} " <>
                  "(1000 bytes), expected #{build.sha256} (#{build.wheel_size} bytes)"}

      assert files(cache) == []
    end

    test "says which file to put where when pip has no network", context do
      %{cache: cache, build: build, tmp_dir: tmp_dir} = context

      python =
        python(tmp_dir, "echo first; echo 'ERROR: No matching distribution found' >&2; exit 1")

      assert install(build, cache: cache, python: python) ==
               {:error,
                "pip could not fetch small-pjrt-cpu==1.0. Without a network, fetch " <>
                  "small_pjrt_cpu-1.0-py3-none-any.whl on another machine with `python3 -m pip " <>
                  "download --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 " <>
                  "small-pjrt-cpu==1.0`, put it into #{cache}/downloads and run " <>
                  "`mix custom_call.install cpu` again.\n" <>
                  "pip says: ERROR: No matching distribution found"}

      assert files(cache) == []
    end

    test "says what to install when there is no Python or no pip", context do
      %{cache: cache, build: build, tmp_dir: tmp_dir} = context

      assert {:error, "no python-nowhere to fetch small-pjrt-cpu==1.0 with: install it " <> rest} =
               install(build, cache: cache, python: "python-nowhere")

      assert rest =~ "(Debian/Ubuntu: sudo apt-get install python3-pip, Fedora: sudo dnf install "
      assert rest =~ "put it into #{cache}/downloads"

      python = Path.join(tmp_dir, "python3")
      File.write!(python, "#!/bin/sh\nexit 1\n")
      File.chmod!(python, 0o755)
      assert {:error, message} = install(build, cache: cache, python: python)
      assert message =~ "#{python} has no pip to fetch small-pjrt-cpu==1.0 with: install it "
    end

    test "says that other systems have to bring their own", %{cache: cache, build: build} do
      for system <- ["aarch64-unknown-linux-gnu", "x86_64-pc-linux-musl", "x86_64-apple-darwin23"] do
        assert install(build, cache: cache, system: system) ==
                 {:error,
                  "there is no CPU plugin to fetch for #{system}, only for Linux on x86-64 with " <>
                    "glibc: set EXLA_CUSTOM_CALL_PJRT_CPU to the path of a PJRT CPU plugin built " <>
                    "for this machine"}
      end
    end

    test "says why when the cache cannot be written to", %{build: build, tmp_dir: tmp_dir} do
      cache = Path.join(tmp_dir, "source.whl")
      assert {:error, message} = install(build, cache: cache, python: python(tmp_dir, "exit 1"))

      assert message ==
               "the plugin could not be put at #{cache}/plugins/cpu/plugin.so: could not make " <>
                 "folder \"#{cache}/plugins\": not a directory. XDG_CACHE_HOME names another " <>
                 "folder for caches, and EXLA_CUSTOM_CALL_PJRT_CPU a plugin at another place"
    end

    test "is safe with several at once", %{cache: cache, build: build, tmp_dir: tmp_dir} do
      python = python(tmp_dir, ~s(cp "#{tmp_dir}/source.whl" "$dest/#{build.wheel}"))
      path = Path.join(cache, "plugins/cpu/plugin.so")

      results =
        1..4
        |> Task.async_stream(fn _ -> install(build, cache: cache, python: python) end,
          timeout: :infinity
        )
        |> Enum.map(fn {:ok, result} -> result end)

      assert results == List.duplicate({:ok, path}, 4)
      assert files(cache) == [path]
    end
  end

  test "cache/0 follows XDG_CACHE_HOME" do
    kept = System.get_env("XDG_CACHE_HOME")
    System.put_env("XDG_CACHE_HOME", "/elsewhere")
    cache = Plugin.cache()
    if kept, do: System.put_env("XDG_CACHE_HOME", kept), else: System.delete_env("XDG_CACHE_HOME")

    case :os.type() do
      {:unix, :darwin} -> assert cache =~ "Library/Caches/exla_custom_call"
      _ -> assert cache == "/elsewhere/exla_custom_call"
    end
  end

  # On any machine: what is installed here is made by the test itself.
  defp install(build, opts) do
    Plugin.install_build(build, Keyword.put_new(opts, :system, "x86_64-pc-linux-gnu"))
  end
end
