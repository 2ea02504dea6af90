defmodule Fuzz.Outcome do
  @moduledoc false

  # What became of one try: `:ok`, `:refused`, or `{:unexpected, signature, text}`, where the signature
  # is the same for the same fault.

  alias EXLA.CustomCall.Error

  @kinds [
    :argument,
    :name,
    :text,
    :spec,
    :type,
    :graph,
    :plugin,
    :client,
    :library,
    :compile,
    :buffer,
    :run
  ]

  # A target may return anything; `{:violated, text}` says that what it checked does not hold.
  # `bare: true` lets an ArgumentError be one without words: what a NIF raises for a term of the wrong
  # shape, which users cannot reach.
  def of(fun, opts \\ []) do
    judge(fun.(), opts)
  rescue
    error in ArgumentError ->
      if opts[:bare] || helpful?(error.message) do
        :refused
      else
        unexpected({ArgumentError, frame(__STACKTRACE__)}, :error, error, __STACKTRACE__)
      end

    error in Error ->
      judge({:error, error}, opts)

    # What the NIF's decoders of maps, tuples and variants raise.
    error in ErlangError ->
      if opts[:bare] && (is_binary(error.original) or error.original == :invalid_variant) do
        :refused
      else
        unexpected({ErlangError, frame(__STACKTRACE__)}, :error, error, __STACKTRACE__)
      end

    error ->
      unexpected({error.__struct__, frame(__STACKTRACE__)}, :error, error, __STACKTRACE__)
  catch
    kind, reason -> unexpected({kind, frame(__STACKTRACE__)}, kind, reason, __STACKTRACE__)
  end

  defp judge({:error, %Error{} = error}, opts) do
    cond do
      error.kind not in @kinds or not is_binary(error.message) or error.message == "" or
          not String.valid?(error.message) ->
        {:unexpected, {:malformed_error, error.kind}, "a malformed error: #{inspect(error)}"}

      error.message =~ "a bug of exla_custom_call" and not opts[:bare] ->
        {:unexpected, {:own_bug, digest(error.message)}, error.message}

      error.message =~ "panicked" ->
        {:unexpected, {:panic, digest(error.message)}, error.message}

      true ->
        :refused
    end
  end

  # A raw error of the NIF.
  defp judge({:error, error}, opts) when is_tuple(error) and tuple_size(error) == 11 do
    judge({:error, Error.from_native(error)}, opts)
  end

  defp judge({:error, message}, _opts) when is_binary(message), do: :refused

  defp judge({:error, other}, _opts),
    do: {:unexpected, :strange_error, "an error: #{inspect(other)}"}

  defp judge({:violated, text}, _opts), do: {:unexpected, {:violated, digest(text)}, text}
  defp judge(_value, _opts), do: :ok

  defp helpful?(message) do
    message != "argument error" and not String.starts_with?(message, "errors were found at") and
      String.valid?(message)
  end

  # The innermost of the package's own functions.
  defp frame(stacktrace) do
    found =
      Enum.find(stacktrace, fn {module, _, _, _} ->
        module |> Atom.to_string() |> String.starts_with?("Elixir.EXLA.")
      end)

    case found do
      {module, function, arity, location} when is_integer(arity) ->
        {module, function, arity, location[:line]}

      {module, function, arguments, _location} ->
        {module, function, length(arguments)}

      nil ->
        nil
    end
  end

  defp unexpected(signature, kind, reason, stacktrace) do
    text = Exception.format(kind, reason, stacktrace)
    {:unexpected, signature, binary_part(text, 0, min(byte_size(text), 4_000))}
  end

  # Of a text without its numbers and quotes.
  defp digest(text) do
    text = if String.valid?(text), do: text, else: inspect(text)
    text |> String.replace(~r/\d+|"[^"]*"/, "") |> String.slice(0, 60)
  end
end
