#!/bin/sh
# Prints the compiler flags of a release build (RUSTFLAGS): with the profile that was taken with this
# very compiler, if there is one (docs/adr/0012). A build without it is the same program, and slower.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
about=$(rustc -vV)
part() { printf '%s\n' "$about" | sed -n "s/^$1: //p"; }
profile="$here/rustc-$(part release)-$(part host).profdata"
flags=${RUSTFLAGS:-}
# Flags are parted at white space: below a folder whose name has some, there is no profile.
case $profile in
  *[[:space:]]*) profile= ;;
esac
if [ -f "$profile" ]; then
  # A function that has changed since is compiled without its profile, and not worth a warning.
  flags="$flags -Cprofile-use=$profile -Cllvm-args=-no-pgo-warn-mismatch"
fi
printf '%s\n' "$flags"
