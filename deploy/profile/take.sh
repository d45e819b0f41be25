#!/bin/bash
# Takes the profile that release builds are compiled with: builds a gateway that counts what it runs,
# has `drill bench` call it in every way, and keeps the counts under the name of this compiler.
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
LLVM_PROFILE_FILE=/dev/null RUSTFLAGS="-Cprofile-generate=$work/counts" \
  cargo build --release --locked --target-dir "$work" --bin drawbridge
ulimit -n 16384
bench=(target/release/drill bench --gateway "$work/release/drawbridge" --rounds 1 --no-nginx --no-bare --no-memory --no-instructions --no-budgets)
"${bench[@]}"
# Fewer rows are of modern calls than of legacy ones, and neither kind is more often called.
"${bench[@]}" --only "modern call"
name=rustc-$(rustc -vV | sed -n 's/^release: //p')-$(rustc -vV | sed -n 's/^host: //p').profdata
rm -f deploy/profile/*.profdata
"$tools/llvm-profdata" merge --sparse --output "deploy/profile/$name" "$work"/counts/*.profraw
ls -l "deploy/profile/$name"
