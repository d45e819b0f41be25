//! The gateway as an HTTP client: the requests that upstreams see, and hostile answers that must do no harm.
//! Spec: SPEC U-01 to U-13, E-05.

use std::future::ready;
use std::sync::{Arc, Mutex};

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::http::initialize;
use crate::harness::upstream::{HttpStub, serve};
use crate::harness::{Actor, Setup, eventually, within};
use crate::unsteady_upstream::usual;

const LEGACY: &str = "era = \"legacy\"\n";

/// Requests received by a scripted upstream.
type Seen = Arc<Mutex<Vec<(Method, HeaderMap)>>>;

/// An upstream that gives every request the same answer.
async fn always(status: StatusCode, headers: &[(&str, &str)], body: &str) -> (String, Seen) {
    let seen = Seen::default();
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    let headers = response.headers_ref().unwrap().clone();
    let body = body.to_owned();
    let requests = Arc::clone(&seen);
    let answer = move |request: Request| {
        let seen = (request.method().clone(), request.headers().clone());
        requests.lock().unwrap().push(seen);
        let mut response = Response::new(Body::from(body.clone()));
        *response.status_mut() = status;
        *response.headers_mut() = headers.clone();
        ready(response)
    };
    (serve(answer).await + "/mcp", seen)
}

// Spec: SPEC U-13: a client must not take an upstream's refusal for ours.
#[tokio::test]
async fn an_upstreams_refusal_is_not_ours() {
    let challenge = [("www-authenticate", "Bearer realm=\"upstream\"")];
    for (status, headers) in [
        (StatusCode::UNAUTHORIZED, &challenge[..]),
        (StatusCode::FORBIDDEN, &challenge[..]),
        (StatusCode::NOT_FOUND, &[]),
        (StatusCode::METHOD_NOT_ALLOWED, &[]),
        (StatusCode::INTERNAL_SERVER_ERROR, &[]),
        (StatusCode::OK, &[("content-type", "text/html")]),
    ] {
        let (url, _) = always(status, headers, "<h1>internal page</h1>").await;
        let gw = Setup::open().url("up", &url, "").start().await;
        let answer = gw
            .anonymous()
            .post("/mcp/up", &[], &initialize(1, "2025-11-25", &json!({})))
            .await;
        assert!(
            ![401, 403, 404, 405].contains(&answer.status()),
            "{status}: {}",
            answer.status()
        );
        assert_eq!(answer.header("www-authenticate"), None, "{status}");
        let text = answer.text().await;
        assert!(text.contains("\"error\""), "{status}: {text}");
        assert!(!text.contains("internal page"), "{status}: {text}");
        gw.stop().await;
    }
}

// Spec: SPEC U-11.
#[tokio::test]
async fn redirects_are_not_followed() {
    let (target, reached) = always(StatusCode::OK, &[], "").await;
    for status in [StatusCode::FOUND, StatusCode::TEMPORARY_REDIRECT] {
        let (url, _) = always(status, &[("location", &target)], "").await;
        let keys = "headers = { \"X-Api-Key\" = \"secret\" }";
        let gw = Setup::open().url("up", &url, keys).start().await;
        let hello = initialize(1, "2025-11-25", &json!({}));
        let text = gw
            .anonymous()
            .post("/mcp/up", &[], &hello)
            .await
            .text()
            .await;
        assert!(text.contains("\"error\""), "{status}: {text}");
        assert!(reached.lock().unwrap().is_empty(), "{status} was followed");
        gw.stop().await;
    }
}

