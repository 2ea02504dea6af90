defmodule EXLA.CustomCall.ContextTest do
  use ExUnit.Case, async: true
  doctest EXLA.CustomCall.Context

  alias EXLA.CustomCall.{Context, Module, Spec, Value}

  defp build(text, context) do
    spec = %Spec{call_target_name: "k", attributes: [{"a", text}]}
    Module.build([], [], effects: Value.custom_call([], spec, []), context: context)
  end

  defp message(opts) do
    {:error, error} = Context.new(opts)
    assert error.kind == :argument
    assert_raise ArgumentError, error.message, fn -> Context.new!(opts) end
    error.message
  end

  test "its limits hold for the modules that are built in it" do
    context = Context.new!(max_nesting: 2, max_text_bytes: 10)
    assert {:ok, _} = build("[[1]]", context)

    {:error, error} = build("[[[1]]]", context)

    assert error.message ==
             ~S(attributes: the text of "a" nests deeper than 2 at line 1, column 3: "[[[1]]]"; flatten it)

    assert {error.kind, error.line, error.column} == {:text, 1, 3}

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

  test "wrong options are refused by name" do
    assert message(max_nesting: 65) ==
             "expected :max_nesting to be an integer from 1 to 64, got: 65"

    assert message(max_nesting: 0) =~ "got: 0"

    assert message(max_text_bytes: :infinity) ==
             "expected :max_text_bytes to be an integer from 1 to 9223372036854775807, got: :infinity"

    assert message(depth: 3) ==
             "unknown option :depth; the options are :max_nesting, :max_text_bytes"

    assert message([1]) ==
             "expected options as a keyword list of :max_nesting, :max_text_bytes, got: [1]"
  end
end
