#!/usr/bin/env bash
# Checks the package's types with the dialyzer of OTP itself. The PLT, a table of what OTP's and
# Elixir's functions take and return, is kept in the user's cache, one for each pair of versions.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

versions=$(elixir -e 'IO.write("otp-#{System.otp_release()}-#{:erlang.system_info(:version)}-elixir-#{System.version()}")')
plt=${XDG_CACHE_HOME:-$HOME/.cache}/exla_custom_call/dialyzer/$versions.plt
# dialyzer is an Erlang program: to read the abstract code of Elixir's modules it needs Elixir's own.
ERL_LIBS=$(elixir -e 'IO.write(Path.dirname(:code.lib_dir(:elixir)))')
export ERL_LIBS

if [ ! -f "$plt" ]; then
  mkdir -p "$(dirname "$plt")"
  echo "Building the PLT $plt (once, some minutes)"
  # 2: warnings about OTP and Elixir themselves, which are not our concern.
  dialyzer --build_plt --quiet --output_plt "$plt.$$" \
    --apps erts kernel stdlib crypto compiler \
    -r "$ERL_LIBS/elixir/ebin" "$ERL_LIBS/mix/ebin" "$ERL_LIBS/logger/ebin" >/dev/null || [ $? -eq 2 ]
  mv "$plt.$$" "$plt"
fi

# Unknown functions are left to Elixir's compiler, which reports them too: dialyzer counts among them
# the implementations that a protocol looks for and need not have. OTP 25 lists them without
# --quiet but does not fail for them, and knows no flag for it.
flags=(--quiet)
if [ "$(elixir -e 'IO.write(System.otp_release())')" -ge 26 ]; then flags+=(-Wno_unknown); fi
dialyzer --plt "$plt" --no_check_plt "${flags[@]}" -r _build/dev/lib/exla_custom_call/ebin
