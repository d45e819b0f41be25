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
# Without it: what needs the machine for itself comes last, one after the other.
alone=(conformance:: clients:: oauth:: browsers:: hostile:: budget::replies:: budget::partial:: idle_clocks cluster::kills::)
run() {
  local status=0
  cargo test --locked --features stubs --no-fail-fast -- --test-threads=4 "${alone[@]/#/--skip=}" || status=1
  cargo test --locked --features stubs --no-fail-fast --test it -- --test-threads=1 "${alone[@]}" || status=1
  return "$status"
}
set +e
run 2>&1 | tee .cache/test.log
status=${PIPESTATUS[0]}
awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
  END { print passed " passed, " failed " failed, " ignored " ignored" }' .cache/test.log
exit "$status"
