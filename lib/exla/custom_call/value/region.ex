defmodule EXLA.CustomCall.Value.Region do
  @moduledoc """
  A region of an operation: a block with arguments, made with `EXLA.CustomCall.Value.region/3`.
  """

  @enforce_keys [:id, :arguments, :results]
  defstruct [:id, :arguments, :results, :terminator, effects: []]

  @type t :: %__MODULE__{
          id: reference(),
          arguments: [EXLA.CustomCall.Value.t()],
          results: [EXLA.CustomCall.Value.t()],
          effects: [EXLA.CustomCall.Value.t()],
          terminator: String.t() | nil
        }
end
