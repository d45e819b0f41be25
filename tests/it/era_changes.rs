//! An upstream that is replaced in place by one of the other era: subscriptions and log levels of its clients go
//! on. Spec: SPEC U-02, U-07, C-21; BRIDGING §3.4.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use http::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::harness::events::EventStream;
use crate::harness::session::{Reply, text_of};
use crate::harness::upstream::serve;
use crate::harness::{Gateway, Session, Setup, eventually, within};
use crate::modern::Modern;

const URI: &str = "test://a";
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    Legacy,
    Modern,
}

impl Era {
    fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Legacy => Self::Modern,
            Self::Modern => Self::Legacy,
        }
    }
}

/// The state of the running server process; lost at a restart.
#[derive(Debug)]
struct Process {
    era: Era,
    session: String,
    level: Option<String>,
    /// Whether it says no more than 404 to a request without its session.
    is_terse: bool,
    /// What the legacy session, or an open listen, follows.
    followed: BTreeSet<String>,
    /// Where notices go: the GET stream, or that of the latest listen with its id.
    notices: Option<(Value, mpsc::UnboundedSender<Value>)>,
}

#[derive(Clone)]
struct Upstream {
    url: String,
    process: Arc<Mutex<Process>>,
    starts: Arc<Mutex<usize>>,
    /// Whether a modern process refuses an unknown method before it looks for the version.
    is_method_first: bool,
}

impl Upstream {
    async fn start(era: Era) -> Self {
        Self::start_as(era, false).await
    }

    async fn start_as(era: Era, is_method_first: bool) -> Self {
        let process = Process {
            era,
            session: String::new(),
            level: None,
            is_terse: false,
            followed: BTreeSet::new(),
            notices: None,
        };
        let mut this = Self {
            url: String::new(),
            process: Arc::new(Mutex::new(process)),
            starts: Arc::default(),
            is_method_first,
        };
        this.restart(era);
        let upstream = this.clone();
        this.url = serve(move |request| upstream.clone().answer(request)).await + "/mcp";
        this
    }

    async fn before(&self) -> Gateway {
        Setup::open().url("up", &self.url, "").start().await
    }

    /// Another process listens at the same address; open streams end.
    fn restart(&self, era: Era) {
        let mut starts = self.starts.lock().unwrap();
        *starts += 1;
        *self.process.lock().unwrap() = Process {
            era,
            session: format!("session-{starts}"),
            level: None,
            is_terse: false,
            followed: BTreeSet::new(),
            notices: None,
        };
    }

    /// Announces a change of the resource, named `mark`, to who follows it; `None` while that is nobody.
    fn announce(&self, mark: &str) -> Option<()> {
        let process = self.process.lock().unwrap();
        let (id, notices) = process.notices.as_ref()?;
        if !process.followed.contains(URI) {
            return None;
        }
        let mut params = json!({"uri": URI, "title": mark});
        if !id.is_null() {
            params["_meta"] = json!({SUBSCRIPTION: id});
        }
        let method = "notifications/resources/updated";
        let notice = json!({"jsonrpc": "2.0", "method": method, "params": params});
        notices.send(notice).ok()
    }

    fn follows(&self) -> bool {
        self.process.lock().unwrap().followed.contains(URI)
    }

    async fn answer(self, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let era = self.process.lock().unwrap().era;
        let is_modern = body["params"]["_meta"].get(VERSION).is_some();
        let session = head.headers.get("mcp-session-id");
        let session = session.map(|id| id.to_str().unwrap().to_owned());
        match (era, is_modern) {
            (Era::Modern, true) => self.modern(&body),
            (Era::Modern, false) if self.is_method_first && is_legacy_alone(&body) => {
                let error = json!({"code": -32601, "message": "Method not found"});
                let reply = json!({"jsonrpc": "2.0", "id": body["id"], "error": error});
                plain(404, reply.to_string())
            }
            (Era::Modern, false) if head.method == Method::POST => {
                refused(&body["id"], -32602, "Invalid _meta envelope")
            }
            (Era::Modern, false) => plain(405, String::new()),
            (Era::Legacy, _) => self.legacy(&head.method, session, &body),
        }
    }

