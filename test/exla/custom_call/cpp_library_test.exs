defmodule EXLA.CustomCall.CppLibraryTest do
  # Libraries in C++ with XLA's own headers: as they are built for JAX, and with a table.
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Attribute, Client, Executable, Library, Module, Spec, Typespec, Value}
  alias EXLA.CustomCall.{XLA, XLAHeaders}

  compiler = System.find_executable(System.get_env("CXX", "g++"))
  headers = if compiler, do: XLAHeaders.include(), else: {:error, "there is no g++"}

  case headers do
    {:ok, include} ->
      @compiler compiler
      @include include

    {:error, reason} ->
      @compiler nil
      @include nil
      IO.puts("\nSkipping the tests of libraries in C++: #{reason}")
      @moduletag skip: reason
  end

  @own_include Path.expand("../../../include", __DIR__)
  @count Typespec.tensor({:s, 64}, {})

  # What a library for JAX looks like: symbols, one for each handler and stage, and for the types of states.
  @source ~S"""
  #include <atomic>
  #include <cstdint>
  #include <memory>
  #include <string_view>

  #include "xla/ffi/api/ffi.h"

  namespace ffi = xla::ffi;

  static ffi::Error Scale(float factor, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
    if (factor == 0) return ffi::Error::InvalidArgument("factor is zero");
    for (size_t i = 0; i < x.element_count(); ++i) {
      y->typed_data()[i] = factor * x.typed_data()[i];
    }
    return ffi::Error::Success();
  }

  XLA_FFI_DEFINE_HANDLER_SYMBOL(ScaleF32, Scale,
                                ffi::Ffi::Bind()
                                    .Attr<float>("factor")
                                    .Arg<ffi::Buffer<ffi::F32>>()
                                    .Ret<ffi::Buffer<ffi::F32>>());

  static std::atomic<int64_t> made = 0, alive = 0;

  struct Length {
    static ffi::TypeId id;
    explicit Length(int64_t value) : value(value) { ++made, ++alive; }
    ~Length() { --alive; }
    int64_t value;
  };

  ffi::TypeId Length::id = {};
  static constexpr ffi::TypeInfo kLengthInfo = ffi::MakeTypeInfo<Length>();

  static ffi::ErrorOr<std::unique_ptr<Length>> MakeLength(std::string_view text) {
    if (text.empty()) return ffi::Unexpected(ffi::Error::InvalidArgument("the text is empty"));
    return std::make_unique<Length>(text.size());
  }

  static ffi::Error UseLength(Length* length, ffi::ResultBuffer<ffi::S64> y) {
    *y->typed_data() = length->value;
    return ffi::Error::Success();
  }

  static ffi::Error Counts(ffi::ResultBuffer<ffi::S64> made_count, ffi::ResultBuffer<ffi::S64> alive_count) {
    *made_count->typed_data() = made;
    *alive_count->typed_data() = alive;
    return ffi::Error::Success();
  }

  XLA_FFI_DEFINE_HANDLER_SYMBOL(LengthInstantiate, MakeLength,
                                ffi::Ffi::BindInstantiate().Attr<std::string_view>("text"));
  XLA_FFI_DEFINE_HANDLER_SYMBOL(LengthExecute, UseLength,
                                ffi::Ffi::Bind()
                                    .Ctx<ffi::State<Length>>()
                                    .Ret<ffi::Buffer<ffi::S64>>());
  XLA_FFI_DEFINE_HANDLER_SYMBOL(LengthCounts, Counts,
                                ffi::Ffi::Bind()
                                    .Ret<ffi::Buffer<ffi::S64>>()
                                    .Ret<ffi::Buffer<ffi::S64>>());

  XLA_FFI_DECLARE_TYPE_ID_SYMBOL(LengthId);
  XLA_FFI_TypeId* LengthId() { return &Length::id; }
  XLA_FFI_DECLARE_TYPE_INFO_SYMBOL(LengthInfo);
  const XLA_FFI_TypeInfo* LengthInfo() { return &kLengthInfo; }
  """

  @table ~S"""
  #include "exla_custom_call.h"

  struct Settings : EXLA_CustomCall_UserData {
    static ffi::TypeId id;
  };
  ffi::TypeId Settings::id = EXLA_CUSTOM_CALL_USER_DATA_ID("com.example.settings");

  static ffi::Error UseSettings(Settings* settings, ffi::ResultBuffer<ffi::S64> y) {
    *y->typed_data() = Settings::id.type_id == 0x7ce9d97ec7710a4d ? settings->data_size : -1;
    return ffi::Error::Success();
  }

  XLA_FFI_DEFINE_HANDLER_SYMBOL(SettingsSize, UseSettings,
                                ffi::Ffi::Bind()
                                    .Ctx<ffi::UserData<Settings>>()
                                    .Ret<ffi::Buffer<ffi::S64>>());

  EXLA_CUSTOM_CALL_STATE(kLength, "cpp_table.Length", &Length::id, &kLengthInfo);

  EXLA_CUSTOM_CALL_LIBRARY(
      EXLA_CUSTOM_CALL_HANDLER("cpp_table.scale", "Host", ScaleF32),
      EXLA_CUSTOM_CALL_HANDLER("cpp_table.counts", "Host", LengthCounts),
      EXLA_CUSTOM_CALL_HANDLER("cpp_table.settings_size", "Host", SettingsSize),
      EXLA_CUSTOM_CALL_STAGES("cpp_table.length", "Host", LengthInstantiate, NULL, NULL, LengthExecute, 0,
                              &kLength));
  """

  # The library stays loaded, so its folder is no test's own.
  defp build!(name, source, flags) do
    folder = Path.join(System.tmp_dir!(), "exla_custom_call-cpp-#{System.pid()}")
    File.mkdir_p!(folder)
    ExUnit.Callbacks.on_exit(fn -> File.rm_rf!(folder) end)
    source_path = Path.join(folder, "#{name}.cc")
    library = Path.join(folder, "lib#{name}.so")
    File.write!(source_path, source)

    arguments =
      ~w(-std=c++17 -shared -fPIC -O1 -fvisibility=hidden -isystem #{@include}) ++
        flags ++ ["-o", library, source_path]

    case System.cmd(@compiler, arguments, stderr_to_stdout: true) do
      {_, 0} -> library
      {words, _} -> flunk("g++ failed:\n#{words}")
    end
  end

  defp spec(target, attributes \\ []) do
    %Spec{call_target_name: target, attributes: attributes}
  end

  defp scale(target, factor) do
    {input, type} = XLA.f32([1, 2])
    spec = spec(target, [{"factor", Attribute.float(factor, {:f, 32})}])

    with {:ok, [output]} <- XLA.call(spec, [{input, type}], [type]) do
      {:ok, XLA.floats(output)}
    end
  end

  defp counts(target) do
    {:ok, [made, alive]} = XLA.call(spec(target), [], [@count, @count])
    {number(made), number(alive)}
  end

  defp number(<<number::64-signed-native>>), do: number

  # The executable is held by the function's frame alone, and is garbage afterwards.
  defp in_a_process(fun), do: fun |> Task.async() |> Task.await(:infinity)

  defp compile(target, text) do
    results = Value.custom_call([], spec(target, [{"text", Attribute.string(text)}]), [@count])

    with {:ok, module} <- Module.build([], results), do: Client.compile(XLA.client(), module)
  end

  defp eventually(expected, fun, tries \\ 100) do
    case fun.() do
      ^expected ->
        :ok

      other when tries == 0 ->
        flunk("expected #{inspect(expected)}, got: #{inspect(other)}")

      _other ->
        Process.sleep(20)
        eventually(expected, fun, tries - 1)
    end
  end

  test "a library that was built for JAX loads as it is" do
    # Visible symbols, as these libraries have them.
    path = build!("jax", @source, ["-fvisibility=default"])

    assert {:ok, _} = Library.load(XLA.client(), path, %{"cpp_jax.scale" => "ScaleF32"})
    assert scale("cpp_jax.scale", 2.5) == {:ok, [2.5, 5.0]}
    assert {:error, error} = scale("cpp_jax.scale", 0.0)
    assert error.message =~ "factor is zero"

    assert {:error, error} = Library.load(XLA.client(), path)

    assert error.message ==
             "#{path} exports no table of its handlers: give the names of the handlers to register, or " <>
               "export the table with xla_ffi::library! in Rust or include/exla_custom_call.h in C and C++"

    # XLA's header answers with an error as long as the type is not registered.
    length = %{instantiate: "LengthInstantiate", execute: "LengthExecute"}
    assert {:error, error} = Library.load(XLA.client(), path, %{"cpp_jax.length" => length})
    assert error.message =~ ~s(handler for target "cpp_jax.length" rejected: )

    state = %{name: "cpp_jax.Length", id: "LengthId", info: "LengthInfo"}

    handlers = %{
      "cpp_jax.length" => Map.put(length, :state, state),
      "cpp_jax.counts" => "LengthCounts"
    }

    assert {:ok, library} = Library.load(XLA.client(), path, handlers)
    assert {:ok, ^library} = Library.load(XLA.client(), path, handlers)
    keeps_state("cpp_jax.length", "cpp_jax.counts")
  end

  test "a library with a table needs no names" do
    path = build!("table", @source <> @table, ["-Wall", "-Wextra", "-Werror", "-I", @own_include])
    assert {:ok, library} = Library.load(XLA.client(), path)

    assert library.targets ==
             [
               "cpp_table.scale",
               "cpp_table.counts",
               "cpp_table.settings_size",
               "cpp_table.length"
             ]

    assert {:ok, ^library} = Library.load(XLA.client(), path)

    assert scale("cpp_table.scale", -1.0) == {:ok, [-1.0, -2.0]}
    keeps_state("cpp_table.length", "cpp_table.counts")

    results = Value.custom_call([], spec("cpp_table.settings_size"), [@count])
    executable = Client.compile!(XLA.client(), Module.build!([], results))
    options = [user_data: %{"com.example.settings" => "five5"}, results: :binary]
    assert [size] = Executable.run!(executable, [], options)
    assert number(size) == 5

    assert {:error, error} = Executable.run(executable, [])
    assert error.message =~ "Failed to get user data from execution context"
  end

  defp keeps_state(target, counts) do
    in_a_process(fn ->
      assert {:ok, executable} = compile(target, "four")
      assert {:ok, other} = compile(target, "seven77")

      for _ <- 1..3 do
        assert {:ok, [four]} = Executable.run(executable, [], results: :binary)
        assert {:ok, [seven]} = Executable.run(other, [], results: :binary)
        assert {number(four), number(seven)} == {4, 7}
      end

      assert counts(counts) == {2, 2}
      # Until here they are no garbage.
      assert [{:ok, [_]}, {:ok, [_]}] =
               Enum.map([executable, other], &Executable.run(&1, [], results: :binary))
    end)

    eventually({2, 0}, fn -> counts(counts) end)

    assert {:error, error} = compile(target, "")
    assert error.message =~ "the text is empty"
    assert counts(counts) == {2, 0}
  end
end
