#!/bin/bash
# Takes the profile that release builds are compiled with: builds a gateway and a bare proxy that count what they run,
# has `drill bench` call them in every way, and keeps the counts under the name of this compiler.
#
#   make profile
set -euo pipefail
cd "$(dirname "$0")/../.."

tools=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin
[ -x "$tools/llvm-profdata" ] || rustup component add llvm-tools \
  || { echo "llvm-profdata of this compiler is needed: rustup component add llvm-tools"; exit 1; }
work=$PWD/target/profile
rm -rf "$work/counts"
# What build scripts count is nobody's business.
export LLVM_PROFILE_FILE=/dev/null RUSTFLAGS="-Cprofile-generate=$work/counts"
build=(cargo build --release --locked --target-dir "$work")
"${build[@]}" --bin drawbridge
# Functions that hyper makes for the bare proxy are others than those of the gateway: without counts of its own it would
# cost more than the least, and the gateway look better beside it.
"${build[@]}" --features stubs --bin bare-proxy
unset LLVM_PROFILE_FILE RUSTFLAGS
ulimit -n 16384
bench=(target/release/drill bench --gateway "$work/release/drawbridge" --bare "$work/release/bare-proxy" --rounds 1
  --no-nginx --no-memory --no-instructions --no-budgets)
"${bench[@]}"
# Fewer rows are of modern calls than of legacy ones, and neither kind is more often called.
"${bench[@]}" --only "modern call"
name=rustc-$(rustc -vV | sed -n 's/^release: //p')-$(rustc -vV | sed -n 's/^host: //p').profdata
rm -f deploy/profile/*.profdata
"$tools/llvm-profdata" merge --sparse --output "deploy/profile/$name" "$work"/counts/*.profraw
ls -l "deploy/profile/$name"
