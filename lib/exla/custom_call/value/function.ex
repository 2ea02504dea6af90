defmodule EXLA.CustomCall.Value.Function do
  @moduledoc """
  A function of a module, made with `EXLA.CustomCall.Value.function/4`.
  """

  @enforce_keys [:id, :name, :parameters, :results]
  defstruct [:id, :name, :parameters, :results, effects: [], private: true]

  @type t :: %__MODULE__{
          id: reference(),
          name: String.t(),
          parameters: [EXLA.CustomCall.Value.t()],
          results: [EXLA.CustomCall.Value.t()],
          effects: [EXLA.CustomCall.Value.t()],
          private: boolean()
        }
end
