defmodule EXLA.CustomCall.OriginTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.Origin

  @moduletag :tmp_dir

  # A stand-in for EXLA's compiled struct, under the file name that the module's own would have.
  defp ebin(folder, fields) do
    name = :"Elixir.EXLA.CustomCall.Spec#{System.unique_integer([:positive])}"

    {:module, ^name, beam, _} =
      Module.create(name, quote(do: defstruct(unquote(fields))), Macro.Env.location(__ENV__))

    File.write!(Path.join(folder, "Elixir.EXLA.CustomCall.Spec.beam"), beam)
    folder
  end

  test "an EXLA whose struct has mlir_attributes brings the protocol and the struct", context do
    assert Origin.exla?(ebin(context.tmp_dir, call_target_name: nil, mlir_attributes: []))
  end

  test "an older EXLA does not", context do
    refute Origin.exla?(ebin(context.tmp_dir, call_target_name: nil, attributes: []))
  end

  test "neither does an EXLA that has no such struct, or none at all", context do
    refute Origin.exla?(context.tmp_dir)
    refute Origin.exla?()
  end
end
