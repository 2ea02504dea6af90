defmodule Mix.Tasks.CustomCall.InstallTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO

  alias Mix.Tasks.CustomCall.Install

  @usage "Usage: mix custom_call.install cpu [--build jax|zml] [--force]"

  test "prints its documentation for --help" do
    assert capture_io(fn -> Install.run(["--help"]) end) =~
             "mix custom_call.install cpu [--build jax|zml] [--force]"
  end

  test "says how it is used when the plugin is not one that it knows" do
    assert_raise Mix.Error, "which plugin? " <> @usage, fn -> Install.run([]) end
    assert_raise Mix.Error, "cannot install cuda. " <> @usage, fn -> Install.run(["cuda"]) end
  end

  test "says how it is used when an option is not one that it knows" do
    assert_raise Mix.Error, "unknown option --fast. " <> @usage, fn ->
      Install.run(["cpu", "--fast"])
    end

    assert_raise Mix.Error, "there is no build new. " <> @usage, fn ->
      Install.run(["cpu", "--build", "new"])
    end
  end
end