    fn legacy(&self, method: &Method, session: Option<String>, body: &Value) -> Response {
        let mut process = self.process.lock().unwrap();
        let name = body["method"].as_str().unwrap_or_default();
        if name == "initialize" {
            let result = json!({
                "protocolVersion": body["params"]["protocolVersion"].as_str().unwrap().min("2025-11-25"),
                "capabilities": capabilities(), "serverInfo": {"name": "legacy", "version": "1"},
            });
            let mut response = replied(body, &result);
            let id = process.session.parse().unwrap();
            response.headers_mut().insert("mcp-session-id", id);
            return response;
        }
        match session {
            None if process.is_terse => return plain(404, String::new()),
            None => return refused(&Value::Null, -32000, "Bad Request: No valid session ID"),
            Some(id) if id != process.session => return plain(404, String::new()),
            Some(_) => {}
        }
        let uri = body["params"]["uri"].as_str().unwrap_or_default();
        let result = match name {
            "" if *method == Method::GET => return open(&mut process, &Value::Null, None),
            "resources/subscribe" => {
                process.followed.insert(uri.to_owned());
                json!({})
            }
            "resources/unsubscribe" => {
                process.followed.remove(uri);
                json!({})
            }
            "logging/setLevel" => {
                process.level = body["params"]["level"].as_str().map(str::to_owned);
                json!({})
            }
            "tools/call" => called(&process, body),
            _ if body.get("id").is_none() => return plain(202, String::new()),
            _ => json!({}),
        };
        replied(body, &result)
    }

    fn modern(&self, body: &Value) -> Response {
        let mut process = self.process.lock().unwrap();
        let mut result = match body["method"].as_str() {
            Some("server/discover") => json!({
                "supportedVersions": ["2026-07-28"], "capabilities": capabilities(),
                "ttlMs": 0, "cacheScope": "public",
            }),
            Some("subscriptions/listen") => {
                let granted = &body["params"]["notifications"];
                let uris = granted["resourceSubscriptions"].as_array();
                let uris = uris.into_iter().flatten().filter_map(Value::as_str);
                process.followed = uris.map(str::to_owned).collect();
                let first = json!({
                    "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                    "params": {"_meta": {SUBSCRIPTION: body["id"]}, "notifications": granted},
                });
                return open(&mut process, &body["id"], Some(first));
            }
            Some("tools/call") => called(&process, body),
            _ => json!({}),
        };
        result["resultType"] = "complete".into();
        replied(body, &result)
    }
}

/// Whether a message is a request that only legacy servers know.
fn is_legacy_alone(body: &Value) -> bool {
    let methods = [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
    ];
    methods.iter().any(|method| body["method"] == *method)
}

fn capabilities() -> Value {
    json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}, "logging": {}})
}

fn called(process: &Process, body: &Value) -> Value {
    if body["params"]["name"] == "touch"
        && process.followed.contains(URI)
        && let Some((id, notices)) = &process.notices
    {
        let mut params = json!({"uri": URI});
        if !id.is_null() {
            params["_meta"] = json!({SUBSCRIPTION: id});
        }
        let notice = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params});
        drop(notices.send(notice));
    }
    let level = process.level.as_deref().unwrap_or("none");
    let text = format!("{} {level}", process.era.name());
    json!({"content": [{"type": "text", "text": text}]})
}

/// A stream for notices, which begins with `first`.
fn open(process: &mut Process, id: &Value, first: Option<Value>) -> Response {
    let (sender, receiver) = mpsc::unbounded_channel();
    if let Some(message) = first {
        drop(sender.send(message));
    }
    process.notices = Some((id.clone(), sender));
    let events = stream::unfold(receiver, async |mut receiver| {
        let message: Value = receiver.recv().await?;
        Some((format!("data: {message}\n\n"), receiver))
    });
    let body = Body::from_stream(events.map(Ok::<_, Infallible>));
    let response = Response::builder().header("content-type", "text/event-stream");
    response.body(body).unwrap()
}

fn plain(status: u16, text: String) -> Response {
    let response = Response::builder().status(status);
    let response = response.header("content-type", "application/json");
    response.body(Body::from(text)).unwrap()
}

fn refused(id: &Value, code: i64, text: &str) -> Response {
    let error = json!({"code": code, "message": text});
    let reply = json!({"jsonrpc": "2.0", "id": id, "error": error});
    plain(400, reply.to_string())
}

fn replied(body: &Value, result: &Value) -> Response {
    let reply = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
    plain(200, reply.to_string())
}

/// What a call says: the era and the level of the server.
fn said(reply: &Reply) -> Option<String> {
    let result = reply.as_ref().ok()?;
    (result["isError"] != true).then(|| text_of(result).to_owned())
}

/// A client of either era.
enum Client {
    Legacy(Session),
    Modern(Modern),
}

impl Client {
    async fn new(gw: &Gateway, era: Era) -> Self {
        match era {
            Era::Legacy => Self::Legacy(within("a session", gw.anonymous().open("/mcp/up")).await),
            Era::Modern => Self::Modern(Modern::new(gw.anonymous(), "/mcp/up")),
        }
    }

    async fn call(&self, tool: &str) -> Option<String> {
        said(&match self {
            Self::Legacy(session) => session.call(tool, json!({})).await,
            Self::Modern(modern) => modern.call(tool, json!({})).await,
        })
    }

