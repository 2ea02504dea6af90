defmodule Fuzz.Targets.Text do
  @moduledoc false

  # Attribute texts in every place that takes one: by a grammar of MLIR's builtin syntax, mutated; what
  # is built has to print, to read back, and to build again from what it printed.

  use Fuzz.Target

  alias EXLA.CustomCall.{Attribute, Module, Spec, Typespec, Value}
  alias Fuzz.Syntax

  @places [:attributes, :mlir, :module, :parameter, :result, :operation, :dictionary]

  def generate do
    place = Gen.pick(@places)
    pairs = Gen.list(3, fn -> {Gen.name(), Syntax.text()} end)
    pairs = if pairs == [] or Gen.chance(70), do: [{"k", Syntax.text()}], else: pairs
    {place, pairs, Gen.chance(30)}
  end

  def try({place, pairs, dirty?}, env, _state) do
    opts = if dirty?, do: [context: env.context], else: []

    case build(place, pairs, opts) do
      {:ok, %Module{} = module} -> read_back(module)
      other -> other
    end
  end

  defp build(:attributes, pairs, opts) do
    call(%Spec{call_target_name: "k", attributes: pairs}, opts)
  end

  defp build(:mlir, pairs, opts) do
    call(%Spec{call_target_name: "k", mlir_attributes: pairs}, opts)
  end

  defp build(:module, pairs, opts), do: Module.build([], [], [attributes: pairs] ++ opts)

  defp build(:parameter, pairs, opts) do
    x = Value.parameter(type(), attributes: pairs)
    Module.build([x], [x], opts)
  end

  defp build(:result, pairs, opts) do
    x = Value.parameter(type())
    Module.build([x], [{x, pairs}], opts)
  end

  defp build(:operation, pairs, opts) do
    x = Value.parameter(type())
    Module.build([x], Value.op("stablehlo.abs", [x], [type()], attributes: pairs), opts)
  end

  defp build(:dictionary, pairs, _opts), do: {:ok, Attribute.dictionary(pairs)}

  defp call(spec, opts) do
    x = Value.parameter(type())
    Module.build([x], Value.custom_call([x], spec, [type()]), opts)
  end

  defp type, do: Typespec.tensor({:f, 32}, {2})

  defp read_back(module) do
    text = to_string(module)
    calls = Module.custom_calls(module)

    cond do
      not String.valid?(text) -> {:violated, "the module's text is not UTF-8"}
      calls == [] -> :ok
      true -> again(hd(calls))
    end
  end

  # What MLIR printed is what it would print for it again.
  defp again(%{attributes: attributes, mlir_attributes: mlir_attributes}) do
    spec = %Spec{call_target_name: "k", attributes: attributes, mlir_attributes: mlir_attributes}

    case call(spec, []) do
      {:ok, module} ->
        [call] = Module.custom_calls(module)

        if call.attributes == attributes and call.mlir_attributes == mlir_attributes do
          :ok
        else
          {:violated, "printed again it is another: #{inspect(call)}"}
        end

      {:error, error} ->
        # A quoted name prints without quotes, and is then a word, whose length has a limit.
        if error.message =~ "a word has at most 1024 characters" do
          :ok
        else
          {:violated, "what was printed is refused: #{error.message}"}
        end
    end
  end
end
