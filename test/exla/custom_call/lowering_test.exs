defmodule EXLA.CustomCall.LoweringTest do
  use ExUnit.Case, async: true
  doctest EXLA.CustomCall.Lowering

  alias EXLA.CustomCall.{Attribute, Context, Lowering, Mesh, Module, Sharding, Spec, Typespec}

  # A block that answers what it holds.
  defmodule Answer do
    defstruct [:value]
  end

  defimpl EXLA.CustomCall, for: Answer do
    def call(%{value: fun}, out, args, client) when is_function(fun), do: fun.(out, args, client)
    def call(block, _out, _args, _client), do: block.value
  end

  @vector Typespec.tensor({:f, 32}, {2})
  @client %{platform: :host}

  defp lower(answer, out \\ @vector, args \\ [@vector], client \\ @client, opts \\ []) do
    Lowering.lower(%Answer{value: answer}, out, args, client, opts)
  end

  defp refusal(answer, out \\ @vector, args \\ [@vector]) do
    {:error, error} = lower(answer, out, args)

    assert_raise ArgumentError, error.message, fn ->
      Lowering.lower!(%Answer{value: answer}, out, args, @client)
    end

    error
  end

  defp with_fields(fields), do: {:ok, struct!(%Spec{call_target_name: "k"}, fields)}

  test "the implementation gets templates as they are, and the client" do
    out = {%{type: {:f, 32}, shape: {3}}, @vector}
    args = [%{type: {:s, 8}, shape: {2}, names: [nil]}, @vector]
    client = %{platform: :cuda, other: 1}
    test = self()

    answer = fn out, args, client ->
      send(test, {out, args, client})
      with_fields([])
    end

    {:ok, module} = lower(answer, out, args, client)
    assert_received {^out, ^args, ^client}
    assert module.parameters == [Typespec.tensor({:s, 8}, {2}), @vector]
    assert module.results == [Typespec.tensor({:f, 32}, {3}), @vector]
  end

  test "skip is passed on" do
    assert lower(:skip) == :skip
    assert Lowering.lower!(%Answer{value: :skip}, @vector, [], @client) == :skip
  end

  test "a call without results is emitted all the same" do
    {:ok, module} = lower(with_fields([]), {}, [])
    assert [%{call_target_name: "k", operands: [], results: []}] = Module.custom_calls(module)
  end

  test "a context and a name are passed on" do
    {:ok, module} = lower(with_fields([]), @vector, [], @client, name: "net")
    assert to_string(module) =~ "module @net"
    context = Context.new!(max_nesting: 1)
    spec = with_fields(attributes: [{"a", "[[1]]"}])
    {:error, error} = lower(spec, @vector, [], @client, context: context)
    assert error.message =~ "nests deeper than 1"
  end

  test "an exception of the implementation is the caller's" do
    assert_raise RuntimeError, "mine", fn -> lower(fn _, _, _ -> raise "mine" end) end
  end

  test "anything else that call/4 returns is refused" do
    for wrong <- [
          nil,
          :ok,
          {:ok, %{call_target_name: "k"}},
          {:error, "no"},
          with_fields([]) |> elem(1)
        ] do
      assert refusal(wrong).message ==
               "expected EXLA.CustomCall.call/4 to return :skip or {:ok, %EXLA.CustomCall.Spec{}} " <>
                 "for EXLA.CustomCall.LoweringTest.Answer, got: #{inspect(wrong)}"
    end
  end

  test "a list of attributes that is no list is refused" do
    assert refusal(with_fields(attributes: %{"a" => "1"})).message ==
             ~S(attributes: expected a list of {name, text} pairs of binaries, got: %{"a" => "1"})

    assert refusal(with_fields(mlir_attributes: nil)).message ==
             "mlir_attributes: expected a list of {name, text} pairs of binaries, got: nil"

    assert refusal(with_fields(attributes: [{"a", "1"} | :x])).message ==
             ~S(attributes: expected a list of {name, text} pairs of binaries, got: [{"a", "1"} | :x])
  end

  test "an entry that is no pair is refused" do
    error = refusal(with_fields(attributes: [{"a", "1"}, {"b"}]))
    assert {error.kind, error.field} == {:argument, :attributes}

    assert error.message ==
             ~S(attributes: expected a {name, text} pair of binaries at index 1, got: {"b"})

    assert refusal(with_fields(mlir_attributes: ["a"])).message ==
             ~S(mlir_attributes: expected a {name, text} pair of binaries at index 0, got: "a")
  end

  test "a name that is no binary is refused" do
    assert refusal(with_fields(attributes: [{:causal, "true"}])).message ==
             ~S(attributes: expected the name at index 0 to be a binary, such as "scale", got: :causal)

    assert refusal(with_fields(mlir_attributes: [{[?a, ?b], "true"}])).message ==
             ~S(mlir_attributes: expected the name at index 0 to be a binary, such as "scale", got: the charlist 'ab'; use double quotes)
  end

  test "a text that is no binary is refused" do
    error = refusal(with_fields(attributes: [{"n", 42}]))
    assert error.name == "n"

    assert error.message ==
             ~S(attributes: expected the text of "n" to be a binary with an MLIR attribute, such as "42 : i64", got: 42)

    assert refusal(with_fields(mlir_attributes: [{"n", [?1]}])).message ==
             ~S(mlir_attributes: expected the text of "n" to be a binary with an MLIR attribute, such as "42 : i64", got: the charlist '1'; use double quotes)

    assert refusal(with_fields(attributes: [{"n", <<1::1>>}])).message =~ "got: <<1::size(1)>>"
  end

  test "a target name and a backend_config are binaries" do
    assert refusal(with_fields(call_target_name: :k)).message ==
             "call_target_name: expected a binary, got: :k"

    assert refusal(with_fields(api_version: 2, backend_config: [?x])).message ==
             "backend_config: expected a binary or nil, got: the charlist 'x'; use double quotes"
  end

  test "an API version is a number that exists" do
    assert refusal(with_fields(api_version: :typed)).message ==
             "api_version: :typed is not one of 1, 2, 3 and 4; use 4 for a typed FFI handler"

    assert refusal(with_fields(api_version: Integer.pow(2, 100))).message =~
             "api_version: 1267650600228229401496703205376 is not one of 1, 2, 3 and 4"
  end

  test "operand_element_types has one known type an operand" do
    assert refusal(with_fields(operand_element_types: [{:f, 32}, {:f, 32}])).message ==
             "operand_element_types: expected :default or a list with one type an operand, " <>
               "that is 1, got 2: [f: 32, f: 32]"

    assert refusal(with_fields(operand_element_types: :f32)).message ==
             "operand_element_types: expected :default or a list with one type an operand, got: :f32"

    assert refusal(with_fields(operand_element_types: [{:f, 7}])).message =~
             "operand_element_types: at index 0, unknown type {:f, 7}; the types are s and u of"

    assert refusal(with_fields(operand_element_types: [{:f, 32}]), @vector, [Typespec.token()]).message ==
             "operand_element_types: operand 0 is a token, which only :token fits, got: {:f, 32}"
  end

  test "templates need a type and a shape, with dimensions of 0 or more" do
    assert refusal(with_fields([]), @vector, [@vector, %{shape: {2}}]).message ==
             "operand 1: expected a template with :type and :shape, such as an Nx.Tensor or " <>
               "EXLA.CustomCall.Typespec.tensor({:f, 32}, {2, 3}), got: %{shape: {2}}"

    assert refusal(with_fields([]), {@vector, nil}).message =~ "output 1: expected a template"

    assert refusal(with_fields([]), %{type: {:f, 32}, shape: {-1}}).message ==
             "output 0: expected the dimensions of a shape to be 0 or more, got -1 in {-1}"

    assert refusal(with_fields([]), @vector, @vector).message =~
             "expected the operands as a list of templates, got: "
  end

  test "a client has a platform" do
    {:error, error} = lower(:skip, @vector, [], :host)

    assert error.message ==
             "expected the client to be an EXLA.CustomCall.Client or a map with :platform, " <>
               "such as %{platform: :host}, got: :host"
  end

  describe "on a mesh" do
    @mesh Mesh.new(data: 2, model: 2)
    @matrix Typespec.tensor({:f, 32}, {4, 8})

    # A spec that says how many rows it was asked for.
    defp rows(%{shape: {rows, columns}}) do
      rule =
        Attribute.sharding_rule([[:rows, :columns]], [[:rows, :columns]],
          rows: rows,
          columns: columns
        )

      with_fields(
        attributes: [{"rows", "#{rows} : i64"}],
        mlir_attributes: [{"sdy.sharding_rule", rule}]
      )
    end

    defp split(opts, client \\ @client) do
      lower(fn _out, [x], _client -> rows(x) end, @matrix, [@matrix], client, opts)
    end

    test "a block is split by the shardings of its operands" do
      sharding = Sharding.new(@mesh, ["data", nil])
      {:ok, module} = split(shardings: [sharding], partition: :auto)

      assert [%{attributes: [{"rows", "4 : i64"}], operands: [local]}] =
               Module.custom_calls(module)

      assert local == Typespec.tensor({:f, 32}, {2, 8})
      assert module.mesh == @mesh
      assert module.parameter_shardings == [sharding]
      assert module.result_shardings == [sharding]
    end

    test "the implementation is asked again for the shapes of one device, where that is wished" do
      opts = [mesh: @mesh, shardings: [%{0 => ["data"]}], partition: :auto]

      for {opts, client} <- [
            {[local_shapes: true] ++ opts, @client},
            {opts, Map.put(@client, :local_shapes, true)}
          ] do
        {:ok, module} = split(opts, client)
        assert [%{attributes: [{"rows", "2 : i64"}]}] = Module.custom_calls(module)
      end
    end

    test "the client tells which of the two times it is", context do
      test = self()

      answer = fn _out, [x], client ->
        send(test, {context.test, x.shape, client})
        rows(x)
      end

      client = %{platform: :host, local_shapes: true, other: 1}
      opts = [mesh: @mesh, shardings: [["data", nil]], partition: :auto]
      {:ok, _module} = lower(answer, @matrix, [@matrix], client, opts)
      name = context.test
      assert_received {^name, {4, 8}, %{platform: :host, other: 1} = whole}
      refute is_map_key(whole, :local_shapes)
      assert_received {^name, {2, 8}, %{platform: :host, local_shapes: true}}
    end

    test "an Nx mesh and shardings by the index of a dimension are taken" do
      nx = %{__struct__: Nx.Mesh, name: "mesh", shape: {2, 2}}
      {:ok, module} = split(mesh: nx, shardings: [%{1 => [1]}], partition: :auto)
      assert to_string(module) =~ ~S(sdy.sharding = #sdy.sharding<@mesh, [{}, {"axis_1"}]>)
      assert [%{operands: [%{shape: {4, 4}}]}] = Module.custom_calls(module)
    end

    test "a result may be split otherwise than the call leaves it" do
      {:ok, module} =
        split(
          mesh: @mesh,
          shardings: [["data", nil]],
          partition: :auto,
          result_shardings: [[nil, "model"]]
        )

      assert to_string(module) =~
               ~S|-> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>})|
    end

    test "what does not fit is refused with words" do
      for {opts, message} <- [
            {[shardings: [%{0 => [0]}]],
             "the axes of :shardings are those of a mesh; give the option :mesh"},
            {[mesh: @mesh, shardings: [nil, nil]],
             "expected :shardings as a list of at most 1, one an operand, got: [nil, nil]"},
            {[mesh: @mesh, partition: :auto],
             "partition: :auto goes by the shardings of the operands, and none is known; give parameters a " <>
               ":sharding, say that of a computed value with EXLA.CustomCall.Value.shard/2, or name the factors"},
            {[mesh: @mesh, partition: %{"i" => "data"}, local_shapes: 1],
             "expected :local_shapes to be a boolean, got: 1"}
          ] do
        assert {:error, %{kind: :argument, message: ^message}} = split(opts)
      end
    end

    test "what the implementation raises for one device is the caller's" do
      answer = fn _out, [x], client ->
        if client[:local_shapes], do: raise(ArgumentError, "too few rows"), else: rows(x)
      end

      assert_raise ArgumentError, "too few rows", fn ->
        lower(answer, @matrix, [@matrix], @client,
          mesh: @mesh,
          partition: %{"i" => "data"},
          local_shapes: true
        )
      end
    end

    test "an implementation that skips one device's part is told so" do
      answer = fn _out, [x], client -> if client[:local_shapes], do: :skip, else: rows(x) end

      assert {:error, error} =
               lower(answer, @matrix, [@matrix], @client,
                 mesh: @mesh,
                 partition: %{"i" => "data"},
                 local_shapes: true
               )

      assert error.message =~ "returned a spec for the whole"
      assert error.message =~ "and :skip for the part of one device"
    end
  end
end
