//! Progress that an HTTP upstream sends on another stream than the call's own. Spec: SPEC C-02, T-22.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use futures_util::stream;
use http::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::harness::upstream::serve;
use crate::harness::{Setup, eventually};
use crate::unsteady_upstream::usual;

const PROGRESS: &str = "notifications/progress";
const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

/// An open response of the upstream, and the sender of its events.
struct Open {
    events: mpsc::Sender<String>,
    /// The message that opened the stream.
    request: Value,
}

/// An upstream whose event streams are written by the test: a call's stream is stored under the tool's name, the GET
/// stream under `GET`.
#[derive(Clone, Default)]
struct Upstream(Arc<Mutex<HashMap<String, Open>>>);

impl Upstream {
    /// Starts the upstream and returns its URL.
    async fn start(&self) -> String {
        let this = self.clone();
        serve(move |request| this.clone().answer(request)).await + "/mcp"
    }

    async fn answer(self, request: Request) -> Response {
        let method = request.method().clone();
        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        let name = match request["params"]["name"].as_str() {
            Some(tool) => tool.to_owned(),
            None if method == Method::GET => "GET".to_owned(),
            None => return usual(&method, &request),
        };
        let (events, rest) = mpsc::channel(16);
        self.0
            .lock()
            .unwrap()
            .insert(name, Open { events, request });
        let body = stream::unfold(rest, async |mut rest| {
            let event: String = rest.recv().await?;
            Some((Ok::<_, Infallible>(Bytes::from(event)), rest))
        });
        let response = Response::builder().header("content-type", "text/event-stream");
        response.body(Body::from_stream(body)).unwrap()
    }

    /// Waits until this stream is open.
    async fn opened(&self, name: &str) {
        eventually(name, async || {
            let open = self.0.lock().unwrap().contains_key(name);
            open.then_some(())
        })
        .await;
    }

    /// Sends a message on a stream that is open.
    async fn send(&self, name: &str, message: &Value) {
        let events = self.0.lock().unwrap()[name].events.clone();
        events.send(format!("data: {message}\n\n")).await.unwrap();
    }

    /// The progress of a call, as the upstream is to name it.
    fn progress(&self, tool: &str, progress: u64) -> Value {
        let token =
            self.0.lock().unwrap()[tool].request["params"]["_meta"]["progressToken"].clone();
        assert!(!token.is_null(), "{tool}");
        let params = json!({"progressToken": token, "progress": progress});
        json!({"jsonrpc": "2.0", "method": PROGRESS, "params": params})
    }

    /// Ends a call with a result.
    async fn finish(&self, tool: &str) {
        let id = self.0.lock().unwrap()[tool].request["id"].clone();
        let result = json!({"content": [{"type": "text", "text": tool}]});
        self.send(tool, &json!({"jsonrpc": "2.0", "id": id, "result": result}))
            .await;
    }
}

// Spec: SPEC C-02: the token says whose progress it is, not the stream.
#[rstest]
#[tokio::test]
async fn progress_reaches_its_call_whatever_stream_it_came_by(
    #[values("GET", "other")] stream: &str,
    #[values(true, false)] client_listens: bool,
) {
    let up = Upstream::default();
    let url = up.start().await;
    let gw = Setup::open()
        .url("up", &url, "era = \"legacy\"")
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/up").await;
    let mut get = None;
    if client_listens {
        get = Some(user.listen().await);
    }
    let call = |tool: &str| {
        let meta = json!({"progressToken": format!("of {tool}")});
        user.start(
            "tools/call",
            json!({"name": tool, "arguments": {}, "_meta": meta}),
        )
    };
    // The heads come when the gateway has waited for a moment: both calls run.
    let ((_, mut slow), (_, mut other)) = tokio::join!(call("slow"), call("other"));
    for open in ["GET", "slow", "other"] {
        up.opened(open).await;
    }
    for progress in 1..=2 {
        up.send(stream, &up.progress("slow", progress)).await;
        let told = slow.next().await.expect("progress");
        assert_eq!(told["method"], PROGRESS, "{told}");
        let expected = json!({"progressToken": "of slow", "progress": progress});
        assert_eq!(told["params"], expected);
    }
    for (tool, exchange) in [("other", &mut other), ("slow", &mut slow)] {
        up.finish(tool).await;
        let reply = exchange.next().await.expect("a reply");
        assert_eq!(reply["result"]["content"][0]["text"], tool, "{reply}");
    }
    // Nor has it come by the client's GET stream besides.
    if let Some(get) = &mut get {
        let changed = json!({"jsonrpc": "2.0", "method": TOOLS_CHANGED});
        up.send("GET", &changed).await;
        let first = get.message().await.expect("a notice");
        assert_eq!(first["method"], TOOLS_CHANGED, "{first}");
    }
    gw.stop().await;
}

