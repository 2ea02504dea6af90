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
    * `:found`, `:expected` - the same in two, where the fault is in a spec or a graph, or `nil`;
    * `:line`, `:column` - the position in an attribute text, both from 1 and in bytes, or `nil`;
    * `:code` - XLA's status code as an atom, such as `:invalid_argument`, when the run time gave
      one, or `nil`;
    * `:call` - the custom call at fault, `%{function: _, index: _, target: _}`, in a module that has
      more than one, or `nil`; the index counts the function's custom calls from 0;
    * `:faults` - every fault, each an error of its own, where there are several; else `[]`. The other
      fields are then those of the first, and the message lists them all.

  All faults of one spec come back together:

      iex> alias EXLA.CustomCall.{Module, Spec, Value}
      iex> spec = %Spec{
      ...>   call_target_name: "k",
      ...>   attributes: [{"k", "4 : index"}, {"l", "[1]"}],
      ...>   mlir_attributes: [{"has_side_effect", "1"}]
      ...> }
      iex> {:error, error} = Module.build([], [], effects: Value.custom_call([], spec, []))
      iex> for fault <- error.faults, do: {fault.field, fault.name, fault.found}
      [
        {:attributes, "k", "an integer of type index"},
        {:attributes, "l", "a list"},
        {:mlir_attributes, "has_side_effect", "it is an integer"}
      ]
      iex> hd(error.faults).expected
      "a handler takes integers of 8, 16, 32 and 64 bits, such as 4 : i64"

  The forms with `!` raise `ArgumentError` for what the caller wrote (the first six kinds) and this
  exception for what happens later.
  """

  defexception [
    :kind,
    :field,
    :name,
    :message,
    :found,
    :expected,
    :line,
    :column,
    :code,
    :call,
    faults: []
  ]

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
          found: String.t() | nil,
          expected: String.t() | nil,
          line: pos_integer() | nil,
          column: pos_integer() | nil,
          code: atom() | nil,
          call: %{function: binary(), index: non_neg_integer(), target: binary()} | nil,
          faults: [t()]
        }

  @caller_kinds [:argument, :name, :text, :spec, :type, :graph]

  @doc false
  @spec new(kind(), String.t(), keyword()) :: t()
  def new(kind, message, fields \\ []) do
    struct!(%__MODULE__{kind: kind, message: message}, fields)
  end

  @doc false
  # One error of one or more, as the NIF joins faults.
  @spec join([t(), ...]) :: t()
  def join([error]), do: error

  def join([first | _] = errors) do
    lines =
      for {error, number} <- Enum.with_index(errors, 1), do: "\n  #{number}. #{error.message}"

    %{first | message: "#{length(errors)} faults:#{lines}", faults: errors}
  end

  @doc false
  # The tuple that the NIF answers with.
  def from_native({kind, field, name, message, line, column, code, found, expected, call, faults}) do
    %__MODULE__{
      kind: kind,
      field: field,
      name: name,
      message: message,
      found: found,
      expected: expected,
      line: line,
      column: column,
      code: code,
      call: call(call),
      faults: Enum.map(faults, &from_native/1)
    }
  end

  defp call(nil), do: nil
  defp call({function, index, target}), do: %{function: function, index: index, target: target}

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
