defmodule EXLA.CustomCall.Executable do
  @moduledoc """
  A compiled module, made by `EXLA.CustomCall.Client.compile/2`.

      {:ok, executable} = EXLA.CustomCall.Client.compile(client, module)
      {:ok, [y]} = EXLA.CustomCall.Executable.run(executable, [x])

  Inputs and results are binaries of row-major elements in native byte order, whatever the layouts
  inside the program; see `EXLA.CustomCall.Typespec` for the bytes an element takes.
  """

  alias EXLA.CustomCall.{Client, Error, Native, SpecTerms, Typespec}

  @enforce_keys [:ref, :client, :parameters, :results]
  defstruct [:ref, :client, :parameters, :results]

  @type t :: %__MODULE__{
          ref: reference(),
          client: Client.t(),
          parameters: [Typespec.t()],
          results: [Typespec.t()]
        }

  @typedoc """
  A binary; a binary with its type and shape, which are then checked against the parameter's; or an
  `Nx.Tensor`.
  """
  @type input :: binary() | {binary(), EXLA.CustomCall.template()} | struct()

  @doc """
  Runs the executable on its device, and returns the results' binaries. The result of a token is
  empty.

  The program runs on a thread of its own; the caller waits for it, no scheduler does.

  ## Errors

  `:argument` for inputs of the wrong count, type or size; `:run` for what goes wrong in the program,
  such as an error that a handler returns, with XLA's words and its status code as `:code`.
  """
  @spec run(t(), [input()]) :: {:ok, [binary()]} | {:error, Error.t()}
  def run(%__MODULE__{} = executable, inputs) do
    with {:ok, inputs} <- check(executable.parameters, inputs) do
      with {:error, native} <- Native.await(&Native.executable_run(executable.ref, inputs, &1)) do
        {:error, Error.from_native(native)}
      end
    end
  end

  @doc "Like `run/2`, but raises."
  @spec run!(t(), [input()]) :: [binary()]
  def run!(executable, inputs), do: executable |> run(inputs) |> Error.unwrap!()

  @doc false
  # The typespec and the binary of an input, or an error. The typespec is nil where none is given.
  def split_input(binary) when is_binary(binary), do: {:ok, nil, binary}

  def split_input({binary, template}) when is_binary(binary) do
    with {:ok, typespec} <- Typespec.cast(template), do: {:ok, typespec, binary}
  end

  # By name, and called at run time: Nx need not be there.
  def split_input(%{__struct__: Nx.Tensor} = tensor) do
    with {:ok, typespec} <- Typespec.cast(tensor) do
      split_input({apply(Nx, :to_binary, [tensor]), typespec})
    end
  end

  def split_input(other) do
    {:error,
     Error.new(
       :argument,
       "expected a binary, a {binary, template} pair or an Nx.Tensor, got: #{inspect(other)}"
     )}
  end

  defp check(parameters, inputs) do
    cond do
      not SpecTerms.proper_list?(inputs) ->
        argument("expected the inputs as a list, got: #{inspect(inputs)}")

      length(inputs) != length(parameters) ->
        argument("the executable takes #{length(parameters)} inputs, got #{length(inputs)}")

      true ->
        [parameters, inputs, 0..(length(inputs) - 1)//1]
        |> Enum.zip()
        |> Enum.reduce_while({:ok, []}, fn {parameter, input, index}, {:ok, done} ->
          case check_input(parameter, input) do
            {:ok, native} -> {:cont, {:ok, [native | done]}}
            {:error, error} -> {:halt, argument("input #{index}: #{error.message}")}
          end
        end)
        |> case do
          {:ok, inputs} -> {:ok, Enum.reverse(inputs)}
          error -> error
        end
    end
  end

  defp check_input(parameter, input) do
    with {:ok, typespec, binary} <- split_input(input) do
      expected = Typespec.byte_size(parameter)

      cond do
        parameter.type == :token ->
          argument("a token cannot be given from outside; make it in the program")

        typespec not in [nil, parameter] ->
          argument("the executable takes #{inspect(parameter)}, got #{inspect(typespec)}")

        byte_size(binary) != expected ->
          argument(
            "#{inspect(parameter)} takes #{expected} bytes, got a binary of #{byte_size(binary)}"
          )

        true ->
          {element, dimensions} = Typespec.to_native(parameter)
          {:ok, {element, dimensions, binary}}
      end
    end
  end

  defp argument(message), do: {:error, Error.new(:argument, message)}

  defimpl Inspect do
    import Inspect.Algebra

    def inspect(executable, opts) do
      concat([
        "#EXLA.CustomCall.Executable<",
        to_doc(executable.parameters, opts),
        " -> ",
        to_doc(executable.results, opts),
        ">"
      ])
    end
  end
end