// Spec: SPEC T-22: streams have no order among each other. A token that was never given out is no progress of ours.
#[tokio::test]
async fn progress_that_its_reply_overtook_is_late_and_no_garbage() {
    let up = Upstream::default();
    let url = up.start().await;
    let setup = Setup::open().url("up", &url, "era = \"legacy\"");
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/up").await;
    let mut get = user.listen().await;
    let params = json!({"name": "fast", "arguments": {}, "_meta": {"progressToken": "of fast"}});
    let (_, mut fast) = user.start("tools/call", params).await;
    for open in ["GET", "fast"] {
        up.opened(open).await;
    }
    up.finish("fast").await;
    let reply = fast.next().await.expect("a reply");
    assert_eq!(reply["result"]["content"][0]["text"], "fast", "{reply}");
    up.send("GET", &up.progress("fast", 1)).await;
    let mut stray = up.progress("fast", 1);
    stray["params"]["progressToken"] = json!(1_u64 << 40);
    up.send("GET", &stray).await;
    // Read after both.
    let changed = json!({"jsonrpc": "2.0", "method": TOOLS_CHANGED});
    up.send("GET", &changed).await;
    let first = get.message().await.expect("a notice");
    assert_eq!(first["method"], TOOLS_CHANGED, "{first}");
    for counter in ["notices_late", "upstream_garbage"] {
        let counted = gw
            .metric(&format!("drawbridge_{counter}_total"), "up")
            .await;
        assert!((0.5..1.5).contains(&counted), "{counter}: {counted}");
    }
    gw.stop().await;
}

// Spec: SPEC T-22, C-83: the notice names the elicitation of a call.
#[tokio::test]
async fn end_of_an_elicitation_reaches_the_call_that_asked() {
    let up = Upstream::default();
    let url = up.start().await;
    let setup = Setup::open().url("up", &url, "era = \"legacy\"");
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/up").await;
    let mut get = user.listen().await;
    let call = |tool: &str| user.start("tools/call", json!({"name": tool, "arguments": {}}));
    let ((_, mut asking), (_, mut other)) = tokio::join!(call("asking"), call("other"));
    for open in ["GET", "asking", "other"] {
        up.opened(open).await;
    }
    let params = json!({
        "mode": "url", "message": "Sign in", "url": "https://consent.example/", "elicitationId": "e",
    });
    let question =
        json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params});
    up.send("asking", &question).await;
    let asked = asking.next().await.expect("a question");
    user.answer(&asked, json!({"action": "accept"})).await;
    let over = "notifications/elicitation/complete";
    let told = json!({"jsonrpc": "2.0", "method": over, "params": {"elicitationId": "e"}});
    up.send("GET", &told).await;
    let told = asking.next().await.expect("a notice");
    assert_eq!(told["method"], over, "{told}");
    up.send("GET", &json!({"jsonrpc": "2.0", "method": TOOLS_CHANGED}))
        .await;
    let first = get.message().await.expect("a notice");
    assert_eq!(first["method"], TOOLS_CHANGED, "{first}");
    for (tool, exchange) in [("other", &mut other), ("asking", &mut asking)] {
        up.finish(tool).await;
        let reply = exchange.next().await.expect("a reply");
        assert_eq!(reply["result"]["content"][0]["text"], tool, "{reply}");
    }
    gw.stop().await;
}
