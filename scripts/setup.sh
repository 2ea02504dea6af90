#!/usr/bin/env bash
# Installs what the build needs on Debian and Ubuntu, and does nothing when all of it is there. On
# another system it says what to install, and stops if a part of it is missing.
#
# Usage: scripts/setup.sh [further Debian packages ...]
set -euo pipefail

packages=(
  build-essential ca-certificates
  elixir erlang-dev
  libmlir-19-dev mlir-19-tools llvm-19-dev libclang-19-dev libpolly-19-dev
  libzstd-dev zlib1g-dev libxml2-dev
  protobuf-compiler libprotobuf-dev
  "$@"
)
rust_minimum=1.91
# rustup's programs, for a shell that was open before Rust came.
export PATH=$PATH:${HOME:-/}/.cargo/bin

say() { printf '%s\n' "$*"; }
fail() { printf '%s\n' "$*" >&2; exit 1; }

is_installed() {
  [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# elixir and erlang may also come from elsewhere (asdf, mise, a build of one's own): then theirs is used.
missing_packages() {
  local package
  for package in "${packages[@]}"; do
    case $package in
      elixir) command -v mix >/dev/null && continue ;;
      erlang-*) command -v erl >/dev/null && ! is_installed erlang-base && continue ;;
    esac
    is_installed "$package" || say "$package"
  done
}

debian() {
  local missing as_root=()
  mapfile -t missing < <(missing_packages)
  [ "${#missing[@]}" -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "Packages are missing, and there is no sudo. Run as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "Installing ${missing[*]} (LLVM is about 2 GB: this takes a minute or two)"
  "${as_root[@]}" apt-get update -qq
  # Its hundreds of lines on what it unpacks are for nobody; errors are on stderr.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

elsewhere() {
  local missing=() program
  for program in mix protoc c++; do
    command -v "$program" >/dev/null || missing+=("$program")
  done
  [ "${#missing[@]}" -eq 0 ] && return
  fail "Missing: ${missing[*]}. Only Debian and Ubuntu packages are installed by this script.
Fedora: sudo dnf install elixir erlang gcc-c++ llvm-devel llvm-static mlir-devel mlir-static \\
          clang-devel libzstd-devel zlib-devel libxml2-devel protobuf-compiler
        (LLVM has to be version 19: EXLA_CUSTOM_CALL_LLVM_PREFIX names one at another place)
macOS:  brew install elixir llvm@19 protobuf zstd"
}

rust() {
  command -v cargo >/dev/null && command -v rustc >/dev/null ||
    fail "Rust is missing. Install it from https://rustup.rs (Rust $rust_minimum or later)."
  local version
  version=$(rustc --version | cut -d ' ' -f 2)
  printf '%s\n%s\n' "$rust_minimum" "$version" | sort -V -C ||
    fail "Rust $version is too old, $rust_minimum or later is needed: rustup update stable"
}

# Rust first: it is not installed here, and without it the rest would be in vain.
rust
if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then debian; else elsewhere; fi
