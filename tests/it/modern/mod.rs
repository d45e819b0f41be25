//! The modern front (2026-07-28), as a client without any SDK sees it.

mod calls;
mod discover;
mod listen;
mod params;
mod parking;
mod requests;
mod tasks;

use http::StatusCode;
use serde_json::{Value, json};

use crate::harness::events::EventStream;
use crate::harness::session::{Exchange, Reply};
use crate::harness::upstream::HttpStub;
use crate::harness::{Actor, Answer, Gateway, Setup};

pub(super) const VERSION: &str = "2026-07-28";

/// A gateway before the stub over either carrier: `stub` is a child, `remote` is reached over HTTP.
pub(super) async fn over_both() -> (Gateway, HttpStub) {
    let stub = HttpStub::start(&[]).await;
    let setup = Setup::open().http("remote", &stub, "").stub("stub", &[]);
    (setup.start().await, stub)
}

/// A client of the modern revision on one endpoint.
pub(crate) struct Modern {
    pub(super) actor: Actor,
    path: String,
    capabilities: Value,
    /// Further members of `params._meta`.
    meta: Value,
}

impl Modern {
    /// With every capability.
    pub(crate) fn new(actor: Actor, path: &str) -> Self {
        let capabilities = json!({
            "elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {},
        });
        Self::with(actor, path, capabilities)
    }

    pub(super) fn with(actor: Actor, path: &str, capabilities: Value) -> Self {
        Self {
            actor,
            path: path.to_owned(),
            capabilities,
            meta: json!({}),
        }
    }

    /// The same with these further members of `params._meta`.
    pub(crate) fn meta(mut self, meta: Value) -> Self {
        self.meta = meta;
        self
    }

    /// The message of a request.
    pub(crate) fn request(&self, id: &Value, method: &str, params: Value) -> Value {
        let mut params = params;
        let mut meta = self.meta.clone();
        meta["io.modelcontextprotocol/protocolVersion"] = VERSION.into();
        meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        params["_meta"] = meta;
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// POSTs a message under the headers that repeat it.
    pub(crate) async fn post(&self, message: &Value) -> Answer {
        let method = message["method"].as_str().unwrap_or_default();
        let name = ["name", "uri", "taskId"]
            .into_iter()
            .find_map(|key| message["params"][key].as_str());
        let mut headers = vec![("mcp-protocol-version", VERSION), ("mcp-method", method)];
        headers.extend(name.map(|name| ("mcp-name", name)));
        self.actor.post(&self.path, &headers, message).await
    }

    /// POSTs a message under exactly these headers.
    pub(super) async fn post_as(&self, headers: &[(&str, &str)], message: &Value) -> Answer {
        self.actor.post(&self.path, headers, message).await
    }

    /// Sends a request; its open exchange.
    pub(super) async fn start(&self, method: &str, params: Value) -> Exchange {
        let message = self.request(&json!(1), method, params);
        let answer = self.post(&message).await;
        if answer.is_stream() {
            Exchange::Stream(answer.events())
        } else {
            Exchange::Whole(Some(answer.json().await))
        }
    }

    /// Sends a request and waits for its reply.
    pub(crate) async fn send(&self, method: &str, params: Value) -> Reply {
        self.start(method, params).await.finish().await.1
    }

    /// Calls a tool and waits for its reply.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Reply {
        let params = json!({"name": tool, "arguments": arguments});
        self.send("tools/call", params).await
    }

    /// Calls a tool that answers as a stream.
    pub(super) async fn stream(&self, tool: &str, arguments: Value) -> EventStream {
        let params = json!({"name": tool, "arguments": arguments});
        let message = self.request(&json!("s"), "tools/call", params);
        self.post(&message)
            .await
            .expect(StatusCode::OK)
            .await
            .events()
    }
}
