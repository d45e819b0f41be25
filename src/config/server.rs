//! `[server]` and `[admin]`.

use std::net::SocketAddr;
use std::time::Duration;

use url::Url;

use super::declarations::ShownKey;
use super::files;
use super::reader::{ConfigSection, read_keys};
use super::types::{AdminConfig, EventPaths, HealthConfig, HttpServerConfig, TlsConfig};
use super::units;
use crate::secret::Secret;

/// Most worker threads; no machine gains from more.
const MAX_THREADS: usize = 1024;
/// Above any number of connections that a machine can have.
const MAX_SHARE: usize = 1 << 30;

/// Reads `[server]`.
pub(super) fn read(s: &mut ConfigSection<'_>) -> HttpServerConfig {
    read_keys!(s => let {
        /// Where to listen for MCP traffic. An unspecified address needs public_url.
        listen: address("127.0.0.1:8080"),
        tls: tls(s),
        public_url: public_url(s, listen, tls.is_some()),
    });
    read_keys!(s => HttpServerConfig {
        /// Web origins that may call, besides that of public_url.
        allowed_origins: list(units::origin),
        /// Host headers we answer to, besides that of public_url.
        allowed_hosts: list(units::host),
        /// Threads that serve, 1024 at most; a connection stays on its thread. Default: one per core.
        threads: optional_count_to(4, MAX_THREADS).unwrap_or_else(cores),
        /// Address blocks of proxies whose X-Forwarded-For and x-request-id headers are believed.
        trusted_proxies: list(units::cidr),
        /// How long a request head may take.
        header_timeout: duration("10s"),
        /// How long a TLS handshake may take.
        handshake_timeout: duration("10s"),
        /// How long a request body may take. One that is refused for its size is read on: in a legacy session for the
        /// ids of its requests, within this time and up to four times `limits.body`; else for a second, 16 MiB at most,
        /// so that its sender can read the answer.
        body_timeout: duration("30s"),
        /// How long a connection may stay without a request; with HTTP/2 up to twice as long, with HTTP/1 not less than
        /// `header_timeout`. Longer than most proxies keep theirs, so that they close first (Envoy: an hour).
        idle_timeout: duration("16m"),
        /// The same after a 401, while the connection has not brought a good token.
        refused_idle_timeout: duration("10s"),
        /// A peer that reads no written byte for this long, or for twice as long at most, loses its connection, with
        /// HTTP/2 the one stream. An HTTP/2 peer also has 20 s to answer the ping that follows 20 s of silence.
        stall_timeout: duration("10m"),
        /// Open connections at once. To admit one more, the oldest without a good token is closed, else one that waits
        /// for a request; where all are busy, the new one is refused.
        max_connections: count(10_000),
        /// Connections of one client address (of IPv6: one /64) that have not brought a good token, while fewer than a
        /// quarter of `max_connections` are free: for one more its oldest is closed. An address that brings good tokens
        /// of three callers is taken for a proxy and has no such limit; the addresses behind `trusted_proxies` have one
        /// each. Default: a quarter of `max_connections`.
        connections_per_address: optional_count_to(2_500, MAX_SHARE),
        /// Open requests and streams of one principal, over whatever connections; more are refused with 429 (a request
        /// of a live session with a JSON-RPC error). Not with `auth.mode = "none"`. Default: a quarter of
        /// `max_connections`.
        exchanges_per_principal: optional_count_to(2_500, MAX_SHARE),
        /// When a call that is still silent is answered by an event stream. Sessions older than 2025-11-25 whose client
        /// names no text/event-stream in Accept wait 10 s.
        sse_after: duration_or_zero("250ms"),
        /// Between two keep-alive comments on a quiet stream.
        keep_alive: duration("15s"),
        /// After SIGTERM, how long running calls may take to finish.
        drain: duration_or_zero("10s"),
        /// After SIGTERM, how long a quiet connection stays open, so that a request that was sent before its client
        /// could know is answered (with `Connection: close`). Handshakes under way are finished for as long. Part of
        /// `drain`.
        drain_linger: duration_or_zero("500ms"),
        sse: sse(s),
        websocket: websocket(s),
        ; listen, public_url, tls
    })
}

impl HttpServerConfig {
    /// Limit of open exchanges and streams per principal: by default a quarter of `max_connections`.
    #[must_use]
    pub fn exchange_share(&self) -> usize {
        let quarter = self.max_connections.div_ceil(4).max(1);
        self.exchanges_per_principal.unwrap_or(quarter)
    }

    /// Replaces the address by `listen`, and `public_url` where it says no more than the address, as without
    /// configuration.
    pub fn move_to(&mut self, listen: SocketAddr) {
        let tls = self.tls.is_some();
        if self.public_url == derived_url(self.listen, tls) {
            self.public_url = derived_url(listen, tls);
        }
        self.listen = listen;
    }
}

