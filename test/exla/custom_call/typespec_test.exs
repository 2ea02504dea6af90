defmodule EXLA.CustomCall.TypespecTest do
  use ExUnit.Case, async: true
  doctest EXLA.CustomCall.Typespec

  alias EXLA.CustomCall.Typespec

  @texts [
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

  defp message(template) do
    {:error, error} = Typespec.cast(template)
    assert error.kind == :type
    assert_raise ArgumentError, error.message, fn -> Typespec.from(template) end
    error.message
  end

  test "every Nx type has a long and a short form, a text and a size" do
    for {long, short, text, size} <- @texts do
      typespec = Typespec.tensor(long, {3, 2})
      assert Typespec.tensor(short, {3, 2}) == typespec
      assert Typespec.to_text(typespec) == "tensor<3x2x#{text}>"
      assert Typespec.byte_size(typespec) == 6 * size
    end

    assert Typespec.types() == Enum.map(@texts, &elem(&1, 0))
  end

  test "scalars, empty tensors and tokens are typespecs" do
    assert Typespec.byte_size(Typespec.tensor(:f64, {})) == 8
    assert Typespec.byte_size(Typespec.tensor(:f64, {3, 0})) == 0
    assert Typespec.byte_size(Typespec.token()) == 0
    assert Typespec.to_text(Typespec.token()) == "!stablehlo.token"
    assert Typespec.from(%{type: :token}) == Typespec.token()
  end

  test "anything with a type and a shape is a template" do
    assert Typespec.from(%{type: {:f, 32}, shape: {2}, names: [:x], data: :whatever}) ==
             Typespec.tensor({:f, 32}, {2})
  end

  test "a template without type or shape is refused" do
    assert message(%{shape: {2}}) ==
             "expected a template with :type and :shape, such as an Nx.Tensor or " <>
               "EXLA.CustomCall.Typespec.tensor({:f, 32}, {2, 3}), got: %{shape: {2}}"

    assert message(%{type: {:f, 32}}) =~ "expected a template with :type and :shape"
    assert message(nil) =~ "got: nil"
  end

  test "an unknown type is refused with the types that there are" do
    assert message(%{type: {:f, 7}, shape: {}}) ==
             "unknown type {:f, 7}; the types are s and u of 2, 4, 8, 16, 32 and 64 bits, " <>
               "f of 8, 16, 32 and 64, {:f8_e4m3fn, 8}, {:bf, 16}, c of 64 and 128, and {:pred, 8}"

    assert message(%{type: "f32", shape: {}}) =~ ~s(unknown type "f32")
  end

  test "a shape is a tuple of integers from 0 that fits 64 bits" do
    assert message(%{type: :f32, shape: [2]}) ==
             "expected a shape to be a tuple of dimensions such as {2, 3}, got: [2]"

    assert message(%{type: :f32, shape: {2, nil}}) ==
             "expected the dimensions of a shape to be integers, got nil in {2, nil}"

    assert message(%{type: :f32, shape: {2, -3}}) ==
             "expected the dimensions of a shape to be 0 or more, got -3 in {2, -3}"

    assert message(%{type: :f32, shape: {0x4000_0000_0000_0000}}) ==
             "the shape {4611686018427387904} of f32 takes more than 2^63 - 1 bytes"

    assert message(%{type: :u8, shape: {Integer.pow(2, 80), 0}}) =~
             "takes more than 2^63 - 1 bytes"
  end

  test "a tensor is of no other kind of type" do
    for type <- [:token, {:tuple, []}, {:buffer, {:f, 32}}] do
      assert_raise ArgumentError, ~r/unknown type .*; the types are/, fn ->
        Typespec.tensor(type, {})
      end
    end
  end

  test "a struct that was written by hand is printed, right or wrong" do
    shown = fn type, shape -> inspect(%Typespec{type: type, shape: shape}) end
    assert shown.(:f32, {2}) == "#EXLA.CustomCall.Typespec<:f32[2]>"
    assert shown.({:q, 3}, {2, nil}) == "#EXLA.CustomCall.Typespec<{:q, 3}[2][nil]>"
    assert shown.({:f, 32}, [2]) == "#EXLA.CustomCall.Typespec<f32 [2]>"
    assert shown.({:buffer, 1}, nil) == "#EXLA.CustomCall.Typespec<buffer 1 nil>"
    assert shown.({:tuple, [1]}, {}) == "#EXLA.CustomCall.Typespec<tuple<1>>"
    assert shown.({:tuple, [1 | 2]}, {}) == "#EXLA.CustomCall.Typespec<tuple<[1 | 2]>>"
  end

  test "a tuple that is too large to be one is not printed in full" do
    doubled = fn _, type -> %Typespec{type: {:tuple, [type, type]}, shape: {}} end

    assert inspect(Enum.reduce(1..40, Typespec.token(), doubled)) ==
             "#EXLA.CustomCall.Typespec<tuple<...>>"
  end

  test "a struct that was written by hand has a size and a text where it is right" do
    by_hand = fn type, shape -> %Typespec{type: type, shape: shape} end
    assert Typespec.byte_size(by_hand.(:f32, {2})) == 8
    assert Typespec.to_text(by_hand.(:f32, {2})) == "tensor<2xf32>"

    for function <- [&Typespec.byte_size/1, &Typespec.to_text/1] do
      assert_raise ArgumentError, ~r/unknown type {:q, 3}; the types are/, fn ->
        function.(by_hand.({:q, 3}, {2}))
      end

      assert_raise ArgumentError,
                   ~r/expected a shape to be a tuple of dimensions such as {2, 3}, got: /,
                   fn ->
                     function.(by_hand.({:f, 32}, [2]))
                   end

      assert_raise ArgumentError,
                   ~r/expected the dimensions of a shape to be integers, got /,
                   fn ->
                     function.(by_hand.({:f, 32}, {2.0}))
                   end
    end
  end
end
