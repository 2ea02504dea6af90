defmodule EXLA.CustomCall.ShardingRuleTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.ShardingRule

  doctest EXLA.CustomCall.ShardingRule

  test "a rule that is read from the text of another has Shardy's names for its factors" do
    rule =
      ShardingRule.new(
        [[:batch, [:heads, :group], :depth], [:batch, :heads, :depth]],
        [[:batch, [:heads, :group]]],
        [batch: 2, heads: 4, group: 3, depth: 8],
        need_replication: [:depth],
        blocked_propagation: [:batch]
      )

    text = to_string(rule)

    assert text ==
             "#sdy.op_sharding_rule<([i, jk, l], [i, j, l])->([i, jk]) {i=2, j=4, k=3, l=8} " <>
               "need_replication={l} blocked_propagation={i}, custom>"

    {:ok, read} = ShardingRule.parse(text)
    assert read.operands == [[["i"], ["j", "k"], ["l"]], [["i"], ["j"], ["l"]]]
    assert read.need_replication == ["l"]
    assert to_string(read) == text
  end

  test "a rule of more than 18 factors reads back" do
    names = for index <- 1..20, do: "f#{index}"
    rule = ShardingRule.new([names], [names], Enum.map(names, &{&1, 2}))
    {:ok, read} = ShardingRule.parse(to_string(rule))
    assert length(read.sizes) == 20
    assert List.last(read.sizes) == {"z_2", 2}
  end

  test "a text that breaks Shardy's rules is refused" do
    {:error, error} =
      ShardingRule.parse("#sdy.op_sharding_rule<([i])->([i]) {i=2} reduction={i}>")

    assert error.message ==
             "a sharding rule: reduction, factor i: a result has it; results have no factor that is summed over"
  end
end
