defmodule EXLA.CustomCall.Value.Operation do
  @moduledoc false

  # A node of the graph. `id` tells nodes apart, `kind` is:
  #
  #   :parameter
  #   {:argument, region_id}
  #   {:custom_call, spec}            with operands already converted
  #   {:constant, binary}
  #   {:call, %Value.Function{}}
  #   {:generic, name, attributes}
  #   {:collective, name, attributes}  a generic one that gets a channel of its own
  #
  # `meshes` are those that its attributes speak of.

  @enforce_keys [:id, :kind]
  defstruct [:id, :kind, operands: [], results: [], regions: [], attributes: [], meshes: []]

  @type t :: %__MODULE__{}

  @doc false
  def name(%__MODULE__{kind: kind}) do
    case kind do
      :parameter -> "parameter"
      {:argument, _region} -> "region argument"
      {:custom_call, _spec} -> "stablehlo.custom_call"
      {:constant, _binary} -> "stablehlo.constant"
      {:call, _function} -> "func.call"
      {_generic, name, _attributes} -> EXLA.CustomCall.Value.show(name)
    end
  end
end
