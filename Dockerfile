# The gateway in an image of its own: built in the first stage, run from the second.
#
#   docker build -t drawbridge .
#   docker run --read-only --tmpfs /tmp --tmpfs /var/lib/drawbridge:exec,uid=10001,mode=0700 \
#     -v ./gateway.toml:/etc/drawbridge/gateway.toml:ro -p 8080:8080 drawbridge
#
# Both stages must come from the same distribution release: the program is linked against its C
# library. stdio upstreams need their interpreters: see docs/operations/container.md.
ARG BUILD_IMAGE=rust:1.95-bookworm
ARG RUN_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
# Dependencies first: this layer changes with Cargo.lock only. Every target of the manifest gets an
# empty stand-in.
COPY Cargo.toml Cargo.lock ./
COPY .cargo ./.cargo
COPY deploy/profile ./deploy/profile
RUN set -eu; \
    for file in src/lib.rs $(sed -n 's/^path = "\(.*\)"/\1/p' Cargo.toml); do \
      mkdir -p "$(dirname "$file")"; \
      case "$file" in src/lib.rs) : > "$file" ;; *) echo 'fn main() {}' > "$file" ;; esac; \
    done; \
    RUSTFLAGS="$(deploy/profile/flags.sh)" cargo build --locked --release --bin drawbridge; \
    rm -r src
COPY config ./config
COPY src ./src
# Newer than the stand-ins, whatever the checkout says.
RUN find src -name '*.rs' -exec touch {} + \
    && RUSTFLAGS="$(deploy/profile/flags.sh)" cargo build --locked --release --bin drawbridge \
    && strip --strip-debug -o /drawbridge target/release/drawbridge

FROM ${RUN_IMAGE}
# tini is process 1: it passes signals on and reaps what children of children leave behind.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/drawbridge drawbridge \
    && install -d -o drawbridge -g drawbridge -m 0700 /var/lib/drawbridge
COPY --from=build /drawbridge /usr/local/bin/drawbridge
# Homes and package caches of stdio upstreams go to /var/lib/drawbridge.
ENV XDG_STATE_HOME=/var/lib
USER 10001:10001
WORKDIR /var/lib/drawbridge
EXPOSE 8080 9090
HEALTHCHECK --interval=10s --timeout=6s --start-period=10s \
    CMD ["/usr/local/bin/drawbridge", "health", "--config", "/etc/drawbridge/gateway.toml"]
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/drawbridge"]
CMD ["serve", "--config", "/etc/drawbridge/gateway.toml"]
