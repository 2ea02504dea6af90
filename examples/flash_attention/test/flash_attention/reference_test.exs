defmodule FlashAttention.ReferenceTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.Typespec
  alias FlashAttention.{Floats, Forward, Reference}

  defp tensor(values, shape), do: {Floats.encode(values), Typespec.tensor({:f, 32}, shape)}

  # Scores of 0 and ln 3 are weights of a quarter and three quarters.
  test "attention that can be worked out by hand" do
    q = tensor([1, 2], {1, 2, 1, 1})
    k = tensor([0, :math.log(3)], {1, 2, 1, 1})
    v = tensor([4, 8], {1, 2, 1, 1})

    {out, lse} = Reference.forward(%Forward{}, q, k, v)
    assert Floats.largest_error(out, [7.0, 7.6]) <= 1.0e-6
    assert Floats.largest_error(lse, [:math.log(4), :math.log(10)]) <= 1.0e-6

    {out, lse} = Reference.forward(%Forward{causal: true}, q, k, v)
    assert Floats.largest_error(out, [4.0, 7.6]) <= 1.0e-6
    assert Floats.largest_error(lse, [0.0, :math.log(10)]) <= 1.0e-6
  end

  test "neighbouring query heads share a key and value head" do
    q = tensor([1, 1, 1, 1], {1, 1, 4, 1})
    k = tensor([0, 0], {1, 1, 2, 1})
    v = tensor([5, 6], {1, 1, 2, 1})

    assert {[5.0, 5.0, 6.0, 6.0], [+0.0, +0.0, +0.0, +0.0]} =
             Reference.forward(%Forward{}, q, k, v)
  end
end
