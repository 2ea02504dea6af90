defmodule EXLA.CustomCall.Lowering do
  @moduledoc """
  From a block to a module: asks the block's `EXLA.CustomCall` implementation for a spec, and emits
  it as the one operation of a module.

      iex> alias EXLA.CustomCall.{Lowering, Typespec}
      iex> matrix = Typespec.tensor({:f, 32}, {3, 3})
      iex> eigh = %{__struct__: Nx.Block.LinAlg.Eigh}
      iex> out = {Typespec.tensor({:f, 32}, {3}), matrix}
      iex> {:ok, module} = Lowering.lower(eigh, out, [matrix], %{platform: :host})
      iex> [call] = EXLA.CustomCall.Module.custom_calls(module)
      iex> call.call_target_name
      "eigh_cpu_custom_call_f32"
  """

  alias EXLA.CustomCall.{Error, Module, Spec, SpecTerms, Telemetry, Typespec, Value}

  @doc """
  Lowers `block` to a module with one parameter an operand and one result an output.

    * `block` - a struct that implements `EXLA.CustomCall`;
    * `out` - the template of the output, or a tuple of templates;
    * `args` - the templates of the operands: anything with a `:type` and a `:shape`;
    * `client` - an `EXLA.CustomCall.Client`, or a map with the `:platform` alone: lowering needs no
      device;
    * `opts` - `:context` and `:name`, as `EXLA.CustomCall.Module.build/3` takes them.

  Returns `:skip` when the implementation says so. An exception that the implementation raises is
  the caller's.
  """
  @spec lower(
          EXLA.CustomCall.t(),
          EXLA.CustomCall.template() | tuple(),
          [EXLA.CustomCall.template()],
          EXLA.CustomCall.client(),
          keyword()
        ) :: :skip | {:ok, Module.t()} | {:error, Error.t()}
  def lower(block, out, args, client, opts \\ []) do
    with {:ok, opts} <- EXLA.CustomCall.Options.validate(opts, context: nil, name: nil),
         {:ok, operands} <- operands(args),
         {:ok, results} <- results(out),
         :ok <- check_client(client),
         {:ok, spec} <-
           Telemetry.span(:lower, %{block: block}, fn -> spec(block, out, args, client) end),
         {:ok, _types} <- SpecTerms.check(spec, operands) do
      parameters = Enum.map(operands, &Value.parameter/1)
      values = Value.custom_call(parameters, spec, results)

      # A call without results is all the same what the module is for.
      if results == [] do
        Module.build(parameters, [], [effects: values] ++ opts)
      else
        Module.build(parameters, values, opts)
      end
    end
  end

  @doc """
  Like `lower/5`, but returns the module itself, and raises `ArgumentError` with the error's message.
  Returns `:skip` as it does.
  """
  @spec lower!(
          EXLA.CustomCall.t(),
          EXLA.CustomCall.template() | tuple(),
          [EXLA.CustomCall.template()],
          EXLA.CustomCall.client(),
          keyword()
        ) :: :skip | Module.t()
  def lower!(block, out, args, client, opts \\ []) do
    case lower(block, out, args, client, opts) do
      :skip -> :skip
      answer -> Error.unwrap!(answer)
    end
  end

  @doc false
  # The typespecs of the operands.
  def operands(args) do
    if SpecTerms.proper_list?(args) do
      cast_all(args, "operand")
    else
      {:error,
       Error.new(:argument, "expected the operands as a list of templates, got: #{inspect(args)}")}
    end
  end

  @doc false
  # The typespecs of the outputs: one template, or a tuple of them.
  def results(out) when is_tuple(out), do: out |> Tuple.to_list() |> cast_all("output")
  def results(out), do: cast_all([out], "output")

  defp cast_all(templates, what) do
    templates
    |> Enum.with_index()
    |> Enum.reduce_while({:ok, []}, fn {template, index}, {:ok, done} ->
      case Typespec.cast(template) do
        {:ok, typespec} ->
          {:cont, {:ok, [typespec | done]}}

        {:error, error} ->
          {:halt, {:error, %{error | message: "#{what} #{index}: #{error.message}"}}}
      end
    end)
    |> case do
      {:ok, typespecs} -> {:ok, Enum.reverse(typespecs)}
      error -> error
    end
  end

  defp check_client(%{platform: _}), do: :ok

  defp check_client(other) do
    {:error,
     Error.new(
       :argument,
       "expected the client to be an EXLA.CustomCall.Client or a map with :platform, " <>
         "such as %{platform: :host}, got: #{inspect(other)}"
     )}
  end

  # The protocol's type says what implementations are to return; this is where it is checked.
  @dialyzer {:no_match, spec: 4}
  @dialyzer {:no_unused, name: 1}
  defp spec(block, out, args, client) do
    case EXLA.CustomCall.call(block, out, args, client) do
      :skip ->
        :skip

      {:ok, %Spec{} = spec} ->
        {:ok, spec}

      other ->
        {:error,
         Error.new(
           :argument,
           "expected EXLA.CustomCall.call/4 to return :skip or {:ok, %EXLA.CustomCall.Spec{}} " <>
             "for #{name(block)}, got: #{inspect(other)}"
         )}
    end
  end

  defp name(%module{}), do: inspect(module)
  defp name(other), do: inspect(other)
end
