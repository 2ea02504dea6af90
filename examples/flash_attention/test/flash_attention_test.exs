defmodule FlashAttentionTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Attribute, Client, Error, Executable, Module, Runner, Spec, Typespec}
  alias EXLA.CustomCall.Value
  alias FlashAttention.{Floats, Forward, Reference}

  doctest FlashAttention
  doctest FlashAttention.Floats

  setup_all do
    client = Client.new!(plugin: :cpu)
    FlashAttention.load!(client)
    {:ok, client: client}
  end

  defp random(shape, seed) do
    {values, _random} =
      Enum.map_reduce(1..Tuple.product(shape)//1, :rand.seed_s(:exsss, seed), fn _, random ->
        :rand.normal_s(random)
      end)

    {Floats.encode(values), Typespec.tensor({:f, 32}, shape)}
  end

  defp run(client, block, {batch, queries, keys, query_heads, heads, depth}) do
    {_, q_template} = q = random({batch, queries, query_heads, depth}, 1)
    k = random({batch, keys, heads, depth}, 2)
    v = random({batch, keys, heads, depth}, 3)

    {out, lse, _workspace} =
      Runner.run!(block, [q, k, v], FlashAttention.outputs(q_template), client: client)

    {{Floats.decode(out), Floats.decode(lse)}, Reference.forward(block, q, k, v)}
  end

  for {name, shape} <- [
        {"multi-head attention", {2, 16, 16, 3, 3, 8}},
        {"grouped-query attention", {2, 9, 9, 6, 2, 16}},
        {"multi-query attention", {1, 20, 20, 4, 1, 32}},
        {"a single head", {1, 5, 5, 1, 1, 4}},
        {"one query of many keys", {3, 1, 200, 4, 2, 16}},
        {"several blocks, the last ones not whole", {1, 130, 150, 2, 1, 24}},
        {"more queries than keys", {1, 12, 5, 2, 2, 8}},
        {"heads of one element", {1, 7, 7, 2, 1, 1}},
        {"no batch at all", {0, 4, 4, 2, 1, 8}}
      ],
      causal <- [false, true] do
    test "#{name}, causal: #{causal}", %{client: client} do
      block = %Forward{causal: unquote(causal)}

      {{out, lse}, {expected_out, expected_lse}} =
        run(client, block, unquote(Macro.escape(shape)))

      assert Floats.largest_error(out, expected_out) <= 1.0e-5
      assert Floats.largest_error(lse, expected_lse) <= 1.0e-5
    end
  end

  test "a query that sees no key gets zeroes, and minus infinity", %{client: client} do
    {{out, lse}, _} = run(client, %Forward{causal: true}, {1, 3, 2, 1, 1, 2})
    assert [+0.0, +0.0 | _] = out
    assert [:neg_infinity, first, _] = lse
    assert is_float(first)
  end

  test "the softmax scale reaches the kernel", %{client: client} do
    # Without differences between scores, each query gets the mean of the values.
    {{out, lse}, {expected_out, expected_lse}} =
      run(client, %Forward{softmax_scale: 0}, {1, 4, 8, 1, 1, 4})

    assert Floats.largest_error(out, expected_out) <= 1.0e-6
    assert Enum.all?(lse, &(abs(&1 - :math.log(8)) <= 1.0e-6))
    assert Floats.largest_error(lse, expected_lse) <= 1.0e-6
  end

  test "a block that the kernel does not take is skipped", %{client: client} do
    template = Typespec.tensor({:f, 64}, {1, 2, 1, 2})
    q = {<<0::size(4 * 64)>>, template}
    out = FlashAttention.outputs(template)
    assert Runner.run(%Forward{}, [q, q, q], out, client: client) == :skip
  end

  test "what the handler refuses comes back in its words", %{client: client} do
    # A call made from values, past the checks of the block.
    template = Typespec.tensor({:f, 32}, {1, 2, 1, 2})
    operands = for _ <- 1..3, do: Value.parameter(template)

    spec = %Spec{
      call_target_name: "flash_attention_forward_f32",
      attributes: [
        {"causal", Attribute.boolean(false)},
        {"softmax_scale", Attribute.float(1.0)}
      ]
    }

    results = [template, template, template]
    module = Module.build!(operands, Value.custom_call(operands, spec, results))
    executable = Client.compile!(client, module)
    input = Floats.encode([0, 0, 0, 0])

    assert {:error, %Error{kind: :run, code: :invalid_argument, message: message}} =
             Executable.run(executable, [input, input, input])

    assert message =~
             "result 1 (lse): expected dimensions [1, 1, 2] (B, Hq, S), found f32[1,2,1,2]"
  end

  test "the templates of the results need a query of four dimensions" do
    template = Typespec.tensor({:f, 32}, {2, 3})

    assert_raise ArgumentError,
                 "expected the template of a query of B, S, Hq and D, got: " <>
                   "#EXLA.CustomCall.Typespec<f32[2][3]>",
                 fn -> FlashAttention.outputs(template) end
  end
end
