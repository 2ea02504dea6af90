defmodule EXLA.CustomCall.TestHandlers do
  @moduledoc """
  The XLA FFI handlers that the tests load, in Rust, built by Cargo: those of `test/support/handlers`,
  unless another crate of the workspace is named.
  """

  @crate "exla_custom_call_test_handlers"
  @root Path.expand("../..", __DIR__)

  @doc """
  Builds the handlers; quick when nothing has changed, since Cargo sees that itself.
  """
  @spec build!(String.t()) :: :ok
  def build!(crate \\ @crate) do
    args = ["build", "--release", "--locked", "--quiet", "-p", crate]

    case System.cmd(System.get_env("CARGO", "cargo"), args, cd: @root, into: IO.stream()) do
      {_, 0} -> :ok
      {_, status} -> raise "cargo #{Enum.join(args, " ")} ended with status #{status}"
    end
  end

  @doc """
  The path of the shared object with the handlers.
  """
  @spec path(String.t()) :: Path.t()
  def path(crate \\ @crate) do
    directory = Path.expand(System.get_env("CARGO_TARGET_DIR", "target"), @root)
    triple = System.get_env("CARGO_BUILD_TARGET", "")
    Path.join([directory, triple, "release", "lib#{crate}.#{extension()}"])
  end

  defp extension do
    case :os.type() do
      {:unix, :darwin} -> "dylib"
      _ -> "so"
    end
  end
end
