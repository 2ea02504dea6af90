# Gives every way into the package what nobody should give it. See fuzz/README.md; `make fuzz` and
# `make fuzz-short` run it.
#
# The modules are compiled to a folder of beam files, so that the VMs that try the inputs start at once.
sources = Path.wildcard(Path.join(__DIR__, "{lib,targets}/*.ex"))
directory = Path.join(System.tmp_dir!(), "exla_custom_call_fuzz.#{System.pid()}")
beams = Path.join(directory, "beams")
File.mkdir_p!(beams)

case Kernel.ParallelCompiler.compile_to_path(sources, beams) do
  {:ok, modules, _warnings} ->
    targets =
      modules
      |> Enum.filter(&match?(["Fuzz", "Targets", _], Module.split(&1)))
      |> Enum.sort()

    Code.prepend_path(beams)
    Fuzz.Driver.main(System.argv(), targets, directory, beams)

  {:error, _errors, _warnings} ->
    File.rm_rf!(directory)
    System.halt(2)
end
