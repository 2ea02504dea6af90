defmodule EXLA.CustomCall.BufferTest do
  use ExUnit.Case, async: true

  import EXLA.CustomCall.XLA, only: [f32: 1, f32: 2, floats: 1]

  alias EXLA.CustomCall.{Buffer, Client, Error, Executable, Module, Spec, Typespec, Value, XLA}

  @vector Typespec.tensor({:f, 32}, {2})

  defp buffer(values) do
    {binary, typespec} = f32(values)
    Buffer.from_binary!(XLA.client(), binary, typespec)
  end

  defp compile(target, parameters, opts \\ []) do
    parameters = Enum.map(parameters, &Value.parameter/1)
    values = Value.custom_call(parameters, %Spec{call_target_name: target}, [@vector])
    Client.compile!(XLA.client(), Module.build!(parameters, values), opts)
  end

  test "a binary goes to the device and comes back" do
    for type <- Typespec.types(), shape <- [{}, {0, 3}, {2, 3}] do
      typespec = Typespec.tensor(type, shape)
      bytes = :binary.copy(<<1>>, Typespec.byte_size(typespec))
      buffer = Buffer.from_binary!(XLA.client(), bytes, typespec)
      assert Buffer.to_binary!(buffer) == bytes, inspect(typespec)
      assert buffer.typespec == typespec
    end
  end

  test "what it was read into survives it" do
    {binary, typespec} = f32(Enum.to_list(1..10_000))
    buffer = Buffer.from_binary!(XLA.client(), binary, typespec)
    read = Buffer.to_binary!(buffer)
    assert Buffer.delete(buffer) == :ok
    :erlang.garbage_collect()
    assert read == binary
  end

  test "results stay on the device and are the next program's inputs" do
    executable = compile("test_add_f32", [@vector, @vector])
    x = buffer([1, 2])
    {:ok, [y]} = Executable.run(executable, [x, x])
    assert inspect(y) == "#EXLA.CustomCall.Buffer<f32[2]>"
    {:ok, [z]} = Executable.run(executable, [y, elem(f32([10, 20]), 0)])
    assert floats(Buffer.to_binary!(z)) == [12.0, 24.0]
  end

  test "it tells where and how it lies" do
    {binary, typespec} = f32([1, 2, 3, 4, 5, 6], {2, 3})
    buffer = Buffer.from_binary!(XLA.client(), binary, typespec, device: 1)
    info = Buffer.info!(buffer)
    assert %{device: 1, size: 24, minor_to_major: [1, 0]} = info
    assert is_binary(info.memory)
    copy = Buffer.to_device!(buffer, 0)
    assert Buffer.info!(copy).device == 0
    assert Buffer.to_binary!(copy) == binary
  end

  test "strides read a tensor that is not row-major" do
    {binary, _} = f32([0, 1, 2, 3, 4, 5])
    typespec = Typespec.tensor({:f, 32}, {3, 2})
    transposed = Buffer.from_binary!(XLA.client(), binary, typespec, strides: [4, 12])
    assert floats(Buffer.to_binary!(transposed)) == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    {:error, error} = Buffer.from_binary(XLA.client(), binary, typespec, strides: [4, 40])
    assert error.kind == :buffer
    {:error, error} = Buffer.from_binary(XLA.client(), binary, typespec, strides: [4])

    assert error.message == "expected :strides to be a list of 2 numbers of bytes, got: [4]"
  end

  test "a deleted buffer cannot be used" do
    buffer = buffer([1, 2])
    refute Buffer.deleted?(buffer)
    assert Buffer.delete(buffer) == :ok
    assert Buffer.delete(buffer) == :ok
    assert Buffer.deleted?(buffer)
    {:error, error} = Buffer.to_binary(buffer)
    assert error.kind == :buffer
    assert error.message == "the buffer was deleted and can be used no more"
    {:error, error} = Executable.run(compile("test_copy", [@vector]), [buffer])
    assert error.kind == :run
    assert error.message == "the buffer was deleted and can be used no more"
    assert_raise Error, fn -> Buffer.to_binary!(buffer) end
  end

  test "a donated buffer lends its memory to a result and cannot be used afterwards" do
    # One parameter, donated, and one result of its size: the compiler takes the memory.
    x = Value.parameter(Typespec.tensor({:f, 32}, {4096}))
    [y] = Value.op("stablehlo.negate", [x], [x.typespec])
    module = Module.build!([x], [y])
    executable = Client.compile!(XLA.client(), module, donate: [0])
    {binary, typespec} = f32(Enum.to_list(1..4096))
    buffer = Buffer.from_binary!(XLA.client(), binary, typespec)
    {:ok, [result]} = Executable.run(executable, [buffer])
    assert hd(floats(Buffer.to_binary!(result))) == -1.0
    assert Buffer.deleted?(buffer)
    {:error, error} = Buffer.to_binary(buffer)
    assert error.message =~ "donated"
    # A binary is copied, and stays as it is.
    {:ok, [_]} = Executable.run(executable, [binary])
    assert {binary, typespec} == f32(Enum.to_list(1..4096))
  end

  test "a buffer of another type or client is refused" do
    executable = compile("test_copy", [@vector])
    {:error, error} = Executable.run(executable, [buffer([1, 2, 3])])

    assert error.message ==
             "input 0: the executable takes #EXLA.CustomCall.Typespec<f32[2]>, " <>
               "got #EXLA.CustomCall.Typespec<f32[3]>"

    {binary, typespec} = f32([1, 2])
    foreign = Buffer.from_binary!(Client.new!(), binary, typespec)
    {:error, error} = Executable.run(executable, [foreign])
    assert error.message =~ "belongs to another client"
  end

  test "wrong arguments are refused" do
    refusal = fn binary, typespec, opts ->
      {:error, error} = Buffer.from_binary(XLA.client(), binary, typespec, opts)
      error.message
    end

    assert refusal.("12345", @vector, []) ==
             "#EXLA.CustomCall.Typespec<f32[2]> takes 8 bytes, got a binary of 5"

    assert refusal.(:x, @vector, []) == "expected a binary, got: :x"
    assert refusal.("12345678", @vector, device: 7) == "expected a device of [0, 1], got: 7"
    assert refusal.("", Typespec.token(), []) == "a token has no bytes; make it in the program"

    assert refusal.(<<0, 2>>, Typespec.tensor(:pred, {2}), []) ==
             "element 1 is the byte 2, which pred cannot hold"

    assert refusal.(<<7, 8>>, Typespec.tensor(:s4, {2}), []) ==
             "element 1 is the byte 8, which s4 cannot hold"

    assert {:error, %{message: "expected an EXLA.CustomCall.Buffer, got: nil"}} =
             Buffer.to_binary(nil)

    assert {:error, %{message: "expected an EXLA.CustomCall.Client, got: nil"}} =
             Buffer.from_binary(nil, "", @vector)
  end

  test "a tensor needs Nx" do
    refute Code.ensure_loaded?(Nx)
    {:error, error} = Buffer.to_tensor(buffer([1, 2]))
    assert error.message == "there is no Nx to make a tensor with"
    tensor = %{__struct__: Nx.Tensor, type: {:f, 32}, shape: {2}}
    {:error, error} = Buffer.from_tensor(XLA.client(), tensor)
    assert error.message == "there is no Nx to read a tensor with"
  end

  # Both of these ended the VM, or never ended, in some of a hundred rounds.

  test "a buffer that is read while it is deleted is read, or was deleted" do
    for _ <- 1..1_000 do
      {bytes, typespec} = f32([1, 2])
      buffer = Buffer.from_binary!(XLA.client(), bytes, typespec)
      read = for _ <- 1..3, do: Task.async(fn -> Buffer.to_binary(buffer) end)
      delete = Task.async(fn -> Buffer.delete(buffer) end)
      answers = Task.await_many(read)
      assert Task.await(delete) == :ok

      for answer <- answers do
        assert answer == {:ok, bytes} or match?({:error, %Error{kind: :buffer}}, answer)
      end
    end
  end

  test "a buffer that is given twice to one program and donated to another ends both" do
    add = compile("test_add_f32", [@vector, @vector])
    donating = compile("test_add_f32", [@vector, @vector], donate: [0])
    {bytes, _typespec} = f32([1, 2])

    for _ <- 1..300 do
      buffer = buffer([1, 2])

      runs =
        for executable <- [add, donating, add, donating] do
          Task.async(fn ->
            inputs = if executable == add, do: [buffer, buffer], else: [buffer, bytes]
            Executable.run(executable, inputs, results: :binary)
          end)
        end

      for answer <- Task.await_many(runs, 20_000) do
        case answer do
          {:ok, [sum]} -> assert floats(sum) == [2.0, 4.0]
          {:error, error} -> assert %Error{kind: :run} = error
        end
      end
    end
  end

  test "of two buffers that two programs take from each other both programs end" do
    donating = compile("test_add_f32", [@vector, @vector], donate: [0])

    for _ <- 1..300 do
      [a, b] = [buffer([1, 2]), buffer([10, 20])]

      runs =
        for inputs <- [[a, b], [b, a]] do
          Task.async(fn -> Executable.run(donating, inputs, results: :binary) end)
        end

      for answer <- Task.await_many(runs, 20_000) do
        assert match?({:ok, [_sum]}, answer) or match?({:error, %Error{kind: :run}}, answer)
      end
    end
  end
end
