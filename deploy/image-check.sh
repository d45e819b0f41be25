#!/bin/bash
# Builds the image and runs it once, on a Debian machine without a container daemon: buildah in
# chroot isolation, base images from debootstrap and the installed Rust toolchain. Needs root.
#
#   make image-check            (or with IMAGE_CHECK_DIR=… for the gigabytes of intermediate files)
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(realpath -m "${IMAGE_CHECK_DIR:-target/image-check}")
release=bookworm
mcp_port=18080
admin_port=19090

say() { printf '\n== %s\n' "$*"; }
die() { printf 'image-check: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die 'root is needed, for chroot'
command -v buildah > /dev/null && command -v debootstrap > /dev/null \
  || apt-get install --yes --no-install-recommends buildah debootstrap
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
image() { buildah --root "$work/storage" --runroot "$work/run" "$@"; }
mkdir -p "$work"

# --- base images ---------------------------------------------------------------------------------

if ! image inspect --type image localhost/run-base > /dev/null 2>&1; then
  say "run base: debootstrap $release"
  rm -rf "$work/rootfs"
  debootstrap --variant=minbase "$release" "$work/rootfs" > "$work/debootstrap.log"
  rm -rf "$work"/rootfs/var/cache/apt/archives/*.deb "$work"/rootfs/var/lib/apt/lists/*
  base=$(image from scratch)
  image add -q "$base" "$work/rootfs" /
  image commit -q --rm "$base" localhost/run-base
  rm -rf "$work/rootfs"
fi

if ! image inspect --type image localhost/build-base > /dev/null 2>&1; then
  say 'build base: a C compiler and the installed toolchain'
  toolchain=$(rustc --print sysroot)
  base=$(image from --pull-never localhost/run-base)
  image run "$base" -- sh -c 'apt-get update -q && apt-get install -q --yes --no-install-recommends gcc g++ libc6-dev make cmake' \
    > "$work/build-base.log"
  image copy -q "$base" "$toolchain/bin" /usr/local/rust/bin
  image copy -q "$base" "$toolchain/lib" /usr/local/rust/lib
  # Dependencies come from this machine's registry cache, mounted below.
  image config --env PATH=/usr/local/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    --env CARGO_HOME=/usr/local/cargo --env CARGO_NET_OFFLINE=true "$base"
  image commit -q --rm "$base" localhost/build-base
fi

# --- the image -----------------------------------------------------------------------------------

say 'the image'
cargo fetch --quiet --locked
registry=${CARGO_HOME:-$HOME/.cargo}/registry
image build --pull-never --layers --tag localhost/drawbridge \
  --build-arg BUILD_IMAGE=localhost/build-base --build-arg RUN_IMAGE=localhost/run-base \
  --volume "$registry:/usr/local/cargo/registry" .

user=$(image inspect --type image --format '{{.OCIv1.Config.User}}' localhost/drawbridge)
[ "$user" = 10001:10001 ] || die "the image runs as '$user'"

# --- one run -------------------------------------------------------------------------------------

say 'one run'
cat > "$work/gateway.toml" <<TOML
[server]
listen = "127.0.0.1:$mcp_port"
[admin]
listen = "127.0.0.1:$admin_port"
[auth]
mode = "none"
[upstreams.demo]
command = "/usr/local/bin/drawbridge"
args = ["demo-upstream"]
TOML
chmod 0644 "$work/gateway.toml"

container=$(image from --pull-never localhost/drawbridge)
# Entry point and command as the image has them.
mapfile -t command < <(image inspect --type image \
  --format '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}{{range .OCIv1.Config.Cmd}}{{println .}}{{end}}' localhost/drawbridge)
image run --volume "$work/gateway.toml:/etc/drawbridge/gateway.toml:ro" "$container" -- "${command[@]}" \
  > "$work/run.log" 2>&1 &
runner=$!

# The processes of this run: those below the runner.
below() { local child; for child in $(pgrep -P "$1"); do echo "$child"; below "$child"; done; }
gateways() {
  local pid
  for pid in $(below "$runner"); do
    [ "$(tr '\0' ' ' < "/proc/$pid/cmdline" 2> /dev/null | cut -d ' ' -f 1-2)" = '/usr/local/bin/drawbridge serve' ] && echo "$pid"
  done
  return 0
}
finish() {
  kill $(gateways) 2> /dev/null || true
  wait "$runner" 2> /dev/null || true
  image rm "$container" > /dev/null 2>&1 || true
}
trap finish EXIT

for _ in $(seq 100); do
  live=$(curl --silent --fail "http://127.0.0.1:$admin_port/live" || true)
  [ -n "$live" ] && break
  kill -0 "$runner" 2> /dev/null || { cat "$work/run.log"; die 'it ended at once'; }
  sleep 0.2
done
[ "$live" = live ] || { cat "$work/run.log"; die '/live does not answer'; }
echo "/live answers: $live"

gateway=$(gateways | head -n 1)
uid=$(awk '/^Uid:/ { print $2 }' "/proc/$gateway/status")
[ "$uid" = 10001 ] || die "the gateway runs as uid $uid"
echo "the gateway runs as uid $uid"

answer=$(curl --silent --fail --max-time 20 "http://127.0.0.1:$mcp_port/mcp" \
  --header 'Content-Type: application/json' --header 'Accept: application/json, text/event-stream' \
  --data '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"image-check","version":"1"}}}')
grep -q '"serverInfo"' <<< "$answer" || { cat "$work/run.log"; die "no answer to initialize: $answer"; }
echo 'initialize is answered'

kill -TERM "$gateway"
wait "$runner" || { cat "$work/run.log"; die 'it did not end well'; }
echo 'SIGTERM ends it with exit code 0'

size=$(image images --format '{{.Size}}' localhost/drawbridge)
program=$(stat --format %s "$(image mount "$container")/usr/local/bin/drawbridge")
say "image-check passed: image $size, program $((program / 1024 / 1024)) MiB"
