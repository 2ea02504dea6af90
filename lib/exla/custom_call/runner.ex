defmodule EXLA.CustomCall.Runner do
  @moduledoc """
  A block, run: protocol, lowering, compilation and execution in one call.

      out = EXLA.CustomCall.Typespec.tensor({:f, 32}, {2})

      EXLA.CustomCall.Runner.run(%RowScale{factor: 2.0}, [{x, out}], out, client: client)
      #=> {:ok, <<...>>}

  Each call compiles. To run a block many times, compile it once with
  `EXLA.CustomCall.Client.compile/2`.
  """

  alias EXLA.CustomCall.{Client, Error, Executable, Lowering, SpecTerms}

  @doc """
  Runs `block` on `args`, each `{binary, template}` or an `Nx.Tensor`.

  Returns a binary where `out` is a template, and a tuple of binaries where it is a tuple of them;
  `:skip` where the block's implementation says so.

  ## Options

    * `:client` - the `EXLA.CustomCall.Client` to run on. Required.
    * `:name` - the module's name, as `EXLA.CustomCall.Module.build/3` takes it.
  """
  @spec run(
          EXLA.CustomCall.t(),
          [{binary(), EXLA.CustomCall.template()} | struct()],
          EXLA.CustomCall.template() | tuple(),
          keyword()
        ) :: :skip | {:ok, binary() | tuple()} | {:error, Error.t()}
  def run(block, args, out, opts) do
    with {:ok, opts} <- EXLA.CustomCall.Options.validate(opts, client: nil, name: nil),
         {:ok, client} <- client(opts[:client]),
         {:ok, templates} <- templates(args),
         {:ok, module} <- Lowering.lower(block, out, templates, client, name: opts[:name]),
         {:ok, executable} <- Client.compile(client, module),
         {:ok, results} <- Executable.run(executable, args) do
      if is_tuple(out), do: {:ok, List.to_tuple(results)}, else: {:ok, hd(results)}
    end
  end

  @doc "Like `run/4`, but returns the results themselves, and raises. Returns `:skip` as it does."
  @spec run!(
          EXLA.CustomCall.t(),
          [{binary(), EXLA.CustomCall.template()} | struct()],
          EXLA.CustomCall.template() | tuple(),
          keyword()
        ) :: :skip | binary() | tuple()
  def run!(block, args, out, opts) do
    case run(block, args, out, opts) do
      :skip -> :skip
      answer -> Error.unwrap!(answer)
    end
  end

  defp client(%Client{} = client), do: {:ok, client}

  defp client(other) do
    {:error,
     Error.new(
       :argument,
       "expected :client to be an EXLA.CustomCall.Client, such as " <>
         "EXLA.CustomCall.Client.new!(plugin: :cpu), got: #{inspect(other)}",
       field: :client
     )}
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

  # The block sees what it would see under Nx: the template as it was given, a tensor as it is.
  defp template({binary, template}) when is_binary(binary), do: {:ok, template}
  defp template(%{__struct__: Nx.Tensor} = tensor), do: {:ok, tensor}

  defp template(other) do
    {:error,
     Error.new(
       :argument,
       "expected a {binary, template} pair or an Nx.Tensor, got: #{inspect(other)}"
     )}
  end
end
