defmodule EXLA.CustomCall.Origin do
  @moduledoc false

  # EXLA defines the modules EXLA.CustomCall and EXLA.CustomCall.Spec too. Where an EXLA whose struct
  # has :mlir_attributes is on the code path when this package compiles, its modules are used and
  # ours are not defined: two copies of one module in a release would be an error.
  #
  # The name alone does not tell whose module is loaded (an earlier build of ours is on the path as
  # well), so EXLA's beam file is looked up in its own application and its struct is read from there.

  @doc false
  def exla? do
    case :code.lib_dir(:exla) do
      {:error, :bad_name} -> false
      directory -> exla?(Path.join(directory, "ebin"))
    end
  end

  @doc false
  def exla?(ebin) do
    beam = Path.join(ebin, "Elixir.EXLA.CustomCall.Spec.beam")

    # The atoms of a beam file are there even where debug information was stripped.
    case :beam_lib.chunks(String.to_charlist(beam), [:atoms]) do
      {:ok, {_module, [atoms: atoms]}} -> List.keymember?(atoms, :mlir_attributes, 1)
      {:error, :beam_lib, _reason} -> false
    end
  end
end
