defmodule Mix.Tasks.CustomCall.Install do
  @moduledoc """
  Fetches XLA's CPU plugin into the user's cache.

      mix custom_call.install cpu [--build jax|zml] [--force]

  The plugin is one shared object of about 200 MB, from a wheel of 63 MB that `pip` fetches from PyPI
  and whose SHA-256 is checked. Running it again fetches nothing. Nothing is fetched for the other
  plugins: `EXLA_CUSTOM_CALL_PJRT_CPU` and `EXLA_CUSTOM_CALL_PJRT_CUDA` name one that is already there.

  Without a network the message says which file to put where. See `EXLA.CustomCall.Plugin`.

  ## Options

    * `--build` - which build of the plugin: `jax` (the default) or `zml`
    * `--force` - fetches it anew though one is there
    * `--help` - prints this
  """
  @shortdoc "Fetches XLA's CPU plugin into the user's cache"

  use Mix.Task

  alias EXLA.CustomCall.Plugin

  @builds %{"jax" => :jax, "zml" => :zml}

  @impl true
  def run(args) do
    case OptionParser.parse(args,
           strict: [build: :string, force: :boolean, help: :boolean],
           aliases: [h: :help]
         ) do
      {[{:help, true} | _], _, []} -> Mix.shell().info(@moduledoc)
      {opts, ["cpu"], []} -> install(opts)
      {_, _, [{option, _} | _]} -> Mix.raise("unknown option #{option}. #{usage()}")
      {_, [], []} -> Mix.raise("which plugin? #{usage()}")
      {_, plugins, []} -> Mix.raise("cannot install #{Enum.join(plugins, " ")}. #{usage()}")
    end
  end

  defp install(opts) do
    name = Keyword.get(opts, :build, "jax")

    case Map.fetch(@builds, name) do
      {:ok, build} -> report(Plugin.install(:cpu, install_opts(build, opts)))
      :error -> Mix.raise("there is no build #{name}. #{usage()}")
    end
  end

  defp install_opts(build, opts) do
    [build: build, force: Keyword.get(opts, :force, false), progress: &Mix.shell().info/1]
  end

  defp report({:ok, _path}), do: :ok
  defp report({:error, message}), do: Mix.raise(message)

  defp usage, do: "Usage: mix custom_call.install cpu [--build jax|zml] [--force]"
end
