defmodule EXLA.CustomCall.Library do
  @moduledoc """
  A shared object with handlers for custom calls.

  A handler is a function of XLA's typed FFI, written in Rust with the crate `xla_ffi`, or in C++ with
  XLA's own headers. Loading a library registers its handlers with XLA, for the client's platform:

      {:ok, library} = EXLA.CustomCall.Library.load(client, "priv/native/libflash_attention.so")
      library.targets
      #=> ["flash_attention_forward", "flash_attention_backward"]

  ## What is registered

  A library can say itself what handlers it has, in a table that it exports: with `xla_ffi::library!` in
  Rust, or with `include/exla_custom_call.h` of this package in C and C++. Then its path is all that
  `load/2` needs. The table's handlers for other platforms than the client's are left out.

  Other libraries, such as those that were built for JAX, export functions and no table. Their caller
  says which function is the handler of which target:

      {:ok, library} =
        EXLA.CustomCall.Library.load(client, "libkernels.so", %{
          "rms_norm" => "RmsNorm",
          "fft" => %{instantiate: "FftInstantiate", execute: "FftExecute"}
        })

  ## Stages

  XLA calls a handler in up to four stages, each with a function of its own:

    * `:instantiate` - once for each custom call of a program, while it is compiled. What it makes is the
      handler's state, which XLA keeps as long as the executable;
    * `:prepare` and `:initialize` - before each execution, on accelerators. The CPU plugins do not call
      them;
    * `:execute` - in each execution. It has to be there.

  In Rust the instantiate function of a handler `fft` is exported as `fft_instantiate`. In C++ the type of
  a state has to be registered as well, which a table does; without one its `:state` names it, by the
  name it is to have and the functions that return its id and its info (JAX calls the same
  `register_ffi_type`):

      %{
        instantiate: "FftInstantiate",
        execute: "FftExecute",
        state: %{name: "FftPlan", id: "FftPlanId", info: "FftPlanInfo"}
      }

  ## For how long

  A library stays loaded, and its handlers registered, for as long as the VM runs: XLA keeps their
  addresses. They are there for all clients of the same plugin. Loading it again does nothing; a
  target that has another handler already is an error. A library that was rebuilt under the same path
  is loaded anew only after the VM was restarted.

  Handlers are native code in the VM's process: one that writes where it should not ends the VM.
  """

  alias EXLA.CustomCall.{Client, Error, Native, SpecTerms}

  @enforce_keys [:path, :targets]
  defstruct [:path, :targets]

  @typedoc "The library's canonical path, and the targets that were registered."
  @type t :: %__MODULE__{path: Path.t(), targets: [binary()]}

  @typedoc "The symbol of a function for the execute stage, or those of several stages."
  @type handler ::
          String.t()
          | %{
              required(:execute) => String.t(),
              optional(:instantiate) => String.t(),
              optional(:prepare) => String.t(),
              optional(:initialize) => String.t(),
              optional(:state) => %{name: String.t(), id: String.t(), info: String.t()}
            }

  @typedoc "The handlers to register, by the target that a spec calls, any bytes."
  @type handlers :: %{binary() => handler()} | [{binary(), handler()}]

  @stages [:execute, :instantiate, :prepare, :initialize]

  @doc """
  Loads the shared object at `path`, and registers the handlers in the table that it exports.

  Either all of them are registered, or none.

  ## Errors

  `:library` for a file that is missing or is no shared object, a library that exports no table, a table
  that is broken or has nothing for the client's platform, a handler that XLA rejects, and a target
  that has another handler.
  """
  @spec load(Client.t(), Path.t()) :: {:ok, t()} | {:error, Error.t()}
  def load(client, path), do: load_checked(client, path, {:ok, nil})

  @doc """
  Loads the shared object at `path`, and registers the handlers that are named: a map or list of
  `{target_name, handler}`. The target name is what a spec calls, any bytes; the handler is the symbol
  of a function, or a map of the symbols for its stages. The functions are the library's own: those of
  libraries that it depends on are no handlers of its.

  Either all of them are registered, or none.

  ## Errors

  `:library` for a file that is missing or is no shared object, a symbol that it does not export, a
  handler that XLA rejects, and a target that has another handler.
  """
  @spec load(Client.t(), Path.t(), handlers()) :: {:ok, t()} | {:error, Error.t()}
  def load(client, path, handlers), do: load_checked(client, path, check_handlers(handlers))

  @doc "Like `load/2`, but raises."
  @spec load!(Client.t(), Path.t()) :: t()
  def load!(client, path), do: client |> load(path) |> Error.unwrap!()

  @doc "Like `load/3`, but raises."
  @spec load!(Client.t(), Path.t(), handlers()) :: t()
  def load!(client, path, handlers), do: client |> load(path, handlers) |> Error.unwrap!()

  @doc """
  Loads the handlers that come with this package, for the CPU: those that
  `EXLA.CustomCall` lowers the blocks `Nx.Block.LinAlg.QR` and `Nx.Block.LinAlg.Eigh` to, and LU.

    * `qr_cpu_custom_call_f32`, `_f64`, `_f16`, `_bf16`: A to Q and R, reduced or complete by the
      shapes of the results;
    * `eigh_cpu_custom_call_f32`, `_f64`: a symmetric A, of which the lower triangle is read, to its
      eigenvalues and, as columns, its eigenvectors. The eigenvalues ascend; with the attribute
      `{"order", "\"magnitude\""}` their magnitudes descend, as EXLA's do;
    * `lu_cpu_custom_call_f32`, `_f64`, `_f16`, `_bf16`: a square A to P, of u8, L and U, with
      A = P L U.

  All take batches: leading dimensions.
  """
  @spec load_builtin(Client.t()) :: {:ok, t()} | {:error, Error.t()}
  def load_builtin(client) do
    load(client, Application.app_dir(:exla_custom_call, "priv/native/xla_ffi_linalg.so"))
  end

  @doc "Like `load_builtin/1`, but raises."
  @spec load_builtin!(Client.t()) :: t()
  def load_builtin!(client), do: client |> load_builtin() |> Error.unwrap!()

  defp load_checked(%Client{ref: ref}, path, handlers) do
    with {:ok, handlers} <- handlers,
         {:ok, path} <- check_path(path),
         {:ok, {path, targets}} <- Native.library_load(ref, path, handlers) do
      {:ok, %__MODULE__{path: path, targets: targets}}
    else
      {:error, %Error{} = error} -> {:error, error}
      {:error, native} -> {:error, Error.from_native(native)}
    end
  end

  defp load_checked(other, _path, _handlers) do
    argument("expected an EXLA.CustomCall.Client, got: #{inspect(other)}")
  end

  @doc """
  Has an Elixir function or process answer the calls of `target`, see
  `EXLA.CustomCall.ProcessHandler`.

  Registered again, a target has the new one. A target that a library's handler has is refused. Up to
  256 targets can be registered.

  ## Options

    * `:timeout` - milliseconds after which a call that has no answer is an error, default 5,000.
  """
  @spec register(
          Client.t(),
          binary(),
          (EXLA.CustomCall.ProcessHandler.Call.t() -> EXLA.CustomCall.ProcessHandler.answer())
          | pid(),
          keyword()
        ) :: :ok | {:error, Error.t()}
  def register(client, target, fun_or_pid, opts \\ []) do
    EXLA.CustomCall.ProcessHandler.register(client, target, fun_or_pid, opts)
  end

  @doc "Like `register/4`, but raises."
  @spec register!(
          Client.t(),
          binary(),
          (EXLA.CustomCall.ProcessHandler.Call.t() -> EXLA.CustomCall.ProcessHandler.answer())
          | pid(),
          keyword()
        ) :: :ok
  def register!(client, target, fun_or_pid, opts \\ []) do
    client |> register(target, fun_or_pid, opts) |> Error.unwrap!()
  end

  # The handlers as the NIF takes them, `{target, symbols}`.
  defp check_handlers(handlers) when is_map(handlers) and not is_struct(handlers) do
    handlers |> Map.to_list() |> check_handlers()
  end

  defp check_handlers(handlers) do
    if SpecTerms.proper_list?(handlers) and Enum.all?(handlers, &target?/1) do
      collect(handlers, &check_handler/1)
    else
      argument(
        "expected handlers as a map of target names to exported symbols, such as " <>
          "%{\"my_kernel\" => \"my_kernel_f32\"}, got: #{inspect(handlers)}"
      )
    end
  end

  defp target?({target, _handler}), do: is_binary(target)
  defp target?(_other), do: false

  defp check_handler({target, symbol}) when is_binary(symbol) do
    check_handler({target, %{execute: symbol}})
  end

  defp check_handler({target, stages}) when is_map(stages) and not is_struct(stages) do
    {state, stages} = Map.pop(stages, :state)

    with {:ok, symbols} <- check_stages(target, stages),
         {:ok, state} <- check_state(target, state) do
      {:ok, {target, List.to_tuple(symbols ++ [state])}}
    end
  end

  defp check_handler({target, other}) do
    argument(
      "expected the handler of #{inspect(target)} to be an exported symbol, or a map of stages to such, " <>
        "got: #{inspect(other)}"
    )
  end

  defp check_stages(target, stages) do
    unknown = stages |> Map.keys() |> Enum.find(&(&1 not in @stages))

    cond do
      unknown != nil ->
        argument(
          "expected the stages of #{inspect(target)} to be among :instantiate, :prepare, :initialize and " <>
            ":execute, got: #{inspect(unknown)}"
        )

      not is_map_key(stages, :execute) ->
        argument("expected a symbol for the stage :execute of #{inspect(target)}, got none")

      true ->
        collect(@stages, fn stage ->
          check_stage(stage, stages, "stage #{inspect(stage)} of #{inspect(target)}")
        end)
    end
  end

  defp check_stage(stage, stages, what) do
    case stages do
      %{^stage => symbol} -> check_symbol(symbol, what)
      _without -> {:ok, nil}
    end
  end

  defp check_state(_target, nil), do: {:ok, nil}

  defp check_state(target, %{name: name, id: id, info: info} = state) when map_size(state) == 3 do
    of = "of the state of #{inspect(target)}"

    with {:ok, name} <- check_symbol(name, "name #{of}"),
         {:ok, id} <- check_symbol(id, "id #{of}"),
         {:ok, info} <- check_symbol(info, "info #{of}") do
      {:ok, {name, id, info}}
    end
  end

  defp check_state(target, other) do
    argument(
      "expected the state of #{inspect(target)} as a map of :name, :id and :info, got: #{inspect(other)}"
    )
  end

  defp check_symbol(symbol, what) do
    if is_binary(symbol) and String.valid?(symbol) do
      {:ok, symbol}
    else
      argument("expected the #{what} as a string, got: #{inspect(symbol)}")
    end
  end

  defp check_path(path) do
    if is_binary(path) and String.valid?(path) and not String.contains?(path, <<0>>) do
      {:ok, path}
    else
      argument("expected the path of a library as a string, got: #{inspect(path)}")
    end
  end

  # The results of all, or the first error.
  defp collect(terms, fun) do
    terms
    |> Enum.reduce_while([], fn term, done ->
      case fun.(term) do
        {:ok, result} -> {:cont, [result | done]}
        error -> {:halt, error}
      end
    end)
    |> then(fn
      {:error, error} -> {:error, error}
      done -> {:ok, Enum.reverse(done)}
    end)
  end

  defp argument(message), do: {:error, Error.new(:argument, message)}
end
