defmodule EXLA.CustomCallTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Lowering, Spec, Typespec}

  defmodule Known do
    defstruct []
  end

  defmodule Unknown do
    defstruct []
  end

  defimpl EXLA.CustomCall, for: Known do
    def call(_block, _out, _args, client),
      do: {:ok, %Spec{call_target_name: "#{client.platform}"}}
  end

  # Nx is not there: its blocks are made by name.
  @qr %{__struct__: Nx.Block.LinAlg.QR}
  @eigh %{__struct__: Nx.Block.LinAlg.Eigh}

  defp call(block, out, in_type, platform \\ :host) do
    EXLA.CustomCall.call(block, out, [%{type: in_type, shape: {3, 3}}], %{platform: platform})
  end

  defp pair(type), do: {%{type: type, shape: {3, 3}}, %{type: type, shape: {3, 3}}}

  test "a block's own implementation is called with the client" do
    assert call(%Known{}, %{}, {:f, 32}, :cuda) == {:ok, %Spec{call_target_name: "cuda"}}
  end

  test "a block without an implementation is skipped" do
    assert call(%Unknown{}, %{}, {:f, 32}) == :skip
    assert call(:not_a_struct, %{}, {:f, 32}) == :skip
  end

  test "QR has a target for each float type on the host" do
    for {type, target} <- [
          {{:f, 32}, "qr_cpu_custom_call_f32"},
          {{:f, 64}, "qr_cpu_custom_call_f64"},
          {{:f, 16}, "qr_cpu_custom_call_f16"},
          {{:bf, 16}, "qr_cpu_custom_call_bf16"}
        ] do
      assert call(@qr, pair(type), type) == {:ok, %Spec{call_target_name: target}}
    end
  end

  test "Eigh has a target for f32 and f64 on the host" do
    assert call(@eigh, pair({:f, 32}), {:f, 32}) ==
             {:ok, %Spec{call_target_name: "eigh_cpu_custom_call_f32"}}

    assert call(@eigh, pair({:f, 64}), {:f, 64}) ==
             {:ok, %Spec{call_target_name: "eigh_cpu_custom_call_f64"}}

    assert call(@eigh, pair({:f, 32}), {:f, 16}) == :skip
    assert call(@eigh, pair({:f, 32}), {:bf, 16}) == :skip
  end

  test "integers become f32 first" do
    for type <- [{:s, 64}, {:u, 8}] do
      assert call(@qr, pair({:f, 32}), type) ==
               {:ok,
                %Spec{
                  call_target_name: "qr_cpu_custom_call_f32",
                  operand_element_types: [{:f, 32}]
                }}

      assert call(@eigh, pair({:f, 32}), type) ==
               {:ok,
                %Spec{
                  call_target_name: "eigh_cpu_custom_call_f32",
                  operand_element_types: [{:f, 32}]
                }}
    end
  end

  test "complex types, f8 and other platforms are skipped" do
    assert call(@qr, pair({:c, 64}), {:c, 64}) == :skip
    assert call(@qr, pair({:c, 64}), {:f, 32}) == :skip
    assert call(@eigh, pair({:c, 64}), {:c, 64}) == :skip
    assert call(@qr, pair({:f, 8}), {:f, 8}) == :skip
    assert call(@qr, pair({:f, 32}), {:f, 32}, :cuda) == :skip
    assert call(@eigh, pair({:f, 32}), {:f, 32}, :tpu) == :skip
  end

  test "QR of integers lowers to a convert and a call" do
    matrix = Typespec.tensor({:s, 32}, {3, 2})
    out = {Typespec.tensor({:f, 32}, {3, 2}), Typespec.tensor({:f, 32}, {2, 2})}

    assert to_string(Lowering.lower!(@qr, out, [matrix], %{platform: :host})) == """
           module {
             func.func @main(%arg0: tensor<3x2xi32>) -> (tensor<3x2xf32>, tensor<2x2xf32>) {
               %0 = "stablehlo.convert"(%arg0) : (tensor<3x2xi32>) -> tensor<3x2xf32>
               %1:2 = "stablehlo.custom_call"(%0) {api_version = 4 : i32, call_target_name = "qr_cpu_custom_call_f32"} : (tensor<3x2xf32>) -> (tensor<3x2xf32>, tensor<2x2xf32>)
               return %1#0, %1#1 : tensor<3x2xf32>, tensor<2x2xf32>
             }
           }
           """
  end
end