    /// Follows the resource; returns the stream for its updates.
    async fn follow(&self) -> EventStream {
        match self {
            Self::Legacy(session) => {
                let stream = session.listen().await;
                let params = json!({"uri": URI});
                session
                    .request("resources/subscribe", params)
                    .await
                    .unwrap();
                stream
            }
            Self::Modern(modern) => {
                let (honoured, stream) = listen(modern).await;
                assert_eq!(honoured, wanted());
                stream
            }
        }
    }
}

fn wanted() -> Value {
    json!({"toolsListChanged": true, "resourceSubscriptions": [URI]})
}

/// Opens a subscription; returns the honoured notifications, and its stream.
async fn listen(user: &Modern) -> (Value, EventStream) {
    let params = json!({"notifications": wanted()});
    let message = user.request(&json!("l"), "subscriptions/listen", params);
    let mut stream = user.post(&message).await.events();
    let first = stream.message().await.expect("an acknowledgement");
    (first["params"]["notifications"].clone(), stream)
}

#[rstest]
#[tokio::test]
async fn era_change_keeps_a_subscription(
    #[values(Era::Legacy, Era::Modern)] first: Era,
    #[values(Era::Legacy, Era::Modern)] client: Era,
) {
    let up = Upstream::start(first).await;
    let gw = up.before().await;
    let user = Client::new(&gw, client).await;
    let mut stream = user.follow().await;
    assert!(up.follows());
    for era in [first.other(), first] {
        up.restart(era);
        eventually("a call in the other era", async || {
            user.call("state")
                .await?
                .starts_with(era.name())
                .then_some(())
        })
        .await;
        eventually("the subscription", async || up.follows().then_some(())).await;
        user.call("touch").await.expect("a result");
        let told = stream.until("notifications/resources/updated").await;
        assert_eq!(told["params"]["uri"], URI);
    }
    gw.stop().await;
}

// Spec: SPEC C-21
#[tokio::test]
async fn era_change_keeps_the_level_of_a_session() {
    let up = Upstream::start(Era::Modern).await;
    let gw = up.before().await;
    let user = Client::new(&gw, Era::Legacy).await;
    assert_eq!(user.call("state").await.as_deref(), Some("modern none"));
    let Client::Legacy(session) = &user else {
        panic!("it is legacy");
    };
    let level = json!({"level": "warning"});
    session.request("logging/setLevel", level).await.unwrap();
    up.restart(Era::Legacy);
    let said = eventually("a call in the other era", async || {
        user.call("state")
            .await
            .filter(|text| text.starts_with("legacy"))
    });
    assert_eq!(said.await, "legacy warning");
    gw.stop().await;
}

// Spec: SPEC C-21
#[tokio::test]
async fn era_change_keeps_the_level_of_modern_calls() {
    let up = Upstream::start(Era::Modern).await;
    let gw = up.before().await;
    let user = |level: &str| {
        let level = json!({"io.modelcontextprotocol/logLevel": level});
        Client::Modern(Modern::new(gw.anonymous(), "/mcp/up").meta(level))
    };
    let (loud, quiet) = (user("debug"), user("warning"));
    assert_eq!(loud.call("state").await.as_deref(), Some("modern none"));
    up.restart(Era::Legacy);
    let said = eventually("a call in the other era", async || {
        quiet
            .call("state")
            .await
            .filter(|text| text.starts_with("legacy"))
    });
    assert_eq!(said.await, "legacy warning");
    let said = loud.call("state").await;
    assert_eq!(said.as_deref(), Some("legacy debug"), "it was told of less");
    gw.stop().await;
}

// A client that only listens makes no call which would tell that the era has changed.
#[rstest]
#[tokio::test]
async fn listen_notices_an_era_change(#[values(Era::Legacy, Era::Modern)] first: Era) {
    let up = Upstream::start(first).await;
    let gw = up.before().await;
    let user = Modern::new(gw.anonymous(), "/mcp/up");
    let before = user.call("state", json!({})).await;
    assert!(said(&before).expect("a result").starts_with(first.name()));
    up.restart(first.other());
    let mut stream = eventually("what was asked for", async || {
        let (honoured, stream) = listen(&user).await;
        (honoured == wanted()).then_some(stream)
    })
    .await;
    assert!(up.follows());
    user.call("touch", json!({})).await.expect("a result");
    let told = stream.until("notifications/resources/updated").await;
    assert_eq!(told["params"]["uri"], URI);
    gw.stop().await;
}

