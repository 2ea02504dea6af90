defmodule EXLA.CustomCall.Graph do
  @moduledoc false

  # Turns values, which point at their operands, into the flat lists that the NIF reads: for each
  # region its operations in an order in which every value is defined before it is used.
  #
  # Three passes, each linear in the size of the graph and none recursing over its depth:
  #
  #   1. order: all operations that the outputs need, operands first (depth first, own stack);
  #   2. place: users first, each operation goes into the innermost region that holds all its uses;
  #   3. emit: region by region.

  alias EXLA.CustomCall.{Error, SpecTerms, Typespec, Value}
  alias EXLA.CustomCall.Value.{Function, Operation}

  # The scope of a function's own body; the scope of a region is the region's id.
  @body :body

  @doc false
  # `{:ok, native_functions, meshes, operation_count, byte_count}` of a function and of all that it calls.
  # `attributes` are those of its results, one list a result; `others` are emitted though nothing
  # calls them.
  def flatten(%Function{} = main, attributes, others) do
    functions = reach([main | others], %{}, [])

    flat =
      for {{function, order, placed, numbers}, index} <- Enum.with_index(functions) do
        attributes = if function.id == main.id, do: attributes, else: []
        emit(function, order, placed, {numbers, index}, attributes)
      end

    operations = Enum.flat_map(functions, fn {_, order, _, _} -> order end)
    meshes = operations |> Enum.flat_map(& &1.meshes) |> Enum.uniq()
    {:ok, flat, meshes, length(operations), operations |> Enum.map(&weight/1) |> Enum.sum()}
  catch
    {:refused, %Error{} = error} -> {:error, error}
  end

  defp reach([], _seen, done), do: Enum.reverse(done)

  defp reach([%{id: id} | rest], seen, done) when is_map_key(seen, id),
    do: reach(rest, seen, done)

  defp reach([function | rest], seen, done) do
    order = order(function)
    check_parameters(function, order)
    placed = place(function, order)
    called = for %Operation{kind: {:call, callee}} <- order, do: callee
    entry = {function, order, placed, number(function, order)}
    reach(rest ++ called, Map.put(seen, function.id, true), [entry | done])
  end

  defp order(function) do
    walk(operations(function.effects ++ function.results), %{}, [])
  end

  # An operation is left after all that it needs was left.
  defp walk([], _seen, done), do: Enum.reverse(done)
  defp walk([{:leave, operation} | stack], seen, done), do: walk(stack, seen, [operation | done])

  defp walk([%Operation{id: id} | stack], seen, done) when is_map_key(seen, id) do
    walk(stack, seen, done)
  end

  defp walk([operation | stack], seen, done) do
    inner = Enum.flat_map(operation.regions, &operations(&1.effects ++ &1.results))
    stack = operations(operation.operands) ++ inner ++ [{:leave, operation} | stack]
    walk(stack, Map.put(seen, operation.id, true), done)
  end

  defp operations(values), do: Enum.map(values, & &1.operation)

  defp check_parameters(function, order) do
    ids = Enum.map(function.parameters, & &1.operation.id)
    kinds = Enum.map(function.parameters, & &1.operation.kind)

    cond do
      Enum.any?(kinds, &(&1 != :parameter)) ->
        refuse(
          "the parameters of #{Value.show(function.name)} must be made with EXLA.CustomCall.Value.parameter/2"
        )

      length(Enum.uniq(ids)) != length(ids) ->
        refuse(
          "a parameter of #{Value.show(function.name)} is in the list of its parameters twice"
        )

      Enum.any?(order, &(&1.kind == :parameter and &1.id not in ids)) ->
        refuse(
          "#{Value.show(function.name)} uses a parameter that is not in the list of its parameters; " <>
            "pass every parameter that a function uses"
        )

      true ->
        :ok
    end
  end

  # The scope of each operation, by id.
  defp place(function, order) do
    outputs = operations(function.effects ++ function.results)
    used = Map.new(outputs, &{&1.id, @body})
    {used, _scopes} = order |> Enum.reverse() |> Enum.reduce({used, %{}}, &place_operation/2)
    used
  end

  defp place_operation(operation, {used, scopes}) do
    scope = Map.fetch!(used, operation.id)
    check_scope(operation, scope, scopes)
    used = use_in(used, operation.operands, scope, scopes)

    Enum.reduce(operation.regions, {used, scopes}, fn region, {used, scopes} ->
      if is_map_key(scopes, region.id) do
        refuse("a region belongs to two operations; make one for each")
      end

      scopes = Map.put(scopes, region.id, {scope, depth(scope, scopes) + 1})
      {use_in(used, region.effects ++ region.results, region.id, scopes), scopes}
    end)
  end

  defp use_in(used, values, scope, scopes) do
    Enum.reduce(values, used, fn %{operation: %{id: id}}, used ->
      Map.update(used, id, scope, &common(&1, scope, scopes))
    end)
  end

  defp check_scope(%Operation{kind: {:argument, region}}, scope, scopes) do
    unless inside?(scope, region, scopes) do
      refuse("an argument of a region is used outside the region")
    end
  end

  defp check_scope(_operation, _scope, _scopes), do: :ok

  defp inside?(region, region, _scopes), do: true
  defp inside?(@body, _region, _scopes), do: false
  defp inside?(scope, region, scopes), do: inside?(parent(scope, scopes), region, scopes)

  # The innermost scope that holds both.
  defp common(scope, scope, _scopes), do: scope

  defp common(one, other, scopes) do
    if depth(one, scopes) >= depth(other, scopes) do
      common(parent(one, scopes), other, scopes)
    else
      common(one, parent(other, scopes), scopes)
    end
  end

  defp parent(scope, scopes), do: scopes |> Map.fetch!(scope) |> elem(0)
  defp depth(@body, _scopes), do: 0
  defp depth(scope, scopes), do: scopes |> Map.fetch!(scope) |> elem(1)

  # The number of each operation's first result, by id: parameters first.
  defp number(function, order) do
    numbers = number_each(function.parameters, {%{}, 0})

    {numbers, _next} =
      Enum.reduce(order, numbers, fn
        %Operation{kind: :parameter}, numbers ->
          numbers

        %Operation{kind: {:argument, _region}}, numbers ->
          numbers

        operation, {numbers, next} ->
          next = {Map.put(numbers, operation.id, next), next + length(operation.results)}
          Enum.reduce(operation.regions, next, &number_each(&1.arguments, &2))
      end)

    numbers
  end

  defp number_each(values, numbers) do
    Enum.reduce(values, numbers, fn value, {numbers, next} ->
      {Map.put(numbers, value.operation.id, next), next + 1}
    end)
  end

  defp emit(function, order, placed, numbers, attributes) do
    by_scope = Enum.group_by(order, &Map.fetch!(placed, &1.id))

    parameters =
      for %Value{operation: operation, typespec: typespec} <- function.parameters do
        {number_of(numbers, operation), Typespec.to_native(typespec), operation.attributes}
      end

    attributes = attributes ++ List.duplicate([], length(function.results) - length(attributes))

    results =
      Enum.zip_with(function.results, attributes, fn value, attributes ->
        {Typespec.to_native(value.typespec), attributes}
      end)

    {function.name, function.private, parameters, results, emit_scope(@body, by_scope, numbers),
     ids(function.results, numbers)}
  end

  defp emit_scope(scope, by_scope, numbers) do
    for operation <- Map.get(by_scope, scope, []),
        operation.kind != :parameter,
        not match?({:argument, _}, operation.kind) do
      regions =
        for region <- operation.regions do
          arguments =
            for %Value{operation: operation, typespec: typespec} <- region.arguments do
              {number_of(numbers, operation), Typespec.to_native(typespec)}
            end

          {arguments, emit_scope(region.id, by_scope, numbers), region.terminator,
           ids(region.results, numbers)}
        end

      {kind(operation, numbers), ids(operation.operands, numbers), number_of(numbers, operation),
       Enum.map(operation.results, &Typespec.to_native/1), regions}
    end
  end

  defp number_of({numbers, _function}, operation), do: Map.fetch!(numbers, operation.id)

  defp ids(values, numbers) do
    Enum.map(values, &(number_of(numbers, &1.operation) + &1.index))
  end

  # The tags are the NIF's.
  defp kind(%{kind: {:custom_call, spec}}, _numbers) do
    {0, spec.call_target_name, SpecTerms.api_version(spec), spec.attributes,
     SpecTerms.backend_config(spec), SpecTerms.mlir_attributes(spec)}
  end

  defp kind(%{kind: {:constant, binary}}, _numbers), do: {1, binary}
  defp kind(%{kind: {:call, function}}, _numbers), do: {2, function.name}
  defp kind(%{kind: {:generic, name, attributes}}, _numbers), do: {3, name, attributes}

  # Collectives of a program are told apart by channels, which are positive.
  defp kind(%{kind: {:collective, name, attributes}} = operation, {_, function} = numbers) do
    channel = Bitwise.bsl(function, 32) + number_of(numbers, operation) + 1
    text = "#stablehlo.channel_handle<handle = #{channel}, type = 1>"
    {3, name, [{"channel_handle", text} | attributes]}
  end

  # The bytes of an operation, by which a scheduler is chosen.
  defp weight(%Operation{kind: {:custom_call, spec}} = operation) do
    config = SpecTerms.backend_config(spec) || ""

    byte_size(spec.call_target_name) + byte_size(config) + length(operation.operands) +
      weight_of_pairs(spec.attributes) + weight_of_pairs(SpecTerms.mlir_attributes(spec))
  end

  defp weight(%Operation{kind: {:constant, binary}}), do: byte_size(binary)

  defp weight(%Operation{kind: {_generic, _name, attributes}} = operation) do
    length(operation.operands) + weight_of_pairs(attributes)
  end

  defp weight(%Operation{attributes: attributes}), do: weight_of_pairs(attributes)

  defp weight_of_pairs(pairs) do
    Enum.reduce(pairs, 0, fn {name, text}, sum -> sum + byte_size(name) + byte_size(text) end)
  end

  defp refuse(message), do: throw({:refused, Error.new(:graph, message)})
end
