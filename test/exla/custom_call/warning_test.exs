defmodule EXLA.CustomCall.WarningTest do
  # Not async: it reads the log.
  use ExUnit.Case, async: false

  import ExUnit.CaptureLog

  alias EXLA.CustomCall.{Client, Executable, Module, Spec, Typespec, Value, Warning, XLA}

  @vector Typespec.tensor({:f, 32}, {2})

  defp build(mlir_attributes, opts \\ []) do
    x = Value.parameter(@vector)
    spec = %Spec{call_target_name: "test_copy", mlir_attributes: mlir_attributes}
    Module.build([x], Value.custom_call([x], spec, [@vector]), opts)
  end

  defp warnings(mlir_attributes) do
    {:ok, module} = build(mlir_attributes, warnings: :ignore)
    module.warnings
  end

  test "a warning is logged once, however often the module is built" do
    name = "note_#{System.unique_integer([:positive])}"
    log = capture_log(fn -> for _ <- 1..3, do: {:ok, _} = build([{name, "1"}]) end)
    assert length(String.split(log, name)) == 2
    assert log =~ "XLA drops it: nothing of it reaches the HLO"
  end

  test "it is not logged where warnings are ignored, and is in the module all the same" do
    name = "note_#{System.unique_integer([:positive])}"

    assert capture_log(fn ->
             {:ok, module} = build([{name, "1"}], warnings: :ignore)
             assert [%Warning{field: :mlir_attributes, name: ^name}] = module.warnings
           end) == ""
  end

  test "it is an error where that is asked for, and several are several faults" do
    {:error, error} = build([{"operand_layout", "unit"}], warnings: :error)

    assert {error.kind, error.field, error.name, error.expected} ==
             {:spec, :mlir_attributes, "operand_layout", "did you mean operand_layouts?"}

    {:error, error} = build([{"a", "1"}, {"b", "2"}], warnings: :error)
    assert Enum.map(error.faults, & &1.name) == ["a", "b"]
  end

  test "a tensor in two aliases makes one" do
    alias_of = fn operand ->
      "#stablehlo.output_operand_alias<output_tuple_indices = [], " <>
        "operand_index = #{operand}, operand_tuple_indices = []>"
    end

    assert warnings([{"output_operand_aliases", "[#{alias_of.(0)}]"}]) == []

    assert [
             %Warning{found: "element 1: the result [] has an alias already"},
             %Warning{found: "element 1: the operand 0[] has an alias already"}
           ] = warnings([{"output_operand_aliases", "[#{alias_of.(0)}, #{alias_of.(0)}]"}])
  end

  test "another value of the option is refused" do
    assert {:error, %{field: :warnings, message: message}} = build([], warnings: true)
    assert message == "expected :warnings to be :log, :ignore or :error, got: true"
  end

  test "what reaches the HLO makes none, and is found there" do
    layouts = "[dense<0> : tensor<1xindex>]"

    given = [
      {"has_side_effect", "true"},
      {"operand_layouts", layouts},
      {"result_layouts", layouts},
      {"output_operand_aliases",
       "[#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>]"},
      {"mhlo.frontend_attributes", "{note = \"seen\"}"},
      {"mhlo.sharding", "\"{replicated}\""},
      {"sdy.sharding_rule", "#sdy.op_sharding_rule<([i])->([i]) {i=2}>"}
    ]

    assert warnings(given) == []
    {:ok, module} = build(given)
    text = XLA.client() |> Client.compile!(module) |> Executable.hlo_text() |> elem(1)
    [call] = text |> String.split("\n") |> Enum.filter(&(&1 =~ "custom-call("))

    for part <- [
          "custom_call_has_side_effect=true",
          "operand_layout_constraints={f32[2]{0}}",
          "output_to_operand_aliasing={{}: (0, {})}",
          "note=\"seen\"",
          "sharding={replicated}",
          "xla.sdy.sharding_rule="
        ] do
      assert call =~ part
    end
  end

  test "what is dropped makes one, and is not found in the HLO" do
    for {name, text} <- [
          {"custom_call_schedule", "1"},
          {"xla_shape", "\"dropped_f32\""},
          {"mhlo.layout_mode", "\"dropped_default\""},
          {"mhlo.frontend_attributes", "{dropped_key = 1 : i32}"},
          {"mhlo.frontend_attributes", "\"dropped_string\""},
          {"mhlo.sharding", "\"{dropped}\""},
          {"mhlo.sharding", "1"}
        ] do
      assert [%Warning{name: ^name}] = warnings([{name, text}])
      {:ok, module} = build([{name, text}], warnings: :ignore)
      hlo = XLA.client() |> Client.compile!(module) |> Executable.hlo_text() |> elem(1)
      refute hlo =~ "dropped"
      refute hlo =~ "call_schedule"
    end
  end

  test "mhlo.sharding and Shardy do not go together, where XLA may end the VM" do
    {:ok, module} = build([{"mhlo.sharding", "\"{replicated}\""}])
    assert {:ok, _} = Client.compile(XLA.client(), module)
    {:error, error} = Client.compile(XLA.client(), module, shardy: true)
    assert error.kind == :graph

    assert error.message ==
             "the module has mhlo.sharding, which Shardy does not read, and the CPU plugin of PJRT 0.115 ends the process over it; compile with the option shardy: false, or write sdy.sharding"
  end

  test "an attribute that an older plugin does not read is a warning, and that plugin's client refuses it" do
    rule = "#sdy.op_sharding_rule<([i])->([i]) {i=4294967296}>"
    [warning | _] = warnings([{"sdy.sharding_rule", rule}])
    assert warning.found =~ "PJRT 0.106"
    {:ok, module} = build([{"sdy.sharding_rule", rule}], warnings: :ignore)

    case {XLA.client().api_version, Client.compile(XLA.client(), module)} do
      {{0, minor}, {:ok, _}} when minor > 106 -> :ok
      {{0, 106}, {:error, error}} -> assert error.message =~ "does not read"
    end
  end
end
