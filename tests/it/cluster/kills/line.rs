//! How one session's client reaches the gateways: through nginx, by connections that may break.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use super::findings::Findings;
use crate::harness::events::EventStream;
use crate::harness::http::BOTH;
use crate::harness::nginx::ENTRY;

/// No request takes longer: it waits inside for a lease and two seconds at most.
const LIMIT: Duration = Duration::from_secs(15);
/// Before a request is sent once more that broke off.
const PAUSE: Duration = Duration::from_millis(200);

/// What all clients have in common.
pub(super) struct Front {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
    is_over: AtomicBool,
    pub(super) findings: Arc<Findings>,
}

impl Front {
    pub(super) fn new(origin: &str, path: &str, findings: &Arc<Findings>) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            url: format!("{origin}{path}"),
            is_over: AtomicBool::new(false),
            findings: Arc::clone(findings),
        }
    }

    /// Tells all clients to finish.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// What came of a request.
pub(super) enum Sent {
    /// Success, and nginx's name of the answering replica.
    Answer(http::Response<Incoming>, String),
    /// It did not run, and may be sent again after this.
    Later(Duration),
    /// It may have run: the connection or the replica is gone. The replica, if nginx named one.
    Broken(String),
    /// Any other answer: an error of the gateway.
    Refused(String),
}

/// One client's way to its session.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) front: Arc<Front>,
    pub(super) token: String,
    /// `Mcp-Session-Id`.
    pub(super) id: Option<String>,
    pub(super) number: usize,
}

impl Line {
    pub(super) async fn post(&self, message: &Value) -> Sent {
        self.send(Method::POST, None, message.to_string()).await
    }

    /// Sends a request until it was answered; `None` where an answer is wrong, which is noted.
    pub(super) async fn insist(
        &self,
        method: Method,
        last: Option<&str>,
        body: &str,
    ) -> Option<(http::Response<Incoming>, String)> {
        let started = Instant::now();
        while started.elapsed() < LIMIT {
            match self.send(method.clone(), last, body.to_owned()).await {
                Sent::Answer(answer, entry) => return Some((answer, entry)),
                Sent::Later(pause) => tokio::time::sleep(pause).await,
                Sent::Broken(_) => tokio::time::sleep(PAUSE).await,
                Sent::Refused(how) => {
                    self.wrong(format!("{method} got {how}"));
                    return None;
                }
            }
        }
        self.wrong(format!("{method} was not answered within {LIMIT:?}"));
        None
    }

    async fn send(&self, method: Method, last: Option<&str>, body: String) -> Sent {
        let accept = if method == Method::POST {
            BOTH
        } else {
            "text/event-stream"
        };
        let mut request = Request::builder()
            .method(&method)
            .uri(&self.front.url)
            .header("authorization", format!("Bearer {}", self.token))
            .header("accept", accept);
        if method == Method::POST {
            request = request.header("content-type", "application/json");
        }
        if let Some(id) = &self.id {
            request = request
                .header("mcp-session-id", id)
                .header("mcp-protocol-version", "2025-11-25");
        }
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let sent = tokio::time::timeout(LIMIT, self.front.client.request(request)).await;
        let Ok(sent) = sent else {
            return Sent::Refused(format!("no answer within {LIMIT:?}"));
        };
        let Ok(answer) = sent else {
            return Sent::Broken(String::new());
        };
        let header = |name: &str| {
            let value = answer.headers().get(name).map(|value| value.to_str());
            value.and_then(Result::ok).unwrap_or_default().to_owned()
        };
        // Where it tried several replicas, the last one has answered.
        let entry = header(ENTRY);
        let entry = entry.rsplit(", ").next().unwrap_or_default().to_owned();
        match answer.status().as_u16() {
            200 | 202 => Sent::Answer(answer, entry),
            502 => Sent::Broken(entry),
            503 => match header("retry-after").parse() {
                Ok(seconds) => Sent::Later(Duration::from_secs(seconds)),
                Err(_) => Sent::Refused("503 without Retry-After".to_owned()),
            },
            status => {
                let body = answer.into_body().collect().await;
                let body = body.map(http_body_util::Collected::to_bytes);
                Sent::Refused(format!("{status} from {entry}: {body:?}"))
            }
        }
    }

    /// Opens the session.
    pub(super) async fn open(&mut self) {
        let hello = crate::harness::http::initialize(1, "2025-11-25", &json!({}));
        let opened = self.insist(Method::POST, None, &hello.to_string()).await;
        let (answer, _) = opened.expect("an answer to initialize");
        let id = answer.headers().get("mcp-session-id").expect("a session");
        self.id = Some(id.to_str().unwrap().to_owned());
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let level = json!({"level": "info"});
        let level =
            json!({"jsonrpc": "2.0", "id": 2, "method": "logging/setLevel", "params": level});
        for message in [ready, level] {
            let sent = self.insist(Method::POST, None, &message.to_string()).await;
            sent.expect("an answer");
        }
    }

    /// Notes what must not be.
    pub(super) fn wrong(&self, what: impl std::fmt::Display) {
        self.front
            .findings
            .wrong(format!("session {}: {what}", self.number));
    }
}

/// An answer as a stream of events, or as one message.
pub(super) enum Body {
    Stream(EventStream),
    Json(Option<Value>),
}

impl Body {
    pub(super) async fn of(answer: http::Response<Incoming>) -> Self {
        let kind = answer.headers().get("content-type");
        if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
            return Self::Stream(EventStream::new(answer.into_body()));
        }
        let whole = answer.into_body().collect().await.ok();
        let message = whole.and_then(|whole| serde_json::from_slice(&whole.to_bytes()).ok());
        Self::Json(message)
    }
}
