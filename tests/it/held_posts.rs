//! HTTP+SSE upstreams of 2024-11-05 that keep a POST open without an answer, answer with an endless body, or refuse the
//! end of the handshake: replies arrive on the event stream, and no call waits for the POST. Spec: SPEC H-02, U-12.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use http::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::harness::session::text_of;
use crate::harness::upstream::serve;
use crate::harness::{Gateway, Setup, eventually, within};

/// The response to a POST whose message was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Post {
    /// A response body that never ends.
    Endless,
    /// No response at all.
    Unanswered,
    /// `notifications/initialized` gets this status, other messages get 202.
    Refused(u16),
}

#[derive(Clone)]
struct Upstream {
    url: String,
    post: Post,
    /// Sender of the event stream opened last.
    stream: Arc<Mutex<Option<mpsc::Sender<String>>>>,
    seen: Arc<Mutex<Vec<String>>>,
    /// Methods of the open POSTs.
    held: Arc<Mutex<Vec<String>>>,
    /// Methods of the ended POSTs, in order of their end.
    over: Arc<Mutex<Vec<String>>>,
}

struct Held(Upstream, String);

impl Held {
    fn new(upstream: &Upstream, message: &Value) -> Self {
        let method = method(message).to_owned();
        upstream.held.lock().unwrap().push(method.clone());
        Self(upstream.clone(), method)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.0.held.lock().unwrap();
        let place = held.iter().position(|method| *method == self.1).unwrap();
        let over = held.swap_remove(place);
        self.0.over.lock().unwrap().push(over);
    }
}

fn method(message: &Value) -> &str {
    message["method"].as_str().unwrap_or_default()
}

impl Upstream {
    async fn start(post: Post) -> Self {
        let mut this = Self {
            url: String::new(),
            post,
            stream: Arc::default(),
            seen: Arc::default(),
            held: Arc::default(),
            over: Arc::default(),
        };
        let upstream = this.clone();
        let answer = move |request| upstream.clone().answer(request);
        this.url = serve(answer).await + "/sse";
        this
    }

    async fn behind(&self, keys: &str) -> Gateway {
        let keys = format!("transport = \"sse\"\n{keys}");
        Setup::open().url("up", &self.url, &keys).start().await
    }

    fn has_seen(&self, method: &str) -> bool {
        self.seen.lock().unwrap().iter().any(|seen| seen == method)
    }

    /// Waits until no post is held any more.
    async fn holds_none(&self) {
        eventually("no post is held any more", async || {
            self.held(|_| true).eq(&0).then_some(())
        })
        .await;
    }

    fn held(&self, is_meant: impl Fn(&str) -> bool) -> usize {
        let held = self.held.lock().unwrap();
        held.iter().filter(|method| is_meant(method)).count()
    }

    async fn answer(self, request: Request) -> Response {
        if request.method() == Method::GET {
            let (sender, receiver) = mpsc::channel(64);
            *self.stream.lock().unwrap() = Some(sender);
            let endpoint = "event: endpoint\ndata: /messages\n\n".to_owned();
            let messages = stream::unfold(receiver, async |mut receiver| {
                let message: String = receiver.recv().await?;
                Some((format!("data: {message}\n\n"), receiver))
            });
            let events = stream::iter([endpoint]).chain(messages);
            let body = Body::from_stream(events.map(Ok::<_, Infallible>));
            let response = Response::builder().header("content-type", "text/event-stream");
            return response.body(body).unwrap();
        }
        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let message: Value = serde_json::from_slice(&body).unwrap();
        let held = Held::new(&self, &message);
        self.take(&message).await;
        match self.post {
            Post::Unanswered => std::future::pending().await,
            Post::Refused(status) => {
                let is_refused = method(&message) == "notifications/initialized";
                let response = Response::builder().status(if is_refused { status } else { 202 });
                response.body(Body::empty()).unwrap()
            }
            Post::Endless => {
                let said = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"Accepted"))]);
                let never = stream::once(async move {
                    let _held = held;
                    std::future::pending().await
                });
                let response = Response::builder().status(202);
                response.body(Body::from_stream(said.chain(never))).unwrap()
            }
        }
    }

    async fn take(&self, message: &Value) {
        let method = method(message);
        self.seen.lock().unwrap().push(method.to_owned());
        let result = match method {
            "initialize" => json!({
                "protocolVersion": "2024-11-05", "capabilities": {"tools": {}},
                "serverInfo": {"name": "held", "version": "1"},
            }),
            "tools/call" if message["params"]["name"] == "never" => return,
            "tools/call" if message["params"]["name"] == "breaks" => {
                *self.stream.lock().unwrap() = None;
                return;
            }
            "tools/call" => json!({"content": [{"type": "text", "text": "done"}]}),
            _ => return,
        };
        let reply = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        let stream = self.stream.lock().unwrap().clone();
        stream.unwrap().send(reply.to_string()).await.unwrap();
    }
}

