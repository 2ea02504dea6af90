defmodule EXLA.CustomCall.ClientTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Client, Error, Module, Spec, Typespec, Value, XLA}

  @moduletag :tmp_dir
  @vector Typespec.tensor({:f, 32}, {2})

  defp refusal(opts) do
    {:error, error} = Client.new(opts)
    error
  end

  defp one_call(spec) do
    x = Value.parameter(@vector)
    Module.build!([x], Value.custom_call([x], spec, [@vector]))
  end

  test "the CPU plugin is the platform :host, with the devices that were asked for" do
    client = XLA.client()
    assert client.platform == :host
    assert client.platform_name == "cpu"
    assert {0, minor} = client.api_version
    assert minor >= 54
    assert [%{id: 0, kind: "cpu", addressable: true}, %{id: 1}] = client.devices
    assert inspect(client) == "#EXLA.CustomCall.Client<cpu, 2 devices>"
  end

  test "it tells of its plugin, devices and memories" do
    info = Client.info!(XLA.client())
    assert info.platform_name == "cpu"
    assert [%{id: 0, addressable: true, kind: "cpu"}, %{id: 1}] = info.devices
    assert Enum.any?(info.extensions, &(&1.name =~ "FFI"))
    assert [_ | _] = info.memories
    assert [0, 9 | _] = info.attributes["stablehlo_minimum_version"]

    assert {:error, %{message: "expected an EXLA.CustomCall.Client, got: nil"}} = Client.info(nil)
  end

  test "two clients of one plugin are apart" do
    other = Client.new!(options: [cpu_device_count: 3])
    assert length(other.devices) == 3
    assert length(XLA.client().devices) == 2
  end

  test "a compilation that takes too long is given up" do
    {:error, error} = Client.compile(XLA.client(), one_call(scale(3)), timeout: 0)
    assert {error.kind, error.code} == {:compile, :deadline_exceeded}
    assert error.message == "the compiler was not done within 0 ms"
    refute_receive _, 100
  end

  test "a plugin path that is missing is refused" do
    error = refusal(plugin: "/nowhere/plugin.so")
    assert error.kind == :plugin
    assert error.message == "no PJRT plugin at /nowhere/plugin.so: there is no such file"

    assert_raise Error, error.message, fn -> Client.new!(plugin: "/nowhere/plugin.so") end
  end

  test "a plugin that is no shared object is refused", %{tmp_dir: folder} do
    path = Path.join(folder, "plugin.so")
    File.write!(path, "text")
    error = refusal(plugin: path)
    assert error.kind == :plugin

    assert error.message ==
             "#{path} cannot be loaded as a shared object: #{path}: file too short"
  end

  test "a shared object that exports no GetPjrtApi is refused" do
    path = EXLA.CustomCall.TestHandlers.path()
    error = refusal(plugin: path)
    assert error.kind == :plugin

    assert error.message ==
             "#{path} is a shared object but no PJRT plugin: it exports no GetPjrtApi"
  end

  test "a plugin is a name or a path" do
    error = refusal(plugin: :abacus)
    assert {error.kind, error.field} == {:plugin, :plugin}

    assert error.message ==
             "a plugin is :cpu, :cuda or the path of a shared object, found :abacus"

    assert refusal(plugin: "/tmp/" <> <<255>>).message ==
             "the path of a plugin is UTF-8 text, found <<47, 116, 109, 112, 47, 255>>"
  end

  test "create options are names with values" do
    assert refusal(options: %{}).message ==
             "expected :options to be a list such as [cpu_device_count: 2], got: %{}"

    assert refusal(options: [cpu_device_count: {1}]).message ==
             "expected :options to be {name, value} pairs, the value a 64-bit integer, " <>
               "a float, a boolean, a string or a list of integers, got: {:cpu_device_count, {1}}"

    assert refusal(options: [cpu_device_count: "two"]).message =~ "cpu_device_count"

    assert refusal(plug: :cpu).message ==
             "unknown option :plug; the options are :plugin, :options"
  end

  test "a target with no handler is an error at compile time that says what to do" do
    {:error, error} = Client.compile(XLA.client(), one_call(%Spec{call_target_name: "nobody"}))
    assert {error.kind, error.code, error.name} == {:compile, :not_found, "nobody"}

    assert error.message ==
             "NOT_FOUND: No FFI handler registered for nobody on a platform Host (canonical host); " <>
               "load the library that has its handler with EXLA.CustomCall.Library.load/3 first"

    assert_raise Error, error.message, fn ->
      Client.compile!(XLA.client(), one_call(%Spec{call_target_name: "nobody"}))
    end
  end

  test "an untyped target with no handler says so too" do
    spec = %Spec{call_target_name: "nobody", api_version: 2, backend_config: "x"}
    {:error, error} = Client.compile(XLA.client(), one_call(spec))
    assert error.name == "nobody"

    assert error.message =~
             "libraries have handlers of the typed FFI, which a spec with api_version: 4 calls"
  end

  test "what the compiler refuses comes with its words" do
    x = Value.parameter(@vector)
    [y] = Value.op("stablehlo.nonsense", [x], [@vector])
    {:error, error} = Client.compile(XLA.client(), Module.build!([x], [y]))
    assert error.kind == :compile
    assert error.message =~ "stablehlo.nonsense"
  end

  test "its guess about versions is left out where it has said what is wrong" do
    x = Value.parameter(@vector)
    [y] = Value.op("stablehlo.tanh", [x], [Typespec.tensor(:s32, {2})])
    {:error, error} = Client.compile(XLA.client(), Module.build!([x], [y]))
    assert error.message =~ "result #0 must be ranked tensor of"
    refute error.message =~ "Failed to parse"
    refute error.message =~ "bytecode"
  end

  test "many processes compile at once" do
    modules = for n <- 1..16, do: one_call(scale(n))

    results =
      modules
      |> Task.async_stream(&Client.compile(XLA.client(), &1), max_concurrency: 16)
      |> Enum.map(fn {:ok, result} -> result end)

    assert Enum.all?(results, &match?({:ok, _}, &1))
  end

  test "it compiles modules only" do
    assert {:error, %{message: "expected an EXLA.CustomCall.Module, got: \"module {}\""}} =
             Client.compile(XLA.client(), "module {}")

    assert {:error, %{message: "expected an EXLA.CustomCall.Client, got: nil"}} =
             Client.compile(nil, Module.build!([], []))
  end

  defp scale(n) do
    %Spec{call_target_name: "test_scale_f32", attributes: [{"factor", "#{n}.0 : f32"}]}
  end

  test "a pipe, and files that are damaged, are no plugins", %{tmp_dir: tmp_dir} do
    pipe = Path.join(tmp_dir, "pipe")
    {_, 0} = System.cmd("mkfifo", [pipe])
    assert refusal(plugin: pipe).message =~ "it is no regular file"

    library = File.read!(Application.app_dir(:exla_custom_call, "priv/native/xla_ffi_linalg.so"))
    half = div(byte_size(library), 2)
    unwritten = Path.join(tmp_dir, "unwritten.so")

    File.write!(unwritten, [
      binary_part(library, 0, half),
      :binary.copy(<<0>>, byte_size(library) - half)
    ])

    assert refusal(plugin: unwritten).message =~ "it is damaged: its section headers are empty"
  end

  test "a long list of options is read in time" do
    options = List.duplicate({"no_such_option", 1}, 100_000) ++ [:none]
    {time, error} = :timer.tc(fn -> refusal(options: options) end)
    assert error.message =~ "got: :none"
    assert time < 5_000_000
  end
end
