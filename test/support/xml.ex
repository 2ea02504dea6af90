defmodule EXLA.CustomCall.XML do
  @moduledoc false
  # As much of XML as a picture of ours has, strictly: a tag that is not closed, a bare `&` or `<` and an
  # attribute without quotes raise. Erlang's own reader is not part of every installation.

  @name "[A-Za-z][A-Za-z0-9:_-]*"
  @attribute ~s(\\s+#{@name}="[^"<]*")

  # `{name, attributes, children}`; a child is an element or a text.
  def parse!(text) do
    unless String.valid?(text), do: raise(ArgumentError, "no UTF-8")
    {[root], ""} = text |> String.trim() |> children([])
    root
  end

  # The elements of a path such as `g.cell rect`: names, with a class, each somewhere inside the last.
  def select(element, path) do
    path
    |> String.split(" ")
    |> Enum.reduce([element], fn step, elements ->
      {name, class} = step |> String.split(".") |> then(&{hd(&1), Enum.at(&1, 1)})

      elements
      |> Enum.flat_map(&inside/1)
      |> Enum.filter(fn {other, attributes, _} ->
        other == name and class in [nil, attributes["class"]]
      end)
    end)
  end

  def text({_, _, children}), do: Enum.map_join(children, &text/1)
  def text(text), do: text

  defp inside({_, _, children}) do
    for child <- children, is_tuple(child), element <- [child | inside(child)], do: element
  end

  defp children("</" <> _ = rest, done), do: {Enum.reverse(done), rest}
  defp children("", done), do: {Enum.reverse(done), ""}

  defp children("<" <> _ = text, done) do
    case Regex.run(~r{\A<(#{@name})((?:#{@attribute})*)\s*(/?)>}, text) do
      [tag, name, attributes, "/"] ->
        children(after_text(text, tag), [{name, attributes(attributes), []} | done])

      [tag, name, attributes, ""] ->
        {inside, rest} = text |> after_text(tag) |> children([])
        "</" <> rest = rest
        true = String.starts_with?(rest, name <> ">")
        children(after_text(rest, name <> ">"), [{name, attributes(attributes), inside} | done])

      nil ->
        raise ArgumentError, "no tag: #{String.slice(text, 0, 80)}"
    end
  end

  defp children(text, done) do
    [run] = Regex.run(~r/\A[^<]+/, text)
    children(after_text(text, run), [unescape(run) | done])
  end

  defp attributes(text) do
    for [_, name, value] <- Regex.scan(~r/(#{@name})="([^"]*)"/, text),
        into: %{},
        do: {name, unescape(value)}
  end

  defp unescape(text) do
    if text =~ ~r/&(?!(amp|lt|gt|quot);)|[\x00-\x08\x0B\x0C\x0E-\x1F]/ do
      raise ArgumentError, "no XML text: #{inspect(text)}"
    end

    text
    |> String.replace("&lt;", "<")
    |> String.replace("&gt;", ">")
    |> String.replace("&quot;", "\"")
    |> String.replace("&amp;", "&")
  end

  defp after_text(text, head),
    do: binary_part(text, byte_size(head), byte_size(text) - byte_size(head))
end
