defmodule EXLA.CustomCall.Error do
  @moduledoc """
  Why something was refused or failed.

    * `:kind` - where it belongs:
      * `:argument` - a term of the wrong shape: not a list, not a pair, not a binary;
      * `:name`, `:text` - the name or the text of an attribute;
      * `:spec` - a field of the spec against another field;
      * `:type` - a tensor type, a shape, or the bytes of a constant;
      * `:graph` - values, regions and functions of a module;
      * `:plugin`, `:client`, `:library`, `:compile`, `:buffer`, `:run` - the run time;
    * `:field` - the field or option that is wrong, as an atom, or `nil`;
    * `:name` - the attribute, target or symbol it is about, or `nil`;
    * `:message` - what was found and what would be right;
    * `:line`, `:column` - the position in an attribute text, both from 1 and in bytes, or `nil`;
    * `:code` - XLA's status code as an atom, such as `:invalid_argument`, when the run time gave
      one, or `nil`.

  The forms with `!` raise `ArgumentError` for what the caller wrote (the first six kinds) and this
  exception for what happens later.
  """

  defexception [:kind, :field, :name, :message, :line, :column, :code]

  @type kind ::
          :argument
          | :name
          | :text
          | :spec
          | :type
          | :graph
          | :plugin
          | :client
          | :library
          | :compile
          | :buffer
          | :run

  @type t :: %__MODULE__{
          kind: kind(),
          field: atom() | nil,
          name: binary() | nil,
          message: String.t(),
          line: pos_integer() | nil,
          column: pos_integer() | nil,
          code: atom() | nil
        }

  @caller_kinds [:argument, :name, :text, :spec, :type, :graph]

  @doc false
  @spec new(kind(), String.t(), keyword()) :: t()
  def new(kind, message, fields \\ []) do
    struct!(%__MODULE__{kind: kind, message: message}, fields)
  end

  @doc false
  # The tuple that the NIF answers with.
  def from_native({kind, field, name, message, line, column, code}) do
    %__MODULE__{
      kind: kind,
      field: field,
      name: name,
      message: message,
      line: line,
      column: column,
      code: code
    }
  end

  @doc false
  # The value of an answer, or the exception that the form with `!` raises.
  @spec unwrap!(:ok | {:ok, value} | {:error, t()}) :: :ok | value when value: term()
  def unwrap!(:ok), do: :ok
  def unwrap!({:ok, value}), do: value

  def unwrap!({:error, %__MODULE__{kind: kind, message: message}}) when kind in @caller_kinds do
    raise ArgumentError, message
  end

  def unwrap!({:error, %__MODULE__{} = error}), do: raise(error)
end
