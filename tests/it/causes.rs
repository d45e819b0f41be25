//! Broken upstreams: what the log says of each, what its callers hear, and how many lines ten sessions make.

use axum::body::Body;
use axum::response::Response;
use futures_util::future::join_all;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::upstream::serve;
use crate::harness::{Gateway, Setup, eventually, within};

/// An upstream that cannot work.
#[derive(Debug, Clone, Copy)]
enum Broken {
    /// Over HTTP; every answer has this status and body.
    Answers(u16, &'static str),
    /// TLS is spoken to a port that speaks none.
    PlainPort,
    /// This URL.
    Url(&'static str),
    /// A child: `command` and its arguments.
    Program(&'static str, &'static [&'static str]),
}

const BANNER: &[&str] = &["-c", "echo 'Listening on port 3000'; exec sleep 60"];
const CRASH: &[&str] = &["-c", "echo 'cannot find the database' >&2; exit 3"];

impl Broken {
    async fn table(self) -> String {
        let url = match self {
            Self::Answers(status, body) => format!("{}/mcp", answers(status, body).await),
            Self::PlainPort => {
                let origin = answers(404, "").await;
                origin.replace("http://", "https://") + "/mcp"
            }
            Self::Url(url) => url.to_owned(),
            Self::Program(command, args) => {
                return format!("command = {command:?}\nargs = {args:?}\n");
            }
        };
        format!("url = {url:?}\n")
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
        let answer = answer.status(status).header(WWW_AUTHENTICATE, challenge);
        answer.body(Body::from(body)).unwrap()
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

#[rstest]
#[case::no_token(
    Broken::Answers(401, "go away"),
    &["HTTP status 401: it wants a token", "set `headers.Authorization`", "https://login.example"],
    &["HTTP status 401: it wants a token"],
)]
#[case::not_allowed(
    Broken::Answers(403, "go away"),
    &["HTTP status 403: it does not let the gateway in", "`headers.Authorization`"],
    &["HTTP status 403"],
)]
#[case::failing(
    Broken::Answers(500, "oops"),
    &["HTTP status 500", "the upstream's own log"],
    &["HTTP status 500"],
)]
#[case::plain_port(
    Broken::PlainPort,
    &["its port does not speak TLS", "http://"],
    &["does not speak TLS"],
)]
#[case::refused(
    Broken::Url("http://127.0.0.1:1/mcp"),
    &["the connection was refused", "start the upstream"],
    &["the connection was refused"],
)]
#[case::unknown_host(
    Broken::Url("http://no-such-host.invalid/mcp"),
    &["its host name cannot be resolved", "DNS of this machine"],
    &["its host name cannot be resolved"],
)]
#[case::no_program(
    Broken::Program("/opt/tools/no-such-program", &[]),
    &["\"no-such-program\"", "/opt/tools", "install the program"],
    &["no-such-program", "cannot be found"],
)]
#[case::banner(
    Broken::Program("sh", BANNER),
    &["no message: Listening on port 3000", "no answer in time; its output meanwhile: Listening"],
    &["did not answer in time", "Listening on port 3000"],
)]
#[case::crash(
    Broken::Program("sh", CRASH),
    &["upstream stderr: cannot find the database", "ended by itself"],
    &["cannot find the database"],
)]
#[tokio::test]
async fn a_broken_upstream_is_named_in_few_lines(
    #[case] broken: Broken,
    #[case] logged: &[&str],
    #[case] heard: &[&str],
) {
    let table = broken.table().await;
    let table = format!("[upstreams.up]\n{table}connect_timeout = \"1s\"\n");
    let gw = Setup::open().stub("fine", &[]).toml(&table).start().await;
    let user = gw.anonymous().open("/mcp").await;
    let reply = within("an error", user.call("up__echo", json!({}))).await;
    let said = format!("{reply:?}");
    for word in heard {
        assert!(
            said.contains(&json_escaped(word)) || said.contains(word),
            "{word}: {said}"
        );
    }
    for secret in [
        "127.0.0.1",
        "/opt/tools",
        "headers.Authorization",
        "login.example",
    ] {
        assert!(!said.contains(secret), "{secret}: {said}");
    }
    eventually("the words stand in the log", async || {
        let lines = told(&gw);
        let all: Vec<String> = lines
            .iter()
            .flat_map(|line| line.as_object().unwrap().values())
            .filter_map(|value| value.as_str().map(str::to_owned))
            .collect();
        let is_there = |word: &&str| all.iter().any(|text| text.contains(*word));
        logged.iter().all(is_there).then_some(())
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
    assert!(
        !format!("{lines:?}").contains("`era` can say it"),
        "{lines:#?}"
    );
    gw.stop().await;
}

fn json_escaped(text: &str) -> String {
    text.replace('"', "\\\"")
}
