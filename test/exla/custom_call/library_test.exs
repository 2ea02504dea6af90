defmodule EXLA.CustomCall.LibraryTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Client, Error, Executable, Library, Module, Plugin, Spec, TestHandlers}
  alias EXLA.CustomCall.{Typespec, Value, XLA}

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
             ~s(target "library_test_taken" already has a handler on platform Host, ) <>
               "test_copy of #{TestHandlers.path()}, and cannot have test_add_f32 of " <>
               "#{TestHandlers.path()}: a process keeps the first one, choose another target name"
  end

  test "a handler that does not answer XLA's handshake is refused when it is loaded" do
    error = refusal(%{"library_test_mute" => "test_no_metadata"})
    assert {error.kind, error.name} == {:library, "library_test_mute"}
    assert error.message =~ ~s(handler for target "library_test_mute" rejected: )
  end

  test "a library with a table needs no names" do
    assert {:ok, library} = Library.load(XLA.client(), TestHandlers.path())
    assert library.targets == ["table.copy", "table.parsed_scale", "table.factor_counts"]
    assert Library.load!(XLA.client(), TestHandlers.path()) == library

    {input, type} = XLA.f32([1, 2])

    assert XLA.call(%Spec{call_target_name: "table.copy"}, [{input, type}], [type]) ==
             {:ok, [input]}
  end

  test "a state is made once for each executable, and dropped with it" do
    {:ok, _} = Library.load(XLA.client(), TestHandlers.path())
    {input, type} = XLA.f32([1, 2])

    task =
      Task.async(fn ->
        {:ok, executable} = compile_scale(type, "1.5")

        for _ <- 1..3 do
          {:ok, [output]} = Executable.run(executable, [{input, type}], results: :binary)
          assert XLA.floats(output) == [1.5, 3.0]
        end

        assert factor_counts() == {1, 1}
        # Until here the executable is no garbage.
        assert {:ok, [_]} = Executable.run(executable, [{input, type}], results: :binary)
      end)

    Task.await(task, :infinity)
    # The executable was that process's, and is freed on a thread of its own.
    assert Enum.any?(1..100, fn _ -> Process.sleep(20) == :ok and factor_counts() == {1, 0} end)

    {:error, error} = compile_scale(type, "much")
    assert {error.kind, error.code} == {:compile, :invalid_argument}
    assert error.message =~ ~s(attribute "factor": invalid float literal)
    assert factor_counts() == {1, 0}
  end

  defp compile_scale(type, factor, target \\ "table.parsed_scale", client \\ XLA.client()) do
    spec = %Spec{
      call_target_name: target,
      attributes: [{"factor", ~s("#{factor}")}]
    }

    x = Value.parameter(type)
    {:ok, module} = Module.build([x], Value.custom_call([x], spec, [type]))
    Client.compile(client, module)
  end

  defp factor_counts do
    count = Typespec.tensor({:s, 64}, {})
    spec = %Spec{call_target_name: "table.factor_counts"}
    {:ok, [<<made::64-native>>, <<alive::64-native>>]} = XLA.call(spec, [], [count, count])
    {made, alive}
  end

  builds = Enum.map([:jax, :zml], &Plugin.resolve(:cpu, build: &1))

  unless Enum.all?(builds, &match?({:ok, _}, &1)),
    do: @tag(skip: "one build of the plugin is there")

  test "two plugins in one VM take the same handlers and their states" do
    {input, type} = XLA.f32([1, 2])

    for build <- [:jax, :zml], _again <- 1..2 do
      {:ok, plugin} = Plugin.resolve(:cpu, build: build)
      client = Client.new!(plugin: plugin)
      stages = %{execute: "test_kept_scale_f32", instantiate: "test_kept_scale_f32_instantiate"}
      {:ok, _} = Library.load(client, TestHandlers.path(), %{"library_test_plugins" => stages})
      {:ok, executable} = compile_scale(type, "2", "library_test_plugins", client)
      {:ok, [output]} = Executable.run(executable, [{input, type}], results: :binary)
      assert XLA.floats(output) == [2.0, 4.0]
    end
  end

  test "a handler's stages can be named" do
    stages = %{execute: "test_parsed_scale_f32", instantiate: "test_parsed_scale_f32_instantiate"}

    {:ok, _} = load(%{"library_test_stages" => stages, "library_test_stages_copy" => "test_copy"})

    error = refusal(%{"library_test_stages" => "test_parsed_scale_f32"})
    assert error.name == "library_test_stages"

    assert error.message =~
             "test_parsed_scale_f32 of #{TestHandlers.path()} for the stages instantiate, execute, and cannot have"
  end

  test "a stateful handler without its instantiate stage says what is missing" do
    {:ok, _} = load(%{"library_test_stateless" => "test_parsed_scale_f32"})
    {input, type} = XLA.f32([1, 2])
    spec = %Spec{call_target_name: "library_test_stateless", attributes: [{"factor", ~s("1")}]}
    assert {:error, error} = XLA.call(spec, [{input, type}], [type])
    assert error.kind == :run
    assert error.message =~ "its instantiate stage has to be registered with it"
  end

  test "a library without a table is told what to do", %{tmp_dir: folder} do
    path = build!(folder, "int exla_custom_call_no_table(void) { return 0; }")

    assert {:error, error} = Library.load(XLA.client(), path)
    assert error.kind == :library

    assert error.message ==
             "#{path} exports no table of its handlers: give the names of the handlers to register, or " <>
               "export the table with xla_ffi::library! in Rust or include/exla_custom_call.h in C and C++"
  end

  test "a broken table is an error", %{tmp_dir: folder} do
    path =
      build!(folder, "const unsigned long exla_custom_call_library[] = {40, 1, 80, 2, 0x1000};")

    assert {:error, error} = Library.load(XLA.client(), path)
    assert error.kind == :library

    assert error.message ==
             "the table of handlers that #{path} exports is broken: handler 0 of 2: the handler's " <>
               "description is at 0x1000, where no data is"

    assert_raise Error, fn -> Library.load!(XLA.client(), path) end
  end

  # Rust links with the C compiler, so there is one.
  defp build!(folder, source) do
    file = Path.join(folder, "library.c")
    path = Path.join(folder, "library.so")
    File.write!(file, source)
    {_, 0} = System.cmd("cc", ["-shared", "-fPIC", "-o", path, file])
    path
  end

  test "terms of the wrong shape are refused" do
    assert refusal(:all).message ==
             "expected handlers as a map of target names to exported symbols, such as " <>
               ~S(%{"my_kernel" => "my_kernel_f32"}, got: :all)

    assert refusal(%{a: "test_copy"}).kind == :argument

    assert refusal(%{"a" => :test_copy}).message ==
             ~S(expected the handler of "a" to be an exported symbol, or a map of stages to such, got: :test_copy)

    assert refusal(%{"a" => %{execute: "test_copy", record: "r"}}).message ==
             ~S(expected the stages of "a" to be among :instantiate, :prepare, :initialize and :execute, ) <>
               "got: :record"

    assert refusal(%{"a" => %{prepare: "test_copy"}}).message ==
             ~S(expected a symbol for the stage :execute of "a", got none)

    assert refusal(%{"a" => %{execute: nil}}).message ==
             ~S(expected the stage :execute of "a" as a string, got: nil)

    assert refusal(%{"a" => %{execute: "test_copy", state: %{name: "T"}}}).message ==
             ~S(expected the state of "a" as a map of :name, :id and :info, got: %{name: "T"})

    assert refusal(%{"a" => %{execute: "e", state: %{name: "T", id: 1, info: "i"}}}).message ==
             ~S(expected the id of the state of "a" as a string, got: 1)

    assert refusal(%{}, :path).message == "expected the path of a library as a string, got: :path"
    assert refusal(%{}, "a\0b").message =~ "expected the path of a library as a string"

    assert {:error, %{message: "expected an EXLA.CustomCall.Client, got: %{platform: :host}"}} =
             Library.load(%{platform: :host}, TestHandlers.path(), %{})
  end

  test "a function of a library that the library depends on is no handler" do
    error = refusal(%{"library_test_exit" => "exit"})
    assert {error.kind, error.name} == {:library, "exit"}
    assert error.message =~ "the library does not define it, but "
  end
end
