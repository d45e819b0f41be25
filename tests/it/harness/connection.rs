//! An HTTP+SSE session of 2024-11-05, which lives and ends with one connection.

use std::sync::atomic::{AtomicI64, Ordering};

use http::StatusCode;
use serde_json::{Value, json};

use super::events::EventStream;
use super::http::{Actor, Answer, initialize};
use super::session::{Reply, reply_of};

/// An open event stream and the URL to post to.
pub(crate) struct EventSession {
    pub(crate) actor: Actor,
    pub(crate) stream: EventStream,
    /// Path and query of the URL for posts.
    pub(crate) post_to: String,
    next: AtomicI64,
}

impl EventSession {
    /// Opens the stream and reads where to post; says nothing yet.
    pub(crate) async fn connect(actor: &Actor, path: &str) -> Self {
        let answer = actor.get(path, &[]).await.expect(StatusCode::OK).await;
        let mut stream = answer.events();
        let first = stream.next().await.expect("a first event");
        assert_eq!(first.name.as_deref(), Some("endpoint"), "{first:?}");
        Self {
            actor: actor.clone(),
            stream,
            post_to: first.data.expect("a URL"),
            next: AtomicI64::new(2),
        }
    }

    /// Opens the stream and initializes a session; the session and its `initialize` result.
    pub(crate) async fn open_as(
        actor: &Actor,
        path: &str,
        revision: &str,
        capabilities: &Value,
    ) -> (Self, Value) {
        let mut session = Self::connect(actor, path).await;
        session.tell(&initialize(1, revision, capabilities)).await;
        let (_, hello) = session.reply(1).await;
        session.notify("notifications/initialized", json!({})).await;
        (session, hello.expect("initialize succeeds"))
    }

    /// A session of the transport's own revision that can be asked everything.
    pub(crate) async fn open(actor: &Actor, path: &str) -> Self {
        let everything = super::http::everything();
        Self::open_as(actor, path, "2024-11-05", &everything)
            .await
            .0
    }

    /// POSTs any message.
    pub(crate) async fn post(&self, message: &Value) -> Answer {
        self.actor.post(&self.post_to, &[], message).await
    }

    /// POSTs a message that must be accepted.
    pub(crate) async fn tell(&self, message: &Value) {
        let answer = self.post(message).await.expect(StatusCode::ACCEPTED).await;
        assert_eq!(answer.bytes().await.len(), 0);
    }

    pub(crate) async fn notify(&self, method: &str, params: Value) {
        self.tell(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
            .await;
    }

    /// Sends a request; its id.
    pub(crate) async fn start(&self, method: &str, params: Value) -> i64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.tell(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        id
    }

    /// Messages before the reply to `id`, and the reply.
    pub(crate) async fn reply(&mut self, id: i64) -> (Vec<Value>, Reply) {
        let mut before = Vec::new();
        while let Some(message) = self.stream.message().await {
            if message["id"] == id && message.get("method").is_none() {
                return (before, reply_of(message));
            }
            before.push(message);
        }
        panic!("the stream ended without a reply, after {before:?}");
    }

    /// Calls a tool and waits for its reply.
    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> Reply {
        let params = json!({"name": tool, "arguments": arguments});
        let id = self.start("tools/call", params).await;
        self.reply(id).await.1
    }
}
