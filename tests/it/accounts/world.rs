//! A scripted authorization server, and an upstream that demands its tokens.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use http::StatusCode;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use serde_json::{Value, json};

use crate::harness::http::initialize;
use crate::harness::upstream::{HttpStub, serve};
use crate::harness::{Gateway, Setup, eventually};

pub(crate) const SECRET: &str = "the-gateways-own-hunter2";

/// How the token endpoint answers.
#[derive(Clone)]
pub(crate) enum Answering {
    /// With a token for this many seconds.
    Tokens(Option<u64>),
    /// With this status and text.
    Status(u16, String),
    /// With what is made of the form and of the number of tokens so far.
    Made(MakeAnswer),
    /// With the status and the answer that are made of the form.
    Judged(JudgeForm),
}

/// Makes the status and the answer of a token request.
pub(crate) type JudgeForm = Arc<dyn Fn(&BTreeMap<String, String>) -> (u16, Value) + Send + Sync>;

/// Makes the answer to a token request.
pub(crate) type MakeAnswer = Arc<dyn Fn(&BTreeMap<String, String>, usize) -> Value + Send + Sync>;

/// What happened at the token endpoint.
#[derive(Default)]
struct Seen {
    forms: Vec<BTreeMap<String, String>>,
    authorization: Vec<Option<String>>,
    issued: Vec<String>,
}

/// An authorization server; clones are the same one.
#[derive(Clone)]
pub(crate) struct AuthServer {
    pub(crate) origin: String,
    answering: Arc<Mutex<Answering>>,
    metadata: Arc<Mutex<Option<Value>>>,
    seen: Arc<Mutex<Seen>>,
    looks: Arc<AtomicUsize>,
}

impl AuthServer {
    pub(crate) async fn start() -> Self {
        let answering = Arc::new(Mutex::new(Answering::Tokens(Some(600))));
        let metadata: Arc<Mutex<Option<Value>>> = Arc::default();
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let looks: Arc<AtomicUsize> = Arc::default();
        let (answers, published, requests, looked) = (
            Arc::clone(&answering),
            Arc::clone(&metadata),
            Arc::clone(&seen),
            Arc::clone(&looks),
        );
        let origin = serve(move |request| {
            let (answers, published, requests, looked) = (
                Arc::clone(&answers),
                Arc::clone(&published),
                Arc::clone(&requests),
                Arc::clone(&looked),
            );
            async move {
                if request.uri().path() == "/token" {
                    let answering = answers.lock().unwrap().clone();
                    return token(request, answering, &requests).await;
                }
                let host = request.headers()["host"].to_str().unwrap().to_owned();
                let metadata = published.lock().unwrap().clone();
                if request.uri().path() != "/.well-known/oauth-authorization-server" {
                    return answer(404, "");
                }
                looked.fetch_add(1, Ordering::Relaxed);
                let origin = format!("http://{host}");
                let usual = json!({
                    "issuer": origin, "token_endpoint": format!("{origin}/token"),
                    "token_endpoint_auth_methods_supported": ["client_secret_basic"],
                });
                answer(200, &metadata.unwrap_or(usual).to_string())
            }
        })
        .await;
        Self {
            origin,
            answering,
            metadata,
            seen,
            looks,
        }
    }

    /// Requests for its metadata so far.
    pub(super) fn looks(&self) -> usize {
        self.looks.load(Ordering::Relaxed)
    }

    pub(crate) fn answers(&self, answering: Answering) {
        *self.answering.lock().unwrap() = answering;
    }

    pub(super) fn publishes(&self, metadata: Value) {
        *self.metadata.lock().unwrap() = Some(metadata);
    }

    /// The forms of token requests so far.
    pub(super) fn forms(&self) -> Vec<BTreeMap<String, String>> {
        self.seen.lock().unwrap().forms.clone()
    }

    /// `Authorization` of token requests so far.
    pub(super) fn authorization(&self) -> Vec<Option<String>> {
        self.seen.lock().unwrap().authorization.clone()
    }

    /// The tokens issued so far.
    pub(crate) fn issued(&self) -> Vec<String> {
        self.seen.lock().unwrap().issued.clone()
    }
}

