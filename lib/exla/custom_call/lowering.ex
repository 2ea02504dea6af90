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

  alias EXLA.CustomCall.{
    Error,
    Mesh,
    Module,
    Sharding,
    Spec,
    SpecTerms,
    Telemetry,
    Typespec,
    Value
  }

  # What `EXLA.CustomCall.Value.custom_call/4` takes.
  @split [:partition, :mesh, :sharding_rule, :reduce]

  @options [
    context: nil,
    name: nil,
    partition: nil,
    mesh: nil,
    sharding_rule: nil,
    reduce: :sum,
    shardings: [],
    result_shardings: [],
    local_shapes: nil
  ]

  @doc """
  Lowers `block` to a module with one parameter an operand and one result an output.

    * `block` - a struct that implements `EXLA.CustomCall`;
    * `out` - the template of the output, or a tuple of templates;
    * `args` - the templates of the operands: anything with a `:type` and a `:shape`;
    * `client` - an `EXLA.CustomCall.Client`, or a map with the `:platform` alone: lowering needs no
      device;
    * `opts` - see below.

  ## Options

    * `:context`, `:name` - as `EXLA.CustomCall.Module.build/3` takes them.
    * `:partition`, `:mesh`, `:sharding_rule`, `:reduce` - how the call is split over devices, as
      `EXLA.CustomCall.Value.custom_call/4` takes them. Default: not at all.
    * `:shardings` - how each operand is split, as `EXLA.CustomCall.Sharding.from/3` takes it, or `nil`.
    * `:result_shardings` - how each result of the module is split. Default: as the call leaves it.
    * `:local_shapes` - whether the implementation is asked a second time where the call is split, with
      the templates of one device, for a spec that depends on sizes. The first answer then gives the
      sharding rule alone. Default: the `:local_shapes` of `client`, where that is a map with it;
      `false` otherwise.

  The implementation gets the client as it is. Where it is asked for one device, the client is a map
  that has the client's `:platform`, and `local_shapes: true`; elsewhere it has the shapes of the whole.

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
    with {:ok, opts} <- EXLA.CustomCall.Options.validate(opts, @options),
         {:ok, operands} <- operands(args),
         {:ok, results} <- results(out),
         :ok <- check_client(client),
         {:ok, spec} <-
           Telemetry.span(:lower, %{block: block}, fn -> spec(block, out, args, whole(client)) end),
         {:ok, parameters} <- parameters(operands, opts),
         {:ok, values} <- values({block, out, args, client}, parameters, spec, results, opts) do
      build = Keyword.take(opts, [:context, :name, :mesh, :result_shardings])

      # A call without results is all the same what the module is for.
      if results == [] do
        Module.build(parameters, [], [effects: values] ++ build)
      else
        Module.build(parameters, values, build)
      end
    end
  end

  @doc """
  Puts `block` into a graph: its custom call, with values as operands, and the values of its results.

  Takes the options of `lower/5` from `:partition` to `:reduce`, and `:local_shapes`. Returns `:skip` when
  the implementation says so.

  ## Examples

      iex> alias EXLA.CustomCall.{Lowering, Typespec, Value}
      iex> matrix = Typespec.tensor({:f, 32}, {3, 3})
      iex> x = Value.parameter(matrix)
      iex> [y] = Value.op("stablehlo.add", [x, x], [matrix])
      iex> eigh = %{__struct__: Nx.Block.LinAlg.Eigh}
      iex> out = {Typespec.tensor({:f, 32}, {3}), matrix}
      iex> {:ok, [values, vectors]} = Lowering.call(eigh, out, [y], %{platform: :host})
      iex> {values.typespec, vectors.typespec}
      {Typespec.tensor({:f, 32}, {3}), matrix}
  """
  @spec call(
          EXLA.CustomCall.t(),
          EXLA.CustomCall.template() | tuple(),
          [Value.t()],
          EXLA.CustomCall.client(),
          keyword()
        ) :: :skip | {:ok, [Value.t()]} | {:error, Error.t()}
  def call(block, out, operands, client, opts \\ []) do
    defaults = Keyword.take(@options, [:local_shapes | @split])

    with {:ok, opts} <- EXLA.CustomCall.Options.validate(opts, defaults),
         {:ok, operands} <- Value.check_values(operands, "operands"),
         {:ok, results} <- results(out),
         :ok <- check_client(client),
         args = Enum.map(operands, & &1.typespec),
         {:ok, spec} <-
           Telemetry.span(:lower, %{block: block}, fn -> spec(block, out, args, whole(client)) end) do
      values({block, out, args, client}, operands, spec, results, opts)
    end
  end

  @doc "Like `call/5`, but returns the values themselves, and raises `ArgumentError`."
  @spec call!(
          EXLA.CustomCall.t(),
          EXLA.CustomCall.template() | tuple(),
          [Value.t()],
          EXLA.CustomCall.client(),
          keyword()
        ) :: :skip | [Value.t()]
  def call!(block, out, operands, client, opts \\ []) do
    case call(block, out, operands, client, opts) do
      :skip -> :skip
      answer -> Error.unwrap!(answer)
    end
  end

  defp parameters(operands, opts) do
    mesh = opts[:mesh] && Mesh.from(opts[:mesh])
    shardings = opts[:shardings]

    unless SpecTerms.proper_list?(shardings) and length(shardings) <= length(operands) do
      raise ArgumentError,
            "expected :shardings as a list of at most #{length(operands)}, one an operand, got: " <>
              inspect(shardings)
    end

    shardings = shardings ++ List.duplicate(nil, length(operands) - length(shardings))

    {:ok,
     for {operand, sharding} <- Enum.zip(operands, shardings) do
       if sharding == nil or is_struct(sharding, Sharding) or mesh != nil do
         Value.parameter(operand, sharding: sharding && Sharding.from(sharding, mesh, operand))
       else
         raise ArgumentError, "the axes of :shardings are those of a mesh; give the option :mesh"
       end
     end}
  rescue
    error in ArgumentError -> {:error, Error.new(:argument, error.message)}
  end

  defp values({block, out, args, client}, operands, spec, results, opts) do
    with {:ok, _types} <- SpecTerms.check(spec, Enum.map(operands, & &1.typespec)),
         {:ok, local} <- local(block, out, args, client, opts[:local_shapes]) do
      {:ok,
       Value.custom_call(operands, spec, results, [local: local] ++ Keyword.take(opts, @split))}
    end
  rescue
    error in ArgumentError -> {:error, Error.new(:argument, error.message)}
  catch
    # The implementation, asked for one device.
    {__MODULE__, answer} -> answer
    {__MODULE__, exception, stacktrace} -> reraise exception, stacktrace
  end

  # What asks the implementation again, for the templates of one device.
  defp local(block, out, args, client, nil) do
    local(block, out, args, client, Map.get(client, :local_shapes, false))
  end

  defp local(_block, _out, _args, _client, false), do: {:ok, nil}

  defp local(block, out, args, client, true) do
    client = %{platform: client.platform, local_shapes: true}

    {:ok,
     fn operands, results ->
       args = Enum.zip_with(args, operands, &resize/2)
       out = resize_all(out, results)

       with {:ok, spec} <- spec_or_throw(block, out, args, client),
            {:ok, _types} <- SpecTerms.check(spec, operands) do
         spec
       else
         # Nothing else is right where the answer for the whole was a spec.
         :skip ->
           throw(
             {__MODULE__,
              {:error,
               Error.new(
                 :argument,
                 "EXLA.CustomCall.call/4 returned a spec for the whole #{name(block)} and :skip for the part " <>
                   "of one device, whose operands are #{inspect(operands)}",
                 field: :local_shapes
               )}}
           )

         error ->
           throw({__MODULE__, error})
       end
     end}
  end

  defp local(_block, _out, _args, _client, other) do
    {:error,
     Error.new(:argument, "expected :local_shapes to be a boolean, got: #{inspect(other)}",
       field: :local_shapes
     )}
  end

  # An exception of the implementation's is the caller's, and no fault of the options.
  defp spec_or_throw(block, out, args, client) do
    spec(block, out, args, client)
  rescue
    exception -> throw({__MODULE__, exception, __STACKTRACE__})
  end

  # A template as it was given, of another shape.
  defp resize(template, %{shape: shape}), do: %{template | shape: shape}

  defp resize_all(out, results) when is_tuple(out) do
    out |> Tuple.to_list() |> Enum.zip_with(results, &resize/2) |> List.to_tuple()
  end

  defp resize_all(out, [result]), do: resize(out, result)

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
  def options, do: @options

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

  # The client of an implementation that is asked for the whole says nothing of one device.
  defp whole(client) when is_struct(client), do: client
  defp whole(client), do: Map.delete(client, :local_shapes)

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
