defmodule Fuzz.Journal do
  @moduledoc false

  # What a child has done, in a file of fixed size that it writes to before each try: the kernel keeps
  # what was written when the child is dead. The driver reads it then, and while the child lives.

  defstruct index: -1, clock: 0, done: 0, ok: 0, refused: 0, unexpected: 0, slowest: 0

  @fields [:index, :clock, :done, :ok, :refused, :unexpected, :slowest]
  @size length(@fields) * 8

  def open!(path) do
    {:ok, file} = :file.open(path, [:raw, :binary, :read, :write])
    file
  end

  def write!(file, %__MODULE__{} = journal) do
    :ok =
      :file.pwrite(
        file,
        0,
        for(field <- @fields, into: <<>>, do: <<Map.fetch!(journal, field)::signed-64>>)
      )
  end

  def read(path) do
    case File.read(path) do
      {:ok, <<bytes::binary-size(@size)>>} ->
        values = for <<value::signed-64 <- bytes>>, do: value
        struct!(__MODULE__, Enum.zip(@fields, values))

      _ ->
        %__MODULE__{}
    end
  end
end
