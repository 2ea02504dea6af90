defmodule EXLA.CustomCall.Runner do
  @moduledoc """
  A block, run: protocol, lowering, compilation and execution in one call.

      out = EXLA.CustomCall.Typespec.tensor({:f, 32}, {2})

      EXLA.CustomCall.Runner.run(%RowScale{factor: 2.0}, [{x, out}], out, client: client)
      #=> {:ok, <<...>>}

  What was compiled is kept in a cache, see `EXLA.CustomCall.Cache`: the same block on the same types
  compiles once.
  """

  alias EXLA.CustomCall.{Cache, Client, Error, Executable, Lowering, Mesh, Module, Options}
  alias EXLA.CustomCall.SpecTerms

  @doc """
  Runs `block` on `args`, each `{binary, template}`, an `Nx.Tensor`, or an `EXLA.CustomCall.Buffer`.

  Returns a result where `out` is a template, and a tuple of results where it is a tuple of them;
  `:skip` where the block's implementation says so.

  ## Options

    * `:client` - the `EXLA.CustomCall.Client` to run on. Required.
    * `:results` - `:binary` (the default), `:buffer` or `:tensor`, as in
      `EXLA.CustomCall.Executable.run/3`.
    * `:user_data` - as in `EXLA.CustomCall.Executable.run/3`.
    * `:compile` - options of `EXLA.CustomCall.Client.compile/3`, such as `[trial: true]` for a spec
      that is not trusted. What is in the cache has been compiled before, and is tried no more.
    * `:cache` - the name of a cache, or `nil` to compile each time. Default: the one that this package
      starts.
    * `:name` - the module's name, as `EXLA.CustomCall.Module.build/3` takes it.
    * `:timeout` - how many milliseconds the run may take, default `:infinity`. That of the
      compiler is one of the `:compile` options.
    * `:partition`, `:mesh`, `:shardings`, `:result_shardings`, `:sharding_rule`, `:reduce`,
      `:local_shapes` - how the block is split over devices, as `EXLA.CustomCall.Lowering.lower/5` takes
      them. `args` and results are whole all the same. `results: :buffer` gives a list with the buffer
      of each device, and `{list, template}`, with the template of the whole, is an arg.
  """
  @spec run(
          EXLA.CustomCall.t(),
          [{binary() | list(), EXLA.CustomCall.template()} | struct()],
          EXLA.CustomCall.template() | tuple(),
          keyword()
        ) :: :skip | {:ok, Executable.result() | tuple()} | {:error, Error.t()}
  def run(block, args, out, opts) do
    defaults = [
      client: nil,
      results: :binary,
      user_data: %{},
      compile: [],
      cache: Cache,
      name: nil,
      timeout: :infinity
    ]

    lowering = Lowering.options() |> Keyword.delete(:context)

    with {:ok, opts} <- Options.validate(opts, Keyword.merge(defaults, lowering)),
         {:ok, client} <- client(opts[:client]),
         {:ok, templates} <- templates(args),
         {:ok, module} <-
           Lowering.lower(
             block,
             out,
             templates,
             client,
             Keyword.take(opts, Keyword.keys(lowering))
           ),
         {:ok, executable} <- compile(client, module, opts[:compile], opts[:cache]),
         {:ok, results} <-
           Executable.run(
             executable,
             Enum.map(args, &input/1),
             Keyword.take(opts, [:results, :user_data, :timeout])
           ) do
      if is_tuple(out), do: {:ok, List.to_tuple(results)}, else: {:ok, hd(results)}
    end
  end

  @doc "Like `run/4`, but returns the results themselves, and raises. Returns `:skip` as it does."
  @spec run!(
          EXLA.CustomCall.t(),
          [{binary() | list(), EXLA.CustomCall.template()} | struct()],
          EXLA.CustomCall.template() | tuple(),
          keyword()
        ) :: :skip | Executable.result() | tuple()
  def run!(block, args, out, opts) do
    case run(block, args, out, opts) do
      :skip -> :skip
      answer -> Error.unwrap!(answer)
    end
  end

  # Through a cache, where there is one.
  defp compile(client, module, opts, cache) do
    with {:ok, {options, _timeout, _trial} = normalized} <- Client.normalize(opts, module),
         :ok <- check_devices(options, module) do
      compile = fn -> Client.compile_normalized(client, module, normalized) end

      if cache == nil or :ets.whereis(cache) == :undefined do
        compile.()
      else
        hash = :crypto.hash(:sha256, Module.to_bytecode(module))
        Cache.fetch(cache, {client.ref, hash, options}, disk(client, hash, options), compile)
      end
    end
  end

  # Those of its mesh, or one.
  defp check_devices(%{replicas: replicas, partitions: partitions}, module) do
    devices = if module.mesh, do: Mesh.size(module.mesh), else: 1

    if {replicas, partitions} == {1, devices} do
      :ok
    else
      {:error,
       Error.new(
         :argument,
         "a block runs on the devices of its mesh, here #{devices}, got #{replicas} replicas and " <>
           "#{partitions} partitions; give the options :mesh and :partition, or use " <>
           "EXLA.CustomCall.Lowering, Client.compile/3 and Executable.run_sharded/3",
         field: :compile
       )}
    end
  end

  # The file's name tells programs apart; what may be loaded, its header tells.
  defp disk(client, hash, options) do
    parts = {hash, options, client.platform_name, client.platform_version, client.api_version}
    name = :crypto.hash(:sha256, :erlang.term_to_binary(parts))

    %{
      file: Base.url_encode64(name, padding: false) <> ".executable",
      read: &Executable.deserialize(client, &1),
      write: &Executable.serialize/1
    }
  end

  defp client(%Client{} = client), do: {:ok, client}

  defp client(other) do
    Options.wrong(
      :client,
      "an EXLA.CustomCall.Client, such as EXLA.CustomCall.Client.new!(plugin: :cpu)",
      other
    )
  end

  defp templates(args) do
    if SpecTerms.proper_list?(args) do
      args
      |> Enum.with_index()
      |> Enum.reduce_while({:ok, []}, fn {arg, index}, {:ok, done} ->
        case template(arg) do
          {:ok, template} ->
            {:cont, {:ok, [template | done]}}

          {:error, error} ->
            {:halt, {:error, %{error | message: "operand #{index}: #{error.message}"}}}
        end
      end)
      |> case do
        {:ok, templates} -> {:ok, Enum.reverse(templates)}
        error -> error
      end
    else
      {:error, Error.new(:argument, "expected the operands as a list, got: #{inspect(args)}")}
    end
  end

  defp input({parts, _template}) when is_list(parts), do: parts
  defp input(arg), do: arg

  # The block sees what it would see under Nx: the template as it was given, a tensor as it is.
  defp template({binary, template}) when is_binary(binary), do: {:ok, template}
  # The parts of the devices, and the template of the whole.
  defp template({parts, template}) when is_list(parts), do: {:ok, template}
  defp template(%EXLA.CustomCall.Buffer{typespec: typespec}), do: {:ok, typespec}
  defp template(%{__struct__: Nx.Tensor} = tensor), do: {:ok, tensor}

  defp template(other) do
    {:error,
     Error.new(
       :argument,
       "expected a {binary, template} pair, a buffer or an Nx.Tensor, got: #{inspect(other)}"
     )}
  end
end
