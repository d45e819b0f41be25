//! Which era an HTTP upstream is spoken to in, found out from scripted answers, and found out again
//! when the upstream is replaced in place. Spec: SPEC U-05 to U-07; `docs/adr/0008`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, Method};
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::http::{everything, initialize};
use crate::harness::session::{Reply, text_of};
use crate::harness::upstream::serve;
use crate::harness::{Gateway, Session, Setup, eventually, within};
use crate::modern::Modern;

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// How a request is answered instead of as usual.
#[derive(Debug, Clone, Copy)]
enum Says {
    Status(u16, &'static str),
    Silence,
}

/// What the upstream is at the moment.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// The newest legacy revision, where one is spoken.
    legacy: Option<&'static str>,
    has_sessions: bool,
    modern: bool,
    /// The modern side declares no tools.
    is_poor: bool,
    on_initialize: Option<Says>,
    on_discover: Option<Says>,
    on_modern_call: Option<Says>,
}

/// Sessions of 2025-11-25, as servers of the TypeScript SDK 1.x have them.
const LEGACY: Kind = Kind {
    legacy: Some("2025-11-25"),
    has_sessions: true,
    modern: false,
    is_poor: false,
    on_initialize: None,
    on_discover: None,
    on_modern_call: None,
};
/// 2026-07-28 alone, as servers of the TypeScript SDK 2.x.
const MODERN: Kind = Kind {
    legacy: None,
    modern: true,
    ..LEGACY
};
/// Both eras.
const DUAL: Kind = Kind {
    modern: true,
    ..LEGACY
};
/// Both eras, the legacy one without sessions, as servers of the Go SDK with `Stateless: true`.
const STATELESS: Kind = Kind {
    has_sessions: false,
    ..DUAL
};

/// An upstream whose kind changes in place.
#[derive(Clone)]
struct Upstream {
    url: String,
    kind: Arc<Mutex<Kind>>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    async fn start(kind: Kind) -> Self {
        let mut this = Self {
            url: String::new(),
            kind: Arc::new(Mutex::new(kind)),
            seen: Arc::default(),
        };
        let upstream = this.clone();
        this.url = serve(move |request| upstream.clone().answer(request)).await + "/mcp";
        this
    }

    async fn behind(&self, keys: &str) -> Gateway {
        Setup::open().url("up", &self.url, keys).start().await
    }

