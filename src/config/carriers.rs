//! How an upstream is reached: the keys of `[upstreams.<name>]` for a stdio child, and those for HTTP.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use url::Url;

use super::declarations::ShownKey;
use super::entry::BESIDE;
use super::files;
use super::reader::{ConfigSection, read_keys};
use super::report::join;
use super::upstream_types::{HttpCarrier, StdioCarrier, TransportKind};
use crate::protocol::headers::MCP_PARAM_PREFIX;
use crate::secret::Secret;

/// Resource limits that a child can have.
const RLIMITS: [&str; 6] = ["as", "core", "cpu", "fsize", "nofile", "nproc"];
/// Limits that count bytes, and may be written as sizes.
const BYTE_RLIMITS: [&str; 3] = ["as", "core", "fsize"];
/// What the reference says of them.
const RLIMIT_UNITS: &str =
    "Resource limits: `cpu` in seconds; `as`, `core` and `fsize` in bytes or as sizes.";

/// Error text for an invalid name of an environment variable.
pub(super) const NO_VARIABLE: &str =
    "not the name of a variable: it may not be empty, nor have `=` in it";

/// Headers that the transport sets, and that a configuration cannot set.
const OWN_HEADERS: [&str; 17] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Reads `stop`: the waits until SIGTERM, and until SIGKILL.
fn stop_waits(t: &mut ConfigSection<'_>) -> (Duration, Duration) {
    let eof = t.key("eof", "From closed input to SIGTERM.");
    let eof = eof.duration_or_zero("2s");
    let term = t.key("term", "From SIGTERM to SIGKILL.");
    (eof, term.duration_or_zero("3s"))
}

/// Reads how a child is started; `None` without `command`.
pub(super) fn stdio(s: &mut ConfigSection<'_>) -> Option<StdioCarrier> {
    read_keys!(s => let {
        /// Program to start, looked up in PATH. One of command and url is needed.
        command: chosen().optional("npx"),
        /// Its arguments. For example ["-y", "@scope/server", "/data"].
        args: texts(),
        /// Its working directory. Default: a private home directory.
        cwd: path("/srv/files"),
        /// Variables set for it; they win over inherited ones.
        env: secrets(),
        /// Names of our own variables it gets too, besides PATH, LANG, TZ and such.
        inherit: texts(),
    });
    for name in env.keys().filter(|name| !is_variable(name)) {
        s.error(&join("env", name), NO_VARIABLE, None);
    }
    for (index, name) in inherit.iter().enumerate() {
        if !is_variable(name) {
            let at = format!("inherit[{index}]");
            s.error(&at, NO_VARIABLE, None);
        }
    }
    let rlimits = s
        .key("rlimits", RLIMIT_UNITS)
        .numbers(&RLIMITS, &BYTE_RLIMITS);
    let stop = ShownKey::Default("{ eof = \"2s\", term = \"3s\" }".to_owned());
    read_keys!(s => let {
        /// Patience after its input is closed, and after SIGTERM; then SIGKILL.
        stop: inline_or_empty(stop, stop_waits),
        /// Children of this upstream at once.
        max_children: count(128),
    });
    let (stop_eof, stop_term) = stop;
    let command = command?;
    if !command.contains('/') && command.contains(char::is_whitespace) {
        let hint = Some("arguments stand in `args`, one by one");
        let path = join(&s.path, "command");
        s.report
            .warning(&path, "the name of the program has spaces", hint);
    }
    // A command with a slash is relative to the file, not to the child's working directory.
    let command = if command.contains('/') {
        s.report
            .source
            .path(&command)
            .to_string_lossy()
            .into_owned()
    } else {
        command
    };
    Some(StdioCarrier {
        command,
        args,
        cwd,
        env,
        inherit,
        rlimits,
        stop_eof,
        stop_term,
        max_children,
    })
}

/// Whether an environment can hold a variable of this name.
pub(super) fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Reads how an upstream is reached over HTTP; `None` without `url`.
pub(super) fn http(s: &mut ConfigSection<'_>) -> Option<HttpCarrier> {
    read_keys!(s => let {
        /// The server's MCP endpoint; wss:// and ws:// are WebSockets.
        url: chosen().endpoint_url("https://tracker.example.net/mcp"),
        /// Streamable HTTP, HTTP+SSE of 2024-11-05, a WebSocket, or the first two to be found out.
        transport: choice(TransportKind::Auto),
        /// Headers of every request to it; values are secrets.
        headers: secrets(),
        /// Certificates to trust besides the system's, PEM.
        ca_file: path("ca.pem"),
    });
    let (url, transport) = socket_url(s, url, transport);
    let headers = headers
        .into_iter()
        .filter_map(|(name, value)| header(s, name, value))
        .collect();
    if let Some(Err(what)) = ca_file.as_deref().map(files::anchors) {
        s.error("ca_file", what, Some(BESIDE));
    }
    Some(read_keys!(s => HttpCarrier {
        /// Forward proxy. The proxy variables of the environment are not obeyed.
        proxy: url("http://proxy.example.net:3128"),
        /// How long an idle HTTP/1.1 connection to it is used again, where it names no time itself. A `Keep-Alive:
        /// timeout=` of its answers holds instead, less one second and 30s at most; "0s" makes a connection for each
        /// request.
        pool_idle: duration_or_zero("4s"),
        ; url: url?, transport, headers, ca_file
    }))
}

/// Converts a WebSocket URL to the HTTP URL of the upgrade, and returns the transport.
fn socket_url(
    s: &ConfigSection<'_>,
    url: Option<Url>,
    transport: TransportKind,
) -> (Option<Url>, TransportKind) {
    let Some(given) = url else {
        return (None, transport);
    };
    let scheme = match given.scheme() {
        "wss" => "https",
        "ws" => "http",
        _ => return (Some(given), transport),
    };
    if !matches!(transport, TransportKind::Auto | TransportKind::WebSocket) {
        let hint = "leave it out, or write an http:// or https:// URL";
        s.error("transport", "does not fit a WebSocket URL", Some(hint));
    }
    // `Url` cannot change a `ws` scheme to `http` in place.
    let rest = given.as_str().split_once(':').map_or("", |(_, rest)| rest);
    let url = Url::parse(&format!("{scheme}:{rest}")).ok();
    (url, TransportKind::WebSocket)
}

/// Name and value of a configured header; `None` where it cannot be sent.
fn header(s: &ConfigSection<'_>, name: String, value: Secret) -> Option<(String, Secret)> {
    let path = join("headers", &name);
    let known = HeaderName::try_from(name.as_str());
    if known.is_err() {
        let hint = "letters, digits and hyphens, as in Authorization";
        s.error(&path, "not a header name", Some(hint));
    } else if HeaderValue::try_from(value.expose()).is_err() {
        let what = "holds characters that no header can carry";
        let hint = "headers carry one line of ASCII: look for a line break, or for curly quotes";
        s.error(&path, what, Some(hint));
    } else if known.is_ok_and(|name| is_own(name.as_str())) {
        let hint = Some("leave it out");
        s.error(&path, "is set by the gateway itself", hint);
    } else {
        if value.expose().is_empty() || value.expose().ends_with(' ') {
            let what = "is empty, or ends with a blank: a variable in it may have no text";
            let hint = "set the variable, or leave the header out";
            let path = format!("{}.{path}", s.path);
            s.report.warning(&path, what, Some(hint));
        }
        return Some((name, value));
    }
    None
}

/// Whether the transport sets this header itself.
pub(super) fn is_own(name: &str) -> bool {
    OWN_HEADERS.contains(&name) || name.starts_with(MCP_PARAM_PREFIX)
}
