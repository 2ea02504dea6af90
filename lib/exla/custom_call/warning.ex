defmodule EXLA.CustomCall.Warning do
  @moduledoc """
  What is legal in a module, and will not do what it says.

  XLA drops what it does not know without a word: of a custom call's attributes only some reach the HLO
  that it compiles. These do:

  | `mlir_attributes` | in the HLO | what it does |
  |---|---|---|
  | `has_side_effect` | `custom_call_has_side_effect` | keeps a call whose results nobody uses |
  | `called_computations` | `called_computations` | the function goes with the call |
  | `operand_layouts`, `result_layouts` | `operand_layout_constraints` and the result's layout | XLA transposes where layouts differ |
  | `output_operand_aliases` | `output_to_operand_aliasing` | a result in an operand's memory; XLA copies where it must |
  | `sdy.sharding`, `sdy.sharding_rule` | `sharding`, `frontend_attributes` | read by Shardy, where the client compiles with it |
  | `mhlo.sharding` | `sharding` | read by the SPMD partitioner |
  | `mhlo.frontend_attributes` | `frontend_attributes` | kept with the instruction, for tools |
  | `result_tilings` | - | checked by PJRT 0.115, read by no CPU plugin |

  It was found by compiling with each on both builds of the CPU plugin. Everything else on the operation
  is dropped, and makes a warning.

    * `:field` - the field of the spec;
    * `:name` - the attribute, or the target;
    * `:found` - what XLA makes of it;
    * `:instead` - what to use;
    * `:message` - all of it in one line.

  `EXLA.CustomCall.Module.build/3` takes the option `:warnings`: `:log` writes each to the log once,
  `:ignore` does not, `:error` makes errors of them, which come back together.
  """

  require Logger

  alias EXLA.CustomCall.Error

  @enforce_keys [:field, :name, :found, :instead, :message]
  defstruct [:field, :name, :found, :instead, :message]

  @type t :: %__MODULE__{
          field: atom(),
          name: binary(),
          found: String.t(),
          instead: String.t(),
          message: String.t()
        }

  @doc false
  def from_native({field, name, found, instead, message}) do
    %__MODULE__{field: field, name: name, found: found, instead: instead, message: message}
  end

  @doc false
  # What a module's warnings come to.
  @spec handle([t()], :log | :ignore | :error) :: :ok | {:error, Error.t()}
  def handle([], _option), do: :ok
  def handle(_warnings, :ignore), do: :ok

  def handle(warnings, :log) do
    for warning <- warnings, first_time?(warning), do: Logger.warning(warning.message)
    :ok
  end

  def handle(warnings, :error) do
    faults =
      for warning <- warnings do
        Error.new(:spec, warning.message,
          field: warning.field,
          name: warning.name,
          found: warning.found,
          expected: warning.instead
        )
      end

    case faults do
      [fault] ->
        {:error, fault}

      [first | _] ->
        message = Enum.map_join(warnings, "\n", & &1.message)
        {:error, %{first | message: message, faults: faults}}
    end
  end

  # The names come from outside: beyond so many different ones nothing more is logged.
  @most_remembered 1_000

  @doc false
  def start do
    :ets.new(__MODULE__, [:named_table, :public, :set])
    :ok
  end

  defp first_time?(warning) do
    key = :erlang.phash2({warning.field, warning.name, warning.found}, 0x100000000)

    :ets.info(__MODULE__, :size) < @most_remembered and :ets.insert_new(__MODULE__, {key})
  rescue
    # The application is not started: there is nothing to remember in.
    ArgumentError -> true
  end
end
