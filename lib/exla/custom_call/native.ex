defmodule EXLA.CustomCall.Native do
  @moduledoc false

  # The NIF's functions. Those with _dirty in the name do the same on a dirty scheduler.

  alias EXLA.CustomCall.Error

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

  def context_new(_max_nesting, _max_text_bytes, _max_array_bytes, _rotate_after), do: stub()
  def context_stats(_context), do: stub()

  def attribute_dictionary(_entries), do: stub()

  def module_build(_context, _graph), do: stub()
  def module_build_dirty(_context, _graph), do: stub()
  def module_check(_context, _graph), do: stub()
  def module_check_dirty(_context, _graph), do: stub()
  def module_check_needs(_module, _shardy, _api_version), do: stub()
  def module_donating(_module, _parameters), do: stub()
  def module_text(_module), do: stub()
  def module_to_text_dirty(_module), do: stub()
  def module_custom_calls(_module), do: stub()
  def module_custom_calls_dirty(_module), do: stub()

  def shardy_read(_text, _meshes), do: stub()

  def client_new(_plugin_path, _options), do: stub()
  def client_info(_client), do: stub()
  def client_compile(_client, _module, _options, _tag), do: stub()
  def client_deserialize(_client, _bytes, _tag), do: stub()
  def library_load(_client, _path, _handlers), do: stub()

  def buffer_from_binary(_client, _device, _tensor, _tag), do: stub()
  def buffer_to_binary(_buffer, _tag), do: stub()
  def buffer_to_device(_buffer, _device, _tag), do: stub()
  def buffer_delete(_buffer, _tag), do: stub()
  def buffer_deleted(_buffer), do: stub()
  def buffer_info(_buffer), do: stub()

  def executable_run(_executable, _inputs, _options, _tag), do: stub()
  def executable_info(_executable), do: stub()
  def executable_types(_executable), do: stub()
  def executable_shardings(_executable), do: stub()
  def executable_hlo_text(_executable), do: stub()
  def executable_serialize(_executable, _tag), do: stub()

  # Those without _dirty are for up to 64 KiB and some hundred slices, since joining takes the square of
  # their number where they come in no order.
  def tensor_split(_binary, _element_bytes, _dimensions, _slices), do: stub()
  def tensor_split_dirty(_binary, _element_bytes, _dimensions, _slices), do: stub()
  def tensor_join(_binaries, _element_bytes, _dimensions, _slices), do: stub()
  def tensor_join_dirty(_binaries, _element_bytes, _dimensions, _slices), do: stub()

  def answer_cancel(_ticket), do: stub()
  def answer_settled(_ticket), do: stub()

  def process_handler_register(_client, _target, _process, _timeout), do: stub()
  def process_handler_answer(_responder, _answer), do: stub()

  # A function that works on a thread of its own takes a tag, returns a ticket at once, and sends
  # `{tag, {:ok, value} | {:error, error}}` later.

  @doc false
  # Starts such a function, and waits for its answer.
  @spec await((reference() -> term()), timeout()) ::
          {:ok, term()} | {:error, Error.t()} | :timeout
  def await(fun, timeout \\ :infinity) do
    tag = make_ref()

    case fun.(tag) do
      {:ok, ticket} -> answer(tag, ticket, timeout)
      {:error, error} -> {:error, Error.from_native(error)}
    end
  end

  @doc false
  # Waits for an answer that is under way. One that is not waited for any more is never sent; one that
  # was taken from the mailbox, or given up, before is `:gone`.
  @spec answer(reference(), reference(), timeout()) ::
          {:ok, term()} | {:error, Error.t()} | :timeout | :gone
  def answer(tag, ticket, :infinity), do: answer_in_slices(tag, ticket)

  def answer(tag, ticket, timeout) do
    receive do
      {^tag, answer} -> from_native(answer)
    after
      timeout -> give_up(tag, ticket)
    end
  end

  # The states are the NIF's.
  defp give_up(tag, ticket) do
    case answer_cancel(ticket) do
      0 ->
        :timeout

      # Being sent.
      1 ->
        receive do
          {^tag, answer} -> from_native(answer)
        after
          1 -> give_up(tag, ticket)
        end

      # Sent.
      2 ->
        receive do
          {^tag, answer} -> from_native(answer)
        after
          0 -> :gone
        end

      # Given up before.
      3 ->
        :gone
    end
  end

  # Every answer comes, unless it was taken or given up before: then it is not waited for without end.
  defp answer_in_slices(tag, ticket) do
    receive do
      {^tag, answer} -> from_native(answer)
    after
      1_000 ->
        if answer_settled(ticket), do: give_up(tag, ticket), else: answer_in_slices(tag, ticket)
    end
  end

  @doc false
  def from_native({:ok, value}), do: {:ok, value}
  def from_native({:error, error}), do: {:error, Error.from_native(error)}

  defp stub, do: :erlang.nif_error(:nif_not_loaded)
end
