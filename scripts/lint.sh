#!/usr/bin/env bash
# Formats, warnings and types of the package and of each example; the package has to be built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

heading() { printf '\n== %s\n' "$*"; }

# --force is about the Elixir code; what Cargo built is up to date and stays.
elixir_project() {
  heading "mix format, in $1"
  (cd "$1" && mix format --check-formatted)
  local env
  for env in dev test; do
    heading "mix compile --warnings-as-errors, in $1 for $env"
    (cd "$1" && MIX_ENV=$env mix compile --force --warnings-as-errors)
  done
}

rust_workspace() {
  heading "cargo fmt, in $1"
  (cd "$1" && cargo fmt --all --check)
  heading "cargo clippy, in $1"
  (cd "$1" && cargo clippy --workspace --all-targets --locked -- -D warnings)
}

elixir_project .
rust_workspace .
for example in examples/*/; do
  if [ -f "${example}mix.exs" ]; then elixir_project "${example%/}"; fi
  if [ -f "${example}native/Cargo.toml" ]; then rust_workspace "${example}native"; fi
done

heading "dialyzer"
scripts/dialyzer.sh
