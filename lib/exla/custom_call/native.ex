defmodule EXLA.CustomCall.Native do
  @moduledoc false

  # The NIF's functions. Those with _dirty in the name do the same on a dirty scheduler.

  @on_load :load

  def load do
    path = :filename.join(:code.priv_dir(:exla_custom_call), ~c"native/exla_custom_call")

    case :erlang.load_nif(path, 0) do
      :ok -> :ok
      # A recompiled module in a running VM keeps the library that is there.
      {:error, {:reload, _}} -> :ok
      {:error, {_reason, text}} -> {:error, {:native_library, path, text}}
    end
  end

  def context_new(_max_nesting, _max_text_bytes), do: stub()

  def attribute_dictionary(_entries), do: stub()

  def module_build(_context, _graph), do: stub()
  def module_build_dirty(_context, _graph), do: stub()
  def module_text(_module), do: stub()
  def module_to_text_dirty(_module), do: stub()
  def module_custom_calls(_module), do: stub()
  def module_custom_calls_dirty(_module), do: stub()

  def client_new(_plugin_path, _options), do: stub()
  def client_compile(_client, _module, _tag), do: stub()
  def library_load(_client, _path, _handlers), do: stub()
  def executable_run(_executable, _inputs, _tag), do: stub()

  @doc false
  # The answer of a function that works on a thread of its own: it sends `{tag, answer}`.
  def await(fun) do
    tag = make_ref()

    with {:ok, :ok} <- fun.(tag) do
      receive do
        {^tag, answer} -> answer
      end
    end
  end

  defp stub, do: :erlang.nif_error(:nif_not_loaded)
end