    fn become_kind(&self, kind: Kind) {
        *self.kind.lock().unwrap() = kind;
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    fn count(&self, what: &str) -> usize {
        self.seen().iter().filter(|seen| *seen == what).count()
    }

    async fn answer(self, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let name = body["method"].as_str().unwrap_or(head.method.as_str());
        self.seen.lock().unwrap().push(name.to_owned());
        let kind = *self.kind.lock().unwrap();
        let is_modern = body["params"]["_meta"].get(VERSION).is_some();
        let says = match name {
            "initialize" => kind.on_initialize,
            "server/discover" => kind.on_discover,
            "tools/call" if is_modern => kind.on_modern_call,
            _ => None,
        };
        match says {
            Some(Says::Silence) => std::future::pending().await,
            Some(Says::Status(status, text)) => plain(status, text),
            None if is_modern && kind.modern => modern(&kind, &body),
            None => match kind.legacy {
                Some(revision) => legacy(&kind, revision, &head.method, &head.headers, &body),
                None => refused(&body["id"], -32602, "Invalid params: _meta is missing"),
            },
        }
    }
}

fn plain(status: u16, text: &str) -> Response {
    let response = Response::builder().status(status);
    let response = response.header("content-type", "application/json");
    response.body(Body::from(text.to_owned())).unwrap()
}

fn refused(id: &Value, code: i64, text: &str) -> Response {
    let error = json!({"code": code, "message": text});
    plain(
        400,
        &json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string(),
    )
}

fn replied(body: &Value, result: &Value) -> Response {
    let reply = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
    plain(200, &reply.to_string())
}

fn said(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn legacy(
    kind: &Kind,
    newest: &str,
    method: &Method,
    headers: &HeaderMap,
    body: &Value,
) -> Response {
    let name = body["method"].as_str();
    if name == Some("initialize") {
        let offered = body["params"]["protocolVersion"].as_str().unwrap();
        let result = json!({
            "protocolVersion": offered.min(newest), "capabilities": {"tools": {}},
            "serverInfo": {"name": "legacy", "version": "1"},
        });
        let mut response = replied(body, &result);
        if kind.has_sessions {
            let id = "a-session".parse().unwrap();
            response.headers_mut().insert("mcp-session-id", id);
        }
        return response;
    }
    if kind.has_sessions && !headers.contains_key("mcp-session-id") {
        return refused(&Value::Null, -32000, "Bad Request: No valid session ID");
    }
    match name {
        None if *method == Method::GET => plain(405, ""),
        None if *method == Method::DELETE => plain(200, ""),
        Some("tools/call") => replied(body, &said("legacy")),
        Some("tools/list") => replied(body, &json!({"tools": [tool()]})),
        _ if body.get("id").is_none() || name.is_none() => plain(202, ""),
        _ => replied(body, &json!({})),
    }
}

fn modern(kind: &Kind, body: &Value) -> Response {
    let capabilities = if kind.is_poor {
        json!({})
    } else {
        json!({"tools": {}})
    };
    let mut result = match body["method"].as_str() {
        Some("server/discover") => json!({
            "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
            "ttlMs": 0, "cacheScope": "public",
        }),
        Some("tools/list") => json!({"tools": [tool()], "ttlMs": 0, "cacheScope": "public"}),
        Some("tools/call") if body["params"]["name"] == "ask" => asked(body),
        _ => said("modern"),
    };
    if result.get("resultType").is_none() {
        result["resultType"] = "complete".into();
    }
    replied(body, &result)
}

fn tool() -> Value {
    json!({"name": "ask", "inputSchema": {"type": "object"}})
}

/// Asks for a name and repeats the answer.
fn asked(body: &Value) -> Value {
    let answer = &body["params"]["inputResponses"]["name"];
    if answer.is_object() {
        return said(&answer.to_string());
    }
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    json!({"resultType": "input_required", "requestState": "s", "inputRequests": {
        "name": {"method": "elicitation/create",
                 "params": {"message": "Who?", "requestedSchema": schema}}}})
}

/// The era that served a call.
fn era_of(reply: Reply) -> Result<String, String> {
    match reply {
        Ok(result) if result["isError"] != true => Ok(text_of(&result).to_owned()),
        other => Err(format!("{other:?}")),
    }
}

async fn serving(user: &Session) -> Result<String, String> {
    era_of(within("a reply", user.call("era", json!({}))).await)
}

async fn serving_modern(user: &Modern) -> Result<String, String> {
    era_of(within("a reply", user.call("era", json!({}))).await)
}

async fn user(gw: &Gateway) -> Session {
    within("a session", gw.anonymous().open("/mcp/up")).await
}

fn visitor(gw: &Gateway) -> Modern {
    Modern::new(gw.anonymous(), "/mcp/up")
}

/// Whether a call works, for sessions and visits that exist and for new ones, in this era.
async fn all_are_served(gw: &Gateway, old: &Session, visit: &Modern, era: &str) {
    let begun = Instant::now();
    let expected = Ok(era.to_owned());
    eventually("the session that exists", async || {
        (serving(old).await == expected).then_some(())
    })
    .await;
    eventually("the visit that exists", async || {
        (serving_modern(visit).await == expected).then_some(())
    })
    .await;
    assert_eq!(serving(&user(gw).await).await, expected);
    assert_eq!(serving_modern(&visitor(gw)).await, expected);
    let fresh = Modern::with(gw.anonymous(), "/mcp/up", json!({"roots": {}}));
    assert_eq!(serving_modern(&fresh).await, expected);
    assert!(begun.elapsed() < Duration::from_secs(20));
}

// Spec: SPEC U-07
#[rstest]
#[case::rollback(MODERN, "modern", LEGACY, "legacy")]
#[case::upgrade(LEGACY, "legacy", MODERN, "modern")]
#[tokio::test]
async fn replaced_upstream_is_noticed(
    #[case] first: Kind,
    #[case] before: &str,
    #[case] then: Kind,
    #[case] after: &str,
) {
    let up = Upstream::start(first).await;
    let gw = up.behind("").await;
    let (session, visit) = (user(&gw).await, visitor(&gw));
    all_are_served(&gw, &session, &visit, before).await;
    up.become_kind(then);
    all_are_served(&gw, &session, &visit, after).await;
    up.become_kind(first);
    all_are_served(&gw, &session, &visit, before).await;
    gw.stop().await;
}

// A rollback to a server that never answers `server/discover` usably leaves no verdict behind.
#[tokio::test]
async fn rollback_to_a_failing_discovery_is_noticed() {
    let up = Upstream::start(MODERN).await;
    let gw = up.behind("").await;
    let (session, visit) = (user(&gw).await, visitor(&gw));
    all_are_served(&gw, &session, &visit, "modern").await;
    up.become_kind(Kind {
        on_discover: Some(Says::Status(500, "{}")),
        ..LEGACY
    });
    all_are_served(&gw, &session, &visit, "legacy").await;
    gw.stop().await;
}

// Spec: SPEC U-05: an unknown first request breaks some servers for good.
#[tokio::test]
async fn initialize_is_sent_before_discover() {
    let up = Upstream::start(LEGACY).await;
    let gw = up.behind("").await;
    assert_eq!(serving(&user(&gw).await).await, Ok("legacy".into()));
    let seen = up.seen();
    assert_eq!(seen.first().map(String::as_str), Some("initialize"));
    assert_eq!(up.count("initialize"), 1, "{seen:?}");
    assert_eq!(up.count("server/discover"), 1, "{seen:?}");
    gw.stop().await;
}

// Spec: SPEC U-05
#[tokio::test]
async fn old_revision_is_not_asked_to_discover() {
    let up = Upstream::start(Kind {
        legacy: Some("2025-03-26"),
        ..LEGACY
    })
    .await;
    let gw = up.behind("").await;
    for _ in 0..2 {
        assert_eq!(serving(&user(&gw).await).await, Ok("legacy".into()));
        assert_eq!(serving_modern(&visitor(&gw)).await, Ok("legacy".into()));
    }
    assert_eq!(up.count("server/discover"), 0);
    gw.stop().await;
}

// The answer to an old client proves nothing about newer revisions.
#[tokio::test]
async fn old_client_does_not_decide_for_others() {
    let up = Upstream::start(DUAL).await;
    let gw = up.behind("").await;
    for _ in 0..2 {
        let actor = gw.anonymous();
        let old = actor.open_as("/mcp/up", "2024-11-05", everything()).await;
        assert_eq!(serving(&old).await, Ok("legacy".into()));
    }
    assert_eq!(up.count("server/discover"), 0);
    assert_eq!(serving_modern(&visitor(&gw)).await, Ok("modern".into()));
    gw.stop().await;
}

// Spec: SPEC U-06
#[rstest]
#[case::rpc_error(
    Says::Status(
        500,
        r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32603,"message":"Internal error"}}"#
    ),
    2
)]
#[case::no_rpc(
    Says::Status(500, r#"{"jsonRpcError":{"code":-32601},"stackTrace":[]}"#),
    2
)]
#[case::wall(Says::Status(403, ""), 2)]
#[case::silence(Says::Silence, 1)]
#[case::not_found(Says::Status(404, ""), 1)]
#[tokio::test]
async fn failed_discovery_leaves_the_session(#[case] says: Says, #[case] asked: usize) {
    let up = Upstream::start(Kind {
        on_discover: Some(says),
        ..LEGACY
    })
    .await;
    let gw = up.behind("").await;
    for _ in 0..2 {
        assert_eq!(serving(&user(&gw).await).await, Ok("legacy".into()));
    }
    // A 5xx and a wall are not remembered.
    assert_eq!(up.count("server/discover"), asked);
    assert_eq!(serving_modern(&visitor(&gw)).await, Ok("legacy".into()));
    gw.stop().await;
}

