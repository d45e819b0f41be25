//! A legacy session from the client's side.

use std::sync::atomic::{AtomicI64, Ordering};

use http::StatusCode;
use serde_json::{Value, json};

use super::events::EventStream;
use super::http::{Actor, Answer};

/// Outcome of a request: its result, or its JSON-RPC error.
pub(crate) type Reply = Result<Value, Value>;

/// An initialised session of one actor on one endpoint.
pub(crate) struct Session {
    pub(crate) actor: Actor,
    pub(crate) path: String,
    /// `Mcp-Session-Id`.
    pub(crate) id: String,
    /// The negotiated revision.
    pub(crate) revision: String,
    /// The result of `initialize`.
    pub(crate) hello: Value,
    next: AtomicI64,
}

/// A call whose messages are read one by one.
pub(crate) enum Exchange {
    /// Answered with one JSON object.
    Whole(Option<Value>),
    /// Answered with an event stream.
    Stream(EventStream),
}

impl Exchange {
    /// The next message, in either form; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        match self {
            Self::Whole(message) => message.take(),
            Self::Stream(stream) => stream.message().await,
        }
    }

    /// Messages before the reply, and the reply.
    pub(crate) async fn finish(mut self) -> (Vec<Value>, Reply) {
        let mut before = Vec::new();
        while let Some(message) = self.next().await {
            if message.get("method").is_none() {
                return (before, reply_of(message));
            }
            before.push(message);
        }
        panic!("the stream ended without a reply, after {before:?}");
    }

    /// The event stream; fails the test if it is none.
    pub(crate) fn stream(self) -> EventStream {
        match self {
            Self::Stream(stream) => stream,
            Self::Whole(message) => panic!("answered whole: {message:?}"),
        }
    }
}

/// A reply message as a result.
pub(crate) fn reply_of(mut message: Value) -> Reply {
    match message.get("error") {
        Some(_) => Err(message["error"].take()),
        None => Ok(message["result"].take()),
    }
}

/// The text of a tool result.
pub(crate) fn text_of(result: &Value) -> &str {
    result["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text in {result}"))
}

impl Session {
    /// Takes the answer to `initialize` and sends `notifications/initialized`.
    pub(crate) async fn begin(actor: Actor, path: &str, answer: Answer) -> Self {
        let answer = answer.expect(StatusCode::OK).await;
        let id = answer.header("mcp-session-id").map(str::to_owned);
        let hello = reply_of(answer.message().await).expect("initialize succeeds");
        let id = id.expect("a session id");
        let revision = hello["protocolVersion"].as_str().unwrap().to_owned();
        let path = path.to_owned();
        let session = Self {
            actor,
            path,
            id,
            revision,
            hello,
            next: AtomicI64::new(2),
        };
        session.notify("notifications/initialized", json!({})).await;
        session
    }

    /// The same session as `actor` uses it, who may be connected elsewhere or be another one.
    pub(crate) fn at(&self, actor: Actor) -> Self {
        Self {
            actor,
            path: self.path.clone(),
            id: self.id.clone(),
            revision: self.revision.clone(),
            hello: self.hello.clone(),
            // The sessions never use the same id.
            next: AtomicI64::new(1_000_000 * self.next_id()),
        }
    }

    /// The headers that every request of this session carries.
    pub(crate) fn headers(&self) -> Vec<(&str, &str)> {
        let mut headers = vec![("mcp-session-id", self.id.as_str())];
        // Spec: SPEC T-60, the header exists since 2025-06-18.
        if self.revision.as_str() >= "2025-06-18" {
            headers.push(("mcp-protocol-version", self.revision.as_str()));
        }
        headers
    }

    /// A request id not used before.
    pub(crate) fn next_id(&self) -> i64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// POSTs any message.
    pub(crate) async fn post(&self, message: &Value) -> Answer {
        self.actor.post(&self.path, &self.headers(), message).await
    }

    /// POSTs exactly these bytes.
    pub(crate) async fn post_raw(&self, body: impl Into<bytes::Bytes>) -> Answer {
        self.actor.post_raw(&self.path, &self.headers(), body).await
    }