async fn token(request: Request, answering: Answering, seen: &Mutex<Seen>) -> Response {
    let header = request.headers().get(AUTHORIZATION).cloned();
    let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let form: BTreeMap<String, String> = url::form_urlencoded::parse(&body).into_owned().collect();
    let mut seen = seen.lock().unwrap();
    let header = header.map(|value| value.to_str().unwrap().to_owned());
    seen.authorization.push(header);
    let scope = form.get("scope").cloned();
    seen.forms.push(form.clone());
    match answering {
        Answering::Made(make) => {
            let body = make(&form, seen.issued.len());
            let token = body["access_token"].as_str().unwrap().to_owned();
            seen.issued.push(token);
            answer(200, &body.to_string())
        }
        Answering::Tokens(lasts) => {
            let token = format!("issued-token-number-{}", seen.issued.len() + 1);
            seen.issued.push(token.clone());
            let mut body = json!({"access_token": token, "token_type": "Bearer"});
            if let Some(lasts) = lasts {
                body["expires_in"] = lasts.into();
            }
            if let Some(scope) = scope {
                body["scope"] = scope.into();
            }
            answer(200, &body.to_string())
        }
        Answering::Judged(judge) => {
            let (status, body) = judge(&form);
            answer(status, &body.to_string())
        }
        Answering::Status(status, text) => answer(status, &text),
    }
}

pub(super) fn answer(status: u16, text: &str) -> Response {
    let builder = Response::builder().status(status);
    let builder = builder.header(CONTENT_TYPE, "application/json");
    builder.body(Body::from(text.to_owned())).unwrap()
}

/// What the upstream makes of a request's token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    Unauthorized,
    /// 401: the metadata are said to be there.
    Names(&'static str),
    /// 403: these scopes are needed.
    Lacks(&'static str),
    /// 503.
    Down,
    /// An answer to `tools/list` with none.
    NoTools,
}

impl Verdict {
    /// Good, or 401.
    pub(super) fn of(is_good: bool) -> Self {
        if is_good {
            Self::Good
        } else {
            Self::Unauthorized
        }
    }

    /// Good, unless these scopes are missing.
    pub(super) fn unless(is_missing: bool, scopes: &'static str) -> Self {
        if is_missing {
            Self::Lacks(scopes)
        } else {
            Self::Good
        }
    }
}

/// `Authorization` and body of each request.
type SeenRequests = Arc<Mutex<Vec<(Option<String>, String)>>>;
type Judge = Arc<Mutex<Box<dyn Fn(Option<&str>, &str) -> Verdict + Send>>>;

/// A stub behind a check of its tokens; clones are the same one.
#[derive(Clone)]
pub(crate) struct GuardedUpstream {
    pub(super) origin: String,
    judge: Judge,
    metadata: Arc<Mutex<Value>>,
    seen: SeenRequests,
    _stub: Arc<HttpStub>,
}

impl GuardedUpstream {
    /// Demands any token of `server`, which its metadata names.
    pub(crate) async fn start(server: &AuthServer, args: &[&str]) -> Self {
        let stub = Arc::new(HttpStub::start(args).await);
        let issued = server.clone();
        let judge: Judge = Arc::new(Mutex::new(Box::new(move |token, _| {
            let issued = issued.issued();
            Verdict::of(token.is_some_and(|token| issued.iter().any(|one| one == token)))
        })));
        let metadata = Arc::new(Mutex::new(json!(null)));
        let seen: SeenRequests = Arc::default();
        let client = reqwest::Client::new();
        let (target, judges) = (stub.url.clone(), Arc::clone(&judge));
        let (published, requests) = (Arc::clone(&metadata), Arc::clone(&seen));
        let origin = serve(move |request: Request| {
            let (client, target) = (client.clone(), target.clone());
            let (judges, published, requests) = (
                Arc::clone(&judges),
                Arc::clone(&published),
                Arc::clone(&requests),
            );
            async move {
                if request.uri().path().starts_with("/.well-known/") {
                    let metadata = published.lock().unwrap().clone();
                    return match metadata {
                        Value::String(text) => answer(200, &text),
                        Value::Null => answer(404, ""),
                        metadata => answer(200, &metadata.to_string()),
                    };
                }
                guard(request, &client, &target, &judges, &requests).await
            }
        })
        .await;
        *metadata.lock().unwrap() = json!({
            "resource": format!("{origin}/mcp"), "authorization_servers": [server.origin],
            "scopes_supported": ["notes:read"],
        });
        Self {
            origin,
            judge,
            metadata,
            seen,
            _stub: stub,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/mcp", self.origin)
    }

    /// Has `judge` decide on the token and the body of each request.
    pub(super) fn judges(&self, judge: impl Fn(Option<&str>, &str) -> Verdict + Send + 'static) {
        *self.judge.lock().unwrap() = Box::new(judge);
    }

    /// Text that is no document is served as it is.
    pub(super) fn publishes(&self, metadata: Value) {
        *self.metadata.lock().unwrap() = metadata;
    }

    /// The `Authorization` and the body of every request so far.
    pub(super) fn seen(&self) -> Vec<(Option<String>, String)> {
        self.seen.lock().unwrap().clone()
    }

    /// Requests so far whose body holds `text`.
    pub(super) fn count(&self, text: &str) -> usize {
        let seen = self.seen();
        seen.iter().filter(|(_, body)| body.contains(text)).count()
    }
}

async fn guard(
    request: Request,
    client: &reqwest::Client,
    target: &str,
    judge: &Judge,
    seen: &SeenRequests,
) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let text = String::from_utf8_lossy(&body).into_owned();
    let header = head.headers.get(AUTHORIZATION);
    let header = header.map(|value| value.to_str().unwrap().to_owned());
    let token = header
        .as_deref()
        .and_then(|value| value.strip_prefix("Bearer "));
    let verdict = (judge.lock().unwrap())(token, &text);
    seen.lock().unwrap().push((header.clone(), text));
    let origin = format!("http://{}", head.headers["host"].to_str().unwrap());
    let metadata = match verdict {
        Verdict::Names(place) => place.to_owned(),
        _ => format!("{origin}/.well-known/oauth-protected-resource/mcp"),
    };
    match verdict {
        Verdict::Good => {}
        Verdict::Unauthorized | Verdict::Names(_) => {
            let mut refused = answer(401, "{}");
            let challenge = format!("Bearer resource_metadata=\"{metadata}\"");
            refused
                .headers_mut()
                .insert(WWW_AUTHENTICATE, challenge.parse().unwrap());
            return refused;
        }
        Verdict::Down => return answer(503, ""),
        Verdict::NoTools => {
            let asked: Value = serde_json::from_slice(&body).unwrap();
            let result = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"tools": []}});
            return answer(200, &result.to_string());
        }
        Verdict::Lacks(scope) => {
            let mut refused = answer(403, "{}");
            let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"");
            refused
                .headers_mut()
                .insert(WWW_AUTHENTICATE, challenge.parse().unwrap());
            return refused;
        }
    }
    let mut headers = head.headers;
    for name in ["host", "content-length", "authorization", "connection"] {
        headers.remove(name);
    }
    let sent = client
        .request(head.method, target)
        .headers(headers)
        .body(body);
    let Ok(answer) = sent.send().await else {
        return Response::builder()
            .status(StatusCode::BAD_GATEWAY)
            .body(Body::empty())
            .unwrap();
    };
    let mut back = Response::builder().status(answer.status());
    for (name, value) in answer.headers() {
        if name != "transfer-encoding" && name != "connection" && name != RETRY_AFTER {
            back = back.header(name, value);
        }
    }
    back.body(Body::from_stream(answer.bytes_stream())).unwrap()
}

