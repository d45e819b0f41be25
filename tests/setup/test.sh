#!/bin/bash
# What `make test` does: installs what is missing, judges the tree, runs every test, and ends with
# the counts.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v python3 > /dev/null || { echo 'python3 is needed: apt-get install python3 python3-venv'; exit 1; }
command -v git > /dev/null || { echo 'git is needed: apt-get install git'; exit 1; }

# Downloads go on while cargo compiles.
mkdir -p .cache
python3 tests/setup/install.py > .cache/install.log 2>&1 &
install=$!
trap 'kill "$install" 2> /dev/null || true' EXIT

make --no-print-directory check

wait "$install" || { cat .cache/install.log; exit 1; }
trap - EXIT
cat .cache/install.log

# A peer that is missing from here on is a failure, not a skip.
export DRAWBRIDGE_PEERS=required
if cargo nextest --version > /dev/null 2>&1; then
  exec cargo nextest run --locked --features stubs
fi
# Without it, `it` runs in four parts. Most tests wait for child processes and deadlines, so ten run at a time, also
# on two cores. Replicas whose leases last two seconds have to renew them in time: four such tests at a time. Tests with
# other people's clients start up to ten processes each. Some tests need the whole machine.
# What holds for names of `it` must not leave out a test of another program: those run whole.
leases=(cluster::trouble::)
peers=(clients:: oauth:: browsers::)
alone=(conformance:: hostile:: budget::replies:: budget::partial:: idle_clocks cluster::kills::
  networks::no_call_is_lost)
part() { cargo test --locked --features stubs --no-fail-fast "$@"; }
run() {
  part --no-run || return 1
  local status=0
  local others=(tests/*.rs)
  others=("${others[@]#tests/}")
  others=("${others[@]%.rs}")
  part --lib --bins "${others[@]/#/--test=}" -- --test-threads=8 || status=1
  part --test it -- --test-threads=10 "${leases[@]/#/--skip=}" "${peers[@]/#/--skip=}" "${alone[@]/#/--skip=}" || status=1
  part --test it -- --test-threads=4 "${leases[@]}" || status=1
  part --test it -- --test-threads=2 "${peers[@]}" "${alone[@]/#/--skip=}" || status=1
  part --test it -- --test-threads=1 "${alone[@]}" || status=1
  return "$status"
}
set +e
run 2>&1 | tee .cache/test.log
status=${PIPESTATUS[0]}
awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
  END { print passed " passed, " failed " failed, " ignored " ignored" }' .cache/test.log
exit "$status"
