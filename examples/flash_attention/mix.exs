defmodule FlashAttention.MixProject do
  use Mix.Project

  def project do
    [
      app: :flash_attention,
      version: "0.1.0",
      elixir: "~> 1.14",
      compilers: [:kernel | Mix.compilers()],
      start_permanent: Mix.env() == :prod,
      deps: [{:exla_custom_call, path: "../.."}]
    ]
  end

  def application do
    [extra_applications: [:logger]]
  end
end

defmodule Mix.Tasks.Compile.Kernel do
  @moduledoc "Builds the crate with the kernel and puts the library into `priv/native`."

  use Mix.Task.Compiler

  @crate "flash_attention"
  @native Path.join(__DIR__, "native")
  @library Path.join(__DIR__, "priv/native/lib#{@crate}.so")

  # Cargo knows best what is up to date, and says so in less than a tenth of a second. It shows its
  # progress in the first build only, and warnings and errors in every one.
  @impl true
  def run(_args) do
    quiet = if File.exists?(@library), do: ["--quiet"], else: []
    args = ["build", "--release", "--locked", "--target-dir", "target"] ++ quiet

    case System.cmd("cargo", args, cd: @native, into: IO.stream()) do
      {_, 0} -> install()
      {_, _} -> {:error, []}
    end
  end

  @impl true
  def clean do
    File.rm(@library)
    :ok
  end

  defp install do
    extension = if match?({:unix, :darwin}, :os.type()), do: "dylib", else: "so"
    built = File.read!(Path.join(@native, "target/release/lib#{@crate}.#{extension}"))

    if File.read(@library) == {:ok, built} do
      {:noop, []}
    else
      # A VM that runs may have the old library loaded: it keeps that file, since a new one takes its
      # name.
      File.mkdir_p!(Path.dirname(@library))
      File.write!(@library <> ".new", built)
      File.rename!(@library <> ".new", @library)
      # Mix linked priv into the build before it called its compilers, if priv was there.
      Mix.Project.build_structure()
      {:ok, []}
    end
  end
end
