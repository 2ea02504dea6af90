#!/usr/bin/env bash
# Runs the Rust crates' tests under valgrind: reads and writes beyond what was allocated, decisions upon
# values that nobody set, and leaks, in Rust, MLIR and LLVM alike. A sanitizer of the compiler's would
# see the Rust part alone: LLVM's static libraries are not built for one.
#
# Usage: scripts/sanitize.sh [--short | CRATE ...]
#
# Fails on any error that scripts/valgrind.supp does not name, and on memory that nothing points to any
# more at the end ("definitely lost"). EXLA_CUSTOM_CALL_SANITIZE_LOGS keeps valgrind's logs in a folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

# In the order of their time. The handlers for QR, Eigh and LU take most of it.
crates=(stablehlo_custom_call xla_ffi pjrt_runtime xla_ffi_linalg)
# Those that need no plugin, and end within seconds.
short=(stablehlo_custom_call xla_ffi)

# Tests to leave out, by a part of their names.
left_out() {
  case $1 in
    # Two start a process for what they measure, which valgrind does not follow: it would see nothing. The
    # third has a bound on its time.
    stablehlo_custom_call)
      echo growth:: builds_of_ever_new_values a_text_of_a_megabyte_is_read_in_its_length
      ;;
  esac
}

fail() { printf '%s\n' "$*" >&2; exit 1; }

case ${1:-} in
  '') ;;
  --short) crates=("${short[@]}") ;;
  -*) fail "Usage: scripts/sanitize.sh [--short | CRATE ...]" ;;
  *) crates=("$@") ;;
esac
command -v valgrind >/dev/null || fail "valgrind is missing: run scripts/setup.sh valgrind"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
logs=${EXLA_CUSTOM_CALL_SANITIZE_LOGS:-$work}
mkdir -p "$logs"
failed=()
table=()

# Cargo names the test binary that it built on stderr, in brackets at the end of a line.
build() {
  local said
  said=$(cargo test --package "$1" --lib --no-run --locked --color never 2>&1) || fail "$said"
  sed -n 's/^ *Executable .* (\(.*\))$/\1/p' <<<"$said"
}

run() {
  local crate=$1 binary log status=0 skips=() part begun=$SECONDS
  for part in $(left_out "$crate"); do skips+=(--skip "$part"); done
  printf '\n== %s\n' "$crate"
  binary=$(build "$crate")
  # Debian 12's valgrind cannot read the debugging information of today's rustc, and gives up over it.
  # Functions keep their names.
  objcopy --strip-debug "$binary" "$work/$crate"
  log=$logs/$crate.log
  # One test after the other: valgrind runs one thread at a time anyway, and reports stay apart.
  (cd "native/$crate" && valgrind --quiet --suppressions="$root/scripts/valgrind.supp" \
    --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
    --error-exitcode=99 --num-callers=40 --log-file="$log" \
    "$work/$crate" --test-threads 1 "${skips[@]}") >"$logs/$crate.out" 2>&1 || status=$?
  summarise "$crate" "$log" "$logs/$crate.out" "$status" $((SECONDS - begun))
}

# The numbers of one crate, and what was found.
summarise() {
  local crate=$1 log=$2 out=$3 status=$4 seconds=$5 passed leaks errors
  passed=$(sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' "$out")
  leaks=$(grep -c 'definitely lost' "$log" || true)
  # Each report begins with a line that is not indented by more than one blank.
  errors=$(grep -cE '^==[0-9]+== (Invalid|Conditional|Use of|Mismatched|Syscall param|Source and destination|Jump to)' "$log" || true)
  table+=("$(printf '%-24s %6s %7s %7s %8s' "$crate" "${passed:-?}" "$errors" "$leaks" "$seconds")")
  if [ "$status" -ne 0 ] || [ -z "$passed" ]; then
    failed+=("$crate")
    cat "$log"
    grep -vE '^test .* ok$' "$out" || true
  fi
}

for crate in "${crates[@]}"; do run "$crate"; done
printf '\n%-24s %6s %7s %7s %8s\n' crate tests errors leaks seconds
printf '%s\n' "${table[@]}"
[ "${#failed[@]}" -eq 0 ] || fail "valgrind or a test found something in: ${failed[*]}"
