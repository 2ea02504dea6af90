# Attention in XLA, by the kernel of this project: `mix run demo.exs`. See README.md.

alias EXLA.CustomCall.{Attribute, Client, Executable, Lowering, Mesh, Module, Spec, Typespec}
alias EXLA.CustomCall.Value
alias FlashAttention.{Backward, Floats, Forward, Reference, TensorParallel}

tolerance = 1.0e-5
runs = 50

heading = fn text -> IO.puts("\n#{text}\n#{String.duplicate("-", String.length(text))}") end

fail = fn message ->
  IO.puts(:stderr, "\nThe demo failed: #{message}")
  exit({:shutdown, 1})
end

# MLIR prints an operation as one line. Here each attribute of the custom call gets its own.
print = fn module ->
  [call] = Module.custom_calls(module)
  names = for {name, _} <- call.mlir_attributes, do: Regex.escape(name)
  names = Enum.join(["api_version", "backend_config", "call_target_name"] ++ names, "|")

  Regex.compile!("([{ ])(?=(?:#{names}) = )")
  |> Regex.replace(to_string(module), fn _, before -> String.trim(before) <> "\n      " end)
  |> String.replace("} : (", "\n    } : (")
  |> IO.write()
end

# What the function returns, and the milliseconds it takes.
timed = fn fun ->
  {microseconds, result} = :timer.tc(fun)
  {microseconds / 1000, result}
end

median = fn values -> values |> Enum.sort() |> Enum.at(div(length(values), 2)) end
milliseconds = fn value -> :erlang.float_to_binary(value, decimals: 2) <> " ms" end
scientific = fn value -> to_string(:io_lib.format("~.2e", [value])) end

client = Client.new!(plugin: :cpu)
FlashAttention.load!(client)

# Grouped-query attention: 8 query heads share 2 key and value heads.
q = Typespec.tensor({:f, 32}, {2, 64, 8, 64})
kv = Typespec.tensor({:f, 32}, {2, 64, 2, 64})
templates = [q, kv, kv]
outputs = {out_template, lse_template, _} = FlashAttention.outputs(q)
gradients = FlashAttention.gradients(q, kv)

lower = fn block ->
  Lowering.lower!(block, outputs, templates, client, name: "flash_attention")
end

heading.("The custom call in StableHLO")
print.(lower.(%Forward{}))

heading.("The kernel in XLA against softmax attention in plain Elixir")
IO.puts("q {2, 64, 8, 64}, k and v {2, 64, 2, 64}, f32; time to run: median of #{runs}\n")

{[q, k, v, dout], _random} =
  Enum.map_reduce(templates ++ [q], :rand.seed_s(:exsss, 42), fn template, random ->
    {values, random} =
      Enum.map_reduce(1..Tuple.product(template.shape), random, fn _, random ->
        :rand.normal_s(random)
      end)

    {{Floats.encode(values), template}, random}
  end)

row = fn name, cells ->
  cells = Enum.map(cells, &String.pad_leading(&1, 16))
  IO.puts(["  ", String.pad_trailing(name, 8), cells])
end

# Runs a module. Prints the errors of its first results, those that are expected, and its times. Returns
# the results and the largest error.
compare = fn name, module, operands, expected ->
  {compile_time, executable} = timed.(fn -> Client.compile!(client, module) end)

  answers =
    for _ <- 1..runs,
        do: timed.(fn -> Executable.run!(executable, operands, results: :binary) end)

  {run_times, [results | _]} = Enum.unzip(answers)
  found = results |> Enum.take(length(expected)) |> Enum.map(&Floats.decode/1)
  errors = Enum.zip_with(found, expected, &Floats.largest_error/2)
  times = [compile_time, median.(run_times)]
  row.(name, Enum.map(errors, scientific) ++ Enum.map(times, milliseconds))
  {results, Enum.max(errors)}
end

row.("", ["error of out", "error of lse", "to compile", "to run"])

forward =
  for {name, causal} <- [{"full", false}, {"causal", true}] do
    block = %Forward{causal: causal}
    expected = block |> Reference.forward(q, k, v) |> Tuple.to_list()
    {[out, lse, _workspace], error} = compare.(name, lower.(block), [q, k, v], expected)
    {name, causal, out, lse, error}
  end

IO.puts("")
row.("", ["error of dq", "error of dk", "error of dv", "to compile", "to run"])

