defmodule EXLA.CustomCall.SpecTerms do
  @moduledoc false

  # Checks the shapes of a spec's terms, which the NIF could only call a bad argument. What the terms
  # say is checked in the NIF.

  alias EXLA.CustomCall.{Error, Typespec}

  @doc false
  # The element types that the operands must have, one an operand (`:token` for a token), or an error.
  def check(spec, operands) do
    with :ok <- check_struct(spec),
         :ok <- check_target(spec.call_target_name),
         :ok <- check_pairs(spec.attributes, :attributes),
         :ok <- check_pairs(mlir_attributes(spec), :mlir_attributes),
         :ok <- check_api_version(api_version(spec)),
         :ok <- check_backend_config(backend_config(spec)) do
      operand_types(spec.operand_element_types, operands)
    end
  end

  # EXLA's struct may lack the newer fields.
  @doc false
  def mlir_attributes(spec), do: Map.get(spec, :mlir_attributes, [])
  @doc false
  def api_version(spec), do: Map.get(spec, :api_version, 4)
  @doc false
  def backend_config(spec), do: Map.get(spec, :backend_config)

  @doc false
  def check_pairs(pairs, field) do
    if proper_list?(pairs) do
      pairs
      |> Enum.with_index()
      |> Enum.find_value(:ok, fn {pair, index} -> check_pair(pair, index, field) end)
    else
      error(field, "expected a list of {name, text} pairs of binaries, got: #{inspect(pairs)}")
    end
  end

  defp check_pair({name, text}, _index, _field) when is_binary(name) and is_binary(text), do: nil

  defp check_pair({name, text}, _index, field) when is_binary(name) do
    error(
      field,
      "expected the text of #{inspect(name)} to be a binary with an MLIR attribute, " <>
        "such as \"42 : i64\", got: #{show(text)}",
      name: name
    )
  end

  defp check_pair({name, _text}, index, field) do
    error(
      field,
      "expected the name at index #{index} to be a binary, such as \"scale\", got: #{show(name)}"
    )
  end

  defp check_pair(other, index, field) do
    error(
      field,
      "expected a {name, text} pair of binaries at index #{index}, got: #{inspect(other)}"
    )
  end

  defp check_struct(%EXLA.CustomCall.Spec{}), do: :ok

  defp check_struct(other) do
    {:error,
     Error.new(:argument, "expected an EXLA.CustomCall.Spec struct, got: #{inspect(other)}")}
  end

  defp check_target(target) when is_binary(target), do: :ok

  defp check_target(other) do
    error(:call_target_name, "expected a binary, got: #{show(other)}")
  end

  # The range is checked in the NIF, which takes 64-bit integers.
  defp check_api_version(version)
       when is_integer(version) and version >= -0x8000_0000_0000_0000 and
              version <= 0x7FFF_FFFF_FFFF_FFFF,
       do: :ok

  defp check_api_version(other) do
    error(
      :api_version,
      "#{inspect(other)} is not one of 1, 2, 3 and 4; use 4 for a typed FFI handler"
    )
  end

  defp check_backend_config(config) when is_nil(config) or is_binary(config), do: :ok

  defp check_backend_config(other) do
    error(:backend_config, "expected a binary or nil, got: #{show(other)}")
  end

  defp operand_types(:default, operands), do: {:ok, Enum.map(operands, & &1.type)}

  defp operand_types(types, operands) do
    count = length(operands)

    cond do
      not proper_list?(types) ->
        error(
          :operand_element_types,
          "expected :default or a list with one type an operand, got: #{inspect(types)}"
        )

      length(types) != count ->
        error(
          :operand_element_types,
          "expected :default or a list with one type an operand, that is #{count}, " <>
            "got #{length(types)}: #{inspect(types)}"
        )

      true ->
        [types, operands, 0..(count - 1)//1]
        |> Enum.zip_reduce({:ok, []}, fn
          [type, operand, index], {:ok, done} ->
            with {:ok, type} <- operand_type(type, operand, index), do: {:ok, [type | done]}

          _, error ->
            error
        end)
        |> case do
          {:ok, types} -> {:ok, Enum.reverse(types)}
          error -> error
        end
    end
  end

  defp operand_type(:token, %{type: :token}, _index), do: {:ok, :token}

  defp operand_type(type, %{type: :token}, index) do
    error(
      :operand_element_types,
      "operand #{index} is a token, which only :token fits, got: #{inspect(type)}"
    )
  end

  defp operand_type(type, %{type: type}, _index) when is_tuple(type), do: {:ok, type}

  defp operand_type(type, %{type: {kind, _}} = operand, index) when kind in [:tuple, :buffer] do
    error(
      :operand_element_types,
      "operand #{index} is #{inspect(operand)}, which is not converted, got: #{inspect(type)}"
    )
  end

  defp operand_type(type, _operand, index) do
    case Typespec.cast_type(type) do
      {:ok, type} -> {:ok, type}
      {:error, error} -> error(:operand_element_types, "at index #{index}, #{error.message}")
    end
  end

  defp error(field, message, more \\ []) do
    {:error, Error.new(:argument, "#{field}: #{message}", [field: field] ++ more)}
  end

  # A charlist is the likeliest slip and prints differently from one Elixir to another.
  defp show([_ | _] = list) do
    if proper_list?(list) and List.ascii_printable?(list) do
      "the charlist '#{list}'; use double quotes"
    else
      inspect(list)
    end
  end

  defp show(other), do: inspect(other)

  @doc false
  def proper_list?(list), do: is_list(list) and List.improper?(list) == false
end
