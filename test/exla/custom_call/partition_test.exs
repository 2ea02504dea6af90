defmodule EXLA.CustomCall.PartitionTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{
    Attribute,
    Client,
    Executable,
    Library,
    Mesh,
    Module,
    Sharding,
    ShardingRule,
    Spec,
    Typespec,
    Value
  }

  @mesh Mesh.new(data: 2, model: 2)
  @type_ Typespec.tensor({:f, 32}, {4, 8})
  @row Typespec.tensor({:f, 32}, {4})

  # Rows are summed: each on its own, over all columns.
  @sum Attribute.sharding_rule([[:rows, :columns]], [[:rows]], [rows: 4, columns: 8],
         reduction: [:columns]
       )

  setup_all do
    client = Client.new!(plugin: :cpu, options: [cpu_device_count: 4])

    :ok =
      Library.register(client, "sum_rows", fn call ->
        [{bytes, %{shape: {_rows, columns}} = typespec}] = call.operands
        send(:partition_test, {:saw, typespec.shape})

        [
          for <<row::binary-size(columns * 4) <- bytes>>, into: <<>> do
            sum = for(<<x::float-32-native <- row>>, do: x) |> Enum.sum()
            <<sum::float-32-native>>
          end
        ]
      end)

    %{client: client}
  end

  defp spec(rule, target \\ "sum_rows") do
    %Spec{call_target_name: target, mlir_attributes: [{"sdy.sharding_rule", rule}]}
  end

  defp sum(sharding, opts) do
    x = Value.parameter(@type_, sharding: sharding)
    Value.custom_call([x], spec(@sum), [@row], opts)
  end

  defp refusal(fun) do
    assert_raise(ArgumentError, fun).message
  end

  describe "what is emitted" do
    test "a split call is in a manual computation with the parts of one device" do
      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, ["data", nil]))
      y = Value.custom_call([x], spec(@sum), [@row], partition: :auto)
      text = to_string(Module.build!([x], y))

      assert text =~ ~S'''
             module {
               "sdy.mesh"() {mesh = #sdy.mesh<["data"=2, "model"=2]>, sym_name = "mesh"} : () -> ()
               func.func @main(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>}) {
                 %0 = "sdy.manual_computation"(%arg0) ({
                 ^bb0(%arg1: tensor<2x8xf32>):
                   %1 = "stablehlo.custom_call"(%arg1) {api_version = 4 : i32, call_target_name = "sum_rows", operand_layouts = [dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<0> : tensor<1xindex>]} : (tensor<2x8xf32>) -> tensor<2xf32>
                   "sdy.return"(%1) : (tensor<2xf32>) -> ()
                 }) {in_shardings = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>, manual_axes = #sdy<manual_axes{"data", "model"}>, out_shardings = #sdy.sharding_per_value<[<@mesh, [{"data"}]>]>} : (tensor<4x8xf32>) -> tensor<4xf32>
                 return %0 : tensor<4xf32>
               }
             }
             '''
    end

    test "a reduction factor that is split is summed over the devices that split it" do
      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, [nil, "model"]))

      text =
        to_string(
          Module.build!([x], Value.custom_call([x], spec(@sum), [@row], partition: :auto))
        )

      assert text =~ "stablehlo.all_reduce"
      assert text =~ "replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"
      assert text =~ "stablehlo.add"
    end

    test "the caller may say how results are combined, or that they are the same already" do
      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, [nil, "model"]))

      emit = fn reduce ->
        y = Value.custom_call([x], spec(@sum), [@row], partition: :auto, reduce: reduce)
        to_string(Module.build!([x], y))
      end

      assert emit.(:max) =~ "stablehlo.maximum"
      refute emit.(nil) =~ "all_reduce"
      assert emit.([:min]) =~ "stablehlo.minimum"

      assert refusal(fn -> emit.(:mean) end) ==
               "expected :reduce to be one of nil, :sum, :product, :max, :min, :and, :or, or a list of one for " <>
                 "each of the 1 results, got: :mean"
    end

    test "a reduction that the type of a result does not have is refused" do
      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, [nil, "model"]))

      assert refusal(fn ->
               Value.custom_call([x], spec(@sum), [@row], partition: :auto, reduce: :and)
             end) == "reduce: :and does not combine elements of {:f, 32}; take :sum or :product"
    end

    test "two collectives of a module have channels of their own" do
      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, [nil, "model"]))
      call = fn -> hd(Value.custom_call([x], spec(@sum), [@row], partition: :auto)) end
      text = to_string(Module.build!([x], [call.(), call.()]))
      channels = Regex.scan(~r/channel_handle<handle = (\d+)/, text, capture: :all_but_first)
      assert length(channels) == 2
      assert Enum.uniq(channels) == channels
    end

    test "without a partition the rule stays on the operation, for an XLA that has a partitioner" do
      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, ["data", nil]))
      text = to_string(Module.build!([x], Value.custom_call([x], spec(@sum), [@row])))
      assert text =~ "sdy.sharding_rule = #sdy.op_sharding_rule"
      refute text =~ "manual_computation"
    end

    test "layouts and aliases stay, and the rule goes, where there is nothing left to split" do
      rule =
        Attribute.sharding_rule([[:rows, :columns]], [[:rows, :columns]], rows: 4, columns: 8)

      layouts = Attribute.layouts([[0, 1]])

      spec = %Spec{
        call_target_name: "k",
        mlir_attributes: [
          {"operand_layouts", layouts},
          {"result_layouts", layouts},
          {"sdy.sharding_rule", rule}
        ]
      }

      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, ["data", "model"]))
      module = Module.build!([x], Value.custom_call([x], spec, [@type_], partition: :auto))
      assert [call] = Module.custom_calls(module)
      assert call.mlir_attributes == [{"operand_layouts", layouts}, {"result_layouts", layouts}]
      assert call.operands == [Typespec.tensor({:f, 32}, {2, 4})]
    end

    test "the spec of one device may depend on its sizes" do
      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, ["data", nil]))

      local = fn [%{shape: {rows, _}}], [_] ->
        %{spec(@sum) | attributes: [{"rows", Attribute.integer(rows, {:s, 64})}]}
      end

      y = Value.custom_call([x], spec(@sum), [@row], partition: :auto, local: local)
      assert [%{attributes: [{"rows", "2 : i64"}]}] = Module.custom_calls(Module.build!([x], y))
    end

    test "the major factor of a product is split first, and the next where one is left of it" do
      mesh = Mesh.new(a: 2, b: 3)
      q = Typespec.tensor({:f, 32}, {6})
      k = Typespec.tensor({:f, 32}, {2})

      rule =
        Attribute.sharding_rule([[[:heads, :group]], [:heads]], [[[:heads, :group]]],
          heads: 2,
          group: 3
        )

      values = [
        Value.parameter(q, sharding: Sharding.new(mesh, [["a", "b"]])),
        Value.parameter(k, sharding: Sharding.new(mesh, ["a"]))
      ]

      [out] = Value.custom_call(values, spec(rule), [q], partition: :auto)
      assert to_string(out.sharding) == ~S(#sdy.sharding<@mesh, [{"a", "b"}]>)
      [call] = Module.custom_calls(Module.build!(values, [out]))
      assert Enum.map(call.operands, & &1.shape) == [{1}, {1}]
    end

    test "factors may be named by the rule's letters, by names of a rule, and by dimensions" do
      rule =
        ShardingRule.new([[:rows, :columns]], [[:rows]], [rows: 4, columns: 8],
          reduction: [:columns]
        )

      for {partition, opts} <- [
            {%{"i" => "data"}, []},
            {%{{:operand, 0, 0} => ["data"]}, []},
            {%{{:result, 0, 0} => ["data"]}, []},
            {%{rows: "data"}, [sharding_rule: rule]},
            {[rows: :data], [sharding_rule: rule]},
            {%{"i" => "data"}, [sharding_rule: to_string(rule)]}
          ] do
        [y] = sum(nil, [partition: partition, mesh: @mesh] ++ opts)
        assert to_string(y.sharding) == ~S(#sdy.sharding<@mesh, [{"data"}]>)
      end
    end
  end

  describe "refused is" do
    test "splitting a group of query heads that share a key and value head" do
      mesh = Mesh.new(model: 4)
      q = Value.parameter(Typespec.tensor({:f, 32}, {8}), sharding: Sharding.new(mesh, ["model"]))
      k = Value.parameter(Typespec.tensor({:f, 32}, {2}))

      rule =
        Attribute.sharding_rule([[[:heads, :group]], [:heads]], [[[:heads, :group]]],
          heads: 2,
          group: 4
        )

      call = &Value.custom_call([q, k], spec(rule), [q.typespec], &1)

      assert refusal(fn -> call.(partition: :auto) end) ==
               ~S(partition: operand 0, dimension 0 of {8}: the factor i is 2, which "model" of 4 devices does not divide; take 2 devices, or pad the dimension)

      assert refusal(fn -> call.(partition: %{"j" => "model"}) end) ==
               ~S|partition: operand 0, dimension 0 of {8}, is i (2) x j (4): splitting j by "model" would give each device a piece of each of 2 i; split i by an axis of 2 devices first, or by "model" instead|
    end

    test "a size that the axis does not divide" do
      mesh = Mesh.new(x: 3)

      assert refusal(fn -> sum(Sharding.new(mesh, [nil, nil]), partition: %{"i" => "x"}) end) ==
               ~S(partition: operand 0, dimension 0 of {4, 8}: the factor i is 4, which "x" of 3 devices does not divide; take 2 or 4 devices, or pad the dimension)
    end

    test "an axis that the mesh lacks" do
      assert refusal(fn -> sum(nil, mesh: @mesh, partition: %{"i" => "x"}) end) ==
               ~S(partition: the mesh "mesh" has no axis "x"; it has "data", "model")
    end

    test "an axis used twice" do
      assert refusal(fn ->
               sum(nil, mesh: @mesh, partition: %{"i" => "data", "j" => ["model", "data"]})
             end) ==
               ~S(partition: the axis "data" is used twice, by i and j; an axis splits one factor, once)
    end

    test "a factor that needs replication" do
      rule =
        Attribute.sharding_rule([[:rows, :columns]], [[:rows, :columns]], [rows: 4, columns: 8],
          need_replication: [:columns]
        )

      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, [nil, "model"]))

      assert refusal(fn -> Value.custom_call([x], spec(rule), [@type_], partition: :auto) end) ==
               ~S(partition: operand 0, dimension 1 of {4, 8}: the factor j needs replication, so "model" cannot split it: each device needs all of it; split i by "model", or leave it whole)
    end

    # Each device would have a sum of its own, under a result that says they all have the same.
    test "a factor in operands alone that the rule does not call a reduction" do
      rule = Attribute.sharding_rule([[:rows, :columns]], [[:rows]], rows: 4, columns: 8)
      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, [nil, "model"]))

      assert refusal(fn -> Value.custom_call([x], spec(rule), [@row], partition: :auto) end) ==
               ~S(partition: operand 0, dimension 1 of {4, 8}: the factor j is in no result and no reduction, so split by "model" each device would have another result; put it among the :reduction factors of the rule, or :need_replication)
    end

    test "a factor in results alone: a kernel cannot know which part it is to compute" do
      rule = Attribute.sharding_rule([[:rows]], [[:rows, :columns]], rows: 4, columns: 8)
      x = Value.parameter(@row, sharding: Sharding.new(@mesh, ["data"]))

      assert refusal(fn ->
               Value.custom_call([x], spec(rule), [@type_], partition: %{"j" => "model"})
             end) ==
               ~S(partition: result 0, dimension 1 of {4, 8}: the factor j is in no operand, so a kernel that is split by "model" cannot know which part it computes; leave it whole, or give the call an operand that has it)
    end

    test "a factor whose split makes devices exchange data inside the call" do
      rule = Attribute.sharding_rule([[:rows]], [[:rows]], [rows: 4], permutation: [:rows])
      x = Value.parameter(@row, sharding: Sharding.new(@mesh, ["data"]))

      assert refusal(fn -> Value.custom_call([x], spec(rule), [@row], partition: :auto) end) ==
               ~S(partition: operand 0, dimension 0 of {4}: splitting the factor i by "data" makes devices exchange data inside the call, which a kernel that sees its own part cannot; leave it whole: the rule has no factor that can be split)
    end

    test "a factor that the rule lacks, and a call without a rule" do
      assert refusal(fn -> sum(nil, mesh: @mesh, partition: %{heads: "data"}) end) ==
               ~S(partition: the sharding rule has no factor :heads; it has "i", "j"; a rule's text keeps no other names, so give the rule itself as :sharding_rule)

      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, ["data", nil]))
      plain = %Spec{call_target_name: "k"}

      assert refusal(fn -> Value.custom_call([x], plain, [@row], partition: :auto) end) =~
               "partition: the spec has no sdy.sharding_rule, by which the call would be split"
    end

    test "a partition by shardings that nobody knows, or over no mesh" do
      assert refusal(fn -> sum(nil, mesh: @mesh, partition: :auto) end) =~
               "partition: :auto goes by the shardings of the operands, and none is known; give parameters a :sharding"

      assert refusal(fn -> sum(nil, partition: %{"i" => "data"}) end) =~
               "partition: no mesh is known; give the option :mesh"
    end

    test "operands that split a factor differently" do
      type = Typespec.tensor({:f, 32}, {4})
      rule = Attribute.sharding_rule([[:rows], [:rows]], [[:rows]], rows: 4)

      values =
        for axis <- ["data", "model"],
            do: Value.parameter(type, sharding: Sharding.new(@mesh, [axis]))

      assert refusal(fn -> Value.custom_call(values, spec(rule), [type], partition: :auto) end) ==
               ~S(partition: operand 1 splits the factor i by "model", and an operand before it by "data"; give both the same sharding)
    end

    test "a rule whose sizes are not those of the tensors" do
      rule = Attribute.sharding_rule([[:rows]], [[:rows]], rows: 3)
      x = Value.parameter(@row, sharding: Sharding.new(@mesh, ["data"]))

      assert refusal(fn -> Value.custom_call([x], spec(rule), [@row], partition: :auto) end) ==
               "partition: the factors of operand 0 multiply to {3}, and its shape is {4}; a partitioned call is split by the factors, so give them the sizes of the dimensions"
    end

    test "a token, which is no tensor" do
      rule = Attribute.sharding_rule([[]], [[]], [])
      [token] = Value.op("stablehlo.create_token", [], [Typespec.token()])

      assert refusal(fn ->
               Value.custom_call([token], spec(rule), [Typespec.token()],
                 partition: %{},
                 mesh: @mesh
               )
             end) =~
               "partition: operand 0 is #EXLA.CustomCall.Typespec<token>; a partitioned call has tensors only"
    end

    test "a mesh that is not that of the operands, and two meshes of one name in a module" do
      other = Mesh.new(x: 4)

      assert refusal(fn ->
               sum(Sharding.new(@mesh, ["data", nil]), mesh: other, partition: %{"i" => "x"})
             end) ==
               ~S(partition: the mesh is #EXLA.CustomCall.Mesh<@mesh ["x"=4]>, and an operand is split over #EXLA.CustomCall.Mesh<@mesh ["data"=2, "model"=2]>)

      [x, y] =
        for {mesh, axis} <- [{@mesh, "data"}, {other, "x"}],
            do: Value.parameter(@row, sharding: Sharding.new(mesh, [axis]))

      assert {:error, error} = Module.build([x, y], [x, y])

      assert error.message ==
               ~S(two meshes are called "mesh": #EXLA.CustomCall.Mesh<@mesh ["data"=2, "model"=2]> and #EXLA.CustomCall.Mesh<@mesh ["x"=4]>; use one, or name them differently)
    end
  end

  describe "on four devices" do
    setup do
      Process.register(self(), :partition_test)
      :ok
    end

    @input for i <- 0..31, into: <<>>, do: <<i * 1.0::float-32-native>>
    @sums for i <- [28.0, 92.0, 156.0, 220.0], into: <<>>, do: <<i::float-32-native>>

    defp seen do
      receive do
        {:saw, shape} -> [shape | seen()]
      after
        0 -> []
      end
    end

    defp compile(client, sharding, opts) do
      x = Value.parameter(@type_, sharding: sharding)
      module = Module.build!([x], Value.custom_call([x], spec(@sum), [@row], opts))
      Client.compile!(client, module)
    end

    for {dimensions, local, collectives} <- [
          {["data", nil], {2, 8}, 0},
          {[["data", "model"], nil], {1, 8}, 0},
          {["data", "model"], {2, 4}, 1},
          {[nil, ["model", "data"]], {4, 2}, 1}
        ] do
      test "split as #{inspect(dimensions)}, each device sees #{inspect(local)} only, and the result is that of the whole",
           %{client: client} do
        sharding = Sharding.new(@mesh, unquote(dimensions))
        executable = compile(client, sharding, partition: :auto)
        assert Executable.run!(executable, [@input], results: :binary) == [@sums]
        assert seen() == List.duplicate(unquote(Macro.escape(local)), 4)
        hlo = Executable.hlo_text!(executable)
        refute hlo =~ "all-gather"
        assert length(Regex.scan(~r/ all-reduce\(/, hlo)) == unquote(collectives)
        assert %{parameters: [^sharding]} = Executable.shardings!(executable)
      end
    end

    test "unsplit, XLA gathers the operand, and each device works on all of it: why there is :partition",
         %{client: client} do
      executable = compile(client, Sharding.new(@mesh, ["data", nil]), [])
      assert Executable.run!(executable, [@input], results: :binary) == [@sums]
      assert seen() == List.duplicate({4, 8}, 4)
      assert Executable.hlo_text!(executable) =~ "all-gather"
    end

    test "the order of the mesh's devices is the order of the parts", %{client: client} do
      mesh = Mesh.new([data: 2, model: 2], devices: [3, 1, 2, 0])
      executable = compile(client, Sharding.new(mesh, ["model", "data"]), partition: :auto)
      assert Executable.run!(executable, [@input], results: :binary) == [@sums]
    end

    test "buffers stay on their devices, and are inputs again", %{client: client} do
      executable = compile(client, Sharding.new(@mesh, ["data", nil]), partition: :auto)
      {:ok, [parts]} = Executable.run(executable, [@input])
      assert length(parts) == 4

      y = Value.parameter(@row, sharding: Sharding.new(@mesh, ["data"]))
      [double] = Value.op("stablehlo.add", [y, y], [@row])
      module = Module.build!([y], [{double, Sharding.new(@mesh, ["data"])}])
      executable = Client.compile!(client, module)

      expected = for <<x::float-32-native <- @sums>>, into: <<>>, do: <<2 * x::float-32-native>>
      assert Executable.run!(executable, [parts], results: :binary) == [expected]
    end

    test "a call with an effect runs on each device, also where nothing is split", %{
      client: client
    } do
      spec = spec(@sum)
      spec = %{spec | mlir_attributes: [{"has_side_effect", "true"} | spec.mlir_attributes]}
      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, ["data", nil]))

      module =
        Module.build!([x], Value.custom_call([x], spec, [@row], partition: %{}, mesh: @mesh))

      executable = Client.compile!(client, module)
      assert Executable.run!(executable, [@input], results: :binary) == [@sums]
      assert seen() == List.duplicate({4, 8}, 4)
    end

    test "however a matrix is split over however devices are ordered, the sums are those of the whole",
         %{client: client} do
      :rand.seed(:exsss, 5)

      for _ <- 1..30 do
        axes = Enum.random([[a: 4], [a: 2, b: 2], [a: 1, b: 4], [a: 2, b: 1, c: 2]])
        mesh = Mesh.new(axes, devices: Enum.shuffle(0..3))
        # Each axis splits the rows, the columns or nothing, in any order.
        places =
          axes |> Keyword.keys() |> Enum.shuffle() |> Enum.group_by(fn _ -> Enum.random(0..2) end)

        sharding = Sharding.new(mesh, [places[0] || [], places[1] || []])
        executable = compile(client, sharding, partition: :auto)

        assert {sharding, Executable.run!(executable, [@input], results: :binary)} ==
                 {sharding, [@sums]}

        assert Enum.uniq(seen()) == [Sharding.local_shape(sharding, @type_.shape)]
      end
    end

    test "a computed value is split where it is said how, and calls follow each other on their shards",
         %{client: client} do
      rule = ShardingRule.new([[:rows]], [[:rows]], rows: 4)
      :ok = Library.register(client, "copy", fn %{operands: [{bytes, _}]} -> [bytes] end)
      x = Value.parameter(@type_)
      [double] = Value.op("stablehlo.add", [x, x], [@type_])
      double = Value.shard(double, Sharding.new(@mesh, [["data", "model"], nil]))
      [sums] = Value.custom_call([double], spec(@sum), [@row], partition: :auto)
      copy = %Spec{call_target_name: "copy"}
      values = Value.custom_call([sums], copy, [@row], partition: :auto, sharding_rule: rule)
      executable = Client.compile!(client, Module.build!([x], values))

      expected = for <<n::float-32-native <- @sums>>, into: <<>>, do: <<2 * n::float-32-native>>
      assert Executable.run!(executable, [@input], results: :binary) == [expected]
      assert seen() == List.duplicate({1, 8}, 4)
      refute Executable.hlo_text!(executable) =~ ~r/all-gather|all-reduce|collective-permute/
    end

    # XLA gathers the columns behind the call, and would have the call's result column-major for it.
    test "what follows a call does not change the layouts that its kernel sees", %{client: client} do
      :ok = Library.register(client, "copy", fn %{operands: [{bytes, _}]} -> [bytes] end)
      rule = ShardingRule.new([[:rows, :columns]], [[:rows, :columns]], rows: 4, columns: 8)
      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, [nil, "model"]))
      copy = %Spec{call_target_name: "copy"}
      [y] = Value.custom_call([x], copy, [@type_], partition: :auto, sharding_rule: rule)
      module = Module.build!([x], [Value.shard(y, Sharding.replicated(@mesh, 2))])
      executable = Client.compile!(client, module)
      assert Executable.run!(executable, [@input], results: :binary) == [@input]
    end

    test "a program on a mesh may have no parameters, and a mesh of one device no shardings",
         %{client: client} do
      constant = Value.constant(@input, @type_)
      module = Module.build!([], [constant], mesh: @mesh)
      assert Executable.run!(Client.compile!(client, module), [], results: :binary) == [@input]

      x = Value.parameter(@type_)
      [y] = Value.op("stablehlo.negate", [x], [@type_])
      [z] = Value.op("stablehlo.negate", [y], [@type_])
      executable = Client.compile!(client, Module.build!([x], [z], mesh: Mesh.new(x: 1)))
      assert Executable.run!(executable, [@input], results: :binary) == [@input]

      assert inspect(executable) =~
               "-> [#EXLA.CustomCall.Typespec<f32[4][8]>] on #EXLA.CustomCall.Mesh<@mesh"
    end

    test "a call without results is made on each device", %{client: client} do
      :ok =
        Library.register(client, "look", fn %{operands: [{_, %{shape: shape}}]} ->
          send(:partition_test, {:saw, shape})
          []
        end)

      spec = %Spec{call_target_name: "look", mlir_attributes: [{"has_side_effect", "true"}]}
      rule = ShardingRule.new([[:rows, :columns]], [], rows: 4, columns: 8)
      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, ["data", "model"]))
      effects = Value.custom_call([x], spec, [], partition: :auto, sharding_rule: rule)
      executable = Client.compile!(client, Module.build!([x], [], effects: effects))
      assert Executable.run!(executable, [@input]) == []
      assert seen() == List.duplicate({2, 4}, 4)
    end

    test "a mesh of one device needs no partitioner", %{client: client} do
      sharding = Sharding.new(Mesh.new(x: 1), ["x", nil])
      executable = compile(client, sharding, partition: :auto)
      assert Executable.run!(executable, [@input], results: :binary) == [@sums]
      assert seen() == [{4, 8}]
      assert Executable.shardings!(executable) |> Map.keys() == [:parameters, :results]
    end

    test "an executable that was written and read again splits as before", %{client: client} do
      executable = compile(client, Sharding.new(@mesh, ["data", nil]), partition: :auto)
      {:ok, again} = Executable.deserialize(client, Executable.serialize!(executable))
      assert again.mesh == @mesh
      assert Executable.shardings!(again) == Executable.shardings!(executable)
      assert Executable.run!(again, [@input], results: :binary) == [@sums]
    end

    test "compile options that contradict the mesh are refused", %{client: client} do
      x = Value.parameter(@type_, sharding: Sharding.new(@mesh, ["data", nil]))
      module = Module.build!([x], Value.custom_call([x], spec(@sum), [@row], partition: :auto))

      for {opts, message} <- [
            {[partitions: 2],
             "the module is on a mesh, and so it needs 1 replica of 4 partitions, got 1 of 2; leave the options out"},
            {[replicas: 2],
             "the module is on a mesh, and so it needs 1 replica of 4 partitions, got 2 of 4; leave the options out"},
            {[shardy: false],
             "the module is on a mesh, and so it needs Shardy, which reads its shardings; leave :spmd and :shardy out"}
          ] do
        assert {:error, %{kind: :argument, message: ^message}} =
                 Client.compile(client, module, opts)
      end
    end

    test "inputs that do not fit are refused", %{client: client} do
      executable = compile(client, Sharding.new(@mesh, ["data", nil]), partition: :auto)
      {:ok, [[buffer | _]]} = Executable.run(executable, [@input])

      for {input, message} <- [
            {<<0>>, "input 0: #EXLA.CustomCall.Typespec<f32[4][8]> takes 128 bytes"},
            {[@input], "input 0: expected a whole tensor, or a list with the parts of 4 devices"},
            {buffer, "input 0: a buffer is on one device"},
            {List.duplicate(<<0>>, 4), "input 0: device 0: "}
          ] do
        assert {:error, %{kind: :argument} = error} = Executable.run(executable, [input])
        assert error.message =~ message
      end
    end
  end

  test "a program for 256 devices compiles and runs where the plugin makes that many of one processor" do
    client = Client.new!(plugin: :cpu, options: [cpu_device_count: 256])
    :ok = Library.register(client, "copy", fn %{operands: [{bytes, _}]} -> [bytes] end)
    mesh = Mesh.new(model: 256)
    type = Typespec.tensor({:u, 8}, {2, 512})
    rule = Attribute.sharding_rule([[:a, :b]], [[:a, :b]], a: 2, b: 512)
    x = Value.parameter(type, sharding: Sharding.new(mesh, [nil, "model"]))

    module =
      Module.build!([x], Value.custom_call([x], spec(rule, "copy"), [type], partition: :auto))

    executable = Client.compile!(client, module)
    input = for i <- 0..1023, into: <<>>, do: <<i>>
    assert Executable.run!(executable, [input], results: :binary) == [input]
    refute Executable.hlo_text!(executable) =~ "all-gather"
  end

  test "what is emitted does not grow with the mesh" do
    sizes =
      for n <- [8, 4096] do
        mesh = Mesh.new(model: n)
        type = Typespec.tensor({:f, 32}, {n, 2})
        rule = Attribute.sharding_rule([[:a, :b]], [[:a, :b]], a: n, b: 2)
        x = Value.parameter(type, sharding: Sharding.new(mesh, ["model", nil]))
        module = Module.build!([x], Value.custom_call([x], spec(rule), [type], partition: :auto))
        byte_size(to_string(module))
      end

    assert [small, large] = sizes
    assert large - small < 32
  end
end
