defmodule FlashAttention.TensorParallel do
  @moduledoc """
  Attention split over devices by its heads, as large models run it.

  Each device of the axis `"model"` has some of the key and value heads, the query heads that look at them,
  and the rows of the output projection that belong to these. So attention and its gradients need nothing
  from other devices, and the projection, whose contraction goes over all heads, one all-reduce:

      mesh = EXLA.CustomCall.Mesh.new(model: 4)
      q = EXLA.CustomCall.Typespec.tensor({:f, 32}, {2, 64, 8, 32})
      kv = EXLA.CustomCall.Typespec.tensor({:f, 32}, {2, 64, 4, 32})
      module = FlashAttention.TensorParallel.forward(%FlashAttention.Forward{}, client, q, kv, 256, mesh: mesh)
      executable = EXLA.CustomCall.Client.compile!(client, module)
      # The binaries of q, k, v, and of the weights of {8, 32, 256}.
      [projected, out, lse, _workspace] =
        EXLA.CustomCall.Executable.run!(executable, [q_data, k_data, v_data, weights], results: :binary)

  Inputs and results are whole: they are split and put together at the edges.
  """

  alias EXLA.CustomCall.{Lowering, Module, Sharding, Typespec, Value}

  @doc """
  The module of attention and a projection of its output to `width` numbers a query. Its parameters are
  `q`, `k`, `v` and the weights of {Hq, D, width}; its results the projection of {B, S, width}, and those of
  `FlashAttention.Forward`.

  ## Options

    * `:mesh` - the mesh, with an axis `"model"`. Default: none, for one device.
    * `:partition` - as `EXLA.CustomCall.Value.custom_call/4` takes it; default `:auto` on a mesh. `nil`
      leaves the call to XLA, which gathers its operands.
  """
  def forward(block, client, q, k, width, opts \\ []) do
    {q, k} = {Typespec.from(q), Typespec.from(k)}
    {batch, queries, heads, depth} = q.shape
    weights = Typespec.tensor(q.type, {heads, depth, width})

    [q, k, v] = for type <- [q, k, k], do: parameter(type, 2, opts)
    weights = parameter(weights, 0, opts)
    outputs = FlashAttention.outputs(q.typespec)
    [out | _] = attention = Lowering.call!(block, outputs, [q, k, v], client, split(opts))

    # For each query the sum over heads and depth of what a device has of both; XLA adds up the devices'.
    [projected] =
      Value.op(
        "stablehlo.dot_general",
        [out, weights],
        [Typespec.tensor(out.typespec.type, {batch, queries, width})],
        attributes: [
          {"dot_dimension_numbers",
           "#stablehlo.dot<lhs_contracting_dimensions = [2, 3], rhs_contracting_dimensions = [0, 1]>"}
        ]
      )

    Module.build!([q, k, v, weights], [whole(projected, opts) | attention])
  end

  @doc """
  The module of attention's gradients: the operands and results of `FlashAttention.Backward`.

  Options as in `forward/6`.
  """
  def backward(block, client, q, k, opts \\ []) do
    {q, k} = {Typespec.from(q), Typespec.from(k)}
    {out, lse, _workspace} = FlashAttention.outputs(q)

    [dout, q, k, v, out] = for type <- [out, q, k, k, out], do: parameter(type, 2, opts)
    operands = [dout, q, k, v, out, parameter(lse, 1, opts)]
    gradients = FlashAttention.gradients(q.typespec, k.typespec)
    Module.build!(operands, Lowering.call!(block, gradients, operands, client, split(opts)))
  end

  # Split along one dimension, that of the heads.
  defp parameter(type, dimension, opts) do
    sharding =
      if mesh = opts[:mesh] do
        axes =
          for index <- 0..(tuple_size(type.shape) - 1), do: if(index == dimension, do: "model")

        Sharding.new(mesh, axes)
      end

    Value.parameter(type, sharding: sharding)
  end

  # The backward kernel is told how many heads it gets: on each device those of its part.
  defp split(opts) do
    if opts[:mesh] do
      [partition: Keyword.get(opts, :partition, :auto), local_shapes: true]
    else
      []
    end
  end

  defp whole(value, opts) do
    if mesh = opts[:mesh] do
      {value, Sharding.replicated(mesh, tuple_size(value.typespec.shape))}
    else
      value
    end
  end
end