/// An upstream that is served under one path and leads there from the same path with or without its
/// last slash. Each request is noted as `METHOD PATH`.
async fn slashed(serves: Arc<Mutex<&'static str>>) -> (String, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let noted = Arc::clone(&seen);
    let answer = move |request: Request| {
        let path = request.uri().path().to_owned();
        let line = format!("{} {path}", request.method());
        noted.lock().unwrap().push(line);
        let serves = *serves.lock().unwrap();
        async move {
            if path == serves {
                let method = request.method().clone();
                let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                return usual(&method, &body);
            }
            let response = Response::builder().header("location", serves);
            let is_slashed = path.trim_end_matches('/') == serves.trim_end_matches('/');
            let status = if is_slashed { 307 } else { 404 };
            response.status(status).body(Body::empty()).unwrap()
        }
    };
    (serve(answer).await + "/mcp", seen)
}

// Spec: SPEC U-11. Python servers up to 1.10 lead from /mcp to /mcp/.
#[rstest]
#[case::auto("auto")]
#[case::legacy("legacy")]
#[case::modern("modern")]
#[tokio::test]
async fn redirect_of_a_last_slash_is_followed(#[case] era: &str) {
    let serves = Arc::new(Mutex::new("/mcp/"));
    let (url, seen) = slashed(Arc::clone(&serves)).await;
    let keys = format!("era = {era:?}");
    let gw = Setup::open().url("up", &url, &keys).start().await;
    let led = || {
        let seen = seen.lock().unwrap();
        seen.iter().filter(|line| line.ends_with("/mcp")).count()
    };
    let user = gw.anonymous().open("/mcp/up").await;
    for tool in ["first", "second"] {
        let reply = within(tool, user.call(tool, json!({}))).await;
        assert!(reply.unwrap().to_string().contains("done"));
    }
    assert!(led() <= 2, "it is remembered: {:?}", seen.lock().unwrap());
    // The server is upgraded in place, and leads the other way.
    *serves.lock().unwrap() = "/mcp";
    let reply = within("a reply", user.call("third", json!({}))).await;
    assert!(reply.unwrap().to_string().contains("done"));
    user.delete().await;
    gw.stop().await;
}

// Spec: SPEC U-11, U-04.
#[tokio::test]
async fn streams_and_ends_follow_a_slash_too() {
    let serves = Arc::new(Mutex::new("/mcp/"));
    let (url, seen) = slashed(serves).await;
    let gw = Setup::open().url("up", &url, LEGACY).start().await;
    let user = gw.anonymous().open("/mcp/up").await;
    let _stream = user.listen().await;
    let has_seen = async |line: &str| {
        eventually(line, async || {
            let seen = seen.lock().unwrap();
            seen.iter().any(|seen| seen == line).then_some(())
        })
        .await;
    };
    has_seen("GET /mcp/").await;
    user.delete().await;
    has_seen("DELETE /mcp/").await;
    gw.stop().await;
}

// Spec: SPEC U-01, U-03; DESIGN §6: the caller's `Authorization` never leaves.
#[tokio::test]
async fn requests_carry_what_the_protocol_asks_for_and_no_token() {
    let (url, seen) = always(StatusCode::INTERNAL_SERVER_ERROR, &[], "").await;
    let gw = Setup::secured().url("up", &url, "").start().await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    gw.principal("alice").post("/mcp/up", &[], &hello).await;
    let (method, headers) = seen.lock().unwrap()[0].clone();
    assert_eq!(method, Method::POST);
    let accept = headers["accept"].to_str().unwrap();
    assert!(accept.contains("application/json") && accept.contains("text/event-stream"));
    assert_eq!(headers["content-type"], "application/json");
    for absent in [
        "authorization",
        "cookie",
        "origin",
        "mcp-session-id",
        "x-forwarded-for",
    ] {
        assert!(!headers.contains_key(absent), "{absent}");
    }
    gw.stop().await;
}

/// Counters of an HTTP stub.
async fn counts(stub: &HttpStub) -> Value {
    let base = stub.url.trim_end_matches("/mcp");
    let text = Actor::new(base, None).try_get_any("/stats").await;
    serde_json::from_str::<Value>(&text).unwrap()["counts"].take()
}

