# The gateway in an image of its own. Two can be built:
#
#   docker build -t drawbridge .                       with Node and uv, for stdio servers (npx, uvx)
#   docker build -t drawbridge:slim --target slim .    the program and the libraries it needs, nothing else
#   docker run --read-only --tmpfs /tmp --tmpfs /var/lib/drawbridge:exec,uid=10001,mode=0700 \
#     -v ./gateway.toml:/etc/drawbridge/gateway.toml:ro -p 8080:8080 drawbridge
#
# BUILD_IMAGE and RUN_IMAGE must come from the same distribution release: the program is linked against its C
# library. The compiler is the very one of the profile in deploy/profile: another, also 1.95.1, does not use it.
ARG BUILD_IMAGE=rust:1.95.0-bookworm
ARG RUN_IMAGE=debian:bookworm-slim
# Node and npm lie in /usr/local there; uv and uvx in the root directory.
ARG NODE_IMAGE=node:22-bookworm-slim
ARG UV_IMAGE=ghcr.io/astral-sh/uv:0.9

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
COPY migrations ./migrations
COPY src ./src
# Newer than the stand-ins, whatever the checkout says.
RUN find src -name '*.rs' -exec touch {} + \
    && RUSTFLAGS="$(deploy/profile/flags.sh)" cargo build --locked --release --bin drawbridge \
    && strip --strip-debug -o /drawbridge target/release/drawbridge

# --- what the slim image holds -------------------------------------------------------------------

FROM ${RUN_IMAGE} AS parts
# tini is process 1: it passes signals on and reaps what children of children leave behind.
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates tini
COPY --from=build /drawbridge /usr/local/bin/drawbridge
# Its libraries by the names that the loader looks for, the loader among them.
RUN set -eu; \
    mkdir -p /root/image/etc/ssl/certs /root/image/usr/local/bin /root/image/usr/bin /root/state/drawbridge; \
    cd /root/image; \
    for file in $(ldd /usr/local/bin/drawbridge | grep -o '/[^ ]*'); do \
      install -D -m 0755 "$file" "./$file"; \
    done; \
    install -m 0755 /usr/local/bin/drawbridge usr/local/bin/; \
    install -m 0755 /usr/bin/tini-static usr/bin/tini; \
    cp /etc/ssl/certs/ca-certificates.crt etc/ssl/certs/; \
    echo 'hosts: files dns' > etc/nsswitch.conf; \
    echo 'drawbridge:x:10001:10001::/var/lib/drawbridge:/sbin/nologin' > etc/passwd; \
    echo 'drawbridge:x:10001:' > etc/group; \
    install -d -m 1777 tmp; \
    install -d -o 10001 -g 10001 -m 0700 /root/state/drawbridge

FROM scratch AS slim
COPY --from=parts /root/image /
COPY --from=parts --chown=10001:10001 /root/state /var/lib
# Homes of stdio upstreams go to /var/lib/drawbridge.
ENV XDG_STATE_HOME=/var/lib PATH=/usr/local/bin:/usr/bin
USER 10001:10001
WORKDIR /var/lib/drawbridge
EXPOSE 8080 9090
HEALTHCHECK --interval=10s --timeout=6s --start-period=10s \
    CMD ["/usr/local/bin/drawbridge", "health", "--config", "/etc/drawbridge/gateway.toml"]
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/drawbridge"]
CMD ["serve", "--config", "/etc/drawbridge/gateway.toml"]

# --- the image with Node and uv ------------------------------------------------------------------

FROM ${NODE_IMAGE} AS node
FROM ${UV_IMAGE} AS uv

FROM ${RUN_IMAGE} AS full
# git is for servers that uvx or npx take from a repository; without a Python uv would fetch one.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates git libstdc++6 python3 tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/drawbridge drawbridge \
    && install -d -o drawbridge -g drawbridge -m 0700 /var/lib/drawbridge
COPY --from=node /usr/local/bin/node /usr/local/bin/node
COPY --from=node /usr/local/lib/node_modules/npm /usr/local/lib/node_modules/npm
COPY --from=uv /uv /uvx /usr/local/bin/
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \
    && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx
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
