defmodule EXLA.CustomCall.ModuleTest do
  use ExUnit.Case, async: true
  doctest EXLA.CustomCall.Module

  alias EXLA.CustomCall.{Attribute, Mesh, Module, Sharding, Spec, Typespec, Value}

  @vector Typespec.tensor({:f, 32}, {2})

  # The module of one call of the spec on parameters of the given types.
  defp build(spec, types \\ [@vector], results \\ [@vector], opts \\ []) do
    parameters = Enum.map(types, &Value.parameter/1)
    values = Value.custom_call(parameters, spec, results)

    if results == [] do
      Module.build(parameters, [], [effects: values] ++ opts)
    else
      Module.build(parameters, values, opts)
    end
  end

  defp spec(fields), do: struct!(%Spec{call_target_name: "k"}, fields)

  defp refusal(fields) do
    {:error, error} = build(spec(fields))
    error
  end

  describe "emission" do
    test "attributes are the backend_config dictionary, mlir_attributes stand on the operation" do
      spec =
        spec(
          call_target_name: "attention",
          attributes: [{"causal", "true"}, {"scale", "0.5 : f32"}],
          mlir_attributes: [
            {"operand_layouts", Attribute.layouts([[0]])},
            {"result_layouts", Attribute.layouts([[0]])},
            {"sdy.sharding_rule", "#sdy.op_sharding_rule<([i])->([i]) {i=2}>"}
          ]
        )

      {:ok, module} = build(spec)

      assert to_string(module) == """
             module {
               func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
                 %0 = "stablehlo.custom_call"(%arg0) {api_version = 4 : i32, backend_config = {causal = true, scale = 5.000000e-01 : f32}, call_target_name = "attention", operand_layouts = [dense<0> : tensor<1xindex>], result_layouts = [dense<0> : tensor<1xindex>], sdy.sharding_rule = #sdy.op_sharding_rule<([i])->([i]) {i=2}>} : (tensor<2xf32>) -> tensor<2xf32>
                 return %0 : tensor<2xf32>
               }
             }
             """
    end

    test "what was emitted reads back as data" do
      spec =
        spec(
          attributes: [{"n", "1 : i64"}, {"list", "array<i64: 1, 2>"}],
          mlir_attributes: [{"has_side_effect", "true"}]
        )

      {:ok, module} = build(spec, [@vector, Typespec.token()], [@vector, Typespec.token()])

      assert Module.custom_calls(module) == [
               %{
                 function: "main",
                 call_target_name: "k",
                 api_version: 4,
                 attributes: [{"list", "array<i64: 1, 2>"}, {"n", "1 : i64"}],
                 backend_config: nil,
                 mlir_attributes: [{"has_side_effect", "true"}],
                 operands: [@vector, Typespec.token()],
                 results: [@vector, Typespec.token()]
               }
             ]
    end

    test "without attributes there is no backend_config" do
      {:ok, module} = build(spec([]))
      refute to_string(module) =~ "backend_config"
    end

    test "the order of attributes never matters" do
      attributes = for n <- 1..6, do: {"a#{n}", "#{n} : i64"}
      mlir = for n <- 1..6, do: {"my.b#{n}", "#{n} : i64"}
      {:ok, expected} = build(spec(attributes: attributes, mlir_attributes: mlir))

      for seed <- 1..20 do
        :rand.seed(:exsss, seed)

        {:ok, shuffled} =
          build(spec(attributes: Enum.shuffle(attributes), mlir_attributes: Enum.shuffle(mlir)))

        assert Module.to_bytecode(shuffled) == Module.to_bytecode(expected)
        assert to_string(shuffled) == to_string(expected)
      end
    end

    test "target names and string backend_configs keep every byte" do
      bytes = for byte <- 0..255, into: <<>>, do: <<byte>>
      {:ok, module} = build(spec(call_target_name: bytes, api_version: 2, backend_config: bytes))
      [call] = Module.custom_calls(module)
      assert call.call_target_name == bytes
      assert call.backend_config == bytes
      assert call.api_version == 2
    end

    test "API versions 1 to 3 have a string backend_config or none" do
      for version <- 1..3 do
        {:ok, module} = build(spec(api_version: version, backend_config: "config"))
        assert to_string(module) =~ ~s(api_version = #{version} : i32, backend_config = "config")
        {:ok, module} = build(spec(api_version: version))
        refute to_string(module) =~ "backend_config"
      end
    end

    test "names of any UTF-8 text are attribute names" do
      {:ok, module} = build(spec(attributes: [{"é \"}, x = {", "1 : i64"}]))
      [call] = Module.custom_calls(module)
      assert call.attributes == [{"é \"}, x = {", "1 : i64"}]
    end

    test "converts stand exactly where operand_element_types differ" do
      spec = spec(operand_element_types: [{:f, 32}, {:f, 32}, :bf16, :token])
      types = [@vector, Typespec.tensor({:s, 8}, {2}), @vector, Typespec.token()]
      {:ok, module} = build(spec, types)
      [call] = Module.custom_calls(module)

      assert call.operands == [
               @vector,
               @vector,
               Typespec.tensor({:bf, 16}, {2}),
               Typespec.token()
             ]

      assert length(String.split(to_string(module), "stablehlo.convert")) == 3
    end

    test "zero operands, zero results and 200 operands are emitted" do
      {:ok, module} = build(spec([]), [], [])
      assert to_string(module) =~ ~s[call_target_name = "k"} : () -> ()]

      {:ok, module} = build(spec([]), List.duplicate(@vector, 200), [@vector])
      [call] = Module.custom_calls(module)
      assert length(call.operands) == 200
    end

    test "every type is emitted and read back" do
      for type <- Typespec.types(), shape <- [{}, {0}, {2, 3}] do
        typespec = Typespec.tensor(type, shape)
        {:ok, module} = build(spec([]), [typespec], [typespec])
        [call] = Module.custom_calls(module)
        assert {call.operands, call.results} == {[typespec], [typespec]}
        assert to_string(module) =~ Typespec.to_text(typespec)
      end
    end

    test "the module, its function, parameters and results carry names and attributes" do
      x = Value.parameter(@vector, attributes: [{"tf.aliasing_output", "0 : i32"}])

      module =
        Module.build!([x], [{x, [{"jax.result_info", "\"out\""}]}],
          name: "net",
          function: "entry",
          attributes: [{"mhlo.num_partitions", "2 : i32"}]
        )

      assert to_string(module) == """
             module @net attributes {mhlo.num_partitions = 2 : i32} {
               func.func @entry(%arg0: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<2xf32> {jax.result_info = "out"}) {
                 return %arg0 : tensor<2xf32>
               }
             }
             """
    end

    test "a large module prints and reads back as a small one does" do
      x = Value.parameter(@vector)

      y =
        Enum.reduce(1..500, x, fn n, y ->
          hd(Value.custom_call([y], spec(attributes: [{"n", "#{n} : i64"}]), [@vector]))
        end)

      module = Module.build!([x], [y])
      assert length(String.split(to_string(module), "stablehlo.custom_call")) == 501
      assert List.last(Module.custom_calls(module)).attributes == [{"n", "500 : i64"}]
    end

    test "a module prints as its types when inspected" do
      {:ok, module} = build(spec([]))

      assert inspect(module) ==
               "#EXLA.CustomCall.Module<[#EXLA.CustomCall.Typespec<f32[2]>] -> [#EXLA.CustomCall.Typespec<f32[2]>]>"
    end
  end

  describe "on a mesh" do
    test "parameters and results get their shardings, and the module the meshes that they speak of" do
      mesh = Mesh.new(x: 2)
      x = Value.parameter(@vector)
      split = Sharding.new(mesh, ["x"])

      {:ok, module} =
        Module.build([x], [x, {x, Sharding.replicated(mesh, 1)}],
          mesh: mesh,
          parameter_shardings: [["x"]]
        )

      assert module.mesh == mesh
      assert module.parameter_shardings == [split]
      assert module.result_shardings == [nil, Sharding.replicated(mesh, 1)]
      text = to_string(module)
      assert text =~ ~S|"sdy.mesh"() {mesh = #sdy.mesh<["x"=2]>, sym_name = "mesh"}|
      assert text =~ ~S(%arg0: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
      assert text =~ ~S(tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
    end

    test "meshes of different sizes are refused" do
      [x, y] =
        for mesh <- [Mesh.new([x: 2], name: "a"), Mesh.new([x: 4], name: "b")],
            do:
              Value.parameter(Typespec.tensor({:f, 32}, {4}), sharding: Sharding.new(mesh, ["x"]))

      assert {:error, error} = Module.build([x, y], [x, y])

      assert error.message ==
               ~S(the meshes have different sizes: #EXLA.CustomCall.Mesh<@a ["x"=2]>, #EXLA.CustomCall.Mesh<@b ["x"=4]>; a program runs on as many devices as each of its meshes has)
    end

    test "a mesh that is called as a function is refused" do
      {:error, error} = Module.build([], [], mesh: Mesh.new([x: 2], name: "main"))

      assert error.message ==
               ~S(the function name "main" names a mesh too; give the mesh another)
    end

    test "what does not fit is refused" do
      mesh = Mesh.new(x: 2)
      x = Value.parameter(@vector, sharding: Sharding.new(mesh, ["x"]))

      for {results, opts, message} <- [
            {[x], [parameter_shardings: [nil, nil]],
             "expected :parameter_shardings as a list of at most 1, one for each of 1 values, got: [nil, nil]"},
            {[x], [result_shardings: [["x"]]],
             ":result_shardings, at index 0: axes are those of a mesh; give the option :mesh"},
            {[x], [parameter_shardings: [Sharding.replicated(mesh, 1)]],
             "a parameter has the sharding #EXLA.CustomCall.Sharding<@mesh, [{\"x\"}]> already, got: #EXLA.CustomCall.Sharding<@mesh, [{}]>"},
            {[{x, Sharding.replicated(mesh, 1)}],
             [mesh: mesh, result_shardings: [Sharding.new(mesh, ["x"])]],
             "a result has two shardings; leave out #EXLA.CustomCall.Sharding<@mesh, [{\"x\"}]>, or the other"},
            {[x], [mesh: :mesh], "expected an EXLA.CustomCall.Mesh or an Nx.Mesh, got: :mesh"}
          ] do
        assert {:error, %{kind: :argument, message: ^message}} = Module.build([x], results, opts)
      end
    end
  end

  describe "names" do
    test "an empty name is refused" do
      error = refusal(attributes: [{"a", "1"}, {"", "1"}])
      assert {error.kind, error.field} == {:name, :attributes}

      assert error.message ==
               "attributes: the attribute name at index 1 is empty; give every attribute a name"
    end

    test "a name that is given twice is refused in either list" do
      error = refusal(attributes: [{"a", "1"}, {"b", "1"}, {"a", "2"}])
      assert {error.kind, error.field, error.name} == {:name, :attributes, "a"}

      assert error.message ==
               ~S(attributes: the attribute name "a" is given twice; give each name once)

      assert refusal(mlir_attributes: [{"a", "1"}, {"a", "1"}]).message ==
               ~S(mlir_attributes: the attribute name "a" is given twice; give each name once)
    end

    test "reserved names are refused on the operation, each with what to use instead" do
      reserved = fn name -> refusal(mlir_attributes: [{name, "1"}]).message end

      assert reserved.("call_target_name") ==
               ~S(mlir_attributes: the attribute name "call_target_name" is reserved; set the spec's field call_target_name)

      assert reserved.("api_version") ==
               ~S(mlir_attributes: the attribute name "api_version" is reserved; set the spec's field api_version)

      assert reserved.("backend_config") ==
               ~S(mlir_attributes: the attribute name "backend_config" is reserved; use the spec's field attributes, or its field backend_config with an api_version below 4)

      assert reserved.("mhlo.backend_config") ==
               ~S(mlir_attributes: the attribute name "mhlo.backend_config" is reserved; it would shadow backend_config; use the spec's field attributes)
    end

    test "reserved names are ordinary names in the dictionary" do
      assert {:ok, _} = build(spec(attributes: [{"api_version", "1 : i64"}]))
    end

    test "a name that is not UTF-8 or holds a NUL is refused" do
      assert refusal(attributes: [{<<"a", 0xFF>>, "1"}]).message ==
               ~S(attributes: the attribute name "a\xff" is not valid UTF-8; MLIR identifiers are UTF-8 text)

      assert refusal(mlir_attributes: [{"a\0", "1"}]).message ==
               ~S(mlir_attributes: the attribute name "a\0" holds a NUL byte; MLIR identifiers cannot)
    end
  end

  describe "texts" do
    test "a text cannot reach into its neighbours" do
      error = refusal(attributes: [{"k", "1 : i64}, evil = {"}])
      assert {error.kind, error.field, error.name} == {:text, :attributes, "k"}
      assert {error.line, error.column} == {1, 8}

      assert error.message ==
               ~S(attributes: the text of "k" is not an MLIR attribute: found trailing characters: '}, evil = {', at line 1, column 8: "1 : i64}, evil = {")
    end

    test "a text that does not parse is refused with MLIR's words and the column" do
      error = refusal(mlir_attributes: [{"operand_layouts", "[dense<[1, 0> : tensor<2xindex>]"}])

      assert error.message ==
               ~S(mlir_attributes: the text of "operand_layouts" is not an MLIR attribute: expected ']', at line 1, column 13: "[dense<[1, 0> : tensor<2xindex>]")

      assert {error.line, error.column} == {1, 13}
      error = refusal(attributes: [{"k", "[1,\n nonsense]"}])
      assert {error.line, error.column} == {2, 2}
      assert error.message =~ ~S(at line 2, column 2: " nonsense]")
    end

    test "an empty text is refused" do
      assert refusal(attributes: [{"k", ""}]).message ==
               ~S(attributes: the text of "k" is not an MLIR attribute: expected attribute value, at line 1, column 1: ""; write an attribute, such as 1 : i64)
    end

    test "texts that are too long or too deep are refused before they are parsed" do
      long = "\"" <> String.duplicate("a", 1024 * 1024) <> "\""

      assert refusal(attributes: [{"k", long}]).message ==
               ~S(attributes: the text of "k" has 1048578 bytes, more than the limit of 1048576; pass large data as an operand, or raise max_text_bytes of the context)

      deep = String.duplicate("[", 65) <> String.duplicate("]", 65)
      error = refusal(mlir_attributes: [{"k", deep}])
      assert {error.kind, error.line, error.column} == {:text, 1, 65}
      assert error.message =~ ~S(mlir_attributes: the text of "k" nests deeper than 64)
      assert error.message =~ "; flatten it"
    end

    test "half a million brackets are refused" do
      for bracket <- ["[", "{", "(", "<", "tuple<"] do
        error = refusal(attributes: [{"k", String.duplicate(bracket, 80_000)}])
        assert error.message =~ "nests deeper than 64"
      end
    end
  end

  describe "fields against each other" do
    test "an API version other than 1 to 4 is refused" do
      for version <- [0, 5, -1, Integer.pow(2, 31)] do
        assert refusal(api_version: version).message ==
                 "api_version: #{version} is not one of 1, 2, 3 and 4; use 4 for a typed FFI handler"
      end
    end

    test "a binary backend_config and attributes need the right API version" do
      assert refusal(backend_config: "x").message ==
               "backend_config: a binary needs api_version 1, 2 or 3, and api_version is 4; with 4 the backend_config is a dictionary, given as attributes"

      assert refusal(api_version: 2, attributes: [{"a", "1"}]).message ==
               "attributes: they need api_version 4, and api_version is 2; below 4 the backend_config is a string, given as the field backend_config"
    end
  end

  describe "options" do
    test "of the wrong shape are refused by name" do
      message = fn opts ->
        {:error, error} = Module.build([], [], opts)
        assert error.kind == :argument
        assert_raise ArgumentError, error.message, fn -> Module.build!([], [], opts) end
        error.message
      end

      assert message.(name: :net) == "expected :name to be a binary, got: :net"
      assert message.(function: nil) == "expected :function to be a binary, got: nil"

      assert message.(context: self()) =~
               "expected :context to be an EXLA.CustomCall.Context, got: #PID"

      assert message.(effects: [1]) == "effects: expected a list of values, got: [1]"

      assert message.(functions: :f) ==
               "expected :functions to be a list of EXLA.CustomCall.Value.function/4, got: :f"

      assert message.(attributes: [{:a, "1"}]) ==
               ~S(module_attributes: expected the name at index 0 to be a binary, such as "scale", got: :a)

      assert message.(nom: "net") ==
               "unknown option :nom; the options are :name, :function, :attributes, :effects, :functions, :mesh, :parameter_shardings, :result_shardings, :meshes, :context, :warnings"
    end

    test "a trial is asked for in :compile of a check" do
      {:error, error} = Module.check([], [], trial: true)

      assert error.message ==
               "unknown option :trial; the options are :name, :function, :attributes, :effects, :functions, :mesh, :parameter_shardings, :result_shardings, :meshes, :context, :warnings, :compile; :trial is one of the options in :compile"
    end

    test "only a module is printed or read" do
      for fun <- [&Module.to_string/1, &Module.to_bytecode/1, &Module.custom_calls/1] do
        assert_raise ArgumentError, "expected an EXLA.CustomCall.Module, got: nil", fn ->
          fun.(nil)
        end
      end
    end

    test "improper lists are no lists" do
      {:error, error} = Module.build([Value.parameter(@vector) | :x], [])
      assert error.message =~ "parameters: expected a list of values"
      {:error, error} = Module.build([], [1 | 2])
      assert error.message == "results: expected a list of values, got: [1 | 2]"
    end
  end
end
