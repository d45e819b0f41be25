//! HTTP upstreams that hang, refuse or break off at the wrong moment: what runs runs once, and nobody
//! waits longer than he was told. Spec: SPEC M-44, U-02, U-10, U-12, C-10; BRIDGING §3.4, §3.7.

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

/// What an upstream does with one message.
enum Does {
    /// What a well-behaved one would.
    Usual,
    /// The same, when this is cancelled.
    Later(CancellationToken),
    Status(u16, &'static str),
    /// Nothing, for ever.
    Hang,
    /// Writes these to an event stream, each after so many milliseconds, and then its reply if there is
    /// one.
    Events(Vec<(u64, &'static str)>, Option<Value>),
}

/// Told what was asked and how often it was before: `call TOOL`, another JSON-RPC method, or the method
/// of HTTP.
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

fn usual(method: &Method, body: &Value) -> Response {
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

/// What a call came to, as text.
async fn outcome(user: &Session, tool: &str) -> String {
    let reply = within(tool, user.call(tool, json!({}))).await;
    reply.map_or_else(|error| error.to_string(), |result| result.to_string())
}

const LEGACY: &str = "era = \"legacy\"\n";

// Spec: SPEC M-44, U-02; BRIDGING §3.7.
#[rstest]
#[case::unknown_session(404, "", 2)]
#[case::named_session(400, "Bad Request: No valid session ID provided", 2)]
#[case::busy(503, "", 1)]
#[case::other(418, "", 1)]
#[tokio::test]
async fn a_call_whose_stream_cannot_be_resumed_is_not_run_again(
    #[case] status: u16,
    #[case] text: &'static str,
    #[case] sessions: usize,
) {
    let up = Upstream::start(move |what, _| match what {
        "call once" => Does::Events(vec![(0, "id: 1\nretry: 1\ndata: \n\n")], None),
        "GET" => Does::Status(status, text),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let said = outcome(&user, "once").await;
    assert!(
        said.contains("whether the request ran is unknown"),
        "{said}"
    );
    assert_eq!(up.count("call once"), 1);
    assert!(outcome(&user, "next").await.contains("done"));
    assert_eq!(up.count("initialize"), sessions);
    gw.stop().await;
}

// Spec: SPEC U-10: it starts again, or has not noticed that the stream before is gone.
#[tokio::test]
async fn a_stream_is_resumed_after_a_refusal_that_passes() {
    let up = Upstream::start(|what, before| match (what, before) {
        ("call once", _) => Does::Events(vec![(0, "id: 1\nretry: 1\ndata: \n\n")], None),
        ("GET", 0) => Does::Status(503, ""),
        ("GET", 1) => Does::Status(409, ""),
        ("GET", _) => Does::Events(
            vec![(
                0,
                "data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"content\":[]}}\n\n",
            )],
            None,
        ),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let reply = within("the reply", user.call("once", json!({}))).await;
    assert_eq!(reply, Ok(json!({"content": []})));
    assert_eq!(up.count("GET"), 3);
    assert_eq!(up.count("call once"), 1);
    gw.stop().await;
}

// Spec: SPEC C-10; BRIDGING §3.7.
#[tokio::test]
async fn a_call_that_is_cancelled_while_its_upstream_opens_is_not_sent() {
    let now = CancellationToken::new();
    let later = now.clone();
    let up = Upstream::start(move |what, before| match (what, before) {
        ("call first", 0) => Does::Status(404, ""),
        ("initialize", 1) => Does::Later(later.clone()),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    outcome(&user, "warm").await;
    let id = user.next_id();
    let params = json!({"name": "first", "arguments": {}});
    let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
    tokio::join!(user.post(&call), async {
        eventually("it is opened again", async || {
            (up.count("initialize") == 2).then_some(())
        })
        .await;
        let cancel = json!({"requestId": id});
        user.notify("notifications/cancelled", cancel).await;
        now.cancel();
    });
    assert!(outcome(&user, "second").await.contains("done"));
    assert_eq!(up.count("call first"), 1, "only the one that was refused");
    gw.stop().await;
}

// Spec: SPEC C-10; BRIDGING §3.7: a child takes its time to start.
#[tokio::test]
async fn a_call_that_is_cancelled_while_its_child_starts_is_not_sent() {
    let slow = ["--slow-start", "1000"];
    let gw = Setup::open().stub("stub", &slow).start().await;
    let children = async || gw.metric("drawbridge_children_running", "").await;
    let known = gw.anonymous().open("/mcp/stub").await;
    known.text("echo", json!({})).await;
    let before = children().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let id = user.next_id();
    let params = json!({"name": "echo", "arguments": {}});
    let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
    tokio::join!(user.post(&call), async {
        eventually("a child starts", async || {
            (children().await > before).then_some(())
        })
        .await;
        let cancel = json!({"requestId": id});
        user.notify("notifications/cancelled", cancel).await;
    });
    let stats = user.text("stats", json!({})).await;
    let stats: Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["counts"]["tools/call"], 1, "only this one: {stats}");
    gw.stop().await;
}

// Spec: SPEC U-12.
#[tokio::test]
async fn a_session_that_cannot_be_ended_does_not_hold_up_the_next_one() {
    let up = Upstream::start(|what, before| match (what, before) {
        ("call again", 0) => Does::Status(404, ""),
        ("DELETE", 0) => Does::Hang,
        _ => Does::Usual,
    })
    .await;
    let gw = up
        .behind(&format!("{LEGACY}connect_timeout = \"1m\""))
        .await;
    let user = gw.anonymous().open("/mcp/up").await;
    outcome(&user, "warm").await;
    assert!(outcome(&user, "again").await.contains("done"));
    gw.stop().await;
}

// Spec: SPEC U-02, U-12.
#[tokio::test]
async fn subscriptions_that_are_not_answered_hold_up_a_call_for_one_limit_only() {
    const FOLLOWED: usize = 40;
    let up = Upstream::start(|what, before| match (what, before) {
        ("call again", 0) => Does::Status(404, ""),
        ("resources/subscribe", FOLLOWED..) => Does::Hang,
        _ => Does::Usual,
    })
    .await;
    let gw = up
        .behind(&format!("{LEGACY}connect_timeout = \"1s\""))
        .await;
    let user = gw.anonymous().open("/mcp/up").await;
    for n in 0..FOLLOWED {
        let uri = json!({"uri": format!("test://{n}")});
        let reply = user.request("resources/subscribe", uri).await;
        reply.expect("a subscription");
    }
    assert!(outcome(&user, "again").await.contains("done"));
    gw.stop().await;
}

// Spec: SPEC U-12.
#[tokio::test]
async fn a_call_that_timed_out_leaves_nothing_at_an_upstream_that_hangs() {
    let up = Upstream::start(|what, _| match what {
        "call never" | "notifications/cancelled" => Does::Hang,
        _ => Does::Usual,
    })
    .await;
    let keys = format!("{LEGACY}idle_timeout = \"1s\"\nconnect_timeout = \"1s\"");
    let gw = up.behind(&keys).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let said = outcome(&user, "never").await;
    assert!(said.contains("in time"), "{said}");
    eventually("it is told", async || {
        (up.count("notifications/cancelled") == 1).then_some(())
    })
    .await;
    eventually("nothing hangs any more", async || {
        (up.hanging.load(Ordering::SeqCst) == 0).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: BRIDGING §3.4.
#[rstest]
#[tokio::test]
async fn the_stream_outside_calls_is_tried_again_after_a_refusal_that_passes(
    #[values(409, 429)] status: u16,
) {
    let up = Upstream::start(move |what, before| match (what, before) {
        ("GET", 0) => Does::Status(status, ""),
        ("GET", _) => Does::Events(vec![(0, ": hello\n\n"), (60_000, "")], None),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let stream = user.listen().await;
    eventually("it is tried again", async || {
        (up.count("GET") == 2).then_some(())
    })
    .await;
    drop(stream);
    gw.stop().await;
}

// Spec: DESIGN §6: the idle time starts anew with any frame of the call.
#[rstest]
#[tokio::test]
async fn a_stream_that_is_kept_alive_keeps_its_call(
    #[values("legacy", "modern")] era: &str,
    #[values(": still here\n\n", "data: \n\n")] frame: &'static str,
) {
    let up = Upstream::start(move |what, _| match what {
        "call long" => Does::Events(vec![(250, frame); 10], Some(done())),
        _ => Does::Usual,
    })
    .await;
    let keys = format!("era = \"{era}\"\nidle_timeout = \"1s\"");
    let gw = up.behind(&keys).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let said = outcome(&user, "long").await;
    assert!(said.contains("done"), "{said}");
    gw.stop().await;
}

// Spec: SPEC U-13, U-14; JSON-RPC 2.0 §5: a server that could not read a request knows no id.
#[rstest]
#[tokio::test]
async fn an_error_without_an_id_says_why_a_request_was_refused_but_not_behind_a_wall(
    #[values("legacy", "modern")] era: &str,
) {
    const NULL: &str =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"the shade is too blue"}}"#;
    const NONE: &str = r#"{"jsonrpc":"2.0","error":{"code":-32602,"message":"it is too blue"}}"#;
    const EVENT: &str = "data: {\"jsonrpc\":\"2.0\",\"id\":null,\
                         \"error\":{\"code\":-32602,\"message\":\"much too blue\"}}\n\n";
    let up = Upstream::start(|what, _| match what {
        "call null" => Does::Status(400, NULL),
        "call none" => Does::Status(400, NONE),
        "call whole" => Does::Status(200, NULL),
        "call event" => Does::Events(vec![(0, EVENT), (60_000, "")], None),
        "call wall" => Does::Status(403, NULL),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(&format!("era = {era:?}")).await;
    let user = gw.anonymous().open("/mcp/up").await;
    for tool in ["null", "none", "whole", "event"] {
        let said = outcome(&user, tool).await;
        assert!(said.contains("too blue"), "{tool}: {said}");
        assert!(said.contains("-32602"), "{tool}: {said}");
    }
    let said = outcome(&user, "wall").await;
    assert!(!said.contains("too blue"), "{said}");
    assert_eq!(up.count("initialize"), usize::from(era == "legacy"));
    gw.stop().await;
}

// Spec: SPEC U-14.
#[rstest]
#[tokio::test]
async fn a_reply_on_a_stream_that_cannot_be_read_fails_its_call_at_once(
    #[values("legacy", "modern")] era: &str,
) {
    // Whichever number the call has.
    let event = |id| -> &'static str {
        let event = format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":NaN}}\n\n");
        event.leak()
    };
    let up = Upstream::start(move |what, _| match what {
        "call broken" => {
            let events = (2..9).map(|id| (0, event(id)));
            Does::Events(events.chain([(300_000, "")]).collect(), None)
        }
        _ => Does::Usual,
    })
    .await;
    let keys = format!("era = {era:?}\nidle_timeout = \"5m\"");
    let gw = up.behind(&keys).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let said = outcome(&user, "broken").await;
    assert!(said.contains("invalid message"), "{said}");
    gw.stop().await;
}

// Spec: BRIDGING §3.4; SPEC M-74.
#[tokio::test]
async fn who_waits_to_hear_a_session_that_is_lost_waits_for_the_next_one() {
    let up = Upstream::start(|what, before| match (what, before) {
        ("GET", 0) => Does::Hang,
        ("GET", _) => Does::Status(405, ""),
        ("call again", 0) => Does::Status(404, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = Modern::new(gw.anonymous(), "/mcp/up");
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let listen = user.request(&json!("l"), "subscriptions/listen", wanted);
    let mut events = user.post(&listen).await.events();
    let ack = events.message().await.expect("an acknowledgement");
    assert_eq!(ack["params"]["notifications"]["toolsListChanged"], true);
    user.call("again", json!({})).await.expect("a result");
    let over = events
        .message()
        .await
        .expect("the end of what cannot be told");
    assert_eq!(over["id"], "l", "{over}");
    gw.stop().await;
}

/// What somebody is told whose first message opens the upstream.
async fn greeting(gw: &Gateway) -> String {
    let hello = initialize(1, "2025-11-25", &json!({}));
    let answer = within("an answer", gw.anonymous().post("/mcp/up", &[], &hello)).await;
    answer.text().await
}

// Spec: SPEC U-05, U-13.
#[tokio::test]
async fn a_refused_handshake_says_what_the_upstream_said() {
    const WHY: &str =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no such tenant"}}"#;
    let up = Upstream::start(|what, _| match what {
        "initialize" => Does::Status(400, WHY),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let said = greeting(&gw).await;
    assert!(said.contains("HTTP status 400: no such tenant"), "{said}");
    assert_eq!(
        up.count("GET"),
        1,
        "the older transport is tried all the same"
    );
    gw.stop().await;
}

// Spec: SPEC L-03.
#[tokio::test]
async fn a_question_on_the_stream_of_a_handshake_is_no_answer_to_it() {
    let up = Upstream::start(|what, _| match what {
        "initialize" => Does::Events(
            vec![(
                0,
                "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n",
            )],
            Some(json!({
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "curious", "version": "1"},
            })),
        ),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "next").await.contains("done"));
    assert_eq!(up.count("initialize"), 1);
    gw.stop().await;
}

// Spec: SPEC U-14.
#[rstest]
#[tokio::test]
async fn an_empty_answer_to_a_call_is_named(#[values(200, 202)] status: u16) {
    let up = Upstream::start(move |what, _| match what {
        "call void" => Does::Status(status, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let said = outcome(&user, "void").await;
    let expected = format!("nothing, with HTTP status {status}");
    assert!(said.contains(&expected), "{said}");
    gw.stop().await;
}

// Spec: BRIDGING §3.4; SPEC U-04: what opens no stream is as good as 405.
#[rstest]
#[case::a_page(200, "<h1>MCP server</h1>")]
#[case::nothing(204, "")]
#[tokio::test]
async fn a_page_in_place_of_the_stream_outside_calls_says_that_there_is_none(
    #[case] status: u16,
    #[case] page: &'static str,
) {
    let up = Upstream::start(move |what, _| match what {
        "GET" => Does::Status(status, page),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = Modern::new(gw.anonymous(), "/mcp/up");
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let listen = user.request(&json!("l"), "subscriptions/listen", wanted);
    let ack = user.post(&listen).await.events().message().await;
    let honoured = &ack.expect("an acknowledgement")["params"]["notifications"];
    assert_eq!(*honoured, json!({}));
    assert_eq!(up.count("GET"), 1);
    gw.stop().await;
}

// Spec: BRIDGING §3.4; SPEC M-75.
#[tokio::test]
async fn a_listen_that_the_upstream_refuses_is_no_promise_to_clients() {
    const NO: &str =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"nothing to hear"}}"#;
    let up = Upstream::start(|what, _| match what {
        "server/discover" => Does::Events(
            vec![],
            Some(json!({
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {"listChanged": true}},
            })),
        ),
        "subscriptions/listen" => Does::Status(400, NO),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind("era = \"modern\"").await;
    let user = Modern::new(gw.anonymous(), "/mcp/up");
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let listen = user.request(&json!("l"), "subscriptions/listen", wanted);
    let ack = user.post(&listen).await.events().message().await;
    let honoured = &ack.expect("an acknowledgement")["params"]["notifications"];
    assert_eq!(*honoured, json!({}));
    eventually("the log says why", async || {
        let log = gw.log().concat();
        log.contains("nothing to hear").then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: BRIDGING §3.4, §3.10: what is out of reach refuses nothing.
#[tokio::test]
async fn a_subscription_that_does_not_get_through_fails_as_a_call_does() {
    let up = Upstream::start(|what, _| match what {
        "server/discover" => Does::Events(
            vec![],
            Some(json!({
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"resources": {"subscribe": true}},
            })),
        ),
        "subscriptions/listen" | "resources/read" => Does::Status(503, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind("era = \"modern\"").await;
    let user = gw.anonymous().open("/mcp/up").await;
    let error = async |method: &str| {
        let params = json!({"uri": "test://1"});
        let request =
            json!({"jsonrpc": "2.0", "id": user.next_id(), "method": method, "params": params});
        let mut said = within(method, user.post(&request)).await.json().await;
        said["error"].take()
    };
    let read = error("resources/read").await;
    assert!(read["message"].to_string().contains("is busy"), "{read}");
    assert_eq!(error("resources/subscribe").await, read);
    gw.stop().await;
}

// Spec: BRIDGING §3.4: a page is of what stands in for the upstream, and passes.
#[tokio::test]
async fn a_page_where_there_was_a_stream_before_a_pause_is_no_refusal() {
    let up = Upstream::start(|what, before| match (what, before) {
        ("GET", 1) => Does::Status(200, "<h1>Back soon</h1>"),
        ("GET", _) => Does::Events(vec![(0, ": hello\n\n"), (60_000, "")], None),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = Modern::new(gw.anonymous(), "/mcp/up");
    let listen = async || {
        let wanted = json!({"notifications": {"toolsListChanged": true}});
        let listen = user.request(&json!("l"), "subscriptions/listen", wanted);
        let mut events = user.post(&listen).await.events();
        events.message().await.expect("an acknowledgement");
        events
    };
    drop(listen().await);
    let _events = eventually("the stream is opened anew", async || {
        let events = listen().await;
        (up.count("GET") > 1).then_some(events)
    })
    .await;
    eventually("it is tried again after the page", async || {
        (up.count("GET") > 2).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC U-04, U-12: what a notification is answered with says nothing.
#[tokio::test]
async fn an_answer_without_end_to_a_notification_holds_up_no_handshake() {
    let up = Upstream::start(|what, _| match what {
        "notifications/initialized" => Does::Events(vec![(0, ": taken\n\n"), (60_000, "")], None),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "next").await.contains("done"));
    gw.stop().await;
}

// Spec: SPEC U-04, U-12: it has shaken hands.
#[tokio::test]
async fn a_notification_that_is_not_answered_costs_no_handshake() {
    let up = Upstream::start(|what, _| match what {
        "notifications/initialized" => Does::Hang,
        _ => Does::Usual,
    })
    .await;
    let keys = format!("{LEGACY}connect_timeout = \"3s\"");
    let gw = up.behind(&keys).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "next").await.contains("done"));
    assert_eq!(up.count("initialize"), 1);
    eventually("the log says so", async || {
        let log = gw.log().concat();
        let said = "does not answer `notifications/initialized`";
        log.contains(said).then_some(())
    })
    .await;
    gw.stop().await;
}

#[tokio::test]
async fn a_notification_that_is_refused_fails_the_handshake() {
    let up = Upstream::start(|what, _| match what {
        "notifications/initialized" => Does::Status(500, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let said = greeting(&gw).await;
    assert!(said.contains("HTTP status 500"), "{said}");
    gw.stop().await;
}

// Spec: SPEC U-14. Other clients pass such events over.
#[rstest]
#[tokio::test]
async fn events_of_another_name_are_signs_of_life_and_no_garbage(
    #[values("legacy", "modern")] era: &str,
) {
    let up = Upstream::start(|what, _| match what {
        "call long" => Does::Events(
            vec![
                (0, "event: ping\ndata: 2026-11-22\n\n"),
                (0, "data: what\n\n"),
            ],
            Some(done()),
        ),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(&format!("era = {era:?}")).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "long").await.contains("done"));
    let garbage = gw.metric("drawbridge_upstream_garbage_total", "up").await;
    assert!((0.5..1.5).contains(&garbage), "{garbage}");
    gw.stop().await;
}

// Spec: SPEC U-14, U-12.
#[rstest]
#[tokio::test]
async fn a_reply_that_is_no_message_ends_its_call_under_another_name_too(
    #[values("legacy", "modern")] era: &str,
) {
    let reply = r#"{"jsonrpc":"2.0","id":ID,"result":NaN}"#;
    let replies = (0..10).map(|id| {
        let reply = reply.replace("ID", &id.to_string());
        format!("event: reply\ndata: {reply}\n\n")
    });
    let replies = &*replies.collect::<String>().leak();
    let up = Upstream::start(move |what, _| match what {
        "call long" => Does::Events(vec![(0, replies), (60_000, "")], None),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(&format!("era = {era:?}")).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(!outcome(&user, "long").await.contains("done"));
    gw.stop().await;
}

// Spec: SPEC U-11. Many servers lead from /mcp to /mcp/.
#[rstest]
#[tokio::test]
async fn an_upstream_that_redirects_says_what_is_to_be_done(
    #[values("auto", "legacy", "modern")] era: &str,
) {
    let up = Upstream::start(|_, _| Does::Status(307, "")).await;
    let gw = up.behind(&format!("era = {era:?}")).await;
    let said = greeting(&gw).await;
    assert!(said.contains("HTTP status 307, a redirection"), "{said}");
    gw.stop().await;
}
