Code.require_file("mix/exla_cargo.exs", __DIR__)

defmodule EXLACustomCall.MixProject do
  use Mix.Project

  @version "0.1.0"

  def project do
    [
      app: :exla_custom_call,
      version: @version,
      elixir: "~> 1.14",
      # Cargo first: a module that is loaded while the others compile may load the NIF.
      compilers: [:exla_cargo | Mix.compilers()],
      elixirc_paths: elixirc_paths(Mix.env()),
      start_permanent: Mix.env() == :prod,
      # Tests define implementations of the protocol.
      consolidate_protocols: Mix.env() != :test,
      deps: [],
      name: "EXLA.CustomCall",
      description: description(),
      package: package()
    ]
  end

  def application do
    [extra_applications: [:logger, :crypto], mod: {EXLA.CustomCall.Application, []}]
  end

  defp elixirc_paths(:test), do: ["lib", "test/support"]
  defp elixirc_paths(_env), do: ["lib"]

  defp description do
    "XLA custom calls from Elixir with layouts, aliasing and sharding on the operation itself: " <>
      "checked in Rust before XLA sees them, and run on any PJRT plugin"
  end

  defp package do
    [
      licenses: ["Apache-2.0"],
      links: %{},
      # test/support/handlers is a member of the Cargo workspace, which does not load without it.
      files:
        ~w(lib mix native include test/support/handlers .cargo Cargo.toml Cargo.lock clippy.toml
           mix.exs .formatter.exs guides README.md LICENSE CHANGELOG.md),
      exclude_patterns: [~r{/target/}]
    ]
  end
end
