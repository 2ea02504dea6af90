defmodule EXLA.CustomCall.Context do
  @moduledoc """
  An MLIR context: what the types, attributes and names of modules live in.

  A module gets a fresh context unless one is given, which costs some 20 microseconds and is right
  nearly always. A context that many modules are given serves one process at a time.

  ## Limits

  A context carries the limits of what is handed to MLIR's parser, which recurses once a bracket and
  would overflow the stack of a scheduler's thread:

      iex> {:ok, context} = EXLA.CustomCall.Context.new(max_text_bytes: 4096)
      iex> context.max_text_bytes
      4096
      iex> context.max_nesting
      64

  ## Memory

  MLIR frees none of the types, attributes and names that were ever made in a context. So a context
  that is given to many modules is, inside, one MLIR context after another: once the one that it has
  is reckoned to have grown by more than `:rotate_after` bytes, the next module is built in a fresh one,
  and the old one is freed. Modules that were built before stay as they are. With `:infinity` it grows
  for as long as modules bring something new.

  `stats/1` tells what it holds.
  """

  alias EXLA.CustomCall.{Error, Native, Options}

  @enforce_keys [:ref, :max_nesting, :max_text_bytes, :max_array_bytes, :rotate_after]
  defstruct [:ref, :max_nesting, :max_text_bytes, :max_array_bytes, :rotate_after]

  @type t :: %__MODULE__{
          ref: reference(),
          max_nesting: 1..64,
          max_text_bytes: pos_integer(),
          max_array_bytes: pos_integer(),
          rotate_after: pos_integer() | :infinity
        }

  @typedoc """
  What a context did, and holds.

    * `:modules` - the modules that were built in it, and those that
      `EXLA.CustomCall.Module.check/3` found to be right.
    * `:refused` - those that were not, for an error.
    * `:texts` and `:text_bytes` - the attribute texts of all of them, each as often as it came, and
      their bytes.
    * `:rotations` - how often a fresh MLIR context took the place of the one before.
    * `:bytes` - what the present MLIR context is reckoned to have grown by since it was made.
    * `:builders` - the processes that were building a module in it, or waited for their turn.
  """
  @type stats :: %{
          modules: non_neg_integer(),
          refused: non_neg_integer(),
          texts: non_neg_integer(),
          text_bytes: non_neg_integer(),
          rotations: non_neg_integer(),
          bytes: non_neg_integer(),
          builders: non_neg_integer()
        }

  @max_nesting 64
  @max_text_bytes 1024 * 1024
  @max_array_bytes 64 * 1024 * 1024
  @rotate_after 32 * 1024 * 1024
  # Sizes are 64-bit numbers in the NIF.
  @largest 0x7FFF_FFFF_FFFF_FFFF

  @doc """
  Makes a context.

  ## Options

    * `:max_nesting` - the deepest nesting of brackets in an attribute text, of operators in an
      affine expression, and of regions: 1 to 64, the default. It cannot be raised: 64 is what the
      320 KB stack of a dirty scheduler was tested with.
    * `:max_text_bytes` - the longest attribute text in bytes, default 1 MiB.
    * `:max_array_bytes` - the bytes that the arrays in the `attributes` of a module's custom calls may make
      XLA allocate, default 64 MiB. `dense<0> : tensor<1000000000xi64>` is a short text, and XLA writes out
      every element, more than once.
    * `:rotate_after` - how many bytes the MLIR context may be reckoned to have grown by when a
      module is built in it, or `:infinity`; default 32 MiB.
  """
  @spec new(keyword()) :: {:ok, t()} | {:error, Error.t()}
  def new(opts \\ []) do
    with {:ok, opts} <-
           Options.validate(opts,
             max_nesting: @max_nesting,
             max_text_bytes: @max_text_bytes,
             max_array_bytes: @max_array_bytes,
             rotate_after: @rotate_after
           ),
         {:ok, nesting} <- Options.integer(opts, :max_nesting, 1..@max_nesting),
         {:ok, bytes} <- Options.integer(opts, :max_text_bytes, 1..@largest),
         {:ok, array_bytes} <- Options.integer(opts, :max_array_bytes, 1..@largest),
         {:ok, rotate_after} <- rotate_after(opts) do
      rotation = if rotate_after != :infinity, do: rotate_after
      ref = Native.context_new(nesting, bytes, array_bytes, rotation)

      {:ok,
       %__MODULE__{
         ref: ref,
         max_nesting: nesting,
         max_text_bytes: bytes,
         max_array_bytes: array_bytes,
         rotate_after: rotate_after
       }}
    end
  end

  @doc "Like `new/1`, but raises `ArgumentError` for a wrong option."
  @spec new!(keyword()) :: t()
  def new!(opts \\ []), do: opts |> new() |> Error.unwrap!()

  @doc """
  What the context did, and holds. It does not wait for a module that is being built.

  `:bytes` is an upper estimate: MLIR has no function that tells. It counts each attribute, type and
  name that differs, once, at what MLIR was measured to take for its kind. Measured in processes of
  their own, the resident memory grew by a third of it to all of it for most kinds of attributes, and by
  a tenth for long arrays of numbers. A fresh MLIR context itself, some hundred kilobytes, is not in it.

  ## Examples

      iex> alias EXLA.CustomCall.{Context, Module, Spec, Value}
      iex> context = Context.new!()
      iex> spec = %Spec{call_target_name: "k", attributes: [{"a", "1 : i64"}]}
      iex> Module.build!([], [], effects: Value.custom_call([], spec, []), context: context)
      iex> %{modules: 1, texts: 1, text_bytes: 7, rotations: 0} = stats = Context.stats(context)
      iex> stats.bytes > 0
      true
  """
  @spec stats(t()) :: stats()
  def stats(%__MODULE__{ref: ref}) do
    {modules, refused, texts, text_bytes, bytes, rotations, builders} = Native.context_stats(ref)

    %{
      modules: modules,
      refused: refused,
      texts: texts,
      text_bytes: text_bytes,
      rotations: rotations,
      bytes: bytes,
      builders: builders
    }
  end

  def stats(other) do
    raise ArgumentError, "expected an EXLA.CustomCall.Context, got: #{inspect(other)}"
  end

  defp rotate_after(opts) do
    case opts[:rotate_after] do
      :infinity ->
        {:ok, :infinity}

      value when is_integer(value) and value >= 1 and value <= @largest ->
        {:ok, value}

      other ->
        Options.wrong(:rotate_after, "an integer from 1 to #{@largest}, or :infinity", other)
    end
  end
end
