# The time of attention and its gradients on 1 and on several devices, in one run: `make bench-sharding`,
# or in this folder `mix run bench/scaling.exs [devices]`. Each virtual CPU device runs the kernel, which
# has one thread, on a processor of its own: with as many of these as devices it should take a part as long.

alias EXLA.CustomCall.{Client, Executable, Mesh, Module, Typespec, Value}
alias FlashAttention.{Backward, Floats, Forward, TensorParallel}

devices =
  case System.argv() do
    [] -> 2
    [count] -> String.to_integer(count)
  end

runs = 11
{batch, length, heads, kv_heads, depth, width} = {1, 2048, 8, 4, 64, 512}
q = Typespec.tensor({:f, 32}, {batch, length, heads, depth})
kv = Typespec.tensor({:f, 32}, {batch, length, kv_heads, depth})

client = Client.new!(plugin: :cpu, options: [cpu_device_count: devices])
FlashAttention.load!(client)

random = fn shape ->
  Floats.encode(for _ <- 1..Tuple.product(shape), do: :rand.normal() / :math.sqrt(depth))
end

:rand.seed(:exsss, 42)
[q_data, k, v, dout] = Enum.map([q.shape, kv.shape, kv.shape, q.shape], random)
weights = random.({heads, depth, width})

[_, out, lse, _] =
  client
  |> Client.compile!(TensorParallel.forward(%Forward{}, client, q, kv, width))
  |> Executable.run!([q_data, k, v, weights], results: :binary)

median = fn list -> list |> Enum.sort() |> Enum.at(div(length(list), 2)) end
format = fn number, decimals -> :erlang.float_to_binary(number / 1, decimals: decimals) end

IO.puts("""
q {#{batch}, #{length}, #{heads}, #{depth}}, k and v {#{batch}, #{length}, #{kv_heads}, #{depth}}, f32, on #{System.schedulers_online()} processors.
Medians of #{runs} runs that take turns, in milliseconds. Other work on the machine spoils the ratio.
""")

IO.puts(Enum.map(["", "1 device", "#{devices} devices", "ratio"], &String.pad_leading(&1, 12)))

# Puts inputs on the devices that a module wants them on: what is measured is the program alone.
place = fn module, inputs ->
  values =
    for {type, sharding} <- Enum.zip(module.parameters, module.parameter_shardings),
        do: Value.parameter(type, sharding: sharding)

  client |> Client.compile!(Module.build!(values, values)) |> Executable.run!(inputs)
end

for {name, build, inputs} <- [
      {"forward", &TensorParallel.forward(%Forward{}, client, q, kv, width, &1),
       [q_data, k, v, weights]},
      {"backward", &TensorParallel.backward(%Backward{}, client, q, kv, &1),
       [dout, q_data, k, v, out, lse]}
    ] do
  programs =
    for opts <- [[], [mesh: Mesh.new(model: devices)]] do
      module = build.(opts)
      {Client.compile!(client, module), place.(module, inputs)}
    end

  times =
    for _ <- 1..runs do
      for {executable, inputs} <- programs do
        {microseconds, _} = :timer.tc(fn -> Executable.run!(executable, inputs) end)
        microseconds / 1000
      end
    end

  [one, several] = times |> Enum.zip_with(& &1) |> Enum.map(median)

  [name, format.(one, 1), format.(several, 1), format.(one / several, 2)]
  |> Enum.map(&String.pad_leading(&1, 12))
  |> IO.puts()
end
