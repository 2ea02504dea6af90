defmodule EXLA.CustomCall.Options do
  @moduledoc false

  alias EXLA.CustomCall.Error

  # Keyword.validate/2 with an error that is ours and a message for what is no keyword list.
  @spec validate(term(), keyword()) :: {:ok, keyword()} | {:error, Error.t()}
  def validate(opts, defaults) do
    names = Keyword.keys(defaults)
    known = Enum.map_join(names, ", ", &inspect/1)

    if Keyword.keyword?(opts) do
      case Keyword.validate(opts, defaults) do
        {:ok, opts} ->
          {:ok, opts}

        {:error, [unknown | _]} ->
          {:error,
           Error.new(
             :argument,
             "unknown option #{inspect(unknown)}; the options are #{known}" <>
               remedy(unknown, names),
             field: unknown
           )}
      end
    else
      {:error,
       Error.new(
         :argument,
         "expected options as a keyword list of #{known}, got: #{inspect(opts)}"
       )}
    end
  end

  # What belongs to the compiler is easily given to what calls it.
  defp remedy(:trial, names) do
    if :compile in names, do: "; :trial is one of the options in :compile", else: ""
  end

  defp remedy(_unknown, _names), do: ""

  @doc false
  # The error for an option's value.
  @spec wrong(atom(), String.t(), term()) :: {:error, Error.t()}
  def wrong(name, expected, found) do
    {:error,
     Error.new(
       :argument,
       "expected #{inspect(name)} to be #{expected}, got: #{inspect(found)}",
       field: name
     )}
  end

  @doc false
  # The value of an option that is an integer in a range.
  @spec integer(keyword(), atom(), Range.t()) :: {:ok, integer()} | {:error, Error.t()}
  def integer(opts, name, first..last) do
    case opts[name] do
      value when is_integer(value) and value >= first and value <= last -> {:ok, value}
      other -> wrong(name, "an integer from #{first} to #{last}", other)
    end
  end

  # A time to wait, in milliseconds.
  @longest 0xFFFF_FFFF

  @doc false
  @spec timeout(keyword()) :: {:ok, timeout()} | {:error, Error.t()}
  def timeout(opts) do
    case opts[:timeout] do
      :infinity ->
        {:ok, :infinity}

      timeout when is_integer(timeout) and timeout >= 0 and timeout <= @longest ->
        {:ok, timeout}

      other ->
        {:error,
         Error.new(
           :argument,
           "expected :timeout in milliseconds, 0 to #{@longest}, or :infinity, got: #{inspect(other)}",
           field: :timeout
         )}
    end
  end
end
