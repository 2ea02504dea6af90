defmodule EXLA.CustomCall.NxTest do
  # Nx tensors in and out, with a stand-in for Nx in a VM of its own: Nx is no dependency, and the other
  # tests are to see that it is not there.
  use ExUnit.Case, async: true

  @moduletag timeout: 120_000

  @nx """
  defmodule Nx.Tensor do
    defstruct [:type, :shape, :bits]
  end

  # Elements of less than a byte are packed, as in Nx.
  defmodule Nx do
    def to_binary(tensor), do: tensor.bits
    def from_binary(bits, type), do: %Nx.Tensor{type: type, bits: bits}
    def reshape(tensor, shape), do: %{tensor | shape: shape}
  end
  """

  defp run(program) do
    paths = ["-pa", to_string(:code.lib_dir(:exla_custom_call, :ebin))]
    start = "{:ok, _} = Application.ensure_all_started(:exla_custom_call)"
    # One after the other, so that each sees what the one before defined.
    programs = Enum.flat_map([@nx, start, program], &["-e", &1])
    {output, status} = System.cmd("elixir", paths ++ programs, stderr_to_stdout: true)
    assert status == 0, output
    output
  end

  test "tensors of every size of element go to the device and come back" do
    assert run("""
           alias EXLA.CustomCall.{Buffer, Client}
           client = Client.new!()

           for {type, bits} <- [
                 {{:s, 2}, <<-2::2, 1::2, -1::2>>},
                 {{:u, 2}, <<3::2, 0::2, 1::2>>},
                 {{:s, 4}, <<-8::4, 7::4, -1::4>>},
                 {{:u, 4}, <<15::4, 0::4, 9::4>>},
                 {{:u, 8}, <<0, 128, 255>>},
                 {{:f, 32}, <<1.0::32-float-native, -2.0::32-float-native, 0.5::32-float-native>>}
               ] do
             tensor = %Nx.Tensor{type: type, shape: {3}, bits: bits}
             ^tensor = client |> Buffer.from_tensor!(tensor) |> Buffer.to_tensor!()
           end

           IO.puts("all the same")
           """) == "all the same\n"
  end

  test "tensors are the operands of a block and its results" do
    assert run("""
           alias EXLA.CustomCall.{Client, Library, Runner}
           client = Client.new!()
           Library.load_builtin!(client)
           bits = for n <- [2.0, 0.0, 0.0, 3.0], into: <<>>, do: <<n::64-float-native>>
           matrix = %Nx.Tensor{type: {:f, 64}, shape: {2, 2}, bits: bits}
           out = {%Nx.Tensor{type: {:f, 64}, shape: {2}}, matrix}
           block = %{__struct__: Nx.Block.LinAlg.Eigh}
           {values, vectors} = Runner.run!(block, [matrix], out, client: client, results: :tensor)
           IO.inspect({values.shape, vectors.shape, for(<<n::64-float-native <- values.bits>>, do: n)})
           """) == "{{2}, {2, 2}, [2.0, 3.0]}\n"
  end
end