#[tokio::test]
async fn discovery_after_an_outage_is_used() {
    let up = Upstream::start(Kind {
        on_discover: Some(Says::Status(502, "")),
        ..DUAL
    })
    .await;
    let gw = up.behind("").await;
    assert_eq!(serving_modern(&visitor(&gw)).await, Ok("legacy".into()));
    up.become_kind(DUAL);
    let fresh = Modern::with(gw.anonymous(), "/mcp/up", json!({"roots": {}}));
    assert_eq!(serving_modern(&fresh).await, Ok("modern".into()));
    gw.stop().await;
}

// Spec: SPEC U-05, U-06
#[rstest]
#[case::broken(Says::Status(500, ""))]
#[case::busy(Says::Status(503, ""))]
#[case::page(Says::Status(200, "<h1>hello</h1>"))]
#[case::silence(Says::Silence)]
#[tokio::test]
async fn failed_initialize_does_not_hide_a_modern_side(#[case] says: Says) {
    let up = Upstream::start(Kind {
        on_initialize: Some(says),
        ..MODERN
    })
    .await;
    let gw = up.behind("connect_timeout = \"4s\"").await;
    assert_eq!(serving(&user(&gw).await).await, Ok("modern".into()));
    assert_eq!(serving_modern(&visitor(&gw)).await, Ok("modern".into()));
    gw.stop().await;
}

