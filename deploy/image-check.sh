#!/bin/bash
# Builds both images and runs each once, on a Debian machine without a container daemon: buildah in chroot isolation,
# base images from debootstrap, and what is installed here: the Rust toolchain, and Node (as nodejs.org or NodeSource
# builds it). uv comes by pip. Needs root, and installs what else is missing.
#
#   make image-check            (or with IMAGE_CHECK_DIR=… for the gigabytes of intermediate files)
#
# With IMAGE_CHECK_ONLINE=1 the image with Node and uv also starts one server by npx and one by uvx. They get the
# certificates of this machine: a proxy of its network may have its own.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(realpath -m "${IMAGE_CHECK_DIR:-target/image-check}")
release=bookworm
mcp_port=18080
admin_port=19090
certificates=/etc/ssl/certs/ca-certificates.crt

say() { printf '\n== %s\n' "$*"; }
die() { printf 'image-check: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die 'root is needed, for chroot'
missing=()
needs() { command -v "$1" > /dev/null || missing+=("$2"); }
needs buildah buildah
needs debootstrap debootstrap
needs curl curl
needs pgrep procps
python3 -m pip --version > /dev/null 2>&1 || missing+=(python3-pip)
[ -e "$certificates" ] || missing+=(ca-certificates)
if [ "${#missing[@]}" != 0 ]; then
  apt-get update --quiet
  apt-get install --yes --no-install-recommends "${missing[@]}"
fi
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

# One for each compiler, so that the toolchain of an earlier run is not taken for the one of today.
build_base=localhost/build-base:$(rustc --version | cut -d ' ' -f 2)
if ! image inspect --type image "$build_base" > /dev/null 2>&1; then
  say 'build base: a C compiler and the installed toolchain'
  toolchain=$(rustc --print sysroot)
  base=$(image from --pull-never localhost/run-base)
  image run "$base" -- sh -c 'apt-get update -q && apt-get install -q --yes --no-install-recommends gcc g++ libc6-dev make' \
    > "$work/build-base.log"
  image copy -q "$base" "$toolchain/bin" /usr/local/rust/bin
  image copy -q "$base" "$toolchain/lib" /usr/local/rust/lib
  # Dependencies come from this machine's registry cache, mounted below.
  image config --env PATH=/usr/local/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    --env CARGO_HOME=/usr/local/cargo --env CARGO_NET_OFFLINE=true "$base"
  image commit -q --rm "$base" "$build_base"
fi

# Node and uv, where their own images have them; one image for each version.
command -v node > /dev/null && command -v npm > /dev/null || die 'Node is needed, with npm'
node_base=localhost/node-base:$(node --version)-npm$(npm --version)
if ! image inspect --type image "$node_base" > /dev/null 2>&1; then
  say "node base: Node $(node --version)"
  node=$(readlink -f "$(command -v node)")
  # Not `grep -q`, which ends before ldd: the pipe would count as failed where it finds something.
  ! ldd "$node" | grep libnode > /dev/null || die "$node needs libraries of its distribution: take Node from nodejs.org"
  base=$(image from scratch)
  image copy -q "$base" "$node" /usr/local/bin/node
  image copy -q "$base" "$(npm root --global)/npm" /usr/local/lib/node_modules/npm
  image commit -q --rm "$base" "$node_base"
fi

# Of the version that the Dockerfile names.
uv=$(sed -n 's/^ARG UV_IMAGE=.*://p' Dockerfile)
uv_base=localhost/uv-base:$uv
if ! image inspect --type image "$uv_base" > /dev/null 2>&1; then
  say "uv base: uv $uv"
  rm -rf "$work/uv"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work/uv" "uv==$uv.*"
  python3 -m zipfile --extract "$work"/uv/uv-*.whl "$work/uv"
  chmod 0755 "$work"/uv/uv-*.data/scripts/*
  base=$(image from scratch)
  image copy -q "$base" "$work"/uv/uv-*.data/scripts/uv "$work"/uv/uv-*.data/scripts/uvx /
  image commit -q --rm "$base" "$uv_base"
fi

# --- the images ----------------------------------------------------------------------------------

cargo fetch --quiet --locked
registry=${CARGO_HOME:-$HOME/.cargo}/registry
build() {
  say "the image $2"
  image build --pull-never --layers --target "$1" --tag "localhost/$2" \
    --build-arg BUILD_IMAGE="$build_base" --build-arg RUN_IMAGE=localhost/run-base \
    --build-arg NODE_IMAGE="$node_base" --build-arg UV_IMAGE="$uv_base" \
    --volume "$registry:/usr/local/cargo/registry" .
}
build slim drawbridge:slim
build full drawbridge

# --- one run of each -----------------------------------------------------------------------------

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
cat > "$work/online.toml" <<TOML
$(cat "$work/gateway.toml")
[upstreams.node]
command = "npx"
args = ["-y", "@modelcontextprotocol/server-everything"]
env = { NODE_EXTRA_CA_CERTS = "$certificates" }
connect_timeout = "3m"
[upstreams.python]
command = "uvx"
args = ["mcp-server-time"]
env = { SSL_CERT_FILE = "$certificates" }
connect_timeout = "3m"
TOML
chmod 0644 "$work"/*.toml

# The processes of this run: those below the runner.
below() { local child; for child in $(pgrep -P "$1"); do echo "$child"; below "$child"; done; }
gateways() {
  local pid
  for pid in $(below "$runner"); do
    [ "$(tr '\0' ' ' < "/proc/$pid/cmdline" 2> /dev/null | cut -d ' ' -f 1-2)" = '/usr/local/bin/drawbridge serve' ] && echo "$pid"
  done
  return 0
}
container= runner=
finish() {
  [ -z "$runner" ] || kill $(gateways) 2> /dev/null || true
  [ -z "$runner" ] || wait "$runner" 2> /dev/null || true
  [ -z "$container" ] || image rm "$container" > /dev/null 2>&1 || true
  container= runner=
}
trap finish EXIT

# Has an endpoint answer an initialize.
initialize() {
  local answer
  answer=$(curl --silent --fail --max-time "$2" "http://127.0.0.1:$mcp_port$1" \
    --header 'Content-Type: application/json' --header 'Accept: application/json, text/event-stream' \
    --data '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"image-check","version":"1"}}}')
  grep -q '"serverInfo"' <<< "$answer" || { cat "$work/run.log"; die "no answer to initialize at $1: $answer"; }
  echo "initialize is answered at $1"
}

# Runs an image with a configuration, until SIGTERM.
run() {
  local name=localhost/$1 config=$2 user command live gateway uid
  say "one run of $1"
  user=$(image inspect --type image --format '{{.OCIv1.Config.User}}' "$name")
  [ "$user" = 10001:10001 ] || die "the image runs as '$user'"
  container=$(image from --pull-never "$name")
  # Entry point and command as the image has them.
  mapfile -t command < <(image inspect --type image \
    --format '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}{{range .OCIv1.Config.Cmd}}{{println .}}{{end}}' "$name" | grep .)
  image run --volume "$certificates:$certificates:ro" --volume "$config:/etc/drawbridge/gateway.toml:ro" "$container" -- "${command[@]}" \
    > "$work/run.log" 2>&1 &
  runner=$!
  for _ in $(seq 100); do
    live=$(curl --silent --fail "http://127.0.0.1:$admin_port/live" || true)
    [ -n "$live" ] && break
    kill -0 "$runner" 2> /dev/null || { cat "$work/run.log"; die 'it ended at once'; }
    sleep 0.2
  done
  [ "$live" = live ] || { cat "$work/run.log"; die '/live does not answer'; }
  echo "/live answers: $live"

  gateway=$(gateways | head -n 1)
  [ -n "$gateway" ] || { cat "$work/run.log"; die "port $admin_port answers, but no gateway runs in the image"; }
  uid=$(awk '/^Uid:/ { print $2 }' "/proc/$gateway/status")
  [ "$uid" = 10001 ] || die "the gateway runs as uid $uid"
  echo "the gateway runs as uid $uid"

  initialize /mcp 20
  # The command of HEALTHCHECK; buildah does not keep it in an image of OCI form.
  chroot --userspec="$user" "/proc/$gateway/root" \
    /usr/local/bin/drawbridge health --config /etc/drawbridge/gateway.toml || die 'the health check fails'
  echo 'the health check passes'
  if [ "$config" = "$work/online.toml" ]; then
    initialize /mcp/node 180
    initialize /mcp/python 180
  fi
  kill -TERM "$gateway"
  wait "$runner" || { cat "$work/run.log"; die 'it did not end well'; }
  echo 'SIGTERM ends it with exit code 0'
  runner=
}

run drawbridge:slim "$work/gateway.toml"
program=$(stat --format %s "$(image mount "$container")/usr/local/bin/drawbridge")
finish

config=$work/gateway.toml
[ "${IMAGE_CHECK_ONLINE:-0}" = 0 ] || config=$work/online.toml
run drawbridge "$config"
for tool in 'node --version' 'npx --version' 'uvx --version' 'python3 --version'; do
  # In words, as a shell has them.
  image run "$container" -- $tool || die "no $tool in the image"
done
finish

size() { image images --format '{{.Size}}' "localhost/$1"; }
say "image-check passed: drawbridge:slim $(size drawbridge:slim), drawbridge $(size drawbridge:latest), program $((program / 1024 / 1024)) MiB"
