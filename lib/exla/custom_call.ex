unless EXLA.CustomCall.Origin.exla?() do
  defprotocol EXLA.CustomCall do
    @moduledoc """
    Turns a block into an XLA custom call.

    A *block* is a struct that stands for a computation with a kernel of its own, such as the first
    argument of `Nx.block/4`. Implement this protocol for it, and say in an `EXLA.CustomCall.Spec`
    which handler computes it and what the compiler must know about the call:

        defmodule RowScale do
          defstruct factor: 1.0
        end

        defimpl EXLA.CustomCall, for: RowScale do
          alias EXLA.CustomCall.{Attribute, Spec}

          def call(block, _out, [%{type: {:f, 32}}], %{platform: :host}) do
            {:ok,
             %Spec{
               call_target_name: "row_scale_f32",
               attributes: [{"factor", Attribute.float(block.factor, {:f, 32})}],
               mlir_attributes: [
                 {"operand_layouts", Attribute.layouts([[1, 0]])},
                 {"result_layouts", Attribute.layouts([[1, 0]])}
               ]
             }}
          end

          def call(_block, _out, _args, _client), do: :skip
        end

    `EXLA.CustomCall.Lowering.lower/5` calls the protocol and emits the module;
    `EXLA.CustomCall.Runner.run/4` compiles and runs it as well.

    The protocol and the struct are those of EXLA: code that was written for EXLA compiles against
    this package unchanged. Where an EXLA whose struct has `:mlir_attributes` is loaded when this
    package compiles, its modules are used and these are not defined.

    ## Blocks without an implementation

    The protocol falls back to `Any`, which knows the blocks that EXLA knows on `:host`:

      * `Nx.Block.LinAlg.QR`: `qr_cpu_custom_call_f32`, `_f64`, `_f16` or `_bf16`, by the operand's
        type;
      * `Nx.Block.LinAlg.Eigh`: `eigh_cpu_custom_call_f32` or `_f64`.

    Integer operands are converted to `f32` first. Everything else is `:skip`. `Nx` itself need not
    be there.
    """

    @fallback_to_any true

    @typedoc "Anything with a type and a shape: an `Nx.Tensor` or an `EXLA.CustomCall.Typespec`."
    @type template :: %{
            required(:type) => term(),
            required(:shape) => tuple(),
            optional(any()) => any()
          }

    @typedoc "The client that will run the call, or a map with the platform alone."
    @type client :: %{
            required(:platform) => :host | :cuda | :rocm | :tpu | atom() | String.t(),
            optional(any()) => any()
          }

    @doc """
    Returns `{:ok, spec}` for the call that computes `block`, or `:skip` when the kernel does not
    apply: another platform, type or shape.

      * `out` is the template of the result, or a tuple of them;
      * `args` are the templates of the operands, in order;
      * `client` has the `:platform`. Where the call is split over devices and the caller wants specs of
        one device's sizes, it is a map with `local_shapes: true` besides, and `out` and `args` are the
        templates of one device: see `EXLA.CustomCall.Lowering.lower/5`.
    """
    @spec call(t(), template() | tuple(), [template()], client()) ::
            :skip | {:ok, EXLA.CustomCall.Spec.t()}
    def call(block, out, args, client)
  end

  defimpl EXLA.CustomCall, for: Any do
    alias EXLA.CustomCall.Spec

    # Matched by name, so that Nx need not be there.
    def call(
          %{__struct__: Nx.Block.LinAlg.QR},
          {%{type: {out_kind, _}}, _r},
          [%{type: {kind, _} = type} | _],
          %{platform: :host}
        )
        when out_kind != :c and kind != :c do
      native("qr_cpu_custom_call_", type, [{:f, 32}, {:f, 64}, {:f, 16}, {:bf, 16}])
    end

    def call(
          %{__struct__: Nx.Block.LinAlg.Eigh},
          _out,
          [%{type: {kind, _} = type} | _],
          %{platform: :host}
        )
        when kind != :c do
      native("eigh_cpu_custom_call_", type, [{:f, 32}, {:f, 64}])
    end

    def call(_block, _out, _args, _client), do: :skip

    defp native(prefix, {kind, _size}, _types) when kind in [:s, :u] do
      {:ok, %Spec{call_target_name: prefix <> "f32", operand_element_types: [{:f, 32}]}}
    end

    defp native(prefix, {kind, size} = type, types) do
      if type in types do
        {:ok, %Spec{call_target_name: "#{prefix}#{kind}#{size}"}}
      else
        :skip
      end
    end
  end
end
