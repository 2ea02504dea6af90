defmodule FlashAttentionTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Attribute, Client, Error, Executable, Module, Runner, Spec, Typespec}
  alias EXLA.CustomCall.Value
  alias FlashAttention.{Backward, Floats, Forward, Reference}

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

  # The gradients by the kernel, and by the reference: pairs for dq, dk and dv. Then the workspaces.
  defp run_backward(client, block, {batch, queries, keys, query_heads, heads, depth}) do
    {_, q_template} = q = random({batch, queries, query_heads, depth}, 1)
    {_, k_template} = k = random({batch, keys, heads, depth}, 2)
    v = random({batch, keys, heads, depth}, 3)
    dout = random({batch, queries, query_heads, depth}, 4)

    forward = struct!(Forward, Map.from_struct(block))
    {out_template, lse_template, _} = outputs = FlashAttention.outputs(q_template)
    {out, lse, _} = Runner.run!(forward, [q, k, v], outputs, client: client)

    operands = [dout, q, k, v, {out, out_template}, {lse, lse_template}]
    gradients = FlashAttention.gradients(q_template, k_template)
    results = block |> Runner.run!(operands, gradients, client: client) |> Tuple.to_list()
    {found, workspaces} = Enum.split(results, 3)

    expected = block |> Reference.backward(dout, q, k, v) |> Tuple.to_list()
    {Enum.zip(Enum.map(found, &Floats.decode/1), expected), workspaces}
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

  for {name, shape} <- [
        {"multi-head attention", {2, 16, 16, 3, 3, 8}},
        {"grouped-query attention", {2, 9, 9, 6, 2, 16}},
        {"multi-query attention", {1, 20, 20, 4, 1, 32}},
        {"one query of many keys", {3, 1, 200, 4, 2, 16}},
        {"several blocks, the last ones not whole", {1, 130, 150, 2, 1, 24}},
        {"more queries than keys", {1, 12, 5, 2, 2, 8}},
        {"blocks of queries that see no key when causal", {1, 150, 70, 1, 1, 4}},
        {"heads of one element", {1, 7, 7, 2, 1, 1}},
        {"no batch at all", {0, 4, 4, 2, 1, 8}}
      ],
      causal <- [false, true] do
    test "gradients of #{name}, causal: #{causal}", %{client: client} do
      block = %Backward{causal: unquote(causal)}
      {gradients, _} = run_backward(client, block, unquote(Macro.escape(shape)))

      for {found, expected} <- gradients do
        assert Floats.largest_error(found, expected) <= 1.0e-5
      end
    end
  end

  test "a query that sees no key has a gradient of zero", %{client: client} do
    {[{dq, _} | _], _} = run_backward(client, %Backward{causal: true}, {1, 3, 2, 1, 1, 2})
    assert [+0.0, +0.0, _, _, seen, _] = dq
    assert abs(seen) > 0.01
  end

  test "the softmax scale reaches the gradients", %{client: client} do
    {gradients, _} = run_backward(client, %Backward{softmax_scale: 0.5}, {1, 4, 8, 2, 1, 4})

    for {found, expected} <- gradients do
      assert Floats.largest_error(found, expected) <= 1.0e-5
    end
  end

  test "each call leaves a note of how many query heads it saw", %{client: client} do
    {_, q_template} = q = random({2, 70, 6, 4}, 1)
    kv = random({2, 5, 3, 4}, 2)
    outputs = FlashAttention.outputs(q_template)
    {_, _, workspace} = Runner.run!(%Forward{}, [q, kv, kv], outputs, client: client)

    # For each of 2 batches and 6 heads the first of 64 * (D + 66) elements.
    notes = workspace |> Floats.decode() |> Enum.take_every(64 * (4 + 66))
    assert notes == List.duplicate(6.0, 12)

    {_, [_, _, _, semaphore, _, _]} = run_backward(client, %Backward{}, {2, 70, 5, 6, 3, 4})
    assert for(<<note::32-native <- semaphore>>, do: note) == List.duplicate(6, 2 * 6 * 2)
  end

  # What the handler of one of two devices would get, were the attributes made before the split.
  test "attributes of other sizes than the operands are refused", %{client: client} do
    q = Typespec.tensor({:f, 32}, {1, 2, 4, 2})
    k = Typespec.tensor({:f, 32}, {1, 2, 2, 2})
    lse = Typespec.tensor({:f, 32}, {1, 4, 2})
    templates = [q, q, k, k, q, lse]
    operands = Enum.map(templates, &Value.parameter/1)

    spec = %Spec{
      call_target_name: "flash_attention_backward_f32",
      attributes: [
        {"causal", Attribute.boolean(false)},
        {"softmax_scale", Attribute.float(1.0)},
        {"query_blocks", Attribute.integer(1)},
        {"heads", Attribute.integer(8)}
      ]
    }

    results = Tuple.to_list(FlashAttention.gradients(q, k))
    module = Module.build!(operands, Value.custom_call(operands, spec, results))
    executable = Client.compile!(client, module)
    inputs = for %{shape: shape} <- templates, do: <<0::size(32 * Tuple.product(shape))>>

    assert {:error, %Error{kind: :run, code: :invalid_argument, message: message}} =
             Executable.run(executable, inputs)

    assert message =~
             "attribute \"heads\": expected 4 (Hq, of the operands), found 8; where a call is split " <>
               "over devices, make its attributes from the shapes of a part"
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

  test "the templates of the results need operands of four dimensions" do
    template = Typespec.tensor({:f, 32}, {2, 3})

    assert_raise ArgumentError,
                 "expected the template of a query of B, S, Hq and D, got: " <>
                   "#EXLA.CustomCall.Typespec<f32[2][3]>",
                 fn -> FlashAttention.outputs(template) end

    assert_raise ArgumentError,
                 "expected the templates of a query of B, S, Hq and D and of keys of B, Skv, Hkv and D, " <>
                   "got: #EXLA.CustomCall.Typespec<f32[2][3]> and #EXLA.CustomCall.Typespec<f32[2][3]>",
                 fn -> FlashAttention.gradients(template, template) end
  end
end
