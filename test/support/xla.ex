defmodule EXLA.CustomCall.XLA do
  @moduledoc """
  The real XLA for tests: one client of the CPU plugin with the test handlers, and shorthands.
  """

  alias EXLA.CustomCall.{Client, Executable, Library, Module, TestHandlers, Typespec, Value}

  @handlers ~w(
    test_add_f32 test_scale_f32 test_copy test_physical_order test_attr_bytes test_describe test_fail
    test_panic test_sum_all test_iota test_nothing test_call_count test_token test_sleep_ms
    test_fill_bytes test_shares_memory test_user_data
  )

  @doc "Makes the client that all tests share; every handler's target is its symbol."
  @spec start!() :: :ok
  def start! do
    client = Client.new!(plugin: :cpu, options: [cpu_device_count: 2])
    Library.load!(client, TestHandlers.path(), Map.new(@handlers, &{&1, &1}))
    :persistent_term.put(__MODULE__, client)
  end

  @doc "The client that all tests share."
  @spec client() :: Client.t()
  def client, do: :persistent_term.get(__MODULE__)

  @doc """
  Runs one custom call on `{binary, typespec}` inputs, and returns its results' binaries.
  """
  def call(spec, inputs, results, opts \\ []) do
    parameters = Enum.map(inputs, fn {_binary, typespec} -> Value.parameter(typespec) end)
    values = Value.custom_call(parameters, spec, results)

    with {:ok, module} <- Module.build(parameters, values, opts),
         {:ok, executable} <- Client.compile(client(), module) do
      Executable.run(executable, inputs, results: :binary)
    end
  end

  @doc "A rank-1 f32 input, or one of the given shape."
  def f32(values, shape \\ nil) do
    {for(value <- values, into: <<>>, do: <<value::32-float-native>>),
     Typespec.tensor({:f, 32}, shape || {length(values)})}
  end

  @doc "The numbers of an f32 binary."
  def floats(binary), do: for(<<value::32-float-native <- binary>>, do: value)

  @doc "What the handler `test_describe` writes: text, padded with zeros."
  def text(binary), do: String.trim_trailing(binary, <<0>>)
end