/// The URL that clients use, configured or derived.
fn public_url(s: &mut ConfigSection<'_>, listen: SocketAddr, tls: bool) -> Url {
    let given = read_keys!(s =>
        /// The URL clients know us by; https unless loopback; may have a path that a proxy strips. Default: http://
        /// (https:// with tls) and the address of `listen`.
        public_url: url("https://mcp.example.com"));
    without_trailing_slash(given.unwrap_or_else(|| derived_url(listen, tls)))
}

/// The URL of a listener, for clients where no other one is configured.
fn derived_url(listen: SocketAddr, tls: bool) -> Url {
    let scheme = if tls { "https" } else { "http" };
    Url::parse(&format!("{scheme}://{listen}")).unwrap_or_else(|_| loopback())
}

/// Reads `[admin]`.
pub(super) fn admin(s: &mut ConfigSection<'_>) -> AdminConfig {
    read_keys!(s => AdminConfig {
        /// Where to listen for operators: /live /ready /metrics /status.
        listen: address("127.0.0.1:9090"),
        /// Host headers answered to there, besides addresses and loopback names: the names by which probes and scrapers
        /// ask.
        allowed_hosts: list(units::host),
        token: admin_token(s),
    })
}

/// Reads `[health]`.
pub(super) fn health(s: &mut ConfigSection<'_>) -> HealthConfig {
    read_keys!(s => let {
        /// Between two looks, from 1s to 1h; 0s looks at nothing. While an upstream is down, it is doubled each time,
        /// up to 10m.
        interval: duration_or_zero("60s"),
    });
    let bounds = Duration::from_secs(1)..=Duration::from_hours(1);
    if !interval.is_zero() && !bounds.contains(&interval) {
        s.error("interval", "must be 0s, or from 1s to 1h", None);
    }
    HealthConfig {
        interval: (!interval.is_zero()).then_some(interval),
    }
}

/// The least length of `admin.token`, in bytes.
const MIN_TOKEN_BYTES: usize = 16;

fn admin_token(s: &mut ConfigSection<'_>) -> Option<Secret> {
    let token = read_keys!(s =>
        /// Who sends this as `Authorization: Bearer …` may read /status and change what can be changed at run time,
        /// from wherever the port is reached: 16 printable ASCII characters at least. Without one, only this machine
        /// may: by a loopback address, with a loopback Host. Probes and metrics need no token.
        token: optional_secret("{ file = \"admin.token\" }"))?;
    let is_printable = token.expose().bytes().all(|byte| byte.is_ascii_graphic());
    if token.expose().len() < MIN_TOKEN_BYTES || !is_printable {
        let what = "must have 16 printable ASCII characters at least, and no blanks";
        s.error("token", what, Some("make one with: openssl rand -hex 32"));
    }
    Some(token)
}

fn tls(s: &mut ConfigSection<'_>) -> Option<TlsConfig> {
    let shown =
        ShownKey::Unset("{ cert = \"cert.pem\", key = \"key.pem\", reload = \"10s\" }".to_owned());
    read_keys!(s =>
        /// Certificate chain and private key, PEM files. They are looked at every `reload`: a changed pair is used for
        /// the next handshake; one that cannot be used leaves the last good one, and makes a WARN line.
        tls: inline(shown, tls_keys))
}

fn tls_keys(t: &mut ConfigSection<'_>) -> TlsConfig {
    let [cert, key] = ["cert", "key"].map(|name| files::required_pem(t, name));
    files::check_pair(t, &cert, &key);
    read_keys!(t => TlsConfig {
        /// How often the files are looked at for a change.
        reload: duration("10s"),
        ; cert, key
    })
}

/// Reads `[server.sse]`: the paths, if enabled.
fn sse(s: &mut ConfigSection<'_>) -> Option<EventPaths> {
    let about = "The 2024-11-05 transport towards clients, for those that speak nothing newer.";
    s.table("sse", about, |t| {
        read_keys!(t => let {
            /// Whether it is served.
            enabled: flag(false),
            /// Path of the event stream of /mcp; that of /mcp/<name> is <path>/<name>.
            path: text("/sse"),
            /// Path for posted messages, in the same two forms.
            messages: text("/messages"),
        });
        check_path(t, "path", &path);
        check_path(t, "messages", &messages);
        let stream = path;
        enabled.then_some(EventPaths { stream, messages })
    })
}

/// Reads `[server.websocket]`: the path, if enabled.
fn websocket(s: &mut ConfigSection<'_>) -> Option<String> {
    s.table("websocket", "WebSocket towards clients.", |t| {
        read_keys!(t => let {
            /// Whether it is served.
            enabled: flag(false),
            /// Path of the socket of /mcp; that of /mcp/<name> is <path>/<name>.
            path: text("/ws"),
        });
        check_path(t, "path", &path);
        enabled.then_some(path)
    })
}

fn check_path(t: &ConfigSection<'_>, name: &str, path: &str) {
    if let Err(what) = units::url_path(path) {
        t.error(name, what, Some("for example \"/sse\""));
    }
}

fn without_trailing_slash(mut url: Url) -> Url {
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    url
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn loopback() -> Url {
    #[expect(clippy::expect_used, reason = "the literal is a URL")]
    Url::parse("http://127.0.0.1").expect("a URL")
}