// Spec: SPEC H-02, U-12.
#[rstest]
#[tokio::test]
async fn what_was_answered_on_the_stream_is_not_waited_for_at_the_post(
    #[values(Post::Endless, Post::Unanswered)] post: Post,
) {
    let up = Upstream::start(post).await;
    let gw = up.behind("").await;
    let user = within("the handshake", gw.anonymous().open("/mcp/up")).await;
    for _ in 0..3 {
        let reply = within("the reply", user.call("usual", json!({}))).await;
        assert_eq!(text_of(&reply.expect("a result")), "done");
    }
    assert!(up.has_seen("notifications/initialized"));
    up.holds_none().await;
    gw.stop().await;
}

// Some servers know no notifications, and serve the session all the same.
#[rstest]
#[tokio::test]
async fn refused_end_of_the_handshake_costs_no_session(#[values(400, 405)] status: u16) {
    let up = Upstream::start(Post::Refused(status)).await;
    let gw = up.behind("").await;
    let user = within("the handshake", gw.anonymous().open("/mcp/up")).await;
    let reply = within("the reply", user.call("usual", json!({}))).await;
    assert_eq!(text_of(&reply.expect("a result")), "done");
    gw.stop().await;
}

// Spec: SPEC U-12, C-10.
#[tokio::test]
async fn posts_of_cancellations_that_are_not_answered_leave_nothing() {
    let up = Upstream::start(Post::Unanswered).await;
    let gw = up.behind("idle_timeout = \"500ms\"").await;
    let user = within("the handshake", gw.anonymous().open("/mcp/up")).await;
    let reply = within("the failure", user.call("never", json!({}))).await;
    assert_eq!(reply.expect("a result")["isError"], true);
    eventually("it is told", async || {
        up.has_seen("notifications/cancelled").then_some(())
    })
    .await;
    up.holds_none().await;
    gw.stop().await;
}

// Spec: SPEC U-12, C-10: a request not sent before its cancellation is not sent later.
#[tokio::test]
async fn the_post_of_a_call_that_timed_out_is_broken_off() {
    let up = Upstream::start(Post::Unanswered).await;
    let gw = up.behind("idle_timeout = \"500ms\"").await;
    let user = within("the handshake", gw.anonymous().open("/mcp/up")).await;
    let reply = within("the failure", user.call("never", json!({}))).await;
    assert_eq!(reply.expect("a result")["isError"], true);
    let failed = Instant::now();
    eventually("its post is over", async || {
        (up.held(|method| method == "tools/call") == 0).then_some(())
    })
    .await;
    assert!(failed.elapsed() < Duration::from_secs(3));
    gw.stop().await;
}

// Spec: SPEC H-02.
#[tokio::test]
async fn of_a_stream_that_breaks_no_post_keeps_calls_waiting() {
    let up = Upstream::start(Post::Unanswered).await;
    let gw = up.behind("").await;
    let user = within("the handshake", gw.anonymous().open("/mcp/up")).await;
    let called = Instant::now();
    let reply = within("the failure", user.call("breaks", json!({}))).await;
    assert_eq!(reply.expect("a result")["isError"], true);
    assert!(called.elapsed() < Duration::from_secs(3));
    gw.stop().await;
}

// Spec: SPEC H-02: POSTs left open after their reply are bounded in number.
#[tokio::test]
async fn posts_that_go_on_are_no_more_than_there_is_room_for() {
    let up = Upstream::start(Post::Unanswered).await;
    let gw = up.behind("").await;
    let user = within("the handshake", gw.anonymous().open("/mcp/up")).await;
    for _ in 0..80 {
        let reply = within("the reply", user.call("usual", json!({}))).await;
        assert_eq!(text_of(&reply.expect("a result")), "done");
    }
    let called = Instant::now();
    eventually("the others are broken off", async || {
        let held = up.held(|method| method == "tools/call");
        (held <= 64).then_some(())
    })
    .await;
    assert!(called.elapsed() < Duration::from_secs(3));
    gw.stop().await;
}

// Spec: SPEC H-02: closing a POST early may stop the work that its message began.
#[tokio::test]
async fn posts_of_calls_that_go_on_leave_notifications_their_places() {
    const CHANGED: &str = "notifications/roots/list_changed";
    let up = Upstream::start(Post::Unanswered).await;
    let gw = up.behind("").await;
    let user = within("the handshake", gw.anonymous().open("/mcp/up")).await;
    for _ in 0..80 {
        let reply = within("the reply", user.call("usual", json!({}))).await;
        assert_eq!(text_of(&reply.expect("a result")), "done");
    }
    user.notify(CHANGED, json!({})).await;
    let before = eventually("its post is over", async || {
        let over = up.over.lock().unwrap();
        over.iter().position(|method| method == CHANGED)
    })
    .await;
    assert!(before > 40, "it outlives the calls: {before} were over");
    gw.stop().await;
}
