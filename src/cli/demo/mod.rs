//! `drawbridge demo-upstream`: a small, well-behaved MCP server on stdio.
//!
//! For a first impression without any other server, and for tests. Speaks every legacy revision;
//! one thread reads, and every tool call that takes time has a thread of its own, so that it can
//! be cancelled and can ask the client. No runtime, no network, no files.

mod peer;
mod shelf;
mod tools;

#[cfg(test)]
mod tests;

use std::io::{BufRead, Write};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::clock::SharedClock;
use crate::protocol::Revision;
use peer::{DemoPeer, RpcRefusal};

/// The largest line read, in bytes; a longer one ends the server, as a child has no other way
/// to find the next message.
const MAX_LINE_BYTES: u64 = 4 * 1024 * 1024;

/// Serves one client until its end of the pipe closes.
///
/// # Errors
///
/// The pipe broke: no reader is left.
pub fn serve(
    input: impl BufRead,
    output: impl Write + Send + 'static,
    clock: SharedClock,
) -> std::io::Result<()> {
    let peer = Arc::new(DemoPeer::new(Box::new(output), clock));
    let mut input = input;
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut bounded = std::io::Read::take(&mut input, MAX_LINE_BYTES);
        if bounded.read_until(b'\n', &mut line)? == 0 || !line.ends_with(b"\n") {
            return Ok(());
        }
        match serde_json::from_slice(&line) {
            Ok(message) => take(&peer, message)?,
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(_) => peer.refuse(&Value::Null, &RpcRefusal::new(-32700, "not JSON"))?,
        }
    }
}

/// Handles one message: a request, a notification, or an answer to a question of ours.
fn take(peer: &Arc<DemoPeer>, message: Value) -> std::io::Result<()> {
    let method = message
        .get("method")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let id = message.get("id").cloned();
    match (method, id) {
        (Some(method), Some(id)) => answer(peer, &method, id, message.get("params")),
        (Some(method), None) => {
            if method == "notifications/cancelled"
                && let Some(id) = message.pointer("/params/requestId")
            {
                peer.cancel(id);
            }
            Ok(())
        }
        (None, Some(id)) => {
            peer.deliver(&id, message);
            Ok(())
        }
        (None, None) => peer.refuse(&Value::Null, &RpcRefusal::new(-32600, "not a message")),
    }
}

fn answer(
    peer: &Arc<DemoPeer>,
    method: &str,
    id: Value,
    params: Option<&Value>,
) -> std::io::Result<()> {
    let params = params.unwrap_or(&Value::Null);
    let outcome = match method {
        "initialize" => Ok(initialize(peer, params)),
        "ping" => Ok(json!({})),
        "logging/setLevel" => peer.set_level(params),
        "tools/list" => Ok(json!({ "tools": tools::list(peer.revision()) })),
        "tools/call" => return tools::call(peer, id, params),
        "resources/list" => Ok(json!({ "resources": shelf::resources() })),
        "resources/templates/list" => Ok(json!({ "resourceTemplates": shelf::templates() })),
        "resources/read" => shelf::read(params),
        "prompts/list" => Ok(json!({ "prompts": shelf::prompts() })),
        "prompts/get" => shelf::prompt(params),
        "completion/complete" => shelf::complete(params),
        _ => Err(RpcRefusal::new(-32601, "no such method")),
    };
    match outcome {
        Ok(result) => peer.reply(&id, &result),
        Err(refusal) => peer.refuse(&id, &refusal),
    }
}

/// The text at a JSON pointer.
fn text_at<'v>(value: &'v Value, pointer: &str) -> Option<&'v str> {
    value.pointer(pointer)?.as_str()
}

/// Sets a member of an object.
fn add_member(object: &mut Value, name: &str, value: Value) {
    if let Some(members) = object.as_object_mut() {
        members.insert(name.to_owned(), value);
    }
}

fn initialize(peer: &DemoPeer, params: &Value) -> Value {
    let offered = text_at(params, "/protocolVersion").and_then(Revision::parse);
    let revision = offered
        .filter(|revision| Revision::LEGACY.contains(revision))
        .unwrap_or(Revision::LATEST_LEGACY);
    peer.begin(revision, params.get("capabilities").unwrap_or(&Value::Null));
    let mut capabilities = json!({ "tools": {}, "resources": {}, "prompts": {}, "logging": {} });
    // The capability is one revision younger than the method. Spec: SPEC C-30
    if revision >= Revision::V2025_03_26 {
        add_member(&mut capabilities, "completions", json!({}));
    }
    json!({
        "protocolVersion": revision.as_str(),
        "capabilities": capabilities,
        "serverInfo": { "name": "drawbridge-demo", "version": env!("CARGO_PKG_VERSION") },
        "instructions": "A demonstration: try `echo`, `countdown` or `ask_name`.",
    })
}
