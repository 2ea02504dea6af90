defmodule EXLA.CustomCall.RulesTest do
  # The cases of StableHLO's own tests of `stablehlo.custom_call` (stablehlo/tests/ops_stablehlo.mlir),
  # as specs, in their order; then what XLA and this package add. The verdict is literal in each.
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Module, Spec, Typespec, Value}

  @f32 Typespec.tensor({:f, 32}, {})
  @f32x2 Typespec.tensor({:f, 32}, {2})
  @token Typespec.token()
  @buffer Typespec.buffer({:f, 32}, {2})

  defp f32(shape), do: Typespec.tensor({:f, 32}, shape)
  defp tuple(elements), do: Typespec.tuple(elements)

  # Layouts as StableHLO writes them.
  defp layouts(list) do
    "[" <>
      Enum.map_join(list, ", ", fn
        [] -> "dense<> : tensor<0xindex>"
        dimensions -> "dense<#{inspect(dimensions)}> : tensor<#{length(dimensions)}xindex>"
      end) <> "]"
  end

  defp aliases(list) do
    "[" <>
      Enum.map_join(list, ", ", fn {output, operand, part} ->
        "#stablehlo.output_operand_alias<output_tuple_indices = #{inspect(output)}, " <>
          "operand_index = #{operand}, operand_tuple_indices = #{inspect(part)}>"
      end) <> "]"
  end

  # `:ok`, or the messages of the faults.
  defp verdict(operands, results, fields) do
    operands = Enum.map(operands, &Value.parameter/1)
    spec = struct!(%Spec{call_target_name: "foo"}, fields)
    values = Value.custom_call(operands, spec, results)
    effects = if results == [], do: values, else: []

    # The function is none of XLA's entry: PJRT has no tuples and buffers there.
    case Module.check(operands, if(results == [], do: [], else: values),
           function: "f",
           effects: effects
         ) do
      {:ok, _warnings} -> :ok
      {:error, %{faults: [], message: message}} -> message
      {:error, %{faults: faults}} -> Enum.map(faults, & &1.message)
    end
  end

  defp mlir(operands, results, attributes) do
    verdict(operands, results, mlir_attributes: attributes)
  end

  defp layouts(operands, results, operand_layouts, result_layouts) do
    given =
      for {name, list} <- [
            {"operand_layouts", operand_layouts},
            {"result_layouts", result_layouts}
          ],
          list,
          do: {name, layouts(list)}

    mlir(operands, results, given)
  end

  describe "StableHLO's cases" do
    test "custom_call_multiple_inputs_outputs" do
      fields = [
        api_version: 1,
        backend_config: "",
        mlir_attributes: [{"has_side_effect", "false"}]
      ]

      assert verdict([@f32x2, @token], [@f32x2, @f32x2, @token], fields) == :ok
    end

    test "custom_call_multiple_inputs_outputs_with_layout" do
      assert layouts([@f32x2, @token], [@f32, @f32x2, @token], [[0], []], [[], [0], []]) == :ok
    end

    test "custom_call_tuple_output_with_layout" do
      result = tuple([@f32x2, @f32x2, @token])
      assert layouts([@f32x2, @token], [result], [[0], []], [[0], [0], []]) == :ok
    end

    test "custom_call_only_operand_layout_constraints" do
      assert layouts([@f32x2, @token], [@f32x2, @f32x2, @token], [[0], []], nil) ==
               ~S(mlir_attributes: "operand_layouts": result_layouts is missing; layouts are for both sides or neither: give result_layouts with a layout for each result)
    end

    test "custom_call_layout_mismatch_num_operands" do
      assert layouts([@f32x2, @token], [@f32x2, @f32x2, @token], [[0]], [[0], [0], []]) ==
               ~S(mlir_attributes: "operand_layouts": there is 1 layout; the custom call has 2 operands, and takes one for each)
    end

    test "custom_call_layout_mismatch_num_results" do
      assert layouts([], [@f32x2, @f32x2, @token], [], [[0], [0]]) ==
               ~S(mlir_attributes: "result_layouts": there are 2 layouts; the custom call has 3 results, and takes one for each)
    end

    test "custom_call_layout_mismatch_num_results_tuple" do
      result = tuple([@f32x2, @f32x2, @token])

      assert layouts([@f32x2, @token], [result], [[0], []], [[0], [0]]) ==
               ~S(mlir_attributes: "result_layouts": there are 2 layouts; the tuple result has 3 elements, and takes one for each)
    end

    test "custom_call_tuple_operand_input" do
      operands = [tuple([@f32x2]), @token]
      result = tuple([@f32x2, @f32x2, @token])

      assert layouts(operands, [result], [[0], []], [[0], [0], []]) ==
               ~S(mlir_attributes: "operand_layouts": element 0: operand 0 is a tuple; a custom call with layouts takes no tuples here; pass the elements by themselves, at line 1, column 2)
    end

    test "custom_call_token_with_layout" do
      assert layouts([@token], [], [[0, 1]], []) ==
               ~S(mlir_attributes: "operand_layouts": element 0: a layout of 2 dimensions for a token; operand 0 is a token, whose layout is dense<> : tensor<0xindex>, at line 1, column 2)
    end

    test "custom_call_mismatch_tensor_and_layout_rank" do
      assert layouts([f32({2, 3})], [], [[0, 1, 2]], []) ==
               ~S(mlir_attributes: "operand_layouts": element 0: a layout of 3 dimensions; operand 0 is a tensor<2x3xf32>, so its layout holds each of 0 to 1 once, the dimension that varies fastest first, at line 1, column 2)
    end

    test "custom_call_mismatch_tensor_and_layout_permutation" do
      assert layouts([f32({1, 2, 3})], [], [[0, 1, 3]], []) ==
               ~S(mlir_attributes: "operand_layouts": element 0: the layout [0, 1, 3]; operand 0 is a tensor<1x2x3xf32>, so its layout holds each of 0 to 2 once, the dimension that varies fastest first, at line 1, column 2)
    end

    test "custom_call_output_operand_alias" do
      operands = [tuple([f32({1, 1}), f32({2, 3})]), f32({5, 5})]
      given = [{"output_operand_aliases", aliases([{[0], 0, [1]}])}]
      assert mlir(operands, [tuple([f32({2, 3})])], given) == :ok
    end

    test "custom_call_output_operand_alias_mismatch_operand_index" do
      operands = [tuple([f32({1, 1}), f32({2, 3})]), f32({5, 5})]
      given = [{"output_operand_aliases", aliases([{[0], 2, [1]}])}]

      assert mlir(operands, [tuple([f32({2, 3})])], given) ==
               ~S(mlir_attributes: "output_operand_aliases": element 0: operand_index is 2; the operands are numbers 0 to 1, at line 1, column 2)
    end

    test "custom_call_invalid_output_tuple_indices" do
      operands = [tuple([f32({1, 1}), f32({2, 3})]), f32({5, 5})]
      given = [{"output_operand_aliases", aliases([{[1], 0, [1]}])}]

      assert mlir(operands, [tuple([f32({2, 3})])], given) ==
               ~S(mlir_attributes: "output_operand_aliases": element 0: output_tuple_indices are [1]; the result is a tuple<tensor<2x3xf32>>, at line 1, column 2)
    end

    test "custom_call_invalid_operand_tuple_indices" do
      operands = [tuple([f32({1, 1}), f32({2, 3})]), f32({5, 5})]
      given = [{"output_operand_aliases", aliases([{[0], 0, [2]}])}]

      assert mlir(operands, [tuple([f32({2, 3})])], given) ==
               ~S(mlir_attributes: "output_operand_aliases": element 0: operand_tuple_indices are [2]; operand 0 is a tuple<tensor<1x1xf32>, tensor<2x3xf32>>, at line 1, column 2)
    end

    test "custom_call_output_operand_alias, whose shapes differ" do
      operands = [tuple([f32({1, 1}), f32({2, 3})]), f32({5, 5})]
      given = [{"output_operand_aliases", aliases([{[0], 0, [1]}])}]

      assert mlir(operands, [tuple([f32({20, 30})])], given) ==
               ~S(mlir_attributes: "output_operand_aliases": element 0: the operand is a tensor<2x3xf32> and the result a tensor<20x30xf32>; an operand and a result that share memory have one type, at line 1, column 2)
    end

    test "custom_call_with_dictionary_backend_config" do
      assert verdict([], [], attributes: [{"foo", "42 : i32"}]) == :ok
    end

    test "custom_call_with_incompatible_backend_config, a string with the typed FFI" do
      assert verdict([], [], backend_config: "bar=42") ==
               "backend_config: a binary needs api_version 1, 2 or 3, and api_version is 4; with 4 the backend_config is a dictionary, given as attributes"
    end

    test "custom_call_with_incompatible_backend_config, a dictionary without it" do
      assert verdict([], [], api_version: 3, attributes: [{"bar", "42 : i32"}]) ==
               "attributes: they need api_version 4, and api_version is 3; below 4 the backend_config is a string, given as the field backend_config"
    end

    test "custom_call_op_with_buffer_type" do
      given = [mlir_attributes: [{"output_operand_aliases", aliases([{[], 0, []}])}]]
      assert verdict([@f32x2], [@buffer], call_target_name: "Pin") == :ok
      assert verdict([@buffer], [@buffer], given) == :ok
      assert verdict([@buffer], [@f32x2], call_target_name: "Unpin") == :ok
    end

    test "custom_call_op_create_buffer_type" do
      assert verdict([], [@buffer], call_target_name: "CreateBuffer") == :ok
    end

    test "custom_call_op_create_buffer_with_input" do
      assert verdict([@f32x2], [@buffer], call_target_name: "CreateBuffer") ==
               ~S|call_target_name: "CreateBuffer": the custom call is (tensor<2xf32>) -> (memref<2xf32>); XLA's own custom call of this name has no operand and one buffer result|
    end

    test "custom_call_op_pin_with_tensor_output" do
      assert verdict([@f32x2], [@f32x2], call_target_name: "Pin") ==
               ~S|call_target_name: "Pin": the custom call is (tensor<2xf32>) -> (tensor<2xf32>); XLA's own custom call of this name has one tensor operand and one buffer result of the same shape|
    end

    test "custom_call_op_unpin_with_incompatible_input_output" do
      assert verdict([@buffer], [Typespec.tensor({:s, 32}, {2})], call_target_name: "Unpin") ==
               ~S|call_target_name: "Unpin": the custom call is (memref<2xf32>) -> (tensor<2xi32>); XLA's own custom call of this name has one buffer operand and one tensor result of the same shape|
    end

    test "custom_call_pin_with_output_operand_alias" do
      given = [{"output_operand_aliases", aliases([{[], 0, []}])}]

      assert verdict([@f32x2], [@buffer], call_target_name: "Pin", mlir_attributes: given) ==
               ~S(mlir_attributes: "output_operand_aliases": element 0: the operand is a tensor<2xf32> and the result a memref<2xf32>; an operand and a result that share memory have one type, at line 1, column 2)
    end

    test "custom_call_unpin_with_output_operand_alias" do
      given = [{"output_operand_aliases", aliases([{[], 0, []}])}]

      assert verdict([@buffer], [@f32x2], call_target_name: "Unpin", mlir_attributes: given) ==
               ~S(mlir_attributes: "output_operand_aliases": element 0: the operand is a memref<2xf32> and the result a tensor<2xf32>; an operand and a result that share memory have one type, at line 1, column 2)
    end

    test "custom_call_buffer_operand_in_multiple_output_operand_aliases" do
      given = [{"output_operand_aliases", aliases([{[0], 1, []}, {[1], 1, []}])}]

      assert mlir([@f32x2, @buffer], [@buffer, @buffer], given) ==
               ~S(mlir_attributes: "output_operand_aliases": element 1: the buffer operand 1[] has an alias already; a buffer has one alias, at line 1, column 110)
    end

    test "custom_call_buffer_output_in_multiple_output_operand_aliases" do
      operand = tuple([tuple([@buffer]), @buffer])
      given = [{"output_operand_aliases", aliases([{[0, 0], 0, [0, 0]}, {[0, 0], 0, [1]}])}]

      assert mlir([operand], [tuple([tuple([@buffer])])], given) ==
               ~S(mlir_attributes: "output_operand_aliases": element 1: the buffer result [0, 0] has an alias already; a buffer has one alias, at line 1, column 117)
    end

    test "custom_call_buffer_output_not_in_output_operand_aliases" do
      operand = tuple([tuple([@buffer]), @buffer])
      given = [{"output_operand_aliases", aliases([{[0], 0, [0, 0]}, {[1], 0, [1]}])}]

      assert mlir([operand], [@buffer, @buffer, @buffer], given) ==
               ~S(mlir_attributes: "output_operand_aliases": the buffer result [2] has no alias; every buffer result is an alias of a buffer operand)
    end

    test "custom_call_unranked_types and custom_call_future cannot be written here" do
      assert_raise ArgumentError, fn -> Typespec.tensor({:f, 32}, :unranked) end
      assert_raise ArgumentError, fn -> Typespec.from(%{type: :future, shape: {}}) end
    end
  end

  describe "kinds of attributes" do
    test "has_side_effect is a boolean" do
      assert mlir([], [@f32], [{"has_side_effect", "true"}]) == :ok

      for {text, found} <- [
            {"1", "an integer"},
            {"unit", "the unit attribute"},
            {"\"true\"", "a string"}
          ] do
        assert mlir([], [@f32], [{"has_side_effect", text}]) ==
                 ~s(mlir_attributes: "has_side_effect": it is #{found}; has_side_effect is true or false)
      end
    end

    test "layouts are tensors of type index" do
      good = {"result_layouts", "[dense<0> : tensor<1xindex>]"}

      for {text, found} <- [
            {"dense<0> : tensor<1xi64>", "a layout of another type than index"},
            {"dense<0> : tensor<index>", "a layout of rank 0"},
            {"array<i64: 0>", "an array of numbers"},
            {"[0]", "a list"}
          ] do
        assert mlir([@f32x2], [@f32x2], [{"operand_layouts", "[#{text}]"}, good]) ==
                 ~s(mlir_attributes: "operand_layouts": element 0: #{found}; a layout is a tensor of type index, such as dense<[1, 0]> : tensor<2xindex>, at line 1, column 2)
      end
    end

    test "a tensor without elements has its row-major layout, over which XLA does not divide by zero" do
      assert layouts([f32({0, 2})], [], [[1, 0]], []) == :ok

      assert layouts([f32({0, 2})], [], [[0, 1]], []) ==
               ~S(mlir_attributes: "operand_layouts": element 0: the layout [0, 1] for a tensor<0x2xf32>; XLA divides by zero where it transposes a tensor of no element, or of more than 2^34; write dense<[1, 0]> : tensor<2xindex>, at line 1, column 2)
    end

    test "an alias of a call without results is refused, where XLA would read memory that is not there" do
      assert mlir([@f32], [], [{"output_operand_aliases", aliases([{[], 0, []}])}]) ==
               ~S(mlir_attributes: "output_operand_aliases": element 0: output_tuple_indices are []; the custom call has no result, at line 1, column 2)
    end

    test "result_tilings have a list of tiles for each result" do
      assert mlir([], [@f32x2], [{"result_tilings", "[[dense<8> : tensor<1xindex>]]"}]) == :ok

      assert mlir([], [@f32x2, @f32], [{"result_tilings", "[[]]"}]) ==
               ~S(mlir_attributes: "result_tilings": it has 1 list; the custom call has 2 results, and takes a list for each)
    end
  end

  describe "aliases" do
    test "long lists of indices are quoted shortened" do
      indices = List.duplicate(1000, 40)

      assert mlir([@f32], [@f32], [{"output_operand_aliases", aliases([{indices, 0, []}])}]) ==
               ~S(mlir_attributes: "output_operand_aliases": element 0: output_tuple_indices are [1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, ... 24 more]; the custom call has one result, so they are [], at line 1, column 2)
    end
  end

  describe "numbers" do
    test "a float that is too large for its type is refused, which MLIR would make an infinity of" do
      for text <- [
            "1.0e400",
            "-1.0e39 : f32",
            "array<f32: 1.0, 1.0e39>",
            "dense<1.0e39> : tensor<2xf32>"
          ] do
        assert verdict([], [@f32], attributes: [{"k", text}]) ==
                 ~S(attributes: "k": a float is too large for its type; f32 goes to 3.4028235e38 and f64 to 1.7976931348623157e308; infinity is written in bits, as 0x7F800000 : f32)
      end

      assert verdict([], [@f32], attributes: [{"k", "{a = {b = 1.0e400}}"}]) ==
               ~S(attributes: "k": entry "a", entry "b": a float is too large for its type; f32 goes to 3.4028235e38 and f64 to 1.7976931348623157e308; infinity is written in bits, as 0x7F800000 : f32, at line 1, column 11)
    end

    test "an infinity that is written as its bits passes" do
      assert verdict([], [@f32], attributes: [{"k", "0x7F800000 : f32"}]) == :ok
    end

    test "arrays that no handler takes are named by their elements" do
      for element <- ["ui8", "f16", "bf16"] do
        value = if element == "ui8", do: "1", else: "1.0"

        assert verdict([], [@f32], attributes: [{"k", "array<#{element}: #{value}>"}]) ==
                 ~s(attributes: "k": an array of #{element}; a handler takes arrays of i8, i16, i32, i64, f32 and f64; write unsigned ones as dense, such as dense<[1, 2]> : tensor<2xui8>)
      end
    end
  end

  describe "called computations" do
    test "a function of the module may be called" do
      x = Value.parameter(@f32x2)
      callee = Value.function("g", [x], [x])
      spec = %Spec{call_target_name: "k", mlir_attributes: [{"called_computations", "[@g]"}]}
      y = Value.parameter(@f32x2)

      assert Module.check([y], Value.custom_call([y], spec, [@f32x2]), functions: [callee]) ==
               {:ok, []}
    end

    test "a function that is not there is refused, where XLA would end the VM" do
      assert mlir([], [@f32], [{"called_computations", "[@missing]"}]) ==
               ~S(mlir_attributes: "called_computations": element 0: the module has no function "missing"; give it with the option functions of the module, or correct the name, at line 1, column 2)
    end

    test "functions that call each other in a circle are refused, where XLA would recurse for ever" do
      assert mlir([], [@f32], [{"called_computations", "[@f]"}]) ==
               ~S("f": functions call each other in a circle, in calls or called_computations: "f", "f"; XLA has no recursion; use the operation stablehlo.while)
    end
  end

  describe "tuples and buffers" do
    test "are no parameters and results of main, and no device's buffers" do
      for typespec <- [tuple([@f32]), tuple([]), @buffer] do
        x = Value.parameter(typespec)
        assert {:error, %{kind: :type, message: message}} = Module.check([x], [x])
        assert message =~ "cannot be a parameter or a result of main; make it in the program"

        assert {:error, %{kind: :argument, message: message}} =
                 EXLA.CustomCall.Buffer.from_binary(EXLA.CustomCall.XLA.client(), "", typespec)

        assert message =~ "is no tensor; make it in the program"
      end
    end

    test "tuples that multiply are refused before they are written out" do
      sixty = fn element -> tuple(List.duplicate(element, 60)) end

      assert_raise ArgumentError, ~r/at most 65536 elements/, fn ->
        @f32 |> sixty.() |> sixty.() |> sixty.()
      end
    end
  end

  describe "where a custom call stands" do
    defp in_region(operation, effect?) do
      spec = %Spec{
        call_target_name: "k",
        mlir_attributes: if(effect?, do: [{"has_side_effect", "true"}], else: [])
      }

      x = Value.parameter(f32({4}))
      zero = Value.constant(<<0::32>>, @f32)

      region = Value.region([@f32, @f32], fn [a, _b] -> Value.custom_call([a], spec, [@f32]) end)

      values =
        Value.op(operation, [x, zero], [@f32],
          attributes: [{"dimensions", "array<i64: 0>"}],
          regions: [region]
        )

      Module.check([x], values)
    end

    test "a custom call in a region of a reducing operation is refused, where XLA would end the VM" do
      for operation <- ["stablehlo.reduce", "stablehlo.scatter"], effect? <- [true, false] do
        assert {:error, %{kind: :graph, message: message}} = in_region(operation, effect?)

        assert message ==
                 ~s("k": a custom call is in a region of #{operation}; XLA's CPU compiler ends the process over it; make the call outside of the region)
      end
    end

    test "all arrays of a module share one budget" do
      spec = %Spec{
        call_target_name: "k",
        attributes: [{"a", "dense<0> : tensor<4000000xi64>"}]
      }

      x = Value.parameter(@f32)

      calls = fn n ->
        Enum.reduce(1..n, x, fn _, y -> hd(Value.custom_call([y], spec, [@f32])) end)
      end

      assert {:ok, []} = Module.check([x], [calls.(2)])
      assert {:error, %{call: %{index: 2}}} = Module.check([x], [calls.(3)])
    end

    test "what XLA reads of a module without checking it is refused" do
      for name <- ["mhlo.spmd_output_sharding", "mhlo.use_auto_spmd_partitioning"] do
        assert {:error, %{field: :module_attributes, name: ^name, message: message}} =
                 Module.check([], [], attributes: [{name, "true"}])

        assert message =~ "XLA reads it without checking it, and may end the process"
      end
    end

    test "entries that XLA writes for Shardy are refused wherever they stand" do
      text = ~S({xla.sdy.sharding_rule = "x", note = "y"})

      expected =
        ~S("mhlo.frontend_attributes": entry "xla.sdy.sharding_rule": XLA writes the entry itself, and ends the process over another; write sdy.sharding, sdy.sharding_rule, or the option meshes of the module, at line 1, column 26)

      assert mlir([], [@f32], [{"mhlo.frontend_attributes", text}]) ==
               "mlir_attributes: " <> expected

      {:error, error} = Module.check([], [], attributes: [{"mhlo.frontend_attributes", text}])
      assert error.message == "module_attributes: " <> expected
    end

    test "an mhlo.sharding that XLA writes itself is refused, on parameters too" do
      message =
        ~S("mhlo.sharding": it has a part that is manual, unknown or in subgroups; XLA's partitioner writes such shardings itself, and ends the process over others; write {replicated}, {maximal device=0} or {devices=[2,1]0,1})

      assert mlir([], [@f32x2], [{"mhlo.sharding", ~S("{manual}")}]) ==
               "mlir_attributes: " <> message

      x = Value.parameter(@f32x2, attributes: [{"mhlo.sharding", ~S("{manual}")}])
      assert {:error, error} = Module.check([x], [x])

      assert error.message ==
               "parameter_attributes: " <> message <> " (of parameter 0 of @main)"

      y = Value.parameter(@f32x2, attributes: [{"mhlo.sharding", ~S("{devices=[2]0,1}")}])
      assert Module.check([y], [y]) == {:ok, []}
    end
  end

  describe "targets" do
    test "names that XLA's compiler takes for its own are refused" do
      for target <- [
            "TopK",
            "Qr",
            "Cholesky",
            "PartialReduce",
            "xla.sdy.FuncResultSharding",
            "mhlo.erf"
          ] do
        assert verdict([@f32x2], [@f32x2], call_target_name: target) ==
                 ~s(call_target_name: "#{target}": XLA's compiler takes this custom call apart itself, and may end the process over it; choose another name for your handler)
      end

      assert verdict([], [@f32], call_target_name: "$k") ==
               ~S(call_target_name: "$k": it begins with $; XLA keeps such names for itself; choose another)

      assert verdict([], [@f32], call_target_name: "") ==
               "call_target_name: it is empty; give the name under which the handler is registered"
    end
  end

  describe "several faults" do
    test "of one spec come back together, each with its place" do
      spec = %Spec{
        call_target_name: "$k",
        attributes: [
          {"ok", "1 : i64"},
          {"list", "[1]"},
          {"deep", "{a = {b = 4 : index}}"},
          {"", "1"}
        ],
        mlir_attributes: [{"has_side_effect", "1"}, {"oops", "["}, {"api_version", "1 : i32"}]
      }

      {:error, error} = Module.check([], [], effects: Value.custom_call([], spec, []))

      assert Enum.map(error.faults, &{&1.kind, &1.field, &1.name, &1.line, &1.column}) == [
               {:name, :mlir_attributes, "api_version", nil, nil},
               {:text, :mlir_attributes, "oops", 1, 1},
               {:name, :attributes, nil, nil, nil},
               {:spec, :call_target_name, "$k", nil, nil},
               {:spec, :attributes, "list", 1, 1},
               {:spec, :attributes, "deep", 1, 11},
               {:spec, :mlir_attributes, "has_side_effect", 1, 1}
             ]

      assert String.starts_with?(error.message, "7 faults:\n  1. mlir_attributes: ")
      deep = Enum.at(error.faults, 5)
      assert deep.found == ~S(entry "a", entry "b": an integer of type index)
      assert deep.expected == "a handler takes integers of 8, 16, 32 and 64 bits, such as 4 : i64"
    end

    test "an error in a module of several custom calls says which one" do
      x = Value.parameter(@f32x2)
      [y] = Value.custom_call([x], %Spec{call_target_name: "good"}, [@f32x2])
      bad = %Spec{call_target_name: "bad", attributes: [{"k", "unit"}]}
      {:error, error} = Module.check([x], Value.custom_call([y], bad, [@f32x2]))
      assert error.call == %{function: "main", index: 1, target: "bad"}

      assert error.message ==
               ~S|attributes: "k": the unit attribute; a handler takes no unit; write true (in custom call 1 of @main, target "bad")|
    end
  end

  describe "meshes and shardings" do
    @mesh ~S(#sdy.mesh<["x"=2, "y"=4]>)

    defp sharded(text, opts) do
      x = Value.parameter(f32({8, 4}))
      spec = %Spec{call_target_name: "k", mlir_attributes: [{"sdy.sharding", text}]}

      case Module.check([x], Value.custom_call([x], spec, [f32({8, 4})]), opts) do
        {:ok, _} -> :ok
        {:error, error} -> error.message
      end
    end

    test "a sharding of a result names axes of a mesh that is there" do
      good = ~S(#sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>)
      assert sharded(good, meshes: [{"mesh", @mesh}]) == :ok

      for {text, part} <- [
            {good, "mesh"},
            {~S(#sdy.sharding_per_value<[<@mesh, [{"z"}, {}]>]>), "\"z\""},
            {~S(#sdy.sharding_per_value<[<@mesh, [{"x"}, {"x"}]>]>), "\"x\""},
            {~S(#sdy.sharding_per_value<[<@mesh, [{"x"}]>]>), "1"},
            {~S(#sdy.sharding<@mesh, [{"x"}, {}]>),
             "on an operation it is #sdy.sharding_per_value"}
          ],
          opts = if(text == good, do: [], else: [meshes: [{"mesh", @mesh}]]) do
        message = sharded(text, opts)
        assert message =~ ~S(mlir_attributes: "sdy.sharding": )
        assert message =~ part
      end
    end

    test "a mesh stands in the module where XLA looks for it" do
      module = Module.build!([], [], meshes: [{"mesh", @mesh}])

      assert to_string(module) =~
               ~S|"sdy.mesh"() {mesh = #sdy.mesh<["x"=2, "y"=4]>, sym_name = "mesh"}|

      {:error, error} = Module.check([], [], meshes: [{"mesh", "[]"}])
      assert {error.field, error.name} == {:meshes, "mesh"}
    end

    test "a parameter's sharding is checked as well" do
      x =
        Value.parameter(f32({8}),
          attributes: [{"sdy.sharding", ~S(#sdy.sharding<@mesh, [{"w"}]>)}]
        )

      {:error, error} = Module.check([x], [x], meshes: [{"mesh", @mesh}])
      assert {error.field, error.name} == {:parameter_attributes, "sdy.sharding"}
      assert error.message =~ ~S("w")
    end

    test "a rule whose factors differ from the dimensions is a warning" do
      x = Value.parameter(f32({8}))
      rule = "#sdy.op_sharding_rule<([i])->([i]) {i=4}>"
      spec = %Spec{call_target_name: "k", mlir_attributes: [{"sdy.sharding_rule", rule}]}
      {:ok, warnings} = Module.check([x], Value.custom_call([x], spec, [f32({8})]))
      assert length(warnings) == 2
      assert hd(warnings).name == "sdy.sharding_rule"
    end
  end

  describe "dialects" do
    test "attributes of dialects that XLA does not have are refused with their place" do
      assert mlir([], [@f32], [{"k", "[1, #foo.bar<2>]"}]) ==
               ~S(mlir_attributes: "k": XLA has no dialect foo; it reads attributes and types of arith, cf, chlo, func, mhlo, ml_program, quant, sdy, shape, sparse_tensor, stablehlo, tensor, vhlo, at line 1, column 5)
    end

    test "an attribute of a dialect reaches no handler, which is a fault of the spec" do
      spec = %Spec{call_target_name: "k", attributes: [{"k", "[1, #sdy.mesh<[]>]"}]}
      {:error, error} = Module.check([], [], effects: Value.custom_call([], spec, []))
      assert {error.kind, error.line, error.column} == {:spec, 1, 5}

      assert error.message ==
               ~S(attributes: "k": what belongs to a dialect reaches no handler; write it as a string, at line 1, column 5)
    end

    test "unregistered names pass, in known dialects and in unknown ones" do
      assert mlir([], [@f32], [{"mhlo.mine", "1"}, {"foo.mine", "1"}, {"mine", "1"}]) == :ok
    end
  end
end