    /// Sends a notification; fails unless it is accepted.
    pub(crate) async fn notify(&self, method: &str, params: Value) {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        let answer = self.post(&message).await.expect(StatusCode::ACCEPTED).await;
        assert_eq!(
            answer.bytes().await.len(),
            0,
            "an accepted notification has no body"
        );
    }

    /// Answers a question of the upstream.
    pub(crate) async fn answer(&self, question: &Value, result: Value) {
        let message = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
        self.post(&message).await.expect(StatusCode::ACCEPTED).await;
    }

    /// Sends a request under its own id and gives the id and the open exchange.
    pub(crate) async fn start(&self, method: &str, params: Value) -> (i64, Exchange) {
        let id = self.next_id();
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let answer = self.post(&message).await.expect(StatusCode::OK).await;
        let exchange = if answer.is_stream() {
            Exchange::Stream(answer.events())
        } else {
            Exchange::Whole(Some(answer.json().await))
        };
        (id, exchange)
    }

    /// Sends a request and waits for its reply; notices before it are dropped.
    pub(crate) async fn request(&self, method: &str, params: Value) -> Reply {
        let (_, exchange) = self.start(method, params).await;
        self.finish(exchange).await
    }

    /// Waits for the reply of an exchange and resumes its stream as often as the gateway closes it
    /// on purpose; notices before the reply are dropped.
    pub(crate) async fn finish(&self, mut exchange: Exchange) -> Reply {
        loop {
            while let Some(message) = exchange.next().await {
                if message.get("method").is_none() {
                    return reply_of(message);
                }
            }
            let stream = exchange.stream();
            assert!(stream.retry.is_some(), "the stream ended without a reply");
            let last = stream.last_id.expect("an event id");
            let resumed = self.resume(&last).await.expect(StatusCode::OK).await;
            let mut stream = resumed.events();
            stream.last_id = Some(last);
            exchange = Exchange::Stream(stream);
        }
    }

    /// Starts a tool call.
    pub(crate) async fn start_call(&self, tool: &str, arguments: Value) -> (i64, Exchange) {
        self.start("tools/call", json!({"name": tool, "arguments": arguments}))
            .await
    }

    /// Calls a tool and waits for its reply.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Reply {
        self.request("tools/call", json!({"name": tool, "arguments": arguments}))
            .await
    }

    /// Calls a tool that must succeed; its text.
    pub(crate) async fn text(&self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await.expect("a result");
        assert_ne!(result["isError"], true, "{result}");
        text_of(&result).to_owned()
    }

    /// The names in a list, all pages.
    pub(crate) async fn names(&self, method: &str, member: &str, key: &str) -> Vec<String> {
        let mut names = Vec::new();
        let mut params = json!({});
        loop {
            let page = self.request(method, params).await.expect("a list");
            let entries = page[member].as_array().expect("an array").iter();
            names.extend(entries.map(|entry| entry[key].as_str().unwrap().to_owned()));
            match page.get("nextCursor") {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => return names,
            }
        }
    }

    /// The names of all tools.
    pub(crate) async fn tools(&self) -> Vec<String> {
        self.names("tools/list", "tools", "name").await
    }

    /// Opens the GET stream.
    pub(crate) async fn listen(&self) -> EventStream {
        let answer = self.actor.get(&self.path, &self.headers()).await;
        answer.expect(StatusCode::OK).await.events()
    }

    /// Resumes a stream after an event.
    pub(crate) async fn resume(&self, last_event_id: &str) -> Answer {
        let mut headers = self.headers();
        headers.push(("last-event-id", last_event_id));
        self.actor.get(&self.path, &headers).await
    }

    /// Ends the session; the answer's status.
    pub(crate) async fn delete(&self) -> u16 {
        let method = http::Method::DELETE;
        self.actor
            .send(method, &self.path, &self.headers(), bytes::Bytes::new())
            .await
            .status()
    }
}
