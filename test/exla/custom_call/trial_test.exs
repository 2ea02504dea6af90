defmodule EXLA.CustomCall.TrialTest do
  # Not async: the processes of other trials would be counted.
  use ExUnit.Case, async: false

  alias EXLA.CustomCall.{Client, Context, Executable, Module, Spec, Typespec, Value, XLA}

  @vector Typespec.tensor({:f, 32}, {2})

  defp one_call(spec) do
    x = Value.parameter(@vector)
    Module.build!([x], Value.custom_call([x], spec, [@vector]))
  end

  # Some 20 seconds of XLA's compiler.
  defp slow do
    square = Typespec.tensor({:f, 32}, {8, 8})
    x = Value.parameter(square)

    dot = "#stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>"

    y =
      Enum.reduce(1..3_000, x, fn _, y ->
        [y] = Value.op("stablehlo.tanh", [y], [square])

        [y] =
          Value.op("stablehlo.dot_general", [y, x], [square],
            attributes: [{"dot_dimension_numbers", dot}]
          )

        y
      end)

    {x, y}
  end

  test "a module that compiles in a process of its own is compiled here" do
    spec = %Spec{call_target_name: "test_copy"}
    assert {:ok, executable} = Client.compile(XLA.client(), one_call(spec), trial: true)
    {input, _} = XLA.f32([1.0, 2.0])
    assert {:ok, [^input]} = Executable.run(executable, [input], results: :binary)
  end

  test "a handler need not be there for a trial, and is missed after it" do
    spec = %Spec{call_target_name: "nobody_has_this"}
    {:error, error} = Client.compile(XLA.client(), one_call(spec), trial: true)
    assert error.message =~ "No FFI handler registered for nobody_has_this"
    x = Value.parameter(@vector)
    y = Value.custom_call([x], spec, [@vector])
    assert Module.check([x], y, compile: XLA.client()) == {:ok, []}
  end

  test "what XLA refuses in words is the same error as without a trial" do
    x = Value.parameter(@vector)
    [y] = Value.op("stablehlo.nonsense", [x], [@vector])
    module = Module.build!([x], [y])
    {:error, without} = Client.compile(XLA.client(), module)
    assert {:error, ^without} = Client.compile(XLA.client(), module, trial: true)
    assert {:error, ^without} = Module.check([x], [y], compile: {XLA.client(), []})
  end

  test "a process that takes too much memory is an error" do
    # 64 MB each, several times over.
    spec = %Spec{
      call_target_name: "test_copy",
      attributes: [{"k", "dense<0> : tensor<8000000xi64>"}]
    }

    x = Value.parameter(@vector)
    y = Enum.reduce(1..8, x, fn _, y -> hd(Value.custom_call([y], spec, [@vector])) end)

    {:error, error} =
      Module.check([x], [y],
        context: Context.new!(max_array_bytes: 1_000_000_000),
        compile: {XLA.client(), trial: [max_memory: 134_217_728]}
      )

    # An allocation that fails may come before the process sees itself over its ceiling.
    assert error.kind == :compile
    assert error.code in [:resource_exhausted, :aborted]
    assert error.message =~ "over this module"
  end

  test "a process that dies is an error, and this VM goes on" do
    {x, y} = slow()
    task = Task.async(fn -> Module.check([x], [y], compile: XLA.client()) end)
    assert wait_for(fn -> workers() != [] end)
    # It is loading the plugin, or compiling.
    Enum.each(workers(), &System.cmd("kill", ["-ABRT", &1]))
    {:error, error} = Task.await(task, 30_000)
    assert {error.kind, error.code} == {:compile, :aborted}

    assert error.message =~
             "XLA's compiler failed a check of its own (SIGABRT) over this module; a process of " <>
               "its own did, and this VM did not compile it"
  end

  test "a compilation that does not end is an error after the time-out" do
    {x, y} = slow()
    {:error, error} = Module.check([x], [y], compile: {XLA.client(), trial: [timeout: 1_500]})
    assert {error.kind, error.code} == {:compile, :deadline_exceeded}

    assert error.message =~
             "XLA's compiler was not done with this module within the 1500 ms of the trial"
  end

  test "no process is left behind, whether the trial ends, is given up or its caller is killed" do
    {x, y} = slow()

    check = fn timeout ->
      Module.check([x], [y], compile: {XLA.client(), trial: [timeout: timeout]})
    end

    {:error, _} = check.(800)
    pid = spawn(fn -> check.(60_000) end)
    assert wait_for(fn -> workers() != [] end)
    Process.exit(pid, :kill)
    assert wait_for(fn -> workers() == [] end)
  end

  test "options of the wrong shape are refused by name" do
    module = one_call(%Spec{call_target_name: "test_copy"})

    message = fn trial ->
      {:error, error} = Client.compile(XLA.client(), module, trial: trial)
      assert error.kind == :argument
      error.message
    end

    assert message.(timeout: 0) ==
             "expected :timeout to be an integer from 1 to 2147483647, got: 0"

    assert message.(max_memory: 1) ==
             "expected :max_memory to be an integer from 134217728 to 9223372036854775807, got: 1"

    assert message.(memory: 1) == "unknown option :memory; the options are :timeout, :max_memory"

    for wrong <- [:yes, 3, [1]] do
      assert message.(wrong) ==
               "expected :trial to be true, false, or a keyword list of :timeout and :max_memory, got: #{inspect(wrong)}"
    end

    x = Value.parameter(@vector)

    assert {:error,
            %{
              field: :compile,
              message:
                "expected :compile to be an EXLA.CustomCall.Client, or one and a keyword list, got: :cpu"
            }} = Module.check([x], [x], compile: :cpu)
  end

  test "donated parameters and XLA's options go along" do
    module = one_call(%Spec{call_target_name: "test_copy"})
    opts = [donate: [0], xla_options: [xla_cpu_enable_fast_math: true], trial: true]
    assert {:ok, _} = Client.compile(XLA.client(), module, opts)
    bad = [xla_options: [no_such_option: true], trial: true]
    {:error, error} = Client.compile(XLA.client(), module, bad)
    assert error.message =~ "no_such_option"
  end

  # Those of this VM, which starts programs from a process of its own.
  defp workers do
    for entry <- File.ls!("/proc"),
        entry =~ ~r/^[0-9]+$/,
        {:ok, program} <- [File.read_link("/proc/#{entry}/exe")],
        Path.basename(program) == "exla_custom_call_worker",
        entry |> parent() |> parent() == System.pid(),
        do: entry
  end

  # The number of a process's parent is the second word after its name.
  defp parent(nil), do: nil

  defp parent(pid) do
    with {:ok, stat} <- File.read("/proc/#{pid}/stat") do
      stat |> String.split(") ") |> List.last() |> String.split(" ") |> Enum.at(1)
    else
      _ -> nil
    end
  end

  defp wait_for(fun, tries \\ 100) do
    fun.() or (tries > 0 and (Process.sleep(50) == :ok and wait_for(fun, tries - 1)))
  end
end