// A client that only keeps its stream open makes no call either.
#[rstest]
#[tokio::test]
async fn open_stream_notices_an_era_change(
    #[values(Era::Legacy, Era::Modern)] first: Era,
    #[values(Era::Legacy, Era::Modern)] client: Era,
) {
    let up = Upstream::start(first).await;
    let gw = up.before().await;
    let user = Client::new(&gw, client).await;
    let mut stream = user.follow().await;
    if let Client::Legacy(session) = &user {
        let level = json!({"level": "warning"});
        session.request("logging/setLevel", level).await.unwrap();
    }
    for era in [first.other(), first] {
        up.restart(era);
        let mark = format!("of {era:?}");
        eventually("it is listened to", async || up.announce(&mark)).await;
        let told = loop {
            // What may have been missed is announced before.
            let told = stream.until("notifications/resources/updated").await;
            if told["params"]["title"] == *mark {
                break told;
            }
        };
        assert_eq!(told["params"]["uri"], URI);
        if (era, client) == (Era::Legacy, Era::Legacy) {
            let level = up.process.lock().unwrap().level.clone();
            assert_eq!(level.as_deref(), Some("warning"));
        }
    }
    gw.stop().await;
}

// Spec: MCP 2026-07-28, Streamable HTTP, Protocol Version Header: an unknown method is 404 with -32601.
#[tokio::test]
async fn open_stream_notices_a_server_that_checks_methods() {
    let up = Upstream::start_as(Era::Legacy, true).await;
    let gw = up.before().await;
    let user = Client::new(&gw, Era::Legacy).await;
    let mut stream = user.follow().await;
    up.restart(Era::Modern);
    eventually("it is listened to", async || up.announce("changed")).await;
    let told = stream.until("notifications/resources/updated").await;
    assert_eq!(told["params"]["uri"], URI);
    gw.stop().await;
}

// The same of a legacy client, whose subscription is a request.
#[tokio::test]
async fn subscribe_notices_an_era_change() {
    let up = Upstream::start(Era::Modern).await;
    let gw = up.before().await;
    let user = Client::new(&gw, Era::Legacy).await;
    assert_eq!(user.call("state").await.as_deref(), Some("modern none"));
    let Client::Legacy(session) = &user else {
        panic!("it is legacy");
    };
    up.restart(Era::Legacy);
    eventually("the subscription", async || {
        let params = json!({"uri": URI});
        let reply = session.request("resources/subscribe", params).await;
        reply.ok().map(drop)
    })
    .await;
    assert!(up.follows());
    gw.stop().await;
}

// Its own look comes too soon after the last one.
#[tokio::test]
async fn listener_learns_of_an_era_change_without_a_call() {
    let up = Upstream::start(Era::Modern).await;
    let gw = up.before().await;
    let listener = within("a session", gw.anonymous().open("/mcp/up")).await;
    let caller = Modern::with(gw.anonymous(), "/mcp/up", json!({}));
    let before = caller.call("state", json!({})).await;
    assert!(said(&before).expect("a result").starts_with("modern"));
    up.restart(Era::Legacy);
    let mut stream = listener.listen().await;
    eventually("a call in the other era", async || {
        let reply = caller.call("state", json!({})).await;
        said(&reply)?.starts_with("legacy").then_some(())
    })
    .await;
    eventually("the listener's stream", async || {
        let process = up.process.lock().unwrap();
        let (_, notices) = process.notices.as_ref()?;
        let method = "notifications/tools/list_changed";
        let notice = json!({"jsonrpc": "2.0", "method": method});
        notices.send(notice).ok()
    })
    .await;
    stream.until("notifications/tools/list_changed").await;
    gw.stop().await;
}

// Spec: BRIDGING §3.4. The look that finds the other era comes after the acknowledgement, as the first one was too soon.
#[tokio::test]
async fn subscription_goes_on_at_the_link_of_the_other_era() {
    let up = Upstream::start(Era::Modern).await;
    let gw = up.before().await;
    let user = Modern::new(gw.anonymous(), "/mcp/up");
    let before = user.call("state", json!({})).await;
    assert!(said(&before).expect("a result").starts_with("modern"));
    up.restart(Era::Legacy);
    up.process.lock().unwrap().is_terse = true;
    let params = json!({"notifications": {"toolsListChanged": true}});
    let message = user.request(&json!("l"), "subscriptions/listen", params);
    let mut stream = user.post(&message).await.events();
    let first = stream.message().await.expect("an acknowledgement");
    assert_eq!(first["params"]["notifications"]["toolsListChanged"], true);
    eventually("the subscription's stream", async || {
        let process = up.process.lock().unwrap();
        let (_, notices) = process.notices.as_ref()?;
        let method = "notifications/tools/list_changed";
        let notice = json!({"jsonrpc": "2.0", "method": method});
        notices.send(notice).ok()
    })
    .await;
    let told = stream.message().await.expect("a notice, and no end");
    assert_eq!(told["method"], "notifications/tools/list_changed");
    gw.stop().await;
}
