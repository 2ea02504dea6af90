defmodule Fuzz.Target do
  @moduledoc false

  # A way into the package: what it is given, and what is done with it.

  # Whether the environment needs a client.
  @callback client?() :: boolean()
  # What `Fuzz.Outcome.of/2` is told.
  @callback outcome() :: keyword()
  # What is made once a child.
  @callback setup(Fuzz.Env.t()) :: term()
  # An input from `Fuzz.Gen`'s random numbers: plain data.
  @callback generate() :: term()
  @callback try(input :: term(), Fuzz.Env.t(), state :: term()) :: term()

  defmacro __using__(opts) do
    quote do
      @behaviour Fuzz.Target
      alias Fuzz.{Env, Gen}

      def client?, do: unquote(Keyword.get(opts, :client, false))
      def outcome, do: unquote(Keyword.get(opts, :outcome, []))
      def setup(_env), do: nil
      defoverridable setup: 1
    end
  end
end