backward =
  for {name, causal, out, lse, _error} <- forward do
    block = %Backward{causal: causal}
    operands = [dout, q, k, v, {out, out_template}, {lse, lse_template}]
    templates = for {_, template} <- operands, do: template
    module = Lowering.lower!(block, gradients, templates, client, name: "gradients")
    expected = block |> Reference.backward(dout, q, k, v) |> Tuple.to_list()
    {_results, error} = compare.(name, module, operands, expected)
    error
  end

largest = Enum.max(backward ++ for({_, _, _, _, error} <- forward, do: error))

if largest > tolerance do
  fail.("the largest error is #{scientific.(largest)}, more than #{scientific.(tolerance)}")
end

IO.puts(
  "\nThe largest error is #{scientific.(largest)}; at most #{scientific.(tolerance)} may be."
)

heading.("Split over devices by the heads")
IO.puts("attention with a projection to 32 numbers a query, and the gradients; key heads: 4\n")

several = Client.new!(plugin: :cpu, options: [cpu_device_count: 4])
FlashAttention.load!(several)

{split_q, split_kv, width} =
  {Typespec.tensor({:f, 32}, {2, 64, 8, 32}), Typespec.tensor({:f, 32}, {2, 64, 4, 32}), 32}

[q, k, v, dout] =
  for template <- [split_q, split_kv, split_kv, split_q] do
    Floats.encode(for _ <- 1..Tuple.product(template.shape), do: :rand.normal())
  end

weights = Floats.encode(for _ <- 1..(8 * 32 * width), do: :rand.normal(0.0, 1 / 256))

run = fn module, inputs ->
  executable = Client.compile!(several, module)
  {Executable.run!(executable, inputs, results: :binary), Executable.hlo_text!(executable)}
end

both = fn opts ->
  forward = TensorParallel.forward(%Forward{}, several, split_q, split_kv, width, opts)
  {[projected, out, lse, _], forward_hlo} = run.(forward, [q, k, v, weights])
  backward = TensorParallel.backward(%Backward{}, several, split_q, split_kv, opts)
  {gradients, backward_hlo} = run.(backward, [dout, q, k, v, out, lse])
  <<heads::32-signed-native, _::binary>> = Enum.at(gradients, 6)
  results = for bytes <- [projected, out | Enum.take(gradients, 3)], do: Floats.decode(bytes)
  {results, heads, forward_hlo <> backward_hlo}
end

{expected, _heads, _hlo} = both.([])
row.("devices", ["largest error", "heads on each", "all-reduce", "all-gather"])

for n <- [2, 4] do
  {found, heads, hlo} = both.(mesh: Mesh.new(model: n))
  error = found |> Enum.zip_with(expected, &Floats.largest_error/2) |> Enum.max()
  count = fn name -> length(Regex.scan(~r/ #{name}(-start)?\(/, hlo)) end
  {reduced, gathered} = {count.("all-reduce"), count.("all-gather")}
  row.("#{n}", [scientific.(error), "#{heads}", "#{reduced}", "#{gathered}"])

  if error > tolerance or {heads, reduced, gathered} != {div(8, n), 1, 0} do
    fail.("on #{n} devices it should be what it is on one, with one all-reduce")
  end
end

heading.("The layout at work")
IO.puts("[[0, 1, 2], [3, 4, 5]] in memory, as a handler sees it:\n")

matrix = Typespec.tensor({:f, 32}, {2, 3})
elements = Typespec.tensor({:f, 32}, {6})

for {layout, expected} <- [{[1, 0], [0, 1, 2, 3, 4, 5]}, {[0, 1], [0, 3, 1, 4, 2, 5]}] do
  # A call made from values, without a block. Its handler returns the elements as they lie in memory.
  operand = Value.parameter(matrix)
  operand_layouts = Attribute.layouts([layout])

  spec = %Spec{
    call_target_name: "layout_probe_f32",
    # StableHLO wants the layouts of operands and results, or of neither.
    mlir_attributes: [
      {"operand_layouts", operand_layouts},
      {"result_layouts", Attribute.row_major([elements])}
    ]
  }

  module = Module.build!([operand], Value.custom_call([operand], spec, [elements]))
  executable = Client.compile!(client, module)
  [seen] = Executable.run!(executable, [Floats.encode([0, 1, 2, 3, 4, 5])], results: :binary)
  seen = seen |> Floats.decode() |> Enum.map(&trunc/1)

  IO.puts("  #{Enum.join(seen, ", ")}   with operand_layouts = #{operand_layouts}")
  if seen != expected, do: fail.("the handler should see #{Enum.join(expected, ", ")}")
end