// Spec: SPEC U-06
#[rstest]
#[case(401)]
#[case(403)]
#[case(429)]
#[tokio::test]
async fn walls_are_not_remembered(#[case] status: u16) {
    let up = Upstream::start(Kind {
        on_initialize: Some(Says::Status(status, "")),
        ..DUAL
    })
    .await;
    let gw = up.behind("").await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    let refused = gw
        .anonymous()
        .post("/mcp/up", &[], &hello)
        .await
        .text()
        .await;
    assert!(refused.contains("error"), "{refused}");
    assert_eq!(up.count("server/discover"), 0);
    up.become_kind(DUAL);
    assert_eq!(serving(&user(&gw).await).await, Ok("legacy".into()));
    assert_eq!(serving_modern(&visitor(&gw)).await, Ok("modern".into()));
    gw.stop().await;
}

// Spec: SPEC U-04
#[tokio::test]
async fn unused_session_is_deleted_at_once() {
    let up = Upstream::start(DUAL).await;
    let gw = up.behind("").await;
    assert_eq!(serving_modern(&visitor(&gw)).await, Ok("modern".into()));
    eventually("the session is deleted", async || {
        (up.count("DELETE") == 1).then_some(())
    })
    .await;
    assert_eq!(up.count("initialize"), 1);
    gw.stop().await;
}

#[tokio::test]
async fn stateless_upstream_asks_legacy_clients() {
    let up = Upstream::start(STATELESS).await;
    let gw = up.behind("").await;
    let user = user(&gw).await;
    assert_eq!(serving(&user).await, Ok("modern".into()));
    let (_, mut exchange) = user.start_call("ask", json!({})).await;
    let question = exchange.next().await.expect("a question");
    assert_eq!(question["method"], "elicitation/create", "{question}");
    let answer = json!({"action": "accept", "content": {"name": "Ada"}});
    user.answer(&question, answer).await;
    let result = exchange.finish().await.1.unwrap();
    assert!(text_of(&result).contains("Ada"), "{result}");
    assert_eq!(up.count("initialize"), 1);
    gw.stop().await;
}

#[rstest]
#[case::declares_less(Kind { is_poor: true, ..STATELESS }, "")]
#[case::pinned(STATELESS, "era = \"legacy\"")]
#[tokio::test]
async fn stateless_legacy_side_is_kept(#[case] kind: Kind, #[case] keys: &str) {
    let up = Upstream::start(kind).await;
    let gw = up.behind(keys).await;
    for _ in 0..2 {
        assert_eq!(serving(&user(&gw).await).await, Ok("legacy".into()));
    }
    assert!(up.count("server/discover") <= 1);
    gw.stop().await;
}

#[rstest]
#[case::mismatch(Says::Status(
    400,
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32020,"message":"Header mismatch"}}"#
))]
#[case::version(Says::Status(
    400,
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"Unsupported"}}"#
))]
#[case::not_found(Says::Status(404, ""))]
#[tokio::test]
async fn refused_form_falls_back_to_stateless(#[case] says: Says) {
    let up = Upstream::start(Kind {
        on_modern_call: Some(says),
        ..STATELESS
    })
    .await;
    let gw = up.behind("").await;
    for _ in 0..2 {
        let user = user(&gw).await;
        assert_eq!(serving(&user).await, Ok("legacy".into()));
        assert_eq!(serving(&user).await, Ok("legacy".into()));
    }
    assert_eq!(up.count("server/discover"), 1, "it is remembered");
    gw.stop().await;
}
