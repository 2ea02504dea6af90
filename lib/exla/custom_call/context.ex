defmodule EXLA.CustomCall.Context do
  @moduledoc """
  An MLIR context: what the types, attributes and names of modules live in.

  A module gets a fresh context unless one is given, which costs some 20 microseconds and is right
  nearly always. A context that is shared by many modules grows for as long as it lives, since MLIR
  frees none of the types and attributes that were ever made in it, and serves one process at a time.

  ## Limits

  A context carries the limits of what is handed to MLIR's parser, which recurses once a bracket and
  would overflow the stack of a scheduler's thread:

      iex> {:ok, context} = EXLA.CustomCall.Context.new(max_text_bytes: 4096)
      iex> context.max_text_bytes
      4096
      iex> context.max_nesting
      64
  """

  alias EXLA.CustomCall.{Error, Native}

  @enforce_keys [:ref, :max_nesting, :max_text_bytes]
  defstruct [:ref, :max_nesting, :max_text_bytes]

  @type t :: %__MODULE__{
          ref: reference(),
          max_nesting: 1..64,
          max_text_bytes: pos_integer()
        }

  @max_nesting 64
  @max_text_bytes 1024 * 1024
  # Sizes are 64-bit numbers in the NIF.
  @largest 0x7FFF_FFFF_FFFF_FFFF

  @doc """
  Makes a context.

  ## Options

    * `:max_nesting` - the deepest nesting of brackets in an attribute text, of operators in an
      affine expression, and of regions: 1 to 64, the default. It cannot be raised: 64 is what the
      320 KB stack of a dirty scheduler was tested with.
    * `:max_text_bytes` - the longest attribute text in bytes, default 1 MiB.
  """
  @spec new(keyword()) :: {:ok, t()} | {:error, Error.t()}
  def new(opts \\ []) do
    with {:ok, opts} <-
           EXLA.CustomCall.Options.validate(opts,
             max_nesting: @max_nesting,
             max_text_bytes: @max_text_bytes
           ),
         {:ok, nesting} <- limit(opts, :max_nesting, @max_nesting),
         {:ok, bytes} <- limit(opts, :max_text_bytes, @largest) do
      ref = Native.context_new(nesting, bytes)
      {:ok, %__MODULE__{ref: ref, max_nesting: nesting, max_text_bytes: bytes}}
    end
  end

  @doc "Like `new/1`, but raises `ArgumentError` for a wrong option."
  @spec new!(keyword()) :: t()
  def new!(opts \\ []), do: opts |> new() |> Error.unwrap!()

  defp limit(opts, name, largest) do
    case opts[name] do
      value when is_integer(value) and value >= 1 and value <= largest ->
        {:ok, value}

      other ->
        {:error,
         Error.new(
           :argument,
           "expected #{inspect(name)} to be an integer from 1 to #{largest}, got: #{inspect(other)}",
           field: name
         )}
    end
  end
end
