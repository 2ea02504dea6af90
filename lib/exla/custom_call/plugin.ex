defmodule EXLA.CustomCall.Plugin do
  @moduledoc """
  Where the PJRT plugins are: XLA itself, as one shared object.

  `EXLA.CustomCall.Client.new/1` takes a plugin by name or by path. A name is looked up here, in
  this order:

  1. the variable `EXLA_CUSTOM_CALL_PJRT_CPU` or `EXLA_CUSTOM_CALL_PJRT_CUDA`, the path of a plugin
     that is already on the machine;
  2. for `:cpu`, the user's cache, where `mix custom_call.install cpu` puts one.

  ## Builds of the CPU plugin

  | build | XLA | for |
  |---|---|---|
  | `:jax` (the default) | that of jaxlib 0.11.2, PJRT 0.115 | Linux on x86-64, glibc 2.27 or later |
  | `:zml` | that of zml/pjrt-artifacts, PJRT 0.106 | the same |

  Both come from PyPI, in a wheel that `pip` fetches. The wheel's SHA-256 is part of this module: a
  file that has another one is refused and removed. On other platforms, and with other builds, set the
  variable.

  The cache is `exla_custom_call` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`, and
  `~/Library/Caches` on macOS).

  ## Without a network

  Put the wheel, under its own name, into `downloads` in the cache (`downloads/1`); the
  installation checks it and takes it from there.
  """

  @type plugin :: :cpu | :cuda | Path.t()
  @type build :: :jax | :zml
  @type option ::
          {:build, build()}
          | {:force, boolean()}
          | {:cache, Path.t()}
          | {:python, String.t()}
          | {:system, String.t()}
          | {:progress, (String.t() -> any())}

  @variables %{cpu: "EXLA_CUSTOM_CALL_PJRT_CPU", cuda: "EXLA_CUSTOM_CALL_PJRT_CUDA"}

  # Sizes are in bytes. `file` is the plugin's name in the cache.
  @builds %{
    jax: %{
      requirement: "lammps-jax-pjrt-cpu==0.11.2",
      wheel: "lammps_jax_pjrt_cpu-0.11.2-py3-none-manylinux_2_27_x86_64.whl",
      wheel_size: 62_711_338,
      sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
      member: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
      file: "pjrt_c_api_cpu_plugin.so",
      file_size: 201_600_336,
      command: "mix custom_call.install cpu"
    },
    zml: %{
      requirement: "fastatomstruct-xla-cpu==2026.6.23",
      wheel: "fastatomstruct_xla_cpu-2026.6.23-py3-none-manylinux_2_27_x86_64.whl",
      wheel_size: 63_200_622,
      sha256: "88b1c430b341b4bea40a37420311c9c75db6e22b46d2ff95b6986577bee6afe9",
      member: "fastatomstruct_xla_cpu/libpjrt_cpu.so",
      file: "pjrt_c_api_cpu_plugin_zml.so",
      file_size: 273_768_800,
      command: "mix custom_call.install cpu --build zml"
    }
  }
  @platform "manylinux_2_27_x86_64"
  @chunk 1_048_576

  @doc """
  The path of a plugin's shared object.

  A path is given back as it is: whether it is a plugin, loading it tells. `build: :zml` looks for that
  build of the CPU plugin in the cache, whatever the variable says.

      iex> EXLA.CustomCall.Plugin.resolve("/opt/xla/pjrt_c_api_cpu_plugin.so")
      {:ok, "/opt/xla/pjrt_c_api_cpu_plugin.so"}
  """
  @spec resolve(plugin(), [option()]) :: {:ok, Path.t()} | {:error, String.t()}
  def resolve(plugin, opts \\ [])

  def resolve(path, _opts) when is_binary(path) do
    if path?(path) do
      {:ok, path}
    else
      {:error, "the path of a plugin is UTF-8 text, found #{inspect(path)}"}
    end
  end

  def resolve(:cpu, opts) do
    with :ok <- check_options(opts),
         {:ok, build} <- build(opts),
         :none <- if(Keyword.has_key?(opts, :build), do: :none, else: named_by_variable(:cpu)),
         :ok <- check_home(opts) do
      installed(build, opts)
    end
  end

  def resolve(:cuda, _opts) do
    with :none <- named_by_variable(:cuda) do
      {:error,
       "no CUDA plugin: set EXLA_CUSTOM_CALL_PJRT_CUDA to the path of one, such as " <>
         "xla_cuda_plugin.so of the wheel jax-cuda13-pjrt"}
    end
  end

  def resolve(other, _opts) do
    {:error, "a plugin is :cpu, :cuda or the path of a shared object, found #{inspect(other)}"}
  end

  @doc """
  Puts the CPU plugin into the user's cache, and returns its path.

  Does nothing when it is already there. Several installations at once are safe: each works in a folder
  of its own, and what it has checked appears in the cache under its final name in one step.

  Options:

    * `:build` - `:jax` (the default) or `:zml`
    * `:force` - whether to fetch it anew though one is there, default `false`
    * `:progress` - a function of one line of text, called as the work goes on
    * `:cache` - the cache folder, see `cache/0`
    * `:python` - the Python to run pip with, `"python3"` unless given
    * `:system` - the system to install for, as `:erlang.system_info(:system_architecture)` has it
  """
  @spec install(:cpu, [option()]) :: {:ok, Path.t()} | {:error, String.t()}
  def install(:cpu, opts \\ []) do
    with :ok <- check_options(opts),
         {:ok, build} <- build(opts),
         :ok <- check_home(opts) do
      install_build(build, opts)
    end
  end

  @doc false
  # The parts of `install/2` for any build, so that tests can use a small one.
  @spec install_build(map(), [option()]) :: {:ok, Path.t()} | {:error, String.t()}
  def install_build(build, opts) do
    case if(opts[:force], do: {:error, :forced}, else: installed(build, opts)) do
      {:ok, path} ->
        progress(opts, "The plugin is already there: #{path}")
        {:ok, path}

      {:error, _} ->
        with :ok <- supported(opts), do: fetch_and_unpack(build, opts)
    end
  end

  @doc false
  # A wheel, checked, in the folder or where it was put by hand: for tests that need another one than a plugin's.
  @spec fetch_wheel(map(), Path.t(), [option()]) :: {:ok, Path.t()} | {:error, String.t()}
  def fetch_wheel(build, folder, opts) do
    with {:ok, wheel} <- fetch(build, folder, opts),
         :ok <- verify(build, wheel) do
      {:ok, wheel}
    end
  end

  @doc """
  The folder that plugins are kept in.
  """
  @spec cache() :: Path.t()
  def cache, do: to_string(:filename.basedir(:user_cache, "exla_custom_call"))

  @doc """
  The folder where a wheel can be put by hand, on a machine without a network.
  """
  @spec downloads([option()]) :: Path.t()
  def downloads(opts \\ []), do: Path.join(Keyword.get_lazy(opts, :cache, &cache/0), "downloads")

  # Looking up

  defp check_options(opts) do
    cond do
      not Keyword.keyword?(opts) ->
        {:error,
         "expected options as a keyword list such as [build: :zml], found #{inspect(opts)}"}

      Keyword.has_key?(opts, :cache) and not path?(opts[:cache]) ->
        {:error, "expected :cache to be the path of a folder, found #{inspect(opts[:cache])}"}

      true ->
        :ok
    end
  end

  defp path?(path) do
    is_binary(path) and String.valid?(path) and not String.contains?(path, <<0>>)
  end

  defp build(opts) do
    case Map.fetch(@builds, Keyword.get(opts, :build, :jax)) do
      {:ok, build} ->
        {:ok, build}

      :error ->
        {:error, "a build of the CPU plugin is :jax or :zml, found #{inspect(opts[:build])}"}
    end
  end

  # A service that starts with an empty environment has no home, and so no cache.
  defp check_home(opts) do
    if Keyword.has_key?(opts, :cache) or System.get_env("HOME") ||
         System.get_env("XDG_CACHE_HOME") do
      :ok
    else
      {:error,
       "there is no folder for caches, since neither HOME nor XDG_CACHE_HOME is set: set one of " <>
         "them, or EXLA_CUSTOM_CALL_PJRT_CPU to the path of the CPU plugin"}
    end
  end

  defp named_by_variable(plugin) do
    variable = Map.fetch!(@variables, plugin)
    path = System.get_env(variable, "")

    cond do
      path == "" -> :none
      File.regular?(path) -> {:ok, path}
      true -> {:error, "#{variable} is #{path}, where no file is"}
    end
  end

  defp installed(build, opts) do
    path = path(build, opts)
    expected = build.file_size

    case File.stat(path) do
      {:ok, %{type: :regular, size: ^expected}} ->
        {:ok, path}

      {:ok, %{size: size}} ->
        {:error,
         "the plugin #{path} has #{size} bytes instead of #{expected}, so it is not whole: run " <>
           "`#{build.command}` to fetch it again"}

      {:error, _} ->
        {:error,
         "no CPU plugin at #{path}: run `#{build.command}` (in a checkout of this package " <>
           "`make plugin` does too), or set EXLA_CUSTOM_CALL_PJRT_CPU to the path of one"}
    end
  end

  defp path(build, opts) do
    Path.join([Keyword.get_lazy(opts, :cache, &cache/0), "plugins", "cpu", build.file])
  end

  # Installing

  defp supported(opts) do
    system = Keyword.get_lazy(opts, :system, &system/0)

    if system =~ ~r/^(x86_64|amd64)-.*linux/ and not (system =~ "musl") do
      :ok
    else
      {:error,
       "there is no CPU plugin to fetch for #{system}, only for Linux on x86-64 with glibc: set " <>
         "EXLA_CUSTOM_CALL_PJRT_CPU to the path of a PJRT CPU plugin built for this machine"}
    end
  end

  defp system, do: to_string(:erlang.system_info(:system_architecture))

  # Where another installation was at work at the same time and came first, its plugin is as good.
  defp fetch_and_unpack(build, opts) do
    with {:error, message} <- attempt(build, opts),
         true <- opts[:force] == true or match?({:error, _}, installed(build, opts)) do
      {:error, message}
    else
      {:ok, path} -> {:ok, path}
      false -> installed(build, opts)
    end
  end

  defp attempt(build, opts) do
    target = path(build, opts)
    # Beside the target, so that the last step is a rename within one file system.
    folder = "#{target}.#{System.pid()}-#{System.unique_integer([:positive])}.tmp"

    try do
      make_folder!(folder)

      with {:ok, wheel} <- fetch_wheel(build, folder, opts),
           {:ok, unpacked} <- unpack(build, wheel, folder, opts) do
        File.rename!(unpacked, target)
        # The one put there by hand has done its service too.
        File.rm(wheel)
        progress(opts, "The plugin is ready: #{target}")
        {:ok, target}
      end
    rescue
      # A full disk, or a cache that may not be written to.
      error in [File.Error, File.RenameError, MatchError] ->
        {:error,
         "the plugin could not be put at #{target}: #{Exception.message(error)}. " <>
           "XDG_CACHE_HOME names another folder for caches, and EXLA_CUSTOM_CALL_PJRT_CPU a plugin " <>
           "at another place"}
    after
      File.rm_rf(folder)
    end
  end

  # File.mkdir_p! names the innermost folder whatever the one is that could not be made, and for the
  # reason that it is not there.
  defp make_folder!(folder) do
    parent = Path.dirname(folder)
    unless File.dir?(parent) or parent == folder, do: make_folder!(parent)

    case File.mkdir(folder) do
      made when made in [:ok, {:error, :eexist}] -> :ok
      {:error, reason} -> raise File.Error, reason: reason, action: "make folder", path: folder
    end
  end

  defp fetch(build, folder, opts) do
    by_hand = Path.join(downloads(opts), build.wheel)

    if File.exists?(by_hand) do
      progress(opts, "Taking #{by_hand}")
      {:ok, by_hand}
    else
      download(build, Path.join(folder, build.wheel), opts)
    end
  end

  defp download(build, wheel, opts) do
    progress(
      opts,
      "Fetching #{build.requirement} (#{round(build.wheel_size / 1_000_000)} MB) with pip"
    )

    with {:ok, python} <- python(build, opts) do
      # Without a cache: pip would keep the 60 MB a second time.
      arguments =
        ~w(-m pip download --quiet --disable-pip-version-check --progress-bar off --no-cache-dir
           --no-deps --only-binary=:all: --platform #{@platform}) ++
          pip_options(build) ++ ["--dest", Path.dirname(wheel), build.requirement]

      case System.cmd(python, arguments, stderr_to_stdout: true) do
        {_, 0} ->
          downloaded(build, wheel)

        {words, _} ->
          {:error, pip_failed(build, words, opts)}
      end
    end
  end

  defp downloaded(build, wheel) do
    if File.regular?(wheel),
      do: {:ok, wheel},
      else: {:error, "pip fetched #{build.requirement}, but not as #{build.wheel}"}
  end

  defp python(build, opts) do
    python = Keyword.get(opts, :python, "python3")

    with path when path != nil <- System.find_executable(python),
         {_, 0} <- System.cmd(path, ["-m", "pip", "--version"], stderr_to_stdout: true) do
      {:ok, path}
    else
      nil -> {:error, no_pip("no #{python}", build, opts)}
      _ -> {:error, no_pip("#{python} has no pip", build, opts)}
    end
  end

  defp pip_failed(build, words, opts) do
    "pip could not fetch #{build.requirement}.#{by_hand(build, opts)}\npip says: #{last_line(words)}"
  end

  defp no_pip(what, build, opts) do
    "#{what} to fetch #{build.requirement} with: install it (Debian/Ubuntu: sudo apt-get install " <>
      "python3-pip, Fedora: sudo dnf install python3-pip, macOS: brew install python)." <>
      by_hand(build, opts)
  end

  defp by_hand(build, opts) do
    options = Enum.map_join(pip_options(build), &(&1 <> " "))

    " Without a network, fetch #{build.wheel} on another machine with `python3 -m pip download " <>
      "--no-deps --only-binary=:all: --platform #{@platform} #{options}#{build.requirement}`, put it into " <>
      "#{downloads(opts)} and run `#{build.command}` again."
  end

  defp pip_options(build), do: Map.get(build, :pip_options, [])

  defp last_line(words) do
    words |> String.split("\n", trim: true) |> List.last("nothing") |> String.trim()
  end

  # Checking

  defp verify(build, wheel) do
    size = File.stat!(wheel).size
    hash = sha256(wheel)

    if hash == build.sha256 do
      :ok
    else
      File.rm!(wheel)

      {:error,
       "#{wheel} is not the file it should be, and was removed: its SHA-256 is #{hash} " <>
         "(#{size} bytes), expected #{build.sha256} (#{build.wheel_size} bytes)"}
    end
  end

  defp sha256(path) do
    {:ok, hash} =
      File.open(path, [:read, :raw, :binary], fn file ->
        file |> chunks() |> Enum.reduce(:crypto.hash_init(:sha256), &:crypto.hash_update(&2, &1))
      end)

    hash |> :crypto.hash_final() |> Base.encode16(case: :lower)
  end

  # `:infinity`, an atom, is greater than any number.
  defp chunks(file, count \\ :infinity) do
    Stream.unfold(count, fn
      0 ->
        nil

      left ->
        case :file.read(file, min(left, @chunk)) do
          {:ok, bytes} -> {bytes, if(left == :infinity, do: left, else: left - byte_size(bytes))}
          :eof -> nil
        end
    end)
  end

  # Unpacking. `:zip` before OTP 27 holds a whole member in memory, 270 MB of it; from its directory
  # the deflated bytes are found, and inflated as they are read.

  defp unpack(build, wheel, folder, opts) do
    progress(opts, "Unpacking #{build.file} (#{round(build.file_size / 1_000_000)} MB)")
    unpacked = Path.join(folder, build.file)
    {:ok, [_comment | members]} = :zip.list_dir(String.to_charlist(wheel))

    {:zip_file, _name, _info, _comment, offset, packed_size} =
      List.keyfind(members, String.to_charlist(build.member), 1)

    {:ok, _} =
      File.open(wheel, [:read, :raw, :binary], &inflate_to(&1, offset, packed_size, unpacked))

    case File.stat!(unpacked).size do
      size when size == build.file_size -> {:ok, unpacked}
      size -> {:error, "#{build.member} unpacked to #{size} bytes instead of #{build.file_size}"}
    end
  end

  defp inflate_to(wheel, offset, packed_size, unpacked) do
    # The local header: 30 bytes, the last four of them the lengths of its name and extra field.
    {:ok, <<"PK", 3, 4, _::binary-size(22), name::little-16, extra::little-16>>} =
      :file.pread(wheel, offset, 30)

    {:ok, _} = :file.position(wheel, offset + 30 + name + extra)
    inflater = :zlib.open()
    # Raw deflate, without zlib's own header.
    :ok = :zlib.inflateInit(inflater, -15)

    File.open!(unpacked, [:write, :raw, :binary], fn file ->
      for chunk <- chunks(wheel, packed_size), do: inflate(inflater, chunk, file)
    end)

    :zlib.close(inflater)
  end

  defp inflate(inflater, input, file) do
    case :zlib.safeInflate(inflater, input) do
      {:continue, output} ->
        :ok = :file.write(file, output)
        inflate(inflater, [], file)

      {:finished, output} ->
        :ok = :file.write(file, output)
    end
  end

  defp progress(opts, line), do: Keyword.get(opts, :progress, &Function.identity/1).(line)
end
