//! `[upstreams.<name>]`.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use url::Url;

use super::endpoints;
use super::files;
use super::reader::Section;
use super::reference::Shown;
use super::report::join;
use super::upstream_types::{
    Carrier, Era, HttpCarrier, Isolation, StdioCarrier, Transport, Upstream,
};
use crate::protocol::headers::MCP_PARAM_PREFIX;
use crate::secret::Secret;

/// The resource limits a child can be given.
const RLIMITS: [&str; 6] = ["as", "core", "cpu", "fsize", "nofile", "nproc"];

/// Headers that a configuration cannot set, as the transport does.
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

/// The samples of the reference: a stdio child, an HTTP service.
pub(super) const STDIO_SAMPLE: &str = "files";
/// See [`STDIO_SAMPLE`].
pub(super) const HTTP_SAMPLE: &str = "tracker";

/// Reads one `[upstreams.<name>]`; `None` when it is not known how to reach it.
pub(super) fn read(name: &str, s: &mut Section<'_>) -> Option<Upstream> {
    let only = |sample| !s.is_recording() || name == sample;
    let (with_stdio, with_http) = (only(STDIO_SAMPLE), only(HTTP_SAMPLE));
    let stdio = if with_stdio { stdio(s) } else { None };
    let stdio_keys = s.take_group();
    let http = if with_http { http(s) } else { None };
    let http_keys = s.take_group();
    let carrier = match (stdio, http) {
        (Some(stdio), None) => {
            misplaced(s, &http_keys, "is for upstreams that are reached by `url`");
            Some(Carrier::Stdio(stdio))
        }
        (None, Some(http)) => {
            misplaced(
                s,
                &stdio_keys,
                "is for upstreams that are started by `command`",
            );
            Some(Carrier::Http(http))
        }
        (Some(_), Some(_)) => {
            s.error(
                "url",
                "stands beside `command`",
                Some("an upstream has one of them"),
            );
            None
        }
        (None, None) => {
            if !s.has("url") && !s.has("command") {
                let hint =
                    "command = \"…\" starts a stdio server, url = \"…\" reaches one over HTTP";
                s.error("", "needs `command` or `url`", Some(hint));
            }
            None
        }
    };
    if !with_stdio {
        return None;
    }
    common(name, s, carrier)
}