/// The table of the account at `server`.
pub(super) fn account(server: &AuthServer, keys: &str) -> String {
    format!(
        "[upstreams.up.auth]\nkind = \"client_credentials\"\nissuer = \"{}\"\nclient_id = \"drawbridge\"\n\
         client_secret = \"{SECRET}\"\n{keys}\n",
        server.origin
    )
}

/// A gateway with callers' tokens, before `upstream` with an account at `server`.
pub(super) async fn gateway(server: &AuthServer, upstream: &GuardedUpstream) -> Gateway {
    with_keys(server, upstream, "").await
}

/// The same with further keys of the account.
pub(super) async fn with_keys(
    server: &AuthServer,
    upstream: &GuardedUpstream,
    keys: &str,
) -> Gateway {
    Setup::secured()
        .url("up", &upstream.url(), "")
        .toml(&account(server, keys))
        .start()
        .await
}

/// Fails if the log, `/status` or `/metrics` hold one of `secrets`.
pub(super) async fn tells_none(gw: &Gateway, secrets: &[String]) {
    let mut text = gw.log().join("\n");
    for path in ["/status", "/metrics"] {
        text += &gw.admin_text(path).await.unwrap().1;
    }
    for secret in secrets {
        assert!(!text.contains(secret.as_str()), "{secret} in {text}");
    }
}

/// What a client is told that opens a session in vain.
pub(super) async fn refusal(gw: &Gateway) -> String {
    let hello = initialize(1, "2025-11-25", &json!({}));
    let answer = gw
        .principal("alice")
        .post("/mcp/up", &[], &hello)
        .await
        .text()
        .await;
    assert!(answer.contains("its account cannot be used"), "{answer}");
    assert!(
        !answer.contains("127.0.0.1") && !answer.contains("evil"),
        "{answer}"
    );
    answer
}

/// Waits until the log holds `text`, as it stands in a JSON string.
pub(super) async fn logged(gw: &Gateway, text: &str) {
    let text = text.replace('"', "\\\"");
    eventually(&text, async || {
        gw.log().join("\n").contains(&text).then_some(())
    })
    .await;
}

/// How many token requests ended like this.
pub(super) async fn token_requests(gw: &Gateway, outcome: &str) -> f64 {
    let labels = format!("outcome=\"{outcome}\"");
    gw.metric("drawbridge_token_request_duration_seconds_count", &labels)
        .await
}
