defmodule Fuzz.Targets.Native do
  @moduledoc false

  # The NIF's own functions, with terms that are right but for a part, and with any. A term of the wrong
  # shape is an ArgumentError without words, since only this package calls them.

  use Fuzz.Target, client: true, outcome: [bare: true]

  alias EXLA.CustomCall.{Native, Plugin}

  @f32x4 {17, [4]}
  @four :binary.copy(<<0, 0, 128, 63>>, 4)
  @options %{
    replicas: 1,
    partitions: 1,
    spmd: false,
    shardy: false,
    propagate_to_outputs: [],
    propagate_to_parameters: [],
    parameter_count: 2,
    result_count: 1,
    device_assignment: [[0]],
    donate: [0],
    xla_options: []
  }

  @graph {"m", [{"a", "1"}], [{"mesh", ~S(#sdy.mesh<["x"=2]>)}],
          [
            {"main", false, [{0, @f32x4, [{"b", "2"}]}, {1, {0, []}, []}], [{@f32x4, []}],
             [
               {{0, "k", 4, [{"c", "3 : i32"}], nil, [{"d", "true"}]}, [0], 2, [@f32x4], []},
               {{1, @four}, [], 3, [@f32x4], []},
               {{2, "g"}, [2], 4, [:token], []},
               {{3, "stablehlo.if", [{"e", "[1]"}]}, [1], 5, [@f32x4],
                [{[{6, @f32x4}], [{{3, "a.b", []}, [6, 2], 7, [@f32x4], []}], nil, [7]}]}
             ], [5]},
            {"g", true, [{0, @f32x4, []}], [{:token, []}],
             [{{3, "a.token", []}, [], 1, [:token], []}], [1]}
          ]}

  # The tag stands for itself: it is what the answer comes with.
  @calls [
    {:context_new, [64, 1000, 1000, nil]},
    {:attribute_dictionary, [[{"a", "1 : i64"}]]},
    {:module_build, [nil, @graph]},
    {:module_build, [nil, @graph]},
    {:module_build, [nil, @graph]},
    {:module_build_dirty, [{:"$", :context_ref}, @graph]},
    {:module_check, [nil, @graph]},
    {:module_check_dirty, [{:"$", :context_ref}, @graph]},
    {:module_check_needs, [{:"$", :module_ref}, true, {0, 106}]},
    {:module_donating, [{:"$", :module_ref}, [0]]},
    {:context_stats, [{:"$", :context_ref}]},
    {:module_text, [{:"$", :module_ref}]},
    {:module_to_text_dirty, [{:"$", :module_ref}]},
    {:module_custom_calls, [{:"$", :module_ref}]},
    {:module_custom_calls_dirty, [{:"$", :module_ref}]},
    {:client_new, [{:"$", :plugin}, [{"cpu_device_count", 1}]]},
    {:client_info, [{:"$", :client_ref}]},
    {:client_compile, [{:"$", :client_ref}, {:"$", :module_ref}, @options, :tag]},
    {:client_compile, [{:"$", :client_ref}, {:"$", :module_ref}, @options, :tag]},
    {:client_deserialize, [{:"$", :client_ref}, {:"$", :serialized}, :tag]},
    {:library_load,
     [{:"$", :client_ref}, {:"$", :linalg}, [{"t", {"qr_f32", nil, nil, nil, nil}}]]},
    {:library_load, [{:"$", :client_ref}, {:"$", :linalg}, nil]},
    {:buffer_from_binary, [{:"$", :client_ref}, 0, {@f32x4, @four, [4]}, :tag]},
    {:buffer_from_binary, [{:"$", :client_ref}, 0, {{17, [2, 2]}, @four, [8, 4]}, :tag]},
    {:buffer_from_binary, [{:"$", :client_ref}, 0, {@f32x4, @four, nil}, :tag]},
    {:buffer_to_binary, [{:"$", :buffer_ref}, :tag]},
    {:buffer_to_device, [{:"$", :buffer_ref}, 1, :tag]},
    {:buffer_delete, [{:"$", :buffer_ref}, :tag]},
    {:buffer_deleted, [{:"$", :buffer_ref}]},
    {:buffer_info, [{:"$", :buffer_ref}]},
    {:executable_run,
     [
       {:"$", :executable_ref},
       [[{@f32x4, @four}, {:"$", :buffer_ref}]],
       {[1], true, [{"n", "d"}]},
       :tag
     ]},
    {:executable_run,
     [{:"$", :executable_ref}, [[{@f32x4, @four}, {@f32x4, @four}]], {[], false, []}, :tag]},
    {:executable_run,
     [
       {:"$", :executable_ref},
       [[{:"$", :buffer_ref}, {:"$", :buffer_ref}]],
       {[0, 1], true, []},
       :tag
     ]},
    {:executable_run,
     [
       {:"$", :sharded_ref},
       [[{@f32x4, @four}, {@f32x4, @four}], [{@f32x4, @four}, {@f32x4, @four}]],
       {[], true, []},
       :tag
     ]},
    {:shardy_read, [~S(#sdy.sharding<@mesh, [{"x"}]>), [{"mesh", ~S(#sdy.mesh<["x"=2]>)}]]},
    {:executable_shardings, [{:"$", :sharded_ref}]},
    {:tensor_split, [@four, 4, [2, 2], [{[0, 0], [1, 2]}, {[0, 1], [2, 1]}]]},
    {:tensor_split_dirty, [@four, 4, [2, 2], [{[0, 0], [2, 2]}]]},
    {:tensor_join, [["abcd", "efgh"], 4, [2], [{[0], [1]}, {[1], [1]}]]},
    {:tensor_join_dirty, [["abcd"], 1, [2, 2], [{[0, 0], [2, 2]}]]},
    {:executable_info, [{:"$", :executable_ref}]},
    {:executable_types, [{:"$", :executable_ref}]},
    {:executable_hlo_text, [{:"$", :executable_ref}]},
    {:executable_serialize, [{:"$", :executable_ref}, :tag]},
    {:answer_cancel, [{:"$", :ticket}]},
    {:answer_settled, [{:"$", :ticket}]},
    {:process_handler_register, [{:"$", :client_ref}, "target", {:"$", :pid}, 100]},
    {:process_handler_answer, [{:"$", :ticket}, {:ok, [@four]}]}
  ]

  def generate do
    {function, arguments} = Gen.pick(@calls)

    arguments =
      Gen.weighted([
        {8, fn -> one_wrong(arguments, 9) end},
        {4, fn -> arguments |> one_wrong(9) |> one_wrong(9) end},
        {1, fn -> Enum.map(arguments, fn _ -> Gen.term() end) end},
        {1, fn -> Enum.map(arguments, &swap/1) end},
        {1, fn -> arguments end}
      ])

    {function, arguments}
  end

  defp one_wrong(arguments, depth) do
    List.update_at(arguments, Gen.int(0, length(arguments) - 1), &Gen.mutate_term(&1, depth))
  end

  # A resource of another kind.
  defp swap({:"$", _}), do: Gen.special()
  defp swap(other), do: other

  def setup(env) do
    {:ok, serialized} = Native.await(&Native.executable_serialize(env.executable.ref, &1))
    {:ok, plugin} = Plugin.resolve(:cpu)
    linalg = Application.app_dir(:exla_custom_call, "priv/native/xla_ffi_linalg.so")

    state = %{
      serialized: serialized,
      plugin: plugin,
      linalg: linalg,
      sharded_ref: env.sharded.ref
    }

    check_calls!(env, state)
    state
  end

  # Arguments that are wrong from the start would never get past the first check, and a function that is
  # not here would get none. A responder stands nowhere but in a message.
  defp check_calls!(env, state) do
    own = [:await, :answer, :from_native, :load]

    for {function, _arity} <- Native.__info__(:functions),
        function not in own,
        not List.keymember?(@calls, function, 0) do
      raise "#{function} is not among the functions that are fuzzed"
    end

    for {function, arguments} <- Enum.uniq(@calls), function != :process_handler_answer do
      try do
        __MODULE__.try({function, arguments}, env, state)
      rescue
        error in ArgumentError ->
          reraise "the arguments of #{function} are not right: #{error.message}", __STACKTRACE__
      end
    end
  end

  def try({function, arguments}, env, state) do
    arguments = arguments |> names(state) |> Env.resolve(env)

    if List.last(arguments) == :tag do
      arguments = List.delete_at(arguments, -1)

      case Native.await(fn tag -> apply(Native, function, arguments ++ [tag]) end, 15_000) do
        :timeout -> {:violated, "no answer within 15 seconds"}
        answer -> answer
      end
    else
      apply(Native, function, arguments)
    end
  end

  defp names({:"$", name} = special, state), do: Map.get(state, name, special)
  defp names([head | tail], state), do: [names(head, state) | names(tail, state)]

  defp names(term, state) when is_tuple(term) do
    term |> Tuple.to_list() |> names(state) |> List.to_tuple()
  end

  defp names(term, state) when is_map(term), do: Map.new(term, &names(&1, state))
  defp names(term, _state), do: term
end
