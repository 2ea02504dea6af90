defmodule EXLA.CustomCall.LinalgTest do
  # `native/xla_ffi_linalg` in XLA: what the protocol's fallback lowers to runs.
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.{Error, Library, Runner, Spec, Typespec, XLA}

  @qr %{__struct__: Nx.Block.LinAlg.QR}
  @eigh %{__struct__: Nx.Block.LinAlg.Eigh}

  setup_all do
    {:ok, library} = Library.load_builtin(XLA.client())

    assert library.targets |> Enum.sort() |> Enum.take(3) == [
             "eigh_cpu_custom_call_f32",
             "eigh_cpu_custom_call_f64",
             "lu_cpu_custom_call_bf16"
           ]

    :ok
  end

  # How far a product may be from what it should be, element by element. Of rounded factors, with at
  # most four elements a sum and rows that are no longer than 2, that is four times the epsilon.
  @tolerances %{{:f, 64} => 1.0e-12, {:f, 32} => 1.0e-5, {:f, 16} => 3.9e-3, {:bf, 16} => 3.2e-2}

  @square [[0.5, -0.25, 1.0], [0.25, 0.75, -0.5], [-1.0, 0.5, 0.125]]
  @symmetric [[0.5, 0.25, -1.0], [0.25, 0.75, 0.5], [-1.0, 0.5, 0.125]]
  @tall [[1.0, 0.5], [-0.5, 0.25], [0.75, -1.0], [0.125, 0.5]]

  for type <- [{:f, 64}, {:f, 32}, {:f, 16}, {:bf, 16}] do
    @type_under_test type

    test "QR of #{inspect(type)}, reduced and complete" do
      type = @type_under_test

      for matrix <- [@square, @tall, transpose(@tall)], complete <- [false, true] do
        {rows, columns} = size(matrix)
        inner = if complete, do: rows, else: min(rows, columns)
        {q, r} = run(@qr, type, [matrix], {{1, rows, inner}, {1, inner, columns}})
        [q] = matrices(q, type, {rows, inner})
        [r] = matrices(r, type, {inner, columns})
        assert_close(times(q, r), matrix, type)
        assert_close(times(transpose(q), q), identity(inner), type)
        for {row, i} <- Enum.with_index(r), do: assert(Enum.all?(Enum.take(row, i), &(&1 == 0)))
      end
    end

    test "LU of #{inspect(type)}, in a batch" do
      type = @type_under_test
      singular = [[1.0, 1.0, 1.0], [0.5, 0.5, 0.5], [1.0, 0.0, 1.0]]
      {input, input_type} = input([@square, singular], type)
      p_type = Typespec.tensor({:u, 8}, {2, 3, 3})
      spec = %Spec{call_target_name: "lu_cpu_custom_call_#{Typespec.short_name(type)}"}

      {:ok, [p, l, u]} = XLA.call(spec, [{input, input_type}], [p_type, input_type, input_type])

      p = p |> :binary.bin_to_list() |> Enum.map(&(&1 * 1.0)) |> shaped({3, 3})

      for {matrix, p, l, u} <-
            Enum.zip([
              [@square, singular],
              p,
              matrices(l, type, {3, 3}),
              matrices(u, type, {3, 3})
            ]) do
        assert_close(p |> times(l) |> times(u), matrix, type)
        assert times(transpose(p), p) == identity(3)
        assert for({row, i} <- Enum.with_index(l), do: Enum.at(row, i)) == [1.0, 1.0, 1.0]
        assert [[_, _, _], [+0.0, _, _], [+0.0, +0.0, _]] = u
      end
    end
  end

  for type <- [{:f, 64}, {:f, 32}] do
    @type_under_test type

    test "Eigh of #{inspect(type)}, in a batch" do
      type = @type_under_test
      batch = [@symmetric, identity(3)]
      {values, vectors} = run(@eigh, type, batch, {{2, 3}, {2, 3, 3}})

      for {matrix, [values], vectors} <-
            Enum.zip([batch, matrices(values, type, {1, 3}), matrices(vectors, type, {3, 3})]) do
        assert values == Enum.sort(values)
        assert_close(times(transpose(vectors), vectors), identity(3), type)
        scaled = for row <- vectors, do: Enum.zip_with(row, values, &(&1 * &2))
        assert_close(times(scaled, transpose(vectors)), matrix, type)
      end
    end
  end

  test "integers are converted first" do
    matrix = Typespec.tensor({:s, 32}, {2, 2})
    float = Typespec.tensor({:f, 32}, {2, 2})
    vector = Typespec.tensor({:f, 32}, {2})
    input = for value <- [1, 2, 2, 1], into: <<>>, do: <<value::32-native>>
    opts = [client: XLA.client()]

    {:ok, {q, r}} = Runner.run(@qr, [{input, matrix}], {float, float}, opts)
    [q] = matrices(q, {:f, 32}, {2, 2})
    [r] = matrices(r, {:f, 32}, {2, 2})
    assert_close(times(q, r), [[1.0, 2.0], [2.0, 1.0]], {:f, 32})

    {:ok, {values, _}} = Runner.run(@eigh, [{input, matrix}], {vector, float}, opts)
    assert_close(matrices(values, {:f, 32}, {1, 2}) |> hd(), [[-1.0, 3.0]], {:f, 32})
  end

  test "eigenvalues come in Nx's order where the call asks for it" do
    {input, type} = input([[[1.0, 0.0], [0.0, -2.0]]], {:f, 32})
    vector = Typespec.tensor({:f, 32}, {1, 2})

    spec = %Spec{
      call_target_name: "eigh_cpu_custom_call_f32",
      attributes: [{"order", ~s("magnitude")}]
    }

    {:ok, [values, _]} = XLA.call(spec, [{input, type}], [vector, type])
    assert XLA.floats(values) == [-2.0, 1.0]
  end

  test "empty batches" do
    {q, r} = run(@qr, {:f, 32}, [], {{0, 3, 2}, {0, 2, 2}}, {0, 3, 2})
    assert {q, r} == {"", ""}
  end

  test "NaN in, NaN out" do
    input = <<0x7FC00000::32-native, 1.0::32-float-native, 1.0::32-float-native, 0::32>>
    type = Typespec.tensor({:f, 32}, {2, 2})
    vector = Typespec.tensor({:f, 32}, {2})

    {:ok, {values, vectors}} =
      Runner.run(@eigh, [{input, type}], {vector, type}, client: XLA.client())

    # Elixir has no NaN: these match no float.
    assert for(<<value::32-float-native <- values <> vectors>>, do: value) == []
  end

  @tag :capture_log
  test "wrong shapes are errors that name the buffer" do
    {input, type} = input([@tall], {:f, 32})

    {:error, %Error{kind: :run} = error} =
      Runner.run(@qr, [{input, type}], {type, type}, client: XLA.client())

    assert error.message ==
             "INVALID_ARGUMENT: result 1 (r): expected f32[1,2,2] beside f32[1,4,2] as result 0 (q), " <>
               "found f32[1,4,2]"
  end

  # Runs the block on a batch of matrices; the results' types are the operand's.
  defp run(block, type, batch, {first, second}, shape \\ nil) do
    {binary, input_type} = input(batch, type, shape)
    out = {Typespec.tensor(type, first), Typespec.tensor(type, second)}
    Runner.run!(block, [{binary, input_type}], out, client: XLA.client())
  end

  defp input(batch, type, shape \\ nil) do
    shape = shape || Tuple.insert_at(size(hd(batch)), 0, length(batch))
    binary = for value <- List.flatten(batch), into: <<>>, do: encode(value, type)
    {binary, Typespec.tensor(type, shape)}
  end

  defp encode(value, {:f, bits}), do: <<value::size(bits)-float-native>>

  # The values here have few digits: none is cut off.
  defp encode(value, {:bf, 16}) do
    <<high::16, 0::16>> = <<value::32-float-big>>
    <<high::16-native>>
  end

  defp matrices(binary, type, size), do: binary |> decode(type) |> shaped(size)

  defp decode(binary, {:f, bits}),
    do: for(<<value::size(bits)-float-native <- binary>>, do: value)

  defp decode(binary, {:bf, 16}) do
    for <<high::16-native <- binary>> do
      <<value::32-float-big>> = <<high::16, 0::16>>
      value
    end
  end

  defp shaped(values, {rows, columns}) do
    values |> Enum.chunk_every(columns) |> Enum.chunk_every(rows)
  end

  defp size(matrix), do: {length(matrix), length(hd(matrix))}

  defp transpose(matrix), do: Enum.zip_with(matrix, & &1)

  defp identity(n), do: for(i <- 1..n, do: for(j <- 1..n, do: if(i == j, do: 1.0, else: 0.0)))

  defp times(a, b) do
    columns = transpose(b)
    for row <- a, do: for(column <- columns, do: Enum.sum(Enum.zip_with(row, column, &(&1 * &2))))
  end

  defp assert_close(found, expected, type) do
    assert size(found) == size(expected)

    for {x, y} <- Enum.zip(List.flatten(found), List.flatten(expected)) do
      assert_in_delta x, y, @tolerances[type]
    end
  end
end
