defmodule Fuzz.Targets.Graph do
  @moduledoc false

  # Whole programs, as steps that refer to values by number, be they made outside, in a region, or in a
  # region that is closed already.

  use Fuzz.Target

  alias EXLA.CustomCall.{Module, Spec, Typespec, Value}
  alias Fuzz.Syntax

  @names ~w(stablehlo.add stablehlo.abs stablehlo.while stablehlo.if stablehlo.case stablehlo.reduce a.b
            stablehlo.custom_call stablehlo.constant stablehlo.return sdy.manual_computation func.func func.call
            func.return builtin.module builtin.unrealized_conversion_cast stablehlo add .a a. a..b)

  def generate do
    functions =
      Gen.list(2, fn -> {function_name(), steps(2, 5), indexes(), indexes(), Gen.chance(50)} end)

    {functions, steps(3, 12), indexes(), outputs(), options()}
  end

  defp steps(depth, most), do: Gen.list(most, fn -> step(depth) end)

  defp step(depth) do
    Gen.weighted([
      {4, fn -> {:parameter, type(), attributes()} end},
      {8, fn -> {:op, operation_name(), indexes(), types(), attributes(), regions(depth)} end},
      {3, fn -> {:custom_call, indexes(), types(), spec()} end},
      {2, fn -> {:constant, bytes(), type()} end},
      {1,
       fn -> {:convert, Gen.int(0, 20), Gen.pick([{:f, 64}, :s8, {:u, 4}, :token, {:q, 1}])} end},
      {2, fn -> {:call, Gen.int(0, 3), indexes()} end},
      {1, fn -> {:index, Gen.int(0, 20), Gen.integer()} end}
    ])
  end

  defp regions(0), do: []

  defp regions(depth) do
    Gen.weighted([
      {5, fn -> [] end},
      {4,
       fn ->
         Gen.list(2, fn ->
           {types(), steps(depth - 1, 4), indexes(), indexes(), terminator()}
         end)
       end},
      {1, fn -> [{:chain, Gen.pick([1, 10, 63, 64, 65, 300])}] end}
    ])
  end

  defp terminator, do: Gen.pick([nil, nil, "sdy.return", "a.b", "func.return", "", "x", <<255>>])
  defp indexes, do: Gen.list(4, fn -> Gen.int(0, 20) end)

  defp outputs,
    do: Gen.list(4, fn -> {Gen.int(0, 20), if(Gen.chance(80), do: [], else: attributes())} end)

  defp options do
    Enum.filter(
      [
        name: Gen.pick([nil, "m", "", <<0>>, <<255>>, 1]),
        function: Gen.pick(["main", "f", "", <<0>>, <<255>>, "a b", "é"]),
        attributes: attributes(),
        effects: {:indexes, indexes()},
        context: Gen.pick([nil, {:"$", :context}])
      ],
      fn _ -> Gen.chance(40) end
    )
  end

  defp attributes do
    Gen.weighted([
      {6, fn -> [] end},
      {2, fn -> [{Gen.name(), Syntax.attribute(1)}] end},
      {1, fn -> Gen.list(3, fn -> {Gen.name(), Syntax.text()} end) end},
      {1, fn -> Gen.term(1) end}
    ])
  end

  defp spec do
    %{
      call_target_name:
        Gen.weighted([{8, fn -> "k" end}, {2, &Gen.bytes/0}, {1, fn -> Gen.term(1) end}]),
      attributes: attributes(),
      mlir_attributes: attributes(),
      operand_element_types:
        Gen.pick([:default, :default, [], [{:f, 32}], [:token], [:s8, :s8], [{:q, 2}], nil]),
      api_version:
        Gen.weighted([
          {8, fn -> 4 end},
          {3, fn -> Gen.int(0, 5) end},
          {1, &Gen.integer/0},
          {1, fn -> Gen.term(0) end}
        ]),
      backend_config:
        Gen.weighted([{6, fn -> nil end}, {2, &Gen.bytes/0}, {1, fn -> Gen.term(0) end}])
    }
  end

  defp function_name,
    do: Gen.pick(["f", "g", "main", "", <<0>>, <<255>>, "f g", "é", String.duplicate("f", 5_000)])

  defp operation_name, do: if(Gen.chance(85), do: Gen.pick(@names), else: Gen.name())

  defp type do
    Gen.weighted([
      {8,
       fn ->
         %{type: Gen.pick([{:f, 32}, {:s, 64}, {:pred, 8}, {:u, 4}, {:c, 128}]), shape: shape()}
       end},
      {2, fn -> %{type: :token, shape: {}} end},
      {1,
       fn ->
         %{
           type: Gen.pick([:token, {:q, 3}, :f32, nil]),
           shape: Gen.pick([{}, [], {-1}, {1.0}, nil])
         }
       end},
      {1, fn -> Gen.term(1) end}
    ])
  end

  defp shape do
    Gen.weighted([
      {6, fn -> 3 |> Gen.list(fn -> Gen.int(0, 3) end) |> List.to_tuple() end},
      {1, fn -> 3 |> Gen.list(&Gen.integer/0) |> List.to_tuple() end},
      {1, fn -> 1 |> Tuple.duplicate(Gen.int(1, 2_000)) end}
    ])
  end

  defp types, do: Gen.list(3, &type/0)

  defp bytes,
    do:
      Gen.pick([
        &Gen.bytes/0,
        fn -> :binary.copy(<<Gen.int(0, 255)>>, Gen.pick([0, 1, 4, 8, 16, 64])) end
      ]).()

  # The values and functions made so far are in the process.
  def try({functions, steps, parameters, outputs, opts}, env, _state) do
    Process.put(:values, [])
    Process.put(:functions, [])

    for {name, steps, parameters, results, private?} <- functions do
      run(steps)
      function = Value.function(name, values(parameters), values(results), private: private?)
      Process.put(:functions, [function | Process.get(:functions)])
    end

    run(steps)
    results = for {index, attributes} <- outputs, value = value(index), do: {value, attributes}

    opts =
      Enum.map(opts, fn
        {:effects, {:indexes, indexes}} -> {:effects, values(indexes)}
        option -> Env.resolve(option, env)
      end)

    # Mostly all parameters that there are.
    parameters =
      case parameters do
        [] -> Enum.filter(Process.get(:values), &(&1.operation.kind == :parameter))
        indexes -> values(indexes)
      end

    with {:ok, module} <- Module.build(parameters, results, opts) do
      if String.valid?(to_string(module)) and is_list(Module.custom_calls(module)) do
        :ok
      else
        {:violated, "the module does not print"}
      end
    end
  end

  defp run(steps), do: Enum.each(steps, &keep(step_value(&1)))
  defp keep(values), do: Process.put(:values, Enum.reverse(values) ++ Process.get(:values))
  defp values(indexes), do: for(index <- indexes, value = value(index), do: value)

  defp value(index) do
    case Process.get(:values) do
      [] -> nil
      values -> Enum.at(values, rem(index, length(values)))
    end
  end

  defp step_value({:parameter, type, attributes}),
    do: [Value.parameter(type, attributes: attributes)]

  defp step_value({:op, name, operands, types, attributes, regions}) do
    regions = Enum.map(regions, &region/1)
    Value.op(name, values(operands), types, attributes: attributes, regions: regions)
  end

  defp step_value({:custom_call, operands, types, spec}) do
    Value.custom_call(values(operands), struct(Spec, spec), types)
  end

  defp step_value({:constant, bytes, type}), do: [Value.constant(bytes, type)]

  defp step_value({:convert, index, type}) do
    if value = value(index), do: [Value.convert(value, type)], else: []
  end

  defp step_value({:call, index, operands}) do
    case Process.get(:functions) do
      [] ->
        []

      functions ->
        functions |> Enum.at(rem(index, length(functions))) |> Value.call(values(operands))
    end
  end

  # A value that its operation does not have.
  defp step_value({:index, index, other}) do
    if value = value(index), do: [%{value | index: other}], else: []
  end

  defp region({types, steps, results, effects, terminator}) do
    Value.region(
      types,
      fn arguments ->
        keep(arguments)
        run(steps)
        values(results)
      end,
      terminator: terminator,
      effects: fn _ -> values(effects) end
    )
  end

  defp region({:chain, depth}) do
    type = Typespec.tensor({:f, 32}, {})

    Enum.reduce(2..depth//1, Value.region([], fn [] -> [] end), fn _, inner ->
      Value.region([], fn [] -> Value.op("stablehlo.case", [], [type], regions: [inner]) end)
    end)
  end
end
