defmodule EXLA.CustomCall.Typespec do
  @moduledoc """
  The type of a value: an element type and a shape, or a token.

  Types are Nx types: `{:f, 32}` or the short form `:f32`.

  | Nx type | StableHLO | bytes an element |
  |---|---|---|
  | `{:pred, 8}` | `i1` | 1 |
  | `{:s, 2}`, `{:s, 4}`, `{:s, 8}`, `{:s, 16}`, `{:s, 32}`, `{:s, 64}` | `i2` ... `i64` | 1, 1, 1, 2, 4, 8 |
  | `{:u, 2}`, `{:u, 4}`, `{:u, 8}`, `{:u, 16}`, `{:u, 32}`, `{:u, 64}` | `ui2` ... `ui64` | 1, 1, 1, 2, 4, 8 |
  | `{:f, 8}`, `{:f8_e4m3fn, 8}` | `f8E5M2`, `f8E4M3FN` | 1 |
  | `{:bf, 16}`, `{:f, 16}`, `{:f, 32}`, `{:f, 64}` | `bf16`, `f16`, `f32`, `f64` | 2, 2, 4, 8 |
  | `{:c, 64}`, `{:c, 128}` | `complex<f32>`, `complex<f64>` | 8, 16 |

  An element of less than a byte takes a whole one in binaries, an 8-bit integer of its value, as in
  XLA's host literals: -1 is 255 as an `s4`, too. A `pred` is 0 or 1.

  A shape is a tuple of dimensions, each 0 or more; `{}` is a scalar.
  """

  alias EXLA.CustomCall.{Error, SpecTerms}

  @enforce_keys [:type, :shape]
  defstruct [:type, :shape]

  @type type :: {atom(), pos_integer()}
  @typedoc """
  A tensor's `:type` is an Nx type. A tuple's elements and a buffer's element type are in the `:type`.
  """
  @type t :: %__MODULE__{
          type: type() | :token | {:tuple, [t()]} | {:buffer, type()},
          shape: tuple()
        }

  # The order is the NIF's. Each with its name in StableHLO and the bytes an element takes.
  @types [
    {{:pred, 8}, :pred, "i1", 1},
    {{:s, 2}, :s2, "i2", 1},
    {{:s, 4}, :s4, "i4", 1},
    {{:s, 8}, :s8, "i8", 1},
    {{:s, 16}, :s16, "i16", 2},
    {{:s, 32}, :s32, "i32", 4},
    {{:s, 64}, :s64, "i64", 8},
    {{:u, 2}, :u2, "ui2", 1},
    {{:u, 4}, :u4, "ui4", 1},
    {{:u, 8}, :u8, "ui8", 1},
    {{:u, 16}, :u16, "ui16", 2},
    {{:u, 32}, :u32, "ui32", 4},
    {{:u, 64}, :u64, "ui64", 8},
    {{:f, 8}, :f8, "f8E5M2", 1},
    {{:f8_e4m3fn, 8}, :f8_e4m3fn, "f8E4M3FN", 1},
    {{:f, 16}, :f16, "f16", 2},
    {{:bf, 16}, :bf16, "bf16", 2},
    {{:f, 32}, :f32, "f32", 4},
    {{:f, 64}, :f64, "f64", 8},
    {{:c, 64}, :c64, "complex<f32>", 8},
    {{:c, 128}, :c128, "complex<f64>", 16}
  ]

  @known "s and u of 2, 4, 8, 16, 32 and 64 bits, f of 8, 16, 32 and 64, {:f8_e4m3fn, 8}, " <>
           "{:bf, 16}, c of 64 and 128, and {:pred, 8}"

  @max_bytes 0x7FFF_FFFF_FFFF_FFFF

  @doc """
  The typespec of a tensor. Raises `ArgumentError` for an unknown type or a wrong shape; `cast/1`
  returns the error instead.

  ## Examples

      iex> EXLA.CustomCall.Typespec.tensor({:f, 32}, {2, 3})
      #EXLA.CustomCall.Typespec<f32[2][3]>

      iex> EXLA.CustomCall.Typespec.tensor(:u8, {})
      #EXLA.CustomCall.Typespec<u8>
  """
  @spec tensor(type() | atom(), tuple()) :: t()
  def tensor(type, shape), do: type |> cast_tensor(shape) |> Error.unwrap!()

  @doc """
  The typespec of a token, the value that orders operations with side effects.

  ## Examples

      iex> EXLA.CustomCall.Typespec.token()
      #EXLA.CustomCall.Typespec<token>
  """
  @spec token() :: t()
  def token, do: %__MODULE__{type: :token, shape: {}}

  @doc """
  The typespec of a tuple: several values as one. StableHLO's own operations have several results
  instead; some of XLA's custom calls have a tuple.

  Raises `ArgumentError` for what is no typespec.

  ## Examples

      iex> alias EXLA.CustomCall.Typespec
      iex> Typespec.tuple([Typespec.tensor(:f32, {2}), Typespec.token()])
      #EXLA.CustomCall.Typespec<tuple<f32[2], token>>
  """
  @spec tuple([t()]) :: t()
  def tuple(elements) when is_list(elements) do
    %{type: {:tuple, elements}, shape: {}} |> cast() |> Error.unwrap!()
  end

  @doc """
  The typespec of a buffer: a tensor at a fixed place in memory, which the custom calls
  `CreateBuffer`, `Pin` and `Unpin` make and end. StableHLO writes it as a `memref`.

  Raises `ArgumentError` for an unknown type or a wrong shape.

  ## Examples

      iex> EXLA.CustomCall.Typespec.buffer({:f, 32}, {2, 3})
      #EXLA.CustomCall.Typespec<buffer f32[2][3]>
  """
  @spec buffer(type() | atom(), tuple()) :: t()
  def buffer(type, shape), do: %{type: {:buffer, type}, shape: shape} |> cast() |> Error.unwrap!()

  @doc """
  The typespec of anything with a `:type` and a `:shape`, such as an `Nx.Tensor`.

  Raises `ArgumentError` where `cast/1` returns an error.

  ## Examples

      iex> EXLA.CustomCall.Typespec.from(%{type: {:s, 64}, shape: {4}})
      #EXLA.CustomCall.Typespec<s64[4]>
  """
  @spec from(term()) :: t()
  def from(template), do: template |> cast() |> Error.unwrap!()

  @doc """
  Like `from/1`, as `{:ok, typespec}` or `{:error, error}`.

  ## Examples

      iex> {:error, error} = EXLA.CustomCall.Typespec.cast(%{type: {:f, 32}, shape: {2, -1}})
      iex> error.message
      "expected the dimensions of a shape to be 0 or more, got -1 in {2, -1}"
  """
  @spec cast(term()) :: {:ok, t()} | {:error, Error.t()}
  def cast(%{type: :token}), do: {:ok, token()}

  def cast(%{type: {:tuple, elements}}) when is_list(elements) do
    with :ok <- check_depth(elements, 1),
         :ok <- check_leaves(elements),
         {:ok, elements} <- cast_each(elements, []) do
      {:ok, %__MODULE__{type: {:tuple, elements}, shape: {}}}
    end
  end

  def cast(%{type: {:buffer, type}, shape: shape}) do
    with {:ok, type} <- cast_type(type),
         :ok <- check_shape(shape, type) do
      {:ok, %__MODULE__{type: {:buffer, type}, shape: shape}}
    end
  end

  def cast(%{type: type, shape: shape}), do: cast_tensor(type, shape)

  def cast(other) do
    error(
      "expected a template with :type and :shape, such as an Nx.Tensor or " <>
        "EXLA.CustomCall.Typespec.tensor({:f, 32}, {2, 3}), got: #{inspect(other)}"
    )
  end

  defp cast_tensor(type, shape) do
    with {:ok, type} <- cast_type(type),
         :ok <- check_shape(shape, type) do
      {:ok, %__MODULE__{type: type, shape: shape}}
    end
  end

  # What reads and prints them recurses, here and in MLIR.
  @deepest_tuple 16

  defp check_depth(elements, depth) when depth > @deepest_tuple do
    error("tuples nest deeper than #{@deepest_tuple}, around: #{inspect(elements, limit: 3)}")
  end

  defp check_depth([%{type: {:tuple, inner}} | rest], depth) when is_list(inner) do
    with :ok <- check_depth(inner, depth + 1), do: check_depth(rest, depth)
  end

  defp check_depth([_ | rest], depth), do: check_depth(rest, depth)
  defp check_depth([], _depth), do: :ok

  defp check_depth(tail, _depth) do
    error("expected a tuple's elements to be a list, got one that ends in #{inspect(tail)}")
  end

  # Tuples that share their elements can be small here and multiply where they are written out.
  @most_leaves 65_536

  defp check_leaves(elements) do
    if too_many_leaves?(elements) do
      error("a tuple has at most #{@most_leaves} elements, those of its tuples included")
    else
      :ok
    end
  end

  defp too_many_leaves?(elements), do: count_leaves(elements, 0) > @most_leaves

  defp count_leaves(_elements, count) when count > @most_leaves, do: count

  defp count_leaves([%{type: {:tuple, inner}} | rest], count) when is_list(inner) do
    count_leaves(rest, count_leaves(inner, count + 1))
  end

  defp count_leaves([_ | rest], count), do: count_leaves(rest, count + 1)
  defp count_leaves(_end, count), do: count

  defp cast_each([], cast), do: {:ok, Enum.reverse(cast)}

  defp cast_each([element | rest], cast) do
    with {:ok, element} <- cast(element), do: cast_each(rest, [element | cast])
  end

  @doc false
  # The long form of a type, or an error.
  def cast_type(type)

  for {long, short, _, _} <- @types do
    def cast_type(unquote(long)), do: {:ok, unquote(long)}
    def cast_type(unquote(short)), do: {:ok, unquote(long)}
  end

  def cast_type(other) do
    error("unknown type #{inspect(other)}; the types are #{@known}")
  end

  @doc """
  The bytes that a value takes in a binary; 0 for a token.

  ## Examples

      iex> EXLA.CustomCall.Typespec.byte_size(EXLA.CustomCall.Typespec.tensor({:bf, 16}, {2, 3}))
      12
  """
  @spec byte_size(t()) :: non_neg_integer()
  def byte_size(%__MODULE__{} = typespec), do: typespec |> from() |> bytes()
  def byte_size(other), do: not_a_typespec!(other)

  @doc false
  def element_bytes(%__MODULE__{type: type}), do: element_size(type)

  # Of one that was cast.
  defp bytes(%{type: :token}), do: 0
  defp bytes(%{type: {:tuple, elements}}), do: elements |> Enum.map(&bytes/1) |> Enum.sum()

  defp bytes(%{type: {:buffer, type}, shape: shape}),
    do: Tuple.product(shape) * element_size(type)

  defp bytes(%{type: type, shape: shape}), do: Tuple.product(shape) * element_size(type)

  @doc """
  The typespec as StableHLO writes it.

  ## Examples

      iex> EXLA.CustomCall.Typespec.to_text(EXLA.CustomCall.Typespec.tensor({:u, 16}, {2, 3}))
      "tensor<2x3xui16>"
  """
  @spec to_text(t()) :: String.t()
  def to_text(%__MODULE__{} = typespec) do
    case from(typespec) do
      %{type: :token} ->
        "!stablehlo.token"

      %{type: {:tuple, elements}} ->
        "tuple<#{Enum.map_join(elements, ", ", &to_text/1)}>"

      %{type: {:buffer, type}, shape: shape} ->
        "memref<#{dimensions_text(shape)}#{element_text(type)}>"

      %{type: type, shape: shape} ->
        "tensor<#{dimensions_text(shape)}#{element_text(type)}>"
    end
  end

  def to_text(other), do: not_a_typespec!(other)

  defp dimensions_text(shape), do: shape |> Tuple.to_list() |> Enum.map_join(&"#{&1}x")

  @spec not_a_typespec!(term()) :: no_return()
  defp not_a_typespec!(other) do
    raise ArgumentError, "expected an EXLA.CustomCall.Typespec, got: #{inspect(other)}"
  end

  @doc false
  def to_native(%__MODULE__{type: :token}), do: :token

  def to_native(%__MODULE__{type: {:tuple, elements}}) do
    {:tuple, Enum.map(elements, &to_native/1)}
  end

  def to_native(%__MODULE__{type: {:buffer, type}, shape: shape}) do
    {:buffer, element(type), Tuple.to_list(shape)}
  end

  def to_native(%__MODULE__{type: type, shape: shape}), do: {element(type), Tuple.to_list(shape)}

  @doc false
  def from_native(:token), do: token()

  def from_native({element, dimensions}) when is_integer(element) do
    {type, _, _, _} = Enum.fetch!(@types, element)
    %__MODULE__{type: type, shape: List.to_tuple(dimensions)}
  end

  def from_native({:tuple, elements}) do
    %__MODULE__{type: {:tuple, Enum.map(elements, &from_native/1)}, shape: {}}
  end

  def from_native({:buffer, element, dimensions}) do
    %__MODULE__{type: type, shape: shape} = from_native({element, dimensions})
    %__MODULE__{type: {:buffer, type}, shape: shape}
  end

  # A type that this package does not emit stays the text that MLIR prints.
  def from_native({:other, text}), do: text

  @doc false
  # Whether a term is a type of this package's as the NIF has it.
  def native?(:token), do: true

  def native?({element, dimensions}) do
    is_integer(element) and element in 0..unquote(length(@types) - 1) and
      SpecTerms.proper_list?(dimensions) and
      Enum.all?(dimensions, &(is_integer(&1) and &1 >= 0))
  end

  def native?(_other), do: false

  for {{type, _, _, _}, index} <- Enum.with_index(@types) do
    defp element(unquote(Macro.escape(type))), do: unquote(index)
  end

  for {type, _, _, size} <- @types do
    defp element_size(unquote(Macro.escape(type))), do: unquote(size)
  end

  @doc false
  def element_text(type)

  for {type, _, text, _} <- @types do
    def element_text(unquote(Macro.escape(type))), do: unquote(text)
  end

  @doc false
  def short_name(:token), do: "token"

  for {type, short, _, _} <- @types do
    def short_name(unquote(Macro.escape(type))), do: unquote(Atom.to_string(short))
  end

  def short_name(other), do: inspect(other)

  @doc false
  def types, do: unquote(Macro.escape(Enum.map(@types, &elem(&1, 0))))

  # Nx is called by name and at run time: it need not be there.

  @doc false
  # The bytes of an Nx.Tensor as this package has them: elements of less than a byte take a whole one,
  # where Nx packs them.
  def from_tensor(tensor, %__MODULE__{type: type}) do
    case Code.ensure_loaded(Nx) do
      {:module, Nx} -> {:ok, Nx |> apply(:to_binary, [tensor]) |> unpack(type)}
      {:error, _reason} -> {:error, Error.new(:argument, "there is no Nx to read a tensor with")}
    end
  end

  defp unpack(bits, {:s, size}) when size < 8 do
    for <<n::size(size)-signed <- bits>>, into: <<>>, do: <<n::8>>
  end

  defp unpack(bits, {:u, size}) when size < 8 do
    for <<n::size(size) <- bits>>, into: <<>>, do: <<n::8>>
  end

  defp unpack(binary, _type), do: binary

  @doc false
  # Checks the bytes of an input: their number, and that each is an element of the type. Only types of
  # less than a byte have bytes that they cannot hold.
  def check_binary(%__MODULE__{type: type} = typespec, binary) do
    expected = bytes(typespec)

    cond do
      Kernel.byte_size(binary) != expected ->
        error(
          :argument,
          "#{inspect(typespec)} takes #{expected} bytes, got a binary of #{Kernel.byte_size(binary)}"
        )

      wrong = wrong_element(type, binary) ->
        {index, byte} = wrong

        error(
          :argument,
          "element #{index} is the byte #{byte}, which #{short_name(type)} cannot hold"
        )

      true ->
        :ok
    end
  end

  defp wrong_element({:pred, 8}, binary), do: wrong_byte(binary, &(&1 < 2), 0)

  defp wrong_element({:u, size}, binary) when size < 8,
    do: wrong_byte(binary, &(&1 < 2 ** size), 0)

  defp wrong_element({:s, size}, binary) when size < 8 do
    half = 2 ** (size - 1)
    wrong_byte(binary, &(&1 < half or &1 >= 256 - half), 0)
  end

  defp wrong_element(_type, _binary), do: nil

  defp wrong_byte(<<byte, rest::binary>>, holds?, index) do
    if holds?.(byte), do: wrong_byte(rest, holds?, index + 1), else: {index, byte}
  end

  defp wrong_byte(<<>>, _holds?, _index), do: nil

  @doc false
  # An Nx.Tensor of such bytes, or an error.
  def to_tensor(binary, %__MODULE__{type: type, shape: shape}) do
    with {:ok, type, binary} <- nx_type(type, binary),
         {:module, Nx} <- Code.ensure_loaded(Nx) do
      {:ok, Nx |> apply(:from_binary, [binary, type]) |> then(&apply(Nx, :reshape, [&1, shape]))}
    else
      {:error, %Error{}} = error -> error
      {:error, _reason} -> {:error, Error.new(:argument, "there is no Nx to make a tensor with")}
    end
  end

  defp nx_type(:token, _binary), do: {:error, Error.new(:argument, "a token is no tensor")}
  # Nx's booleans are u8.
  defp nx_type({:pred, 8}, binary), do: {:ok, {:u, 8}, binary}

  defp nx_type({kind, size} = type, binary) when kind in [:s, :u] and size < 8 do
    {:ok, type, for(<<n::8 <- binary>>, into: <<>>, do: <<n::size(size)>>)}
  end

  defp nx_type(type, binary), do: {:ok, type, binary}

  defp check_shape(shape, type) when is_tuple(shape) do
    dimensions = Tuple.to_list(shape)

    cond do
      not Enum.all?(dimensions, &is_integer/1) ->
        [wrong | _] = Enum.reject(dimensions, &is_integer/1)

        error(
          "expected the dimensions of a shape to be integers, got #{inspect(wrong)} in " <>
            inspect(shape)
        )

      wrong = Enum.find(dimensions, &(&1 < 0)) ->
        error(
          "expected the dimensions of a shape to be 0 or more, got #{wrong} in #{inspect(shape)}"
        )

      Enum.product([element_size(type) | Enum.reject(dimensions, &(&1 == 0))]) > @max_bytes ->
        error("the shape #{inspect(shape)} of #{short_name(type)} takes more than 2^63 - 1 bytes")

      true ->
        :ok
    end
  end

  defp check_shape(other, _type) do
    error("expected a shape to be a tuple of dimensions such as {2, 3}, got: #{inspect(other)}")
  end

  defp error(kind \\ :type, message), do: {:error, Error.new(kind, message)}

  @doc false
  # As inspect/1 shows it, without the module's name. It stands in messages about structs that were
  # written by hand, so it takes any.
  def short(%__MODULE__{type: :token}), do: "token"

  def short(%__MODULE__{type: {:tuple, elements}}) do
    cond do
      not SpecTerms.proper_list?(elements) -> "tuple<#{inspect(elements)}>"
      too_many_leaves?(elements) -> "tuple<...>"
      true -> "tuple<#{Enum.map_join(elements, ", ", &short/1)}>"
    end
  end

  def short(%__MODULE__{type: {:buffer, type}} = typespec) do
    "buffer " <> short(%{typespec | type: type})
  end

  def short(%__MODULE__{type: type, shape: shape}) when is_tuple(shape) do
    dimensions = shape |> Tuple.to_list() |> Enum.map_join(&"[#{inspect(&1)}]")
    short_name(type) <> dimensions
  end

  def short(%__MODULE__{type: type, shape: shape}), do: "#{short_name(type)} #{inspect(shape)}"
  def short(other), do: inspect(other)

  defimpl Inspect do
    def inspect(typespec, _opts) do
      "#EXLA.CustomCall.Typespec<#{EXLA.CustomCall.Typespec.short(typespec)}>"
    end
  end
end
