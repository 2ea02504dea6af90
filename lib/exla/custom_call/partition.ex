defmodule EXLA.CustomCall.Partition do
  @moduledoc false

  # How a custom call is split over a mesh by its sharding rule: which axes split which factor, and so
  # which dimension; what each device computes; and what is left to combine.
  #
  # Shardy reads the rule too, but the SPMD partitioner of XLA splits no custom call without a C++
  # partitioner registered with it: it gathers the operands. What is decided here goes into a
  # `sdy.manual_computation` instead, which every XLA splits as it says.

  alias EXLA.CustomCall.{Error, Mesh, Sharding, ShardingRule, SpecTerms, Typespec}

  @enforce_keys [:mesh, :operands, :results, :reduced]
  defstruct [:mesh, :operands, :results, :reduced]

  # `:operands` and `:results` are
  # `{sharding, local_typespec}`. `:reduced` are the axes over which results are to be combined.

  @doc false
  # `wanted` is a map of factors to axes, or `:auto`. `shardings` are those of the operands, where they
  # are known.
  def plan(rule, wanted, mesh, operands, shardings, results) do
    with :ok <- check_tensors(operands, "operand"),
         :ok <- check_tensors(results, "result"),
         :ok <- check_sizes(rule, operands, results),
         {:ok, mesh} <- find_mesh(mesh, shardings),
         {:ok, assigned} <- assign(wanted, rule, mesh, operands, shardings),
         :ok <- check_axes(assigned, mesh),
         :ok <- check_factors(assigned, rule, mesh, operands, results) do
      {:ok, split(rule, assigned, mesh, operands, results)}
    end
  end

  defp check_tensors(typespecs, role) do
    typespecs
    |> Enum.with_index()
    |> Enum.find_value(:ok, fn {typespec, index} ->
      unless match?(%{type: {kind, size}} when kind != :buffer and is_integer(size), typespec) do
        error(
          "#{role} #{index} is #{inspect(typespec)}; a partitioned call has tensors only, so leave " <>
            "the partition out, or pass it by another operation"
        )
      end
    end)
  end

  # The local shapes follow from the factors, so they must tell of the dimensions.
  defp check_sizes(rule, operands, results) do
    size = Map.new(rule.sizes)

    with :ok <- check_sizes_of(rule.operands, operands, "operand", size) do
      check_sizes_of(rule.results, results, "result", size)
    end
  end

  defp check_sizes_of(mappings, typespecs, role, _size)
       when length(mappings) != length(typespecs) do
    error(
      "the sharding rule has #{length(mappings)} #{role}s and the call has #{length(typespecs)}; map each"
    )
  end

  defp check_sizes_of(mappings, typespecs, role, size) do
    [mappings, typespecs, 0..(length(mappings) - 1)//1]
    |> Enum.zip()
    |> Enum.find_value(:ok, fn {mapping, %{shape: shape}, index} ->
      products = for factors <- mapping, do: factors |> Enum.map(&size[&1]) |> Enum.product()

      unless products == Tuple.to_list(shape) do
        error(
          "the factors of #{role} #{index} multiply to #{inspect(List.to_tuple(products))}, and its shape is " <>
            "#{inspect(shape)}; a partitioned call is split by the factors, so give them the sizes " <>
            "of the dimensions"
        )
      end
    end)
  end

  defp find_mesh(nil, shardings) do
    case shardings |> Enum.reject(&is_nil/1) |> Enum.map(& &1.mesh) |> Enum.uniq() do
      [mesh] ->
        {:ok, mesh}

      [] ->
        error(
          "no mesh is known; give the option :mesh, or a :sharding to a parameter that the call reads"
        )

      [one, other | _] ->
        error(
          "its operands are split over two meshes, #{inspect(one)} and #{inspect(other)}; use one"
        )
    end
  end

  defp find_mesh(mesh, shardings) do
    mesh = Mesh.from(mesh)

    case Enum.find(shardings, &(&1 != nil and &1.mesh != mesh)) do
      nil ->
        {:ok, mesh}

      other ->
        error("the mesh is #{inspect(mesh)}, and an operand is split over #{inspect(other.mesh)}")
    end
  end

  # `[{factor, axes}]` in the order of the rule, without factors that nothing splits.
  defp assign(:auto, rule, mesh, operands, shardings) do
    with :ok <- check_known(shardings) do
      [rule.operands, operands, shardings, 0..(length(shardings) - 1)//1]
      |> Enum.zip()
      |> Enum.reduce_while({:ok, %{}}, fn {mapping, typespec, sharding, index}, {:ok, done} ->
        case sharding && factors_of(mapping, typespec, sharding, index, rule, mesh) do
          nil -> {:cont, {:ok, done}}
          {:ok, found} -> merge(found, done, index)
          error -> {:halt, error}
        end
      end)
      |> case do
        {:ok, assigned} -> {:ok, in_order(assigned, rule)}
        error -> error
      end
    end
  end

  defp assign(%{} = wanted, rule, _mesh, _operands, _shardings) when not is_struct(wanted) do
    wanted
    |> Enum.reduce_while({:ok, %{}}, fn {key, axes}, {:ok, done} ->
      with {:ok, factor} <- factor(key, rule),
           {:ok, axes} <- axis_names(key, axes) do
        if is_map_key(done, factor) do
          {:halt, error("the factor #{show(factor)} is given twice")}
        else
          {:cont, {:ok, Map.put(done, factor, axes)}}
        end
      else
        error -> {:halt, error}
      end
    end)
    |> case do
      {:ok, assigned} -> {:ok, in_order(assigned, rule)}
      error -> error
    end
  end

  defp assign([_ | _] = wanted, rule, mesh, operands, shardings) do
    if Keyword.keyword?(wanted) and length(Enum.uniq_by(wanted, &elem(&1, 0))) == length(wanted),
      do: assign(Map.new(wanted), rule, mesh, operands, shardings),
      else: error("expected a map of factors to axes, or :auto, got: #{inspect(wanted)}")
  end

  defp assign(other, _rule, _mesh, _operands, _shardings) do
    error("expected a map of factors to axes, or :auto, got: #{inspect(other)}")
  end

  defp in_order(assigned, rule) do
    for {factor, _} <- rule.sizes, axes = assigned[factor], axes != [], do: {factor, axes}
  end

  # Without this a call whose operands come from elsewhere would be gathered without a word.
  defp check_known(shardings) do
    if shardings == [] or Enum.all?(shardings, &is_nil/1) do
      error(
        ":auto goes by the shardings of the operands, and none is known; give parameters a :sharding, " <>
          "say that of a computed value with EXLA.CustomCall.Value.shard/2, or name the factors"
      )
    else
      :ok
    end
  end

  # The axes of each dimension, dealt to its factors from the major one on.
  defp factors_of(mapping, typespec, sharding, operand, rule, mesh) do
    if length(sharding.dimensions) == length(mapping) do
      size = Map.new(rule.sizes)

      [mapping, sharding.dimensions, 0..(length(mapping) - 1)//1]
      |> Enum.zip()
      |> Enum.reduce_while({:ok, %{}}, fn {factors, %{axes: axes}, dimension}, {:ok, done} ->
        case deal(axes, factors, size, mesh, {operand, dimension, typespec}) do
          {:ok, dealt} -> {:cont, {:ok, Map.merge(done, dealt)}}
          error -> {:halt, error}
        end
      end)
    else
      error("the sharding of operand #{operand} has another rank than #{inspect(typespec)}")
    end
  end

  defp deal([], _factors, _size, _mesh, _place), do: {:ok, %{}}

  defp deal(axes, factors, size, mesh, place) do
    if axis = Enum.find(axes, &is_tuple/1) do
      error(
        "#{place(place)} is split by #{inspect(axis)}, a part of an axis; :auto takes whole axes, so " <>
          "name the factors, or make the part an axis of the mesh"
      )
    else
      {:ok, deal_whole(axes, factors, size, mesh, %{})}
    end
  end

  defp deal_whole([], _factors, _size, _mesh, done), do: done

  # What does not divide, the check of the factors tells.
  defp deal_whole(axes, [factor], _size, _mesh, done), do: Map.put(done, factor, axes)

  defp deal_whole(axes, [factor | rest], size, mesh, done) do
    {mine, others, _left} = take(axes, size[factor], mesh, [])
    done = if mine == [], do: done, else: Map.put(done, factor, mine)

    case others do
      [] ->
        done

      others when mine == [] and :erlang.map_get(factor, size) > 1 ->
        Map.put(done, factor, others)

      others ->
        deal_whole(others, rest, size, mesh, done)
    end
  end

  defp take([], left, _mesh, mine), do: {Enum.reverse(mine), [], left}

  defp take([axis | rest] = axes, left, mesh, mine) do
    case List.keyfind(mesh.axes, axis, 0) do
      {_, n} when left > 1 and rem(left, n) == 0 -> take(rest, div(left, n), mesh, [axis | mine])
      _ -> {Enum.reverse(mine), axes, left}
    end
  end

  # Where operands differ, the longer list wins if it begins with the other.
  defp merge(found, done, operand) do
    Enum.reduce_while(found, {:cont, {:ok, done}}, fn {factor, axes}, {:cont, {:ok, done}} ->
      before = Map.get(done, factor, [])

      cond do
        List.starts_with?(axes, before) ->
          {:cont, {:cont, {:ok, Map.put(done, factor, axes)}}}

        List.starts_with?(before, axes) ->
          {:cont, {:cont, {:ok, done}}}

        true ->
          {:halt,
           {:halt,
            error(
              "operand #{operand} splits the factor #{show(factor)} by #{names(axes)}, and an operand before it " <>
                "by #{names(before)}; give both the same sharding"
            )}}
      end
    end)
  end

  defp factor({role, index, dimension} = key, rule) when role in [:operand, :result] do
    values = if role == :operand, do: rule.operands, else: rule.results

    with true <- is_integer(index) and index >= 0 and is_integer(dimension) and dimension >= 0,
         [factor | _] <- values |> Enum.at(index, []) |> Enum.at(dimension) do
      {:ok, factor}
    else
      _ -> error("the call has no dimension #{inspect(key)}")
    end
  end

  defp factor(key, rule) do
    known = Enum.map(rule.sizes, &elem(&1, 0))

    if key in known do
      {:ok, key}
    else
      # A text has lost the names that somebody gave, and its letters may be other factors' names.
      hint =
        if is_atom(key) and Enum.all?(known, &is_binary/1),
          do: "; a rule's text keeps no other names, so give the rule itself as :sharding_rule",
          else: ""

      error(
        "the sharding rule has no factor #{inspect(key)}; it has #{Enum.map_join(known, ", ", &inspect/1)}#{hint}"
      )
    end
  end

  defp text(name) when is_atom(name), do: Atom.to_string(name)
  defp text(name), do: name

  defp axis_names(key, axes) do
    list = List.wrap(axes)
    name? = &(is_binary(&1) or (is_atom(&1) and &1 != nil))

    if SpecTerms.proper_list?(list) and Enum.all?(list, name?) do
      {:ok, Enum.map(list, &Mesh.axis_name/1)}
    else
      error(
        "expected the factor #{inspect(key)} to map to an axis or a list of axes, got: #{inspect(axes)}"
      )
    end
  end

  defp check_axes(assigned, mesh) do
    axes = Enum.flat_map(assigned, fn {_, axes} -> axes end)
    unknown = Enum.find(axes, &(not List.keymember?(mesh.axes, &1, 0)))
    twice = List.first(axes -- Enum.uniq(axes))

    cond do
      unknown != nil ->
        error(Mesh.no_axis(mesh, unknown))

      twice != nil ->
        factors = for {factor, axes} <- assigned, twice in axes, do: show(factor)

        error(
          "the axis #{inspect(twice)} is used twice, by #{Enum.join(factors, " and ")}; an axis splits one factor, once"
        )

      true ->
        :ok
    end
  end

  defp check_factors(assigned, rule, mesh, operands, results) do
    faults = Enum.flat_map(assigned, &factor_faults(&1, assigned, rule, mesh, operands, results))
    if faults == [], do: :ok, else: {:error, Error.join(faults)}
  end

  defp factor_faults({factor, axes}, assigned, rule, mesh, operands, results) do
    size = Map.new(rule.sizes)[factor]
    count = devices(axes, mesh)
    where = first_place(factor, rule, operands, results)

    cond do
      factor in rule.need_replication ->
        [
          fault(
            "#{where}: the factor #{show(factor)} needs replication, so #{names(axes)} cannot split it: " <>
              "each device needs all of it; #{alternatives(rule, axes)}"
          )
        ]

      factor in rule.permutation ->
        [
          fault(
            "#{where}: splitting the factor #{show(factor)} by #{names(axes)} makes devices exchange data inside the call, " <>
              "which a kernel that sees its own part cannot; #{alternatives(rule, axes)}"
          )
        ]

      # A call without results is there for its effect.
      rule.results != [] and factor not in rule.reduction and not in_any?(rule.results, factor) ->
        [
          fault(
            "#{where}: the factor #{show(factor)} is in no result and no reduction, so split by #{names(axes)} each " <>
              "device would have another result; put it among the :reduction factors of the rule, or " <>
              ":need_replication"
          )
        ]

      not in_any?(rule.operands, factor) ->
        [
          fault(
            "#{where}: the factor #{show(factor)} is in no operand, so a kernel that is split by #{names(axes)} " <>
              "cannot know which part it computes; leave it whole, or give the call an operand that has it"
          )
        ]

      rem(size, count) != 0 ->
        [
          fault(
            "#{where}: the factor #{show(factor)} is #{size}, which #{names(axes)} of #{count} devices does not divide; " <>
              "#{fitting(size)}"
          )
        ]

      true ->
        scattered(factor, axes, assigned, rule, mesh, operands, results)
    end
  end

  defp in_any?(values, factor),
    do: Enum.any?(values, fn value -> Enum.any?(value, &(factor in &1)) end)

  # A minor factor may be split only where the ones before it have a single element left on each device:
  # elsewhere the part of a device would not be one piece of the dimension.
  defp scattered(factor, axes, assigned, rule, mesh, operands, results) do
    size = Map.new(rule.sizes)

    found =
      for {value, typespec, name} <- named_values(rule, operands, results),
          {factors, dimension} <- Enum.with_index(value),
          factor in factors,
          major <- Enum.take_while(factors, &(&1 != factor)),
          left =
            div(
              size[major],
              devices(List.keyfind(assigned, major, 0, {major, []}) |> elem(1), mesh)
            ),
          left > 1,
          do: {name, dimension, factors, major, left, typespec}

    case found do
      [] ->
        []

      [{name, dimension, factors, major, left, typespec} | _] ->
        product = Enum.map_join(factors, " x ", &"#{show(&1)} (#{size[&1]})")

        [
          fault(
            "#{name}, dimension #{dimension} of #{inspect(typespec.shape)}, is #{product}: splitting #{show(factor)} by " <>
              "#{names(axes)} would give each device a piece of each of #{left} #{show(major)}; split " <>
              "#{show(major)} by an axis of #{left} devices first, or by #{names(axes)} instead"
          )
        ]
    end
  end

  defp named_values(rule, operands, results) do
    name = fn values, typespecs, role ->
      [values, typespecs, 0..(length(values) - 1)//1]
      |> Enum.zip_with(fn [value, typespec, index] -> {value, typespec, "#{role} #{index}"} end)
    end

    name.(rule.operands, operands, "operand") ++ name.(rule.results, results, "result")
  end

  defp first_place(factor, rule, operands, results) do
    Enum.find_value(named_values(rule, operands, results), fn {value, typespec, name} ->
      index = Enum.find_index(value, &(factor in &1))
      index && "#{name}, dimension #{index} of #{inspect(typespec.shape)}"
    end)
  end

  defp place({operand, dimension, typespec}) do
    "operand #{operand}, dimension #{dimension} of #{inspect(typespec.shape)}"
  end

  defp alternatives(rule, axes) do
    free =
      for {name, size} <- rule.sizes,
          size > 1,
          name not in rule.need_replication,
          name not in rule.permutation,
          do: show(name)

    case free do
      [] -> "leave it whole: the rule has no factor that can be split"
      free -> "split #{Enum.join(free, ", ")} by #{names(axes)}, or leave it whole"
    end
  end

  defp fitting(size) do
    case for(n <- 2..min(size, 4096)//1, rem(size, n) == 0, do: n) do
      [] -> "leave it whole"
      counts -> "take #{shortened(counts)} devices, or pad the dimension"
    end
  end

  defp shortened(counts) when length(counts) <= 6, do: alternatives_of(counts)
  defp shortened(counts), do: alternatives_of(Enum.take(counts, 5) ++ ["..."])

  defp alternatives_of([one]), do: "#{one}"

  defp alternatives_of(list),
    do: "#{list |> Enum.drop(-1) |> Enum.join(", ")} or #{List.last(list)}"

  defp split(rule, assigned, mesh, operands, results) do
    %__MODULE__{
      mesh: mesh,
      operands: values(rule.operands, assigned, mesh, operands),
      results: values(rule.results, assigned, mesh, results),
      reduced: for({factor, axes} <- assigned, factor in rule.reduction, axis <- axes, do: axis)
    }
  end

  defp values(mappings, assigned, mesh, typespecs) do
    Enum.zip_with(mappings, typespecs, fn mapping, typespec ->
      dimensions =
        for factors <- mapping do
          axes =
            Enum.flat_map(factors, fn factor ->
              assigned |> List.keyfind(factor, 0, {factor, []}) |> elem(1)
            end)

          %{axes: axes, open: false, priority: nil}
        end

      sharding = %Sharding{mesh: mesh, dimensions: dimensions}
      {sharding, %Typespec{typespec | shape: Sharding.local_shape(sharding, typespec.shape)}}
    end)
  end

  defp devices(axes, mesh), do: axes |> Enum.map(&Mesh.axis_size!(mesh, &1)) |> Enum.product()

  defp names(axes), do: Enum.map_join(axes, ", ", &inspect/1)

  defp show(factor), do: text(factor)

  @doc false
  # The rule of a spec, unless another is given.
  def rule(nil, spec) do
    case List.keyfind(EXLA.CustomCall.SpecTerms.mlir_attributes(spec), "sdy.sharding_rule", 0) do
      {_, text} ->
        ShardingRule.parse(text)

      nil ->
        error(
          "the spec has no sdy.sharding_rule, by which the call would be split; give it one, see " <>
            "EXLA.CustomCall.Attribute.sharding_rule/4"
        )
    end
  end

  def rule(%ShardingRule{} = rule, _spec), do: {:ok, ShardingRule.formed!(rule)}

  def rule(text, _spec) when is_binary(text), do: ShardingRule.parse(text)

  def rule(other, _spec) do
    error(
      "expected :sharding_rule to be an EXLA.CustomCall.ShardingRule or its text, got: #{inspect(other)}"
    )
  end

  defp fault(message), do: Error.new(:argument, "partition: " <> message, field: :partition)
  defp error(message), do: {:error, fault(message)}
end
