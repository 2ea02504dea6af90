defmodule EXLA.CustomCall.Options do
  @moduledoc false

  alias EXLA.CustomCall.Error

  # Keyword.validate/2 with an error that is ours and a message for what is no keyword list.
  @spec validate(term(), keyword()) :: {:ok, keyword()} | {:error, Error.t()}
  def validate(opts, defaults) do
    known = Enum.map_join(Keyword.keys(defaults), ", ", &inspect/1)

    if Keyword.keyword?(opts) do
      case Keyword.validate(opts, defaults) do
        {:ok, opts} ->
          {:ok, opts}

        {:error, [unknown | _]} ->
          {:error,
           Error.new(:argument, "unknown option #{inspect(unknown)}; the options are #{known}",
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
