//! HTTP upstreams that hang, refuse or break off at the wrong moment: each call runs at most once, and no caller waits
//! beyond its timeout. Spec: SPEC M-44, U-02, U-10, U-12, C-10; BRIDGING §3.4, §3.7.

mod calls;
mod changes;
mod handshakes;
mod notice_streams;
mod replies;

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use http::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::http::initialize;
use crate::harness::upstream::serve;
use crate::harness::{Gateway, Session, Setup, eventually, within};
use crate::modern::Modern;

/// Reaction of the upstream to one message.
enum Does {
    /// The answer of a well-behaved upstream.
    Usual,
    /// The usual answer, once the token is cancelled.
    Later(CancellationToken),
    Status(u16, &'static str),
    /// An event stream that begins when the token is cancelled, and stays open.
    Stream(CancellationToken),
    /// Answers with this body under a header.
    Labelled([&'static str; 2], &'static [u8]),
    /// Nothing, for ever.
    Hang,
    /// Writes these messages to an event stream, each after so many milliseconds, and then its reply, if any.
    Events(Vec<(u64, &'static str)>, Option<Value>),
}

/// Decides by name and by how often that name was requested before: `call TOOL`, another JSON-RPC method, or the HTTP
/// method.
type Script = dyn Fn(&str, usize) -> Does + Send + Sync;

/// A scripted upstream.
#[derive(Clone)]
struct Upstream {
    url: String,
    script: Arc<Script>,
    seen: Arc<Mutex<Vec<String>>>,
    /// Requests that wait for an answer in vain.
    hanging: Arc<AtomicUsize>,
}

struct Hanging(Arc<AtomicUsize>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Upstream {
    async fn start(script: impl Fn(&str, usize) -> Does + Send + Sync + 'static) -> Self {
        let mut this = Self {
            url: String::new(),
            script: Arc::new(script),
            seen: Arc::default(),
            hanging: Arc::default(),
        };
        let upstream = this.clone();
        let answer = move |request| upstream.clone().answer(request);
        this.url = serve(answer).await + "/mcp";
        this
    }

    async fn behind(&self, keys: &str) -> Gateway {
        Setup::open().url("up", &self.url, keys).start().await
    }

    fn count(&self, what: &str) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|seen| *seen == what).count()
    }

    async fn answer(self, request: Request) -> Response {
        let method = request.method().clone();
        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let name = match body["method"].as_str() {
            Some("tools/call") => format!("call {}", body["params"]["name"].as_str().unwrap()),
            Some(other) => other.to_owned(),
            None => method.to_string(),
        };
        let before = self.count(&name);
        self.seen.lock().unwrap().push(name.clone());
        match (self.script)(&name, before) {
            Does::Usual => usual(&method, &body),
            Does::Later(now) => {
                now.cancelled().await;
                usual(&method, &body)
            }
            Does::Status(status, text) => plain(status, text),
            Does::Stream(now) => {
                now.cancelled().await;
                let first = stream::iter([Ok::<_, Infallible>(Bytes::from(": hello\n\n"))]);
                let response = Response::builder().header("content-type", "text/event-stream");
                let body = Body::from_stream(first.chain(stream::pending()));
                response.body(body).unwrap()
            }
            Does::Labelled([name, value], body) => {
                let response = Response::builder().header(name, value);
                response.body(Body::from(body)).unwrap()
            }
            Does::Hang => {
                self.hanging.fetch_add(1, Ordering::SeqCst);
                let _hanging = Hanging(Arc::clone(&self.hanging));
                std::future::pending().await
            }
            Does::Events(events, reply) => {
                let reply = reply.map(|result| {
                    let reply = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
                    (0, format!("data: {reply}\n\n"))
                });
                let events = events.into_iter().map(|(ms, text)| (ms, text.to_owned()));
                let events = stream::iter(events.chain(reply)).then(async |(ms, text)| {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    Ok::<_, Infallible>(Bytes::from(text))
                });
                Response::builder()
                    .header("content-type", "text/event-stream")
                    .body(Body::from_stream(events))
                    .unwrap()
            }
        }
    }
}

fn plain(status: u16, text: &'static str) -> Response {
    let response = Response::builder().status(status);
    response.body(Body::from(text)).unwrap()
}

/// The answer of a well-behaved upstream.
pub(crate) fn usual(method: &Method, body: &Value) -> Response {
    let result = match body["method"].as_str() {
        _ if *method == Method::GET => return plain(405, ""),
        _ if *method == Method::DELETE => return plain(200, ""),
        Some("initialize") => json!({
            "protocolVersion": "2025-11-25", "serverInfo": {"name": "unsteady", "version": "1"},
            "capabilities": {"tools": {"listChanged": true}, "resources": {"subscribe": true}},
        }),
        Some("server/discover") => json!({
            "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
            "ttlMs": 60_000, "cacheScope": "public",
        }),
        Some("tools/list") => json!({"tools": []}),
        Some("tools/call") => done(),
        _ if body.get("id").is_none() || body.get("method").is_none() => return plain(202, ""),
        _ => json!({}),
    };
    let reply = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
    Response::builder()
        .header("content-type", "application/json")
        .header("mcp-session-id", "a-session")
        .body(Body::from(reply.to_string()))
        .unwrap()
}

fn done() -> Value {
    json!({"content": [{"type": "text", "text": "done"}]})
}

/// Result or error of a call, as text.
async fn outcome(user: &Session, tool: &str) -> String {
    let reply = within(tool, user.call(tool, json!({}))).await;
    reply.map_or_else(|error| error.to_string(), |result| result.to_string())
}

const LEGACY: &str = "era = \"legacy\"\n";
