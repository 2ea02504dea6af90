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

    # The fields of a struct are a literal of its beam file: there even where debug information was
    # stripped, and to be had without loading the module.
    case :beam_lib.chunks(String.to_charlist(beam), [~c"LitT"]) do
      {:ok, {_module, [{_chunk, literals}]}} -> literals |> inflate() |> names?("mlir_attributes")
      {:error, :beam_lib, _reason} -> false
    end
  end

  # Since OTP 28 a size of 0 says that the literals are not compressed.
  defp inflate(<<0::32, literals::binary>>), do: literals
  defp inflate(<<_size::32, literals::binary>>), do: :zlib.uncompress(literals)

  defp names?(literals, name), do: :binary.match(literals, name) != :nomatch
end
