defmodule FlashAttention.ReferenceTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.Typespec
  alias FlashAttention.{Backward, Floats, Forward, Reference}

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

  # One query, with weights of a quarter and three quarters: dv = P dout, dP = dout v and
  # dS = P (dP - 7), where 7 is the mean of the dP.
  test "gradients that can be worked out by hand" do
    q = tensor([1], {1, 1, 1, 1})
    k = tensor([0, :math.log(3)], {1, 2, 1, 1})
    v = tensor([4, 8], {1, 2, 1, 1})
    dout = tensor([1], {1, 1, 1, 1})

    {dq, dk, dv} = Reference.backward(%Backward{}, dout, q, k, v)
    assert Floats.largest_error(dq, [0.75 * :math.log(3)]) <= 1.0e-6
    assert Floats.largest_error(dk, [-0.75, 0.75]) <= 1.0e-6
    assert Floats.largest_error(dv, [0.25, 0.75]) <= 1.0e-6
  end

  for causal <- [false, true] do
    test "the gradients are what finite differences of the output are, causal: #{causal}" do
      causal = unquote(causal)

      # Multiples of a power of two, which stay exact in f32 when an element is moved by another one.
      numbers = fn count, seed ->
        {values, _random} =
          Enum.map_reduce(1..count, :rand.seed_s(:exsss, seed), fn _, random ->
            {uniform, random} = :rand.uniform_s(129, random)
            {(uniform - 65) / 64, random}
          end)

        values
      end

      # Two query heads share a key head.
      q_shape = {1, 3, 2, 2}
      kv_shape = {1, 4, 1, 2}
      dout = numbers.(12, 1)

      operands = [
        {numbers.(12, 2), q_shape},
        {numbers.(8, 3), kv_shape},
        {numbers.(8, 4), kv_shape}
      ]

      loss = fn operands ->
        [q, k, v] = for {values, shape} <- operands, do: tensor(values, shape)
        {out, _lse} = Reference.forward(%Forward{causal: causal}, q, k, v)
        Enum.zip_reduce(out, dout, 0.0, fn out, dout, sum -> sum + out * dout end)
      end

      step = 1 / 1024

      moved = fn operand, index, by ->
        List.update_at(operands, operand, fn {values, shape} ->
          {List.update_at(values, index, &(&1 + by)), shape}
        end)
      end

      [q, k, v] = for {values, shape} <- operands, do: tensor(values, shape)
      gradients = Reference.backward(%Backward{causal: causal}, tensor(dout, q_shape), q, k, v)

      for {gradient, operand} <- gradients |> Tuple.to_list() |> Enum.with_index() do
        differences =
          for index <- 0..(length(gradient) - 1) do
            (loss.(moved.(operand, index, step)) - loss.(moved.(operand, index, -step))) /
              (2 * step)
          end

        assert Floats.largest_error(gradient, differences) <= 1.0e-6
      end
    end
  end
end
