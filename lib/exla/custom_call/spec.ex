unless EXLA.CustomCall.Origin.exla?() do
  defmodule EXLA.CustomCall.Spec do
    @moduledoc """
    What `EXLA.CustomCall.call/4` says about a custom call.

    | field | on `stablehlo.custom_call` | who reads it |
    |---|---|---|
    | `call_target_name` | `call_target_name = "..."` | XLA, to find the handler |
    | `attributes` | `backend_config = {name = value, ...}` | the handler |
    | `mlir_attributes` | `name = value`, each on the operation itself | the compiler |
    | `operand_element_types` | a `stablehlo.convert` before the call, where the type differs | |
    | `api_version` | `api_version = 4 : i32` | XLA |
    | `backend_config` | `backend_config = "..."` | the handler, for API versions 1 to 3 |

    ## Fields

      * `:call_target_name` - the name that the handler is registered under. Any bytes. Required.

      * `:attributes` - `{name, text}` pairs of binaries, where the text is an MLIR attribute such as
        `"42 : i64"`. Together they are the dictionary `backend_config` of XLA's typed FFI. Given
        none, there is no `backend_config` on the operation. Needs `api_version: 4`.

      * `:mlir_attributes` - `{name, text}` pairs of the same form. Each becomes an attribute of the
        operation under its exact name: `operand_layouts`, `result_layouts`,
        `output_operand_aliases`, `has_side_effect`, `sdy.sharding_rule`, ... XLA wants layouts for
        both the operands and the results, or for neither. The names
        `call_target_name`, `api_version`, `backend_config` and `mhlo.backend_config` are reserved.

      * `:operand_element_types` - `:default`, or a list with one type an operand. An operand whose
        type differs is converted before the call; its shape stays.

      * `:api_version` - 1 to 4, default 4: XLA's typed FFI.

      * `:backend_config` - a binary of any bytes, for API versions 1 to 3. Default `nil`: none.

    Texts are written by hand or with `EXLA.CustomCall.Attribute`. They are parsed one by one: no
    text can reach into its neighbours. The order of the pairs has no influence on the result.
    """

    @enforce_keys [:call_target_name]
    defstruct [
      :call_target_name,
      attributes: [],
      mlir_attributes: [],
      operand_element_types: :default,
      api_version: 4,
      backend_config: nil
    ]

    @type t :: %__MODULE__{
            call_target_name: binary(),
            attributes: [{String.t(), binary()}],
            mlir_attributes: [{String.t(), binary()}],
            operand_element_types: :default | [EXLA.CustomCall.Typespec.type()],
            api_version: 1..4,
            backend_config: nil | binary()
          }
  end
end