// Spec: SPEC T-45, U-04.
#[tokio::test]
async fn ending_a_session_ends_the_upstream_session() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    user.text("pid", json!({})).await;
    assert_eq!(counts(&stub).await["initialize"], 1);
    assert_eq!(counts(&stub).await["notifications/initialized"], 1);
    user.delete().await;
    eventually("the upstream is told", async || {
        (counts(&stub).await["DELETE"] == 1).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC L-07: each hop answers its own pings. DESIGN §6: the GET stream opens with the first call.
#[tokio::test]
async fn pings_and_quiet_sessions_cost_the_upstream_nothing() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    for _ in 0..5 {
        user.request("ping", json!({})).await.expect("a pong");
    }
    let counted = counts(&stub).await;
    assert_eq!(counted.get("ping"), None, "{counted}");
    assert_eq!(counted.get("GET"), None, "{counted}");
    user.tools().await;
    let stream = user.listen().await;
    user.text("echo", json!({})).await;
    assert_eq!(
        counts(&stub).await["GET"],
        1,
        "one for list, client and call"
    );
    drop(stream);
    gw.stop().await;
}

// Spec: SPEC L-01, L-08; U-03.
#[tokio::test]
async fn older_upstreams_are_served_to_newer_clients() {
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18"] {
        let stub = HttpStub::start(&["--revision", revision]).await;
        let gw = Setup::open().http("stub", &stub, "").start().await;
        let user = gw.anonymous().open("/mcp/stub").await;
        assert_eq!(user.revision, "2025-11-25", "ours, not the upstream's");
        assert_eq!(
            user.text("echo", json!({"text": "x"})).await,
            "x",
            "{revision}"
        );
        let info: Value =
            serde_json::from_str(&user.text("session_info", json!({})).await).unwrap();
        assert_eq!(info["revision"], revision);
        gw.stop().await;
    }
}

#[tokio::test]
async fn an_upstream_of_an_unknown_revision_is_unavailable() {
    let hello = json!({"jsonrpc": "2.0", "id": 1, "result": {
        "protocolVersion": "3000-01-01", "capabilities": {"tools": {}},
        "serverInfo": {"name": "future", "version": "1"}}});
    let kind = [("content-type", "application/json")];
    let (url, seen) = always(StatusCode::OK, &kind, &hello.to_string()).await;
    let gw = Setup::open().url("up", &url, "").start().await;
    let answer = gw
        .anonymous()
        .post("/mcp/up", &[], &initialize(1, "2025-11-25", &json!({})))
        .await;
    assert!(answer.text().await.contains("\"error\""));
    let posts = seen
        .lock()
        .unwrap()
        .iter()
        .filter(|(method, _)| method == Method::POST)
        .count();
    assert!(posts <= 2, "no calls are sent: {posts}");
    gw.stop().await;
}

/// Time until the next keep-alive probe of each connection to a local port, in hundredths of a second; `None` without
/// the keep-alive timer. Read from `/proc/net/tcp`.
fn asked_within(port: u16) -> Vec<Option<u32>> {
    const KEEP_ALIVE: &str = "02";
    let text = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let (remote, established) = (format!("0100007F:{port:04X}"), "01");
    let rows = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|row| row[2] == remote && row[3] == established);
    let timers = ours.map(|row| row[5].split_once(':').unwrap());
    timers
        .map(|(timer, left)| (timer == KEEP_ALIVE).then(|| u32::from_str_radix(left, 16).unwrap()))
        .collect()
}

// A stream whose upstream has gone without a word would be listened to for ever.
#[tokio::test]
async fn the_other_end_of_a_silent_connection_is_asked_for() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let _stream = user.listen().await;
    stub.heard().await;
    // A connection that has just sent bytes has another timer.
    eventually("all connections are watched", async || {
        let timers = asked_within(stub.port());
        let soon = |left: &Option<u32>| left.is_some_and(|left| left <= 3_000);
        (!timers.is_empty() && timers.iter().all(soon)).then_some(())
    })
    .await;
    gw.stop().await;
}
