defmodule EXLA.CustomCall.XLAHeaders do
  @moduledoc """
  XLA's C++ headers for handlers, as people who build them for JAX have them: from the jaxlib wheel.

  They are fetched once, into the cache of the plugins. The version is one whose FFI, 0.3, is known to
  both builds of the CPU plugin: a handler that was built for a newer one than the plugin's is refused.
  """

  alias EXLA.CustomCall.Plugin

  @wheel %{
    requirement: "jaxlib==0.10.2",
    wheel: "jaxlib-0.10.2-cp312-cp312-manylinux_2_27_x86_64.whl",
    wheel_size: 85_467_828,
    sha256: "fe88ec443714c4379968b6c109f9fa617c7ad19b802828e4d7bf861cd66da4b7",
    # Wheels are for one version of Python each; the headers are the same in all of them.
    pip_options: ~w(--python-version 3.12 --implementation cp --abi cp312),
    command: "mix test test/exla/custom_call/cpp_library_test.exs"
  }
  @files ~w(api.h c_api.h ffi.h)
  @folder "jaxlib/include/xla/ffi/api"

  @doc "The folder for the compiler's `-I`."
  @spec include() :: {:ok, Path.t()} | {:error, String.t()}
  def include do
    target = Path.join([Plugin.cache(), "headers", "jaxlib-0.10.2"])
    if File.dir?(target), do: {:ok, inside(target)}, else: fetch(target)
  end

  defp inside(folder), do: Path.join(folder, "jaxlib/include")

  defp fetch(target) do
    folder = "#{target}.#{System.pid()}-#{System.unique_integer([:positive])}.tmp"
    File.mkdir_p!(folder)

    with {:ok, wheel} <- Plugin.fetch_wheel(@wheel, folder, progress: &IO.puts/1),
         :ok <- unpack(wheel, folder) do
      File.rm!(wheel)
      # Where another run was first, its headers are as good.
      _ = File.rename(folder, target)
      {:ok, inside(target)}
    end
  rescue
    error in [File.Error] -> {:error, Exception.message(error)}
  after
    target |> Kernel.<>(".#{System.pid()}-*.tmp") |> Path.wildcard() |> Enum.each(&File.rm_rf!/1)
  end

  defp unpack(wheel, folder) do
    files = for file <- @files, do: String.to_charlist(Path.join(@folder, file))

    case :zip.extract(String.to_charlist(wheel),
           file_list: files,
           cwd: String.to_charlist(folder)
         ) do
      {:ok, found} when length(found) == length(files) -> :ok
      other -> {:error, "the headers could not be unpacked: #{inspect(other)}"}
    end
  end
end
