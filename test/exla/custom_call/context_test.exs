defmodule EXLA.CustomCall.ContextTest do
  use ExUnit.Case, async: true
  doctest EXLA.CustomCall.Context

  alias EXLA.CustomCall.{Client, Context, Executable, Module, Spec, Typespec, Value, XLA}

  @type_f32 Typespec.tensor({:f, 32}, {4})

  defp build(text, context) do
    spec = %Spec{call_target_name: "k", attributes: [{"a", text}]}
    Module.build([], [], effects: Value.custom_call([], spec, []), context: context)
  end

  # A module that no other number gives, and what it has to read back as.
  defp differing(n, context) do
    type = Typespec.tensor({:f, 32}, {n + 1})
    x = Value.parameter(type)

    spec = %Spec{
      call_target_name: "target_#{n}",
      attributes: [{"number", "#{n} : i64"}, {"name_#{n}", "\"#{n}\""}],
      mlir_attributes: [{"mhlo.note_#{n}", "[#{n} : i32]"}]
    }

    Module.build!([x], Value.custom_call([x], spec, [type]), context: context, warnings: :ignore)
  end

  defp assert_read_back(module, n) do
    type = Typespec.tensor({:f, 32}, {n + 1})

    assert Module.custom_calls(module) == [
             %{
               function: "main",
               call_target_name: "target_#{n}",
               api_version: 4,
               attributes: [{"name_#{n}", "\"#{n}\""}, {"number", "#{n} : i64"}],
               backend_config: nil,
               mlir_attributes: [{"mhlo.note_#{n}", "[#{n} : i32]"}],
               operands: [type],
               results: [type]
             }
           ]

    assert to_string(module) == """
           module {
             func.func @main(%arg0: tensor<#{n + 1}xf32>) -> tensor<#{n + 1}xf32> {
               %0 = "stablehlo.custom_call"(%arg0) {api_version = 4 : i32, backend_config = {name_#{n} = "#{n}", number = #{n} : i64}, call_target_name = "target_#{n}", mhlo.note_#{n} = [#{n} : i32]} : (tensor<#{n + 1}xf32>) -> tensor<#{n + 1}xf32>
               return %0 : tensor<#{n + 1}xf32>
             }
           }
           """
  end

  # x, negated so many times.
  defp chain(length, context) do
    x = Value.parameter(@type_f32)

    y =
      Enum.reduce(1..length, x, fn _, y ->
        [y] = Value.op("stablehlo.negate", [y], [@type_f32])
        y
      end)

    Module.build!([x], [y], context: context)
  end

  # Runs it in so many processes that begin at the same moment.
  defp at_once(count, fun) do
    tasks =
      for n <- 1..count do
        Task.async(fn ->
          receive do
            :go -> fun.(n)
          end
        end)
      end

    Enum.each(tasks, &send(&1.pid, :go))
    Task.await_many(tasks, 60_000)
  end

  defp wait_until(fun, tries \\ 30_000) do
    cond do
      fun.() -> :ok
      tries == 0 -> flunk("it did not come")
      true -> Process.sleep(1) && wait_until(fun, tries - 1)
    end
  end

  defp message(opts) do
    {:error, error} = Context.new(opts)
    assert error.kind == :argument
    assert_raise ArgumentError, error.message, fn -> Context.new!(opts) end
    error.message
  end

  test "its limits hold for the modules that are built in it" do
    context = Context.new!(max_nesting: 2, max_text_bytes: 10)
    assert {:ok, _} = build("{b={}}", context)

    {:error, error} = build("{b={c={}}}", context)

    assert error.message ==
             ~S(attributes: the text of "a" nests deeper than 2 at line 1, column 7: "{b={c={}}}"; flatten it)

    assert {error.kind, error.line, error.column} == {:text, 1, 7}

    {:error, error} = build("\"12345678\" ", context)

    assert error.message ==
             ~S(attributes: the text of "a" has 11 bytes, more than the limit of 10; pass large data as an operand, or raise max_text_bytes of the context)
  end

  test "one context serves many modules and processes" do
    context = Context.new!()

    texts =
      1..200
      |> Task.async_stream(fn n ->
        {:ok, module} = build("#{rem(n, 7)} : i64", context)
        to_string(module)
      end)
      |> Enum.map(fn {:ok, text} -> text end)

    assert length(Enum.uniq(texts)) == 7
  end

  test "a module outlives its context" do
    {:ok, module} = build("1 : i64", Context.new!())
    :erlang.garbage_collect()
    assert to_string(module) =~ "backend_config = {a = 1 : i64}"
  end

  test "it counts what was built or checked in it" do
    context = Context.new!()

    assert Context.stats(context) == %{
             modules: 0,
             refused: 0,
             texts: 0,
             text_bytes: 0,
             rotations: 0,
             bytes: 0,
             builders: 0
           }

    {:ok, _} = build("1 : i64", context)
    %{bytes: bytes} = Context.stats(context)
    {:ok, _} = build("1 : i64", context)
    assert %{modules: 2, texts: 2, text_bytes: 14, bytes: ^bytes} = Context.stats(context)
    {:ok, _} = Module.check([], [], context: context)
    assert %{modules: 3, texts: 2} = Context.stats(context)
    {:error, _} = build("oops", context)
    assert %{modules: 3, refused: 1, texts: 3, text_bytes: 18} = Context.stats(context)
    assert Context.stats(context).bytes > bytes
  end

  test "its numbers are there while a module is built in it" do
    context = Context.new!()
    assert Context.stats(context).builders == 0
    # Nearly all of the time it takes is MLIR's.
    text = "array<i32: #{String.duplicate("1, ", 200_000)}1>"
    task = Task.async(fn -> build_until_told(text, context) end)
    wait_until(fn -> Context.stats(context).builders == 1 end)
    send(task.pid, :stop)
    built = Task.await(task, 60_000)
    assert %{builders: 0, modules: ^built} = Context.stats(context)
  end

  defp build_until_told(text, context, built \\ 0) do
    receive do
      :stop -> built
    after
      0 ->
        {:ok, _} = build(text, context)
        build_until_told(text, context, built + 1)
    end
  end

  test "one that has outgrown its budget is fresh at the next module, and modules of before stay" do
    context = Context.new!(rotate_after: 10_000)
    assert context.rotate_after == 10_000
    modules = for n <- 1..50, do: {n, differing(n, context)}
    %{rotations: rotations, bytes: bytes} = Context.stats(context)
    assert rotations in 5..25
    assert bytes in 1..15_000
    for {n, module} <- modules, do: assert_read_back(module, n)
  end

  test "without a budget it never is" do
    context = Context.new!(rotate_after: :infinity)
    for n <- 1..100, do: {:ok, _} = build("\"#{String.duplicate("#{n} ", 200_000)}\"", context)
    assert %{rotations: 0, modules: 100, bytes: bytes} = Context.stats(context)
    assert bytes > 50_000_000
  end

  test "64 processes build in one at once while it rotates under them" do
    context = Context.new!(rotate_after: 20_000)

    at_once(64, fn process ->
      modules = for n <- 1..10, do: {process * 100 + n, differing(process * 100 + n, context)}
      for {n, module} <- modules, do: assert_read_back(module, n)
    end)

    assert %{modules: 640, refused: 0, texts: 1920, builders: 0} = Context.stats(context)
    assert Context.stats(context).rotations > 10
  end

  test "64 processes build, print and read back in fresh ones at once" do
    at_once(64, fn process ->
      for n <- 1..10,
          do:
            n |> Kernel.+(process * 100) |> differing(nil) |> assert_read_back(process * 100 + n)
    end)
  end

  test "an error in one process is not another's" do
    context = Context.new!()

    at_once(64, fn process ->
      for n <- 1..10 do
        name = "wrong_#{process}_#{n}"
        {:error, error} = build("[1, #{name}]", context)
        assert error.message =~ "expected attribute value, at line 1, column 5: \"[1, #{name}]\""
        {:ok, module} = build("#{process} : i64", context)
        assert [%{attributes: [{"a", text}]}] = Module.custom_calls(module)
        assert text == "#{process} : i64"
      end
    end)
  end

  test "a module is printed, read and compiled while its context is freed in another process" do
    test = self()

    for round <- 1..20 do
      {pid, monitor} =
        spawn_monitor(fn ->
          context = Context.new!(rotate_after: 1_000)
          for n <- 1..20, do: send(test, {:module, round, differing(n, context), n})
          send(test, {:module, round, chain(3, context), :chain})
          # The context ends with this process.
        end)

      for n <- 1..20 do
        assert_receive {:module, ^round, module, ^n}, 60_000
        assert_read_back(module, n)
      end

      assert_receive {:module, ^round, module, :chain}, 60_000
      executable = Client.compile!(XLA.client(), module)
      input = XLA.f32([1.0, 2.0, 3.0, 4.0])
      [result] = Executable.run!(executable, [input], results: :binary)
      assert XLA.floats(result) == [-1.0, -2.0, -3.0, -4.0]
      assert_receive {:DOWN, ^monitor, :process, ^pid, :normal}, 60_000
    end
  end

  test "processes that are killed while they build leave it as it should be" do
    context = Context.new!(rotate_after: 50_000)

    killed =
      for n <- 1..64 do
        pid =
          spawn(fn ->
            for m <- Stream.iterate(n, &(&1 + 64)) do
              differing(m, context)
              chain(100, context)
            end
          end)

        pid
      end

    wait_until(fn -> Context.stats(context).modules > 20 end)

    # One after the other, so that each is somewhere else.
    for pid <- killed do
      modules = Context.stats(context).modules
      Process.exit(pid, :kill)
      wait_until(fn -> Context.stats(context).modules > modules or pid == List.last(killed) end)
    end

    # What was being built is built to its end.
    wait_until(fn -> Context.stats(context).builders == 0 end)
    assert Context.stats(context).refused == 0
    7 |> differing(context) |> assert_read_back(7)
  end

  test "contexts and modules go from process to process and are freed in the last" do
    test = self()

    for n <- 1..100 do
      spawn_link(fn ->
        context = Context.new!(rotate_after: 1)
        module = differing(n, context)
        send(test, {:made, n, context, module})
      end)
    end

    # Each is passed on once more, and its own process ends with it.
    for n <- 1..100 do
      assert_receive {:made, ^n, context, module}, 60_000

      spawn_link(fn ->
        again = differing(n + 1_000, context)
        assert %{modules: 2, rotations: 1} = Context.stats(context)
        assert_read_back(module, n)
        send(test, {:passed, n, again})
      end)
    end

    :erlang.garbage_collect()

    for n <- 1..100 do
      assert_receive {:passed, ^n, module}, 60_000
      assert_read_back(module, n + 1_000)
    end
  end

  test "what is no context has no numbers" do
    assert_raise ArgumentError, "expected an EXLA.CustomCall.Context, got: nil", fn ->
      Context.stats(nil)
    end
  end

  test "wrong options are refused by name" do
    assert message(max_nesting: 65) ==
             "expected :max_nesting to be an integer from 1 to 64, got: 65"

    assert message(max_nesting: 0) =~ "got: 0"

    assert message(max_text_bytes: :infinity) ==
             "expected :max_text_bytes to be an integer from 1 to 9223372036854775807, got: :infinity"

    assert message(rotate_after: 0) ==
             "expected :rotate_after to be an integer from 1 to 9223372036854775807, or :infinity, got: 0"

    assert message(rotate_after: nil) =~ "got: nil"

    assert message(depth: 3) ==
             "unknown option :depth; the options are :max_nesting, :max_text_bytes, :max_array_bytes, :rotate_after"

    assert message([1]) ==
             "expected options as a keyword list of :max_nesting, :max_text_bytes, :max_array_bytes, :rotate_after, got: [1]"
  end
end
