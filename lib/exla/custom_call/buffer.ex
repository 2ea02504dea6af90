defmodule EXLA.CustomCall.Buffer do
  @moduledoc """
  A tensor in the memory of a device.

      {:ok, x} = EXLA.CustomCall.Buffer.from_binary(client, binary, Typespec.tensor({:f, 32}, {1024}))
      {:ok, [y]} = EXLA.CustomCall.Executable.run(executable, [x])
      {:ok, binary} = EXLA.CustomCall.Buffer.to_binary(y)

  What a program returns stays on its device, and can be the input of the next one, until its bytes
  are asked for. A buffer is freed when no process holds it any more, or by `delete/1`.

  ## Copies

  On a CPU a binary that lies at a multiple of 64 bytes is used where it lies, and kept until the
  device is done with it; others are copied once. `to_binary/1` gives a binary that lies in the
  device's memory, which keeps the buffer's memory, where the device is a CPU and the layout is
  row-major; otherwise it copies once.

  The work that a buffer comes from may still be going on, and may fail: then reading it is an error.
  """

  alias EXLA.CustomCall.{Client, Error, Native, Options, SpecTerms, Typespec}

  @enforce_keys [:ref, :client, :typespec]
  defstruct [:ref, :client, :typespec]

  @type t :: %__MODULE__{ref: reference(), client: Client.t(), typespec: Typespec.t()}

  @doc """
  Hands the bytes of a tensor to a device.

  ## Options

    * `:device` - the device's id, default: the client's first.
    * `:strides` - how many bytes lie between neighbours in each dimension, for a binary that is not
      row-major; 0 repeats. Multiples of the element's size. Such a tensor is always copied.
  """
  @spec from_binary(Client.t(), binary(), Typespec.t() | map(), keyword()) ::
          {:ok, t()} | {:error, Error.t()}
  def from_binary(client, binary, template, opts \\ [])

  def from_binary(%Client{} = client, binary, template, opts) do
    with {:ok, opts} <- Options.validate(opts, device: nil, strides: nil),
         {:ok, typespec} <- Typespec.cast(template),
         :ok <- check_type(typespec),
         :ok <- check_binary(binary, typespec, opts[:strides]),
         {:ok, device} <- device(client, opts[:device]),
         tensor = {Typespec.to_native(typespec), binary, opts[:strides]},
         {:ok, ref} <- Native.await(&Native.buffer_from_binary(client.ref, device, tensor, &1)) do
      {:ok, new(ref, client, typespec)}
    end
  end

  def from_binary(other, _binary, _template, _opts) do
    argument("expected an EXLA.CustomCall.Client, got: #{inspect(other)}")
  end

  @doc "Like `from_binary/4`, but raises."
  @spec from_binary!(Client.t(), binary(), Typespec.t() | map(), keyword()) :: t()
  def from_binary!(client, binary, template, opts \\ []) do
    client |> from_binary(binary, template, opts) |> Error.unwrap!()
  end

  @doc """
  Hands an `Nx.Tensor` to a device. Options as in `from_binary/4`, without strides.
  """
  @spec from_tensor(Client.t(), struct(), keyword()) :: {:ok, t()} | {:error, Error.t()}
  def from_tensor(client, tensor, opts \\ []) do
    with {:ok, opts} <- Options.validate(opts, device: nil),
         {:ok, typespec} <- Typespec.cast(tensor),
         {:ok, binary} <- Typespec.from_tensor(tensor, typespec) do
      from_binary(client, binary, typespec, opts)
    end
  end

  @doc "Like `from_tensor/3`, but raises."
  @spec from_tensor!(Client.t(), struct(), keyword()) :: t()
  def from_tensor!(client, tensor, opts \\ []) do
    client |> from_tensor(tensor, opts) |> Error.unwrap!()
  end

  @doc """
  The bytes of the tensor, in row-major order. Waits for the work that it comes from. A token has
  none.
  """
  @spec to_binary(t()) :: {:ok, binary()} | {:error, Error.t()}
  def to_binary(%__MODULE__{typespec: %{type: :token}}), do: {:ok, ""}

  def to_binary(%__MODULE__{ref: ref}) do
    Native.await(&Native.buffer_to_binary(ref, &1))
  end

  def to_binary(other), do: not_a_buffer(other)

  @doc "Like `to_binary/1`, but raises."
  @spec to_binary!(t()) :: binary()
  def to_binary!(buffer), do: buffer |> to_binary() |> Error.unwrap!()

  @doc "The tensor as an `Nx.Tensor`, where Nx is there."
  @spec to_tensor(t()) :: {:ok, struct()} | {:error, Error.t()}
  def to_tensor(buffer) do
    with {:ok, binary} <- to_binary(buffer), do: Typespec.to_tensor(binary, buffer.typespec)
  end

  @doc "Like `to_tensor/1`, but raises."
  @spec to_tensor!(t()) :: struct()
  def to_tensor!(buffer), do: buffer |> to_tensor() |> Error.unwrap!()

  @doc "A copy on another device of the same client, by the device's id."
  @spec to_device(t(), integer()) :: {:ok, t()} | {:error, Error.t()}
  def to_device(%__MODULE__{} = buffer, device) do
    with {:ok, device} <- device(buffer.client, device),
         {:ok, ref} <- Native.await(&Native.buffer_to_device(buffer.ref, device, &1)) do
      {:ok, %{buffer | ref: ref}}
    end
  end

  def to_device(other, _device), do: not_a_buffer(other)

  @doc "Like `to_device/2`, but raises."
  @spec to_device!(t(), integer()) :: t()
  def to_device!(buffer, device), do: buffer |> to_device(device) |> Error.unwrap!()

  @doc """
  Gives the device's memory back at once. The buffer cannot be used any more; binaries that were read
  from it stay.
  """
  @spec delete(t()) :: :ok | {:error, Error.t()}
  def delete(%__MODULE__{ref: ref}) do
    with {:ok, :ok} <- Native.await(&Native.buffer_delete(ref, &1)), do: :ok
  end

  def delete(other), do: not_a_buffer(other)

  @doc "Like `delete/1`, but raises."
  @spec delete!(t()) :: :ok
  def delete!(buffer), do: buffer |> delete() |> Error.unwrap!()

  @doc "Whether the buffer was deleted, or donated to a program."
  @spec deleted?(t()) :: boolean()
  def deleted?(%__MODULE__{ref: ref}) do
    Native.buffer_deleted(ref) |> Native.from_native() |> Error.unwrap!()
  end

  def deleted?(other) do
    {:error, error} = not_a_buffer(other)
    raise ArgumentError, error.message
  end

  @doc """
  Where and how the tensor lies.

    * `:device` - the device's id;
    * `:memory` - the memory space, such as `"device"` or `"unpinned_host"`;
    * `:size` - bytes on the device;
    * `:minor_to_major` - the dimensions from the fastest varying to the slowest, or `nil` where the
      plugin does not tell.
  """
  @spec info(t()) :: {:ok, map()} | {:error, Error.t()}
  def info(%__MODULE__{ref: ref}) do
    with {:ok, {device, memory, size, layout}} <- Native.from_native(Native.buffer_info(ref)) do
      {:ok, %{device: device, memory: memory, size: size, minor_to_major: layout}}
    end
  end

  def info(other), do: not_a_buffer(other)

  @doc "Like `info/1`, but raises."
  @spec info!(t()) :: map()
  def info!(buffer), do: buffer |> info() |> Error.unwrap!()

  @doc false
  def new(ref, client, typespec) do
    %__MODULE__{ref: ref, client: client, typespec: typespec}
  end

  defp check_type(%{type: {kind, _}} = typespec) when kind in [:tuple, :buffer] do
    argument("#{inspect(typespec)} is no tensor; make it in the program")
  end

  defp check_type(_typespec), do: :ok

  defp check_binary(_binary, %{type: :token}, _strides) do
    argument("a token has no bytes; make it in the program")
  end

  defp check_binary(binary, typespec, nil) when is_binary(binary) do
    Typespec.check_binary(typespec, binary)
  end

  defp check_binary(binary, %{shape: shape}, strides) when is_binary(binary) do
    if SpecTerms.proper_list?(strides) and length(strides) == tuple_size(shape) and
         Enum.all?(strides, &(is_integer(&1) and &1 in 0..0x7FFF_FFFF_FFFF_FFFF)) do
      :ok
    else
      argument(
        "expected :strides to be a list of #{tuple_size(shape)} numbers of bytes, got: " <>
          inspect(strides)
      )
    end
  end

  defp check_binary(other, _typespec, _strides) do
    argument("expected a binary, got: #{inspect(other)}")
  end

  defp device(%{devices: devices}, nil) do
    case Enum.find(devices, & &1.addressable) do
      nil -> argument("the client has no device that this process can use")
      %{id: id} -> {:ok, id}
    end
  end

  defp device(%{devices: devices}, id) do
    ids = for %{addressable: true, id: id} <- devices, do: id

    if id in ids do
      {:ok, id}
    else
      argument("expected a device of #{inspect(ids)}, got: #{inspect(id)}")
    end
  end

  defp not_a_buffer(other) do
    argument("expected an EXLA.CustomCall.Buffer, got: #{inspect(other)}")
  end

  defp argument(message), do: {:error, Error.new(:argument, message)}

  defimpl Inspect do
    def inspect(buffer, _opts) do
      dimensions = buffer.typespec.shape |> Tuple.to_list() |> Enum.map_join(&"[#{&1}]")
      type = EXLA.CustomCall.Typespec.short_name(buffer.typespec.type)
      "#EXLA.CustomCall.Buffer<#{type}#{dimensions}>"
    end
  end
end
