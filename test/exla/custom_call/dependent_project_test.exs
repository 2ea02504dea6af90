defmodule EXLA.CustomCall.DependentProjectTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.TestHandlers

  @moduletag :tmp_dir
  @moduletag timeout: 300_000
  @root Path.expand("../../..", __DIR__)

  # A project as a user's would be: a block, its custom call, and a program that prints the StableHLO
  # and runs the kernel.
  defp write_project(folder) do
    File.mkdir_p!(Path.join(folder, "lib"))

    File.write!(Path.join(folder, "mix.exs"), """
    defmodule Dependent.MixProject do
      use Mix.Project

      def project do
        [
          app: :dependent,
          version: "1.0.0",
          deps: [{:exla_custom_call, path: #{inspect(@root)}}]
        ]
      end
    end
    """)

    File.write!(Path.join(folder, "lib/dependent.ex"), ~S'''
    defmodule Dependent.Add do
      defstruct []
    end

    defimpl EXLA.CustomCall, for: Dependent.Add do
      def call(_block, _out, _args, %{platform: :host}) do
        {:ok,
         %EXLA.CustomCall.Spec{
           call_target_name: "test_add_f32",
           mlir_attributes: [
             {"operand_layouts", "[dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>]"},
             {"result_layouts", "[dense<0> : tensor<1xindex>]"}
           ]
         }}
      end

      def call(_block, _out, _args, _client), do: :skip
    end

    defmodule Dependent do
      alias EXLA.CustomCall.{Client, Library, Lowering, Runner, Typespec}

      def main(handlers) do
        vector = Typespec.tensor({:f, 32}, {3})
        arguments = [vector, vector]
        IO.puts(Lowering.lower!(%Dependent.Add{}, vector, arguments, %{platform: :host}, []))

        client = Client.new!(plugin: :cpu)
        Library.load!(client, handlers, %{"test_add_f32" => "test_add_f32"})
        values = [{floats([1.0, 2.0, 3.0]), vector}, {floats([0.5, 0.25, 0.125]), vector}]
        sum = Runner.run!(%Dependent.Add{}, values, vector, client: client)
        IO.inspect(for <<value::float-32-native <- sum>>, do: value)
      end

      defp floats(values), do: for(value <- values, into: <<>>, do: <<value::float-32-native>>)
    end
    ''')
  end

  defp run!(command, args, folder) do
    {output, status} =
      System.cmd(command, args, cd: folder, env: [{"MIX_ENV", "prod"}], stderr_to_stdout: true)

    assert status == 0, output
    output
  end

  test "a project that depends on this one by path builds a release that runs a kernel",
       context do
    %{tmp_dir: folder} = context
    write_project(folder)
    refute run!("mix", ["release", "--quiet"], folder) =~ "warning"

    release = Path.join(folder, "_build/prod/rel/dependent")
    [nif] = Path.wildcard("#{release}/lib/exla_custom_call-*/priv/native/exla_custom_call.so")
    # A copy: the release has to run where the checkout is not.
    assert File.lstat!(nif).type == :regular

    program = "Dependent.main(#{inspect(TestHandlers.path())})"
    output = run!(Path.join(release, "bin/dependent"), ["eval", program], folder)

    assert output =~ ~s["stablehlo.custom_call"(%arg0, %arg1)]
    assert output =~ ~s[call_target_name = "test_add_f32"]
    assert output =~ ~s{result_layouts = [dense<0> : tensor<1xindex>]}
    assert output |> String.split("\n", trim: true) |> List.last() == "[1.5, 2.25, 3.125]"
  end
end
