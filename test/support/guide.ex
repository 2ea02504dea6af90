defmodule EXLA.CustomCall.Guide do
  @moduledoc """
  Runs the code in a document, so that what it says stays true.
  """

  @doc "The code blocks of a language, in order."
  @spec blocks(String.t(), String.t()) :: [String.t()]
  def blocks(text, language) do
    ~r/^```#{Regex.escape(language)}\n(.*?)^```$/ms
    |> Regex.scan(text, capture: :all_but_first)
    |> List.flatten()
  end

  @doc """
  Evaluates blocks of Elixir one after the other, with the variables and aliases of those before, and
  checks the lines that begin with `#=>`: what stands before such a line gives the value that it shows.

  Returns the number of values that were checked. `replace` is a map of texts and what to put in their
  places.
  """
  @spec run!([String.t()], map()) :: non_neg_integer()
  def run!(blocks, replace \\ %{}) do
    {_binding, _env, checked} =
      for block <- blocks, {code, expected} <- steps(block), reduce: {[], environment(), 0} do
        {binding, env, checked} ->
          code =
            Enum.reduce(replace, code, fn {from, to}, code -> String.replace(code, from, to) end)

          {value, binding, env} = eval!(code, binding, env)
          if expected, do: check!(value, expected, code)
          {binding, env, if(expected, do: checked + 1, else: checked)}
      end

    checked
  end

  # The code of a block up to each value that it shows, and that value; nil at the end.
  defp steps(block) do
    block
    |> String.split("\n")
    |> Enum.chunk_while(
      [],
      fn
        "#=> " <> expected, lines -> {:cont, {code(lines), expected}, []}
        line, lines -> {:cont, [line | lines]}
      end,
      &{:cont, {code(&1), nil}, []}
    )
    |> Enum.reject(fn {code, expected} -> expected == nil and String.trim(code) == "" end)
  end

  defp code(lines), do: lines |> Enum.reverse() |> Enum.join("\n")

  defp environment, do: Code.env_for_eval(file: "guide")

  defp eval!(code, binding, env) do
    code |> Code.string_to_quoted!() |> Code.eval_quoted_with_env(binding, env)
  end

  defp check!(value, expected, code) do
    found = inspect(value, limit: :infinity, printable_limit: :infinity, width: 1_000)

    if found != expected do
      raise ExUnit.AssertionError,
        message: "the code gives another value than the document shows",
        left: found,
        right: expected,
        expr: code
    end
  end

  @doc """
  Builds a crate of handlers with Cargo, and returns the path of its shared object. `name` is the crate's,
  `target` where Cargo keeps what it has compiled.
  """
  @spec build_crate!(Path.t(), String.t(), String.t(), String.t()) :: Path.t()
  def build_crate!(folder, name, manifest, source) do
    root = Path.expand("../..", __DIR__)
    File.mkdir_p!(Path.join(folder, "src"))
    File.write!(Path.join(folder, "Cargo.toml"), manifest <> "\n[workspace]\n")
    File.write!(Path.join(folder, "src/lib.rs"), source)
    # The versions that this package has been built with: they are on the machine.
    File.cp!(Path.join(root, "Cargo.lock"), Path.join(folder, "Cargo.lock"))
    # What has been compiled for it stays from one test to the next.
    target = Path.join(root, "target/readme")
    args = ["build", "--release", "--quiet", "--offline", "--target-dir", target]
    {output, status} = System.cmd("cargo", args, cd: folder, stderr_to_stdout: true)
    if {output, status} != {"", 0}, do: raise("cargo ended with status #{status}:\n#{output}")
    Path.wildcard(Path.join(target, "release/lib#{name}.{so,dylib}")) |> hd()
  end
end
