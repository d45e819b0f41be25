//! Broken upstreams: the error for the caller, the reports in the log and in `/status`, and the number of log lines for
//! ten sessions.

use std::any::Any;
use std::collections::BTreeSet;

use axum::body::Body;
use axum::response::Response;
use futures_util::future::join_all;
use http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use rcgen::CertificateParams;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::tunnel::TlsFront;
use crate::harness::upstream::{HttpStub, serve, stub_program};
use crate::harness::{Gateway, Setup, eventually, within};

/// An upstream that cannot work.
#[derive(Debug, Clone, Copy)]
enum Broken {
    /// Over HTTP; every answer has this status and body.
    Answers(u16, &'static str),
    /// Over HTTP; every answer is this JSON with the id of the request.
    Says(&'static str),
    /// Over a WebSocket, whose upgrade is answered with this status.
    NoUpgrade(u16),
    /// TLS is spoken to a port that speaks none.
    PlainPort,
    /// A working server behind a certificate for this name, that ends in this year; whether `ca_file` names it.
    Certificate(&'static str, i32, bool),
    /// A port where connections are accepted and nothing is said.
    Silent,
    /// This URL.
    Url(&'static str),
    /// A working server behind this forward proxy.
    Proxy(&'static str),
    /// A child: `command` and its arguments.
    Program(&'static str, &'static [&'static str]),
    /// A child whose file lacks the permission to be executed.
    NotExecutable,
    /// A working child, started in this directory.
    Directory(&'static str),
}

const BANNER: &[&str] = &["-c", "echo 'Listening on port 3000'; exec sleep 60"];
const CRASH: &[&str] = &[
    "-c",
    "echo 'cannot find the database, password=hunter22' >&2; exit 3",
];
const CLOSES: &[&str] = &["-c", "exec >&-; exec sleep 60"];
const LOGS: &[&str] = &[
    "-c",
    "echo '{\"level\":\"info\",\"msg\":\"listening\"}'; exec sleep 60",
];
const TRACE: &str = "TypeError: no pool\n    at query (/srv/app/db.js:12:7)";
const PAGE: &str = "<!doctype html><title>Sign in to intranet.example</title>";
const OTHER_REVISION: &str = r#""result":{"protocolVersion":"1999-01-01","capabilities":{},
    "serverInfo":{"name":"s","version":"1"}}"#;
const REFUSES: &str = r#""error":{"code":-32603,"message":"licence expired"}"#;

/// Guards that live as long as a broken upstream.
type Parts = Vec<Box<dyn Any>>;

impl Broken {
    /// The keys of its table, but for `connect_timeout`.
    async fn table(self, parts: &mut Parts) -> String {
        let url = match self {
            Self::Answers(status, body) => format!("{}/mcp", answers(status, body).await),
            Self::Says(words) => format!("{}/mcp", says(words).await),
            Self::NoUpgrade(status) => {
                let origin = answers(status, "").await;
                origin.replace("http://", "ws://") + "/mcp"
            }
            Self::PlainPort => {
                let origin = answers(404, "").await;
                origin.replace("http://", "https://") + "/mcp"
            }
            Self::Certificate(name, year, is_trusted) => {
                let stub = HttpStub::start(&[]).await;
                let mut wanted = CertificateParams::new([name.to_owned()]).unwrap();
                wanted.not_after = rcgen::date_time_ymd(year, 1, 1);
                let front = TlsFront::showing(stub.port(), &[], &wanted).await;
                let url = format!("https://localhost:{}/mcp", front.port);
                let ca_file = front.ca_file().display().to_string();
                parts.push(Box::new((stub, front)));
                if is_trusted {
                    return format!("url = {url:?}\nca_file = {ca_file:?}\n");
                }
                url
            }
            Self::Silent => {
                let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = silent.local_addr().unwrap();
                parts.push(Box::new(silent));
                format!("http://{address}/mcp")
            }
            Self::Url(url) => url.to_owned(),
            Self::Proxy(proxy) => {
                let stub = HttpStub::start(&[]).await;
                let url = stub.url.clone();
                parts.push(Box::new(stub));
                return format!("url = {url:?}\nproxy = {proxy:?}\n");
            }
            Self::Program(command, args) => {
                return format!("command = {command:?}\nargs = {args:?}\n");
            }
            Self::NotExecutable => {
                let directory = tempfile::tempdir().unwrap();
                let file = directory.path().join("server");
                std::fs::write(&file, "#!/bin/sh\n").unwrap();
                parts.push(Box::new(directory));
                return format!("command = {:?}\n", file.display().to_string());
            }
            Self::Directory(cwd) => {
                let stub = stub_program();
                return format!("command = {stub:?}\nargs = [\"stdio\"]\ncwd = {cwd:?}\n");
            }
        };
        format!("url = \"{url}?api_key=hunter22\"\n")
    }
}

/// A server with one answer, but for the metadata that its challenges name.
async fn answers(status: u16, body: &'static str) -> String {
    serve(move |request| async move {
        let host = request.headers()["host"].to_str().unwrap().to_owned();
        let answer = Response::builder();
        if request.uri().path() == "/metadata" {
            let metadata = json!({"authorization_servers": ["https://login.example"]});
            let answer = answer.header(CONTENT_TYPE, "application/json");
            return answer.body(Body::from(metadata.to_string())).unwrap();
        }
        let challenge = format!("Bearer resource_metadata=\"http://{host}/metadata\"");
        let mut answer = answer.status(status).header(WWW_AUTHENTICATE, challenge);
        match status {
            302 => answer = answer.header(LOCATION, "https://moved.example/new"),
            429 => answer = answer.header(RETRY_AFTER, "7"),
            _ => {}
        }
        if body.starts_with('<') {
            answer = answer.header(CONTENT_TYPE, "text/html");
        }
        answer.body(Body::from(body)).unwrap()
    })
    .await
}

/// A server that answers every request with these members of a JSON-RPC reply.
async fn says(words: &'static str) -> String {
    serve(move |request| async move {
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await;
        let message: Value = serde_json::from_slice(&body.unwrap()).unwrap_or_default();
        let reply = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},{words}}}", message["id"]);
        let answer = Response::builder().header(CONTENT_TYPE, "application/json");
        answer.body(Body::from(reply)).unwrap()
    })
    .await
}

/// The lines about the upstream `up`.
fn told(gw: &Gateway) -> Vec<Value> {
    let mut lines = gw.log_records();
    lines.retain(|line| {
        let target = line["target"].as_str().unwrap_or_default();
        line["upstream"] == "up" && target != "access" && target != "audit"
    });
    lines
}

/// The entry of the upstream `up` in `/status`.
async fn status(gw: &Gateway) -> Value {
    let (_, text) = gw.admin_text("/status").await.expect("an answer");
    let status: Value = serde_json::from_str(&text).unwrap();
    let all = status["upstreams"].as_array().unwrap();
    let up = all.iter().find(|one| one["name"] == "up");
    up.expect("the upstream").clone()
}

/// Texts that no caller may see: addresses, paths, names of keys, and internals that an upstream reports.
const SECRET: [&str; 10] = [
    "127.0.0.1",
    "localhost",
    "/opt/tools",
    "/tmp/",
    "headers.Authorization",
    "login.example",
    "moved.example",
    "intranet.example",
    "db.js",
    "inner.test",
];

// Columns: the upstream; the caller's error; the cause, in the log and in `/status`; the remedy, in both; further text
// in the log.
#[rstest]
#[case::no_token(
    Broken::Answers(401, "go away"),
    &["HTTP status 401: it wants a token"], "HTTP status 401: it wants a token",
    "set `headers.Authorization`", &["https://login.example"],
)]
#[case::not_allowed(
    Broken::Answers(403, "go away"),
    &["HTTP status 403: it does not let the gateway in"], "HTTP status 403", "`headers.Authorization`", &[],
)]
#[case::failing(
    Broken::Answers(500, TRACE), &["HTTP status 500"], "HTTP status 500", "the upstream's own log", &[],
)]
#[case::wrong_path(
    Broken::Answers(404, "not here"), &["HTTP status 404"], "HTTP status 404", "correct the path of `url`", &[],
)]
#[case::too_often(
    Broken::Answers(429, ""), &["is busy, try again in"], "HTTP status 429", "own limit of requests", &[],
)]
#[case::moved(
    Broken::Answers(302, ""),
    &["HTTP status 302, a redirection, which is not followed"], "HTTP status 302", "into `url`", &[],
)]
#[case::page(
    Broken::Answers(200, PAGE),
    &["its Content-Type is \"text/html\": a page to log in at"], "a page to log in at",
    "whether `url` is that of an MCP endpoint", &[],
)]
#[case::refuses_initialize(
    Broken::Says(REFUSES),
    &["the handshake failed", "licence expired"], "initialize was refused: licence expired",
    "the upstream's own log", &[],
)]
#[case::other_revision(
    Broken::Says(OTHER_REVISION),
    &["it speaks revision \"1999-01-01\""], "it speaks revision \"1999-01-01\"", "`era` can say which", &[],
)]
#[case::no_upgrade(
    Broken::NoUpgrade(200),
    &["it does not switch to WebSocket"], "it does not switch to WebSocket",
    "whether `url` is that of an MCP endpoint", &[],
)]
#[case::plain_port(
    Broken::PlainPort, &["does not speak TLS"], "its port does not speak TLS", "write `url` with http://", &[],
)]
#[case::unknown_authority(
    Broken::Certificate("localhost", 2100, false),
    &["its certificate is of an unknown issuer"], "certificate is of an unknown issuer", "in `ca_file`", &[],
)]
#[case::other_name(
    Broken::Certificate("inner.test", 2100, true),
    &["its certificate is for another host name"], "for another host name",
    "the host name that the upstream's certificate is for", &[],
)]
#[case::expired(
    Broken::Certificate("localhost", 2001, true),
    &["its certificate has expired"], "its certificate has expired", "renew the upstream's certificate", &[],
)]
#[case::silent(
    Broken::Silent, &["did not answer in time"], "no answer in time", "`connect_timeout`", &[],
)]
#[case::refused(
    Broken::Url("http://127.0.0.1:1/mcp"),
    &["the connection was refused"], "the connection was refused", "start the upstream", &[],
)]
#[case::unknown_host(
    Broken::Url("http://no-such-host.invalid/mcp"),
    &["its host name cannot be resolved"], "its host name cannot be resolved", "DNS of this machine", &[],
)]
#[case::no_proxy(
    Broken::Proxy("http://127.0.0.1:1"),
    &["the forward proxy before it cannot be reached"], "Connection refused", "start the proxy that `proxy` names", &[],
)]
#[case::no_program(
    Broken::Program("/opt/tools/no-such-program", &[]),
    &["no-such-program", "cannot be found"], "/opt/tools/no-such-program", "install the program", &[],
)]
#[case::not_executable(
    Broken::NotExecutable,
    &["its program", "server", "may not be executed"], "no permission to execute it", "chmod +x", &[],
)]
#[case::no_directory(
    Broken::Directory("/opt/tools/nowhere"),
    &["its working directory cannot be entered"], "/opt/tools/nowhere: No such file",
    "create the directory that `cwd` names", &[],
)]
#[case::banner(
    Broken::Program("sh", BANNER),
    &["did not answer in time", "Listening on port 3000"],
    "no answer in time; its output meanwhile: Listening", "banner to standard error",
    &["no message: Listening on port 3000"],
)]
#[case::no_json_rpc(
    Broken::Program("sh", LOGS),
    &["did not answer in time", "listening"], "its output meanwhile: {\"level\"", "banner to standard error",
    &["no message: {\"level\""],
)]
#[case::crash(
    Broken::Program("sh", CRASH),
    &["cannot find the database"], "cannot find the database", "what the upstream wrote at its end",
    &["upstream stderr: cannot find the database", "ended by itself"],
)]
#[case::closed_output(
    Broken::Program("sh", CLOSES),
    &["it closed its output"], "it closed its output", "what the upstream wrote at its end",
    &["was stopped: it closed its output"],
)]
#[tokio::test]
async fn a_broken_upstream_is_named_in_few_lines(
    #[case] broken: Broken,
    #[case] heard: &[&str],
    #[case] cause: &str,
    #[case] remedy: &str,
    #[case] besides: &[&str],
) {
    let mut parts = Parts::new();
    let table = broken.table(&mut parts).await;
    let table = format!("[upstreams.up]\n{table}connect_timeout = \"1s\"\n");
    let gw = Setup::open().stub("fine", &[]).toml(&table).start().await;
    let user = gw.anonymous().open("/mcp").await;
    let reply = within("an error", user.call("up__echo", json!({}))).await;
    let said = reply.map_or_else(|error| error.to_string(), |result| result.to_string());
    let said = said.replace("\\\"", "\"");
    for word in heard {
        assert!(said.contains(word), "{word}: {said}");
    }
    for secret in SECRET {
        assert!(!said.contains(secret), "{secret}: {said}");
    }
    let line = eventually("the line of the cause", async || {
        let has = |line: &Value, field: &str, word: &str| {
            line[field].as_str().is_some_and(|text| text.contains(word))
        };
        told(&gw).into_iter().find(|line| {
            line["level"] == "WARN" && has(line, "error", cause) && has(line, "remedy", remedy)
        })
    })
    .await;
    assert_eq!(line["message"], "upstream fails", "{line}");
    let shown = status(&gw).await;
    assert!(
        matches!(shown["state"].as_str(), Some("degraded" | "down")),
        "{shown}"
    );
    for (field, word) in [("text", cause), ("remedy", remedy)] {
        let text = shown["cause"][field].as_str().unwrap_or_default();
        assert!(text.contains(word), "{field} without {word}: {shown}");
    }
    eventually("what else the log says", async || {
        let lines = told(&gw);
        let values = lines
            .iter()
            .flat_map(|line| line.as_object().unwrap().values());
        let all: Vec<&str> = values.filter_map(Value::as_str).collect();
        let is_there = |word: &&str| all.iter().any(|text| text.contains(*word));
        besides.iter().all(is_there).then_some(())
    })
    .await;
    let others = (0..9).map(|_| async {
        let user = gw.anonymous().open("/mcp").await;
        assert!(user.tools().await.contains(&"fine__echo".to_owned()));
        within("an error", user.call("up__echo", json!({}))).await
    });
    join_all(others).await;
    let lines = told(&gw);
    assert!(lines.len() <= 10, "{}: {lines:#?}", lines.len());
    assert_each_warning_is_new(&lines);
    let everything = format!("{said}{shown}{}", gw.log().join("\n"));
    assert!(!everything.contains("hunter22"), "{everything}");
    gw.stop().await;
}

/// One warning for each message and cause; further ones are counted.
fn assert_each_warning_is_new(lines: &[Value]) {
    let mut seen = BTreeSet::new();
    for line in lines.iter().filter(|line| line["level"] == "WARN") {
        let part = |name: &str| line[name].to_string();
        let is_new = seen.insert((part("message"), part("error")));
        assert!(is_new, "{line} stands twice in {lines:#?}");
    }
}