fn stdio(s: &mut Section<'_>) -> Option<StdioCarrier> {
    let command = s
        .key(
            "command",
            "Program to start, looked up in PATH. One of command and url is needed.",
        )
        .chosen()
        .optional("npx");
    let args = s
        .key(
            "args",
            "Its arguments. For example [\"-y\", \"@scope/server\", \"/data\"].",
        )
        .list(&[], |text| Ok(text.to_owned()));
    let cwd = s
        .key(
            "cwd",
            "Its working directory. Default: a private home directory.",
        )
        .path("/srv/files");
    let env = s
        .key("env", "Variables set for it; they win over inherited ones.")
        .secrets();
    let inherit = s
        .key(
            "inherit",
            "Names of our own variables it gets too, besides PATH, LANG, TZ and such.",
        )
        .list(&[], |text| Ok(text.to_owned()));
    for name in env.keys().filter(|name| !is_variable(name)) {
        s.error(&join("env", name), "not the name of a variable", None);
    }
    for (index, name) in inherit.iter().enumerate() {
        if !is_variable(name) {
            let at = format!("inherit[{index}]");
            s.error(&at, "not the name of a variable", None);
        }
    }
    let rlimits = s.key("rlimits", "Resource limits.").numbers(&RLIMITS);
    let stop = Shown::Default("{ eof = \"2s\", term = \"3s\" }".to_owned());
    let (stop_eof, stop_term) = s
        .key(
            "stop",
            "Patience after its input is closed, and after SIGTERM; then SIGKILL.",
        )
        .inline_or_empty(stop, |t| {
            let eof = t.key("eof", "From closed input to SIGTERM.").wait("2s");
            (eof, t.key("term", "From SIGTERM to SIGKILL.").wait("3s"))
        });
    let max_children = s
        .key("max_children", "Children of this upstream at once.")
        .count(128);
    let command = command?;
    if !command.contains('/') && command.contains(char::is_whitespace) {
        let hint = Some("arguments stand in `args`, one by one");
        let path = join(&s.path, "command");
        s.report
            .warning(&path, "the name of the program has spaces", hint);
    }
    // A path is meant from the file, not from wherever the child will stand.
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
fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

fn http(s: &mut Section<'_>) -> Option<HttpCarrier> {
    let url = s
        .key(
            "url",
            "The server's MCP endpoint; wss:// and ws:// are WebSockets.",
        )
        .chosen()
        .endpoint_url("https://tracker.example.net/mcp");
    let words = [
        ("auto", Transport::Auto),
        ("streamable", Transport::Streamable),
        ("sse", Transport::Sse),
        ("websocket", Transport::WebSocket),
    ];
    let transport = s
        .key(
            "transport",
            "Streamable HTTP, HTTP+SSE of 2024-11-05, a WebSocket, or the first two to be found out.",
        )
        .choice("auto", &words)
        .unwrap_or(Transport::Auto);
    let (url, transport) = socket_url(s, url, transport);
    let headers = s
        .key(
            "headers",
            "Headers of every request to it; values are secrets.",
        )
        .secrets();
    let headers = headers
        .into_iter()
        .filter_map(|(name, value)| header(s, name, value))
        .collect();
    let ca_file = s
        .key(
            "ca_file",
            "Certificates to trust besides the system's, PEM.",
        )
        .path("ca.pem");
    if let Some(Err(what)) = ca_file.as_deref().map(files::anchors) {
        s.error("ca_file", what, None);
    }
    let proxy = s
        .key(
            "proxy",
            "Forward proxy. The proxy variables of the environment are not obeyed.",
        )
        .url("http://proxy.example.net:3128");
    Some(HttpCarrier {
        url: url?,
        transport,
        headers,
        ca_file,
        proxy,
    })
}

/// WebSocket URLs as the HTTP URLs that are upgraded, and the transport they mean.
fn socket_url(s: &Section<'_>, url: Option<Url>, transport: Transport) -> (Option<Url>, Transport) {
    let Some(given) = url else {
        return (None, transport);
    };
    let scheme = match given.scheme() {
        "wss" => "https",
        "ws" => "http",
        _ => return (Some(given), transport),
    };
    if !matches!(transport, Transport::Auto | Transport::WebSocket) {
        let hint = "leave it out, or write an http:// or https:// URL";
        s.error("transport", "does not fit a WebSocket URL", Some(hint));
    }
    // A scheme of this kind cannot be changed in place.
    let rest = given.as_str().split_once(':').map_or("", |(_, rest)| rest);
    let url = Url::parse(&format!("{scheme}:{rest}")).ok();
    (url, Transport::WebSocket)
}

/// A header that may be sent, in the form it is sent.
fn header(s: &Section<'_>, name: String, value: Secret) -> Option<(String, Secret)> {
    let path = join("headers", &name);
    let known = HeaderName::try_from(name.as_str());
    if known.is_err() {
        s.error(&path, "not a header name", None);
    } else if HeaderValue::try_from(value.expose()).is_err() {
        s.error(&path, "holds characters that no header can carry", None);
    } else if known.is_ok_and(|name| is_own(name.as_str())) {
        s.error(&path, "is set by the gateway itself", None);
    } else {
        return Some((name, value));
    }
    None
}

/// Whether the transport sets a header itself.
fn is_own(name: &str) -> bool {
    OWN_HEADERS.contains(&name) || name.starts_with(MCP_PARAM_PREFIX)
}

fn common(name: &str, s: &mut Section<'_>, carrier: Option<Carrier>) -> Option<Upstream> {
    let isolation = s
        .key(
            "isolation",
            "Whose traffic may share one upstream session or child: nobody's but one session's, \
             one principal's, everybody's.",
        )
        .choice(
            "session",
            &[
                ("session", Isolation::Session),
                ("principal", Isolation::Principal),
                ("shared", Isolation::Shared),
            ],
        )
        .unwrap_or(Isolation::Session);
    let era = era(s);
    let era_recheck = s
        .key(
            "era_recheck",
            "With era = \"auto\": how long to believe that it speaks a legacy revision, or no other than \
             a modern one, before asking again.",
        )
        .duration("1h");
    let merged = s.key("merged", "Whether it is shown on /mcp.").flag(true);
    let direct = s.key("direct", "Whether /mcp/<name> is served.").flag(true);
    let required_scopes = endpoints::scopes(s);
    let audiences = endpoints::audiences(s);
    let connect_timeout = s
        .key(
            "connect_timeout",
            "For opening a session with it, handshake included.",
        )
        .duration("10s");
    let idle_timeout = s
        .key(
            "idle_timeout",
            "Without any sign of life of a call; stands still while it asks.",
        )
        .duration("60s");
    let total_timeout = s.key("total_timeout", "For a whole call.").duration("30m");
    let ask_timeout = s
        .key("ask_timeout", "For one question to the client.")
        .duration("10m");
    let ask_wait = ask_wait(s);
    let open_questions = open_questions(s);
    let restartable = s
        .key(
            "restartable",
            "Whether a child that is lost with its replica may be started anew on another. Not used in \
             this version, which has one replica.",
        )
        .flag(false);
    let retry_safe = s
        .key(
            "retry_safe",
            "Tools, as the upstream spells them, that are called again, once, when their reply was \
             lost: calling them twice must be as good as once.",
        )
        .list(&[], |text| Ok(text.to_owned()));
    let run_tasks = run_tasks(s);
    Some(Upstream {
        name: name.to_owned(),
        carrier: carrier?,
        isolation,
        era,
        era_recheck,
        merged,
        direct,
        required_scopes,
        audiences,
        connect_timeout,
        idle_timeout,
        total_timeout,
        ask_timeout,
        ask_wait,
        open_questions,
        restartable,
        retry_safe,
        run_tasks,
    })
}

fn run_tasks(s: &mut Section<'_>) -> bool {
    s.key(
        "run_tasks",
        "Whether a tool that it runs only as a task is run for clients that know no tasks: the \
         call waits for the end of the task, within total_timeout.",
    )
    .flag(true)
}

fn open_questions(s: &mut Section<'_>) -> usize {
    s.key(
        "open_questions",
        "Questions that one of its sessions may have open, of any revision before 2026-07-28; \
         further ones are refused.",
    )
    .count(64)
}

fn ask_wait(s: &mut Section<'_>) -> Duration {
    s.key(
        "ask_wait",
        "How long a call whose client can be asked waits behind another such call, where questions \
         do not say whose they are and the caps allow no further child; then it fails as busy.",
    )
    .wait("2s")
}

fn era(s: &mut Section<'_>) -> Era {
    let words = [
        ("auto", Era::Auto),
        ("legacy", Era::Legacy),
        ("modern", Era::Modern),
        ("2024-11-05", Era::Revision("2024-11-05")),
        ("2025-03-26", Era::Revision("2025-03-26")),
        ("2025-06-18", Era::Revision("2025-06-18")),
        ("2025-11-25", Era::Revision("2025-11-25")),
        ("2026-07-28", Era::Revision("2026-07-28")),
    ];
    s.key(
        "era",
        "Which protocol to speak to it: what it speaks, and each client's own era where it speaks both; \
         or one era for all clients, or exactly this revision.",
    )
    .choice("auto", &words)
    .unwrap_or(Era::Auto)
}

fn misplaced(s: &Section<'_>, keys: &[&'static str], what: &str) {
    for key in keys {
        if s.has(key) {
            s.error(key, what, None);
        }
    }
}
