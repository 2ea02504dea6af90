defmodule EXLA.CustomCall.LibraryTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Error, Library, Spec, TestHandlers, XLA}

  @moduletag :tmp_dir

  defp load(handlers, path \\ TestHandlers.path()), do: Library.load(XLA.client(), path, handlers)

  defp refusal(handlers, path \\ TestHandlers.path()) do
    {:error, error} = load(handlers, path)
    error
  end

  test "handlers are registered under the targets that the caller names" do
    {:ok, library} = load(%{"library_test_copy" => "test_copy"})
    assert library.targets == ["library_test_copy"]
    assert Path.basename(library.path) == Path.basename(TestHandlers.path())

    {input, type} = XLA.f32([1, 2])
    spec = %Spec{call_target_name: "library_test_copy"}
    assert XLA.call(spec, [{input, type}], [type]) == {:ok, [input]}
  end

  test "loading twice does nothing" do
    assert {:ok, library} = load(%{"library_test_twice" => "test_copy"})
    assert {:ok, ^library} = load(%{"library_test_twice" => "test_copy"})
  end

  @tag :capture_log
  test "a target name of any bytes reaches its handler" do
    target = <<"a \"quote\" \\ \n é ", 0, 0xFF>>
    {:ok, _} = load(%{target => "test_copy"})
    {input, type} = XLA.f32([1, 2])
    assert XLA.call(%Spec{call_target_name: target}, [{input, type}], [type]) == {:ok, [input]}
  end

  test "a symbol that is missing is refused, and nothing is registered" do
    error = refusal([{"library_test_none", "test_copy"}, {"x", "no_such_symbol"}])
    assert {error.kind, error.name} == {:library, "no_such_symbol"}
    path = TestHandlers.path()

    assert error.message ==
             ~s(#{path} has no handler function "no_such_symbol": #{path}: undefined symbol: no_such_symbol)

    {input, type} = XLA.f32([1, 2])

    {:error, error} =
      XLA.call(%Spec{call_target_name: "library_test_none"}, [{input, type}], [type])

    assert error.message =~ "No FFI handler registered for library_test_none"
  end

  test "a library that is missing or no shared object is refused", %{tmp_dir: folder} do
    assert refusal(%{}, "/nowhere/lib.so").message ==
             "no handler library at /nowhere/lib.so: there is no such file"

    path = Path.join(folder, "lib.so")
    File.write!(path, String.duplicate("text", 1000))

    assert refusal(%{}, path).message ==
             "#{path} cannot be loaded as a shared object: #{path}: invalid ELF header"

    assert_raise Error, fn -> Library.load!(XLA.client(), path, %{}) end
  end

  test "a target that has another handler is an error that names both" do
    {:ok, _} = load(%{"library_test_taken" => "test_copy"})
    error = refusal(%{"library_test_taken" => "test_add_f32"})
    assert {error.kind, error.name} == {:library, "library_test_taken"}

    assert error.message ==
             ~s(target "library_test_taken" already has another handler on platform Host: ) <>
               "test_copy of #{TestHandlers.path()}; a process keeps the first one, " <>
               "choose another target name"
  end

  test "a handler that does not answer XLA's handshake is refused when it is loaded" do
    error = refusal(%{"library_test_mute" => "test_no_metadata"})
    assert {error.kind, error.name} == {:library, "library_test_mute"}
    assert error.message =~ ~s(handler for target "library_test_mute" rejected: )
  end

  test "terms of the wrong shape are refused" do
    assert refusal(:all).message ==
             "expected handlers as a map of target names to exported symbols, such as " <>
               ~S(%{"my_kernel" => "my_kernel_f32"}, got: :all)

    assert refusal(%{a: "test_copy"}).kind == :argument
    assert refusal(%{"a" => :test_copy}).kind == :argument

    assert refusal(%{}, :path).message == "expected the path of a library as a string, got: :path"
    assert refusal(%{}, "a\0b").message =~ "expected the path of a library as a string"

    assert {:error, %{message: "expected an EXLA.CustomCall.Client, got: %{platform: :host}"}} =
             Library.load(%{platform: :host}, TestHandlers.path(), %{})
  end
end
