//! The demo tools.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use serde_json::{Value, json};

use super::peer::{CallSignal, DemoPeer, RpcRefusal, in_background};
use super::{add_member, text_at};
use crate::protocol::Revision;

/// Between two steps of a countdown, unless the caller names another pace.
const TICK_MILLIS: u64 = 500;
/// The longest countdown, in steps.
const MAX_STEPS: u64 = 1000;
/// The slowest pace.
const MAX_TICK_MILLIS: u64 = 60_000;
/// How long an answer is awaited.
const ASK_PATIENCE: Duration = Duration::from_mins(10);

/// `tools/list`.
pub(super) fn list(revision: Revision) -> Vec<Value> {
    let number = json!({ "type": "number" });
    let mut add = tool(
        "add",
        "Adds two numbers.",
        &json!({ "a": number.clone(), "b": number.clone() }),
        &["a", "b"],
    );
    if revision >= Revision::V2025_06_18 {
        let properties = json!({ "sum": number });
        let schema = json!({ "type": "object", "properties": properties, "required": ["sum"] });
        add_member(&mut add, "outputSchema", schema);
    }
    let mut tools = vec![
        tool(
            "echo",
            "Returns the text it is given.",
            &json!({ "text": { "type": "string", "description": "What to return." } }),
            &["text"],
        ),
        add,
        tool("clock", "Tells the time (UTC).", &json!({}), &[]),
        tool(
            "countdown",
            "Counts down slowly, with progress. Can be cancelled.",
            &json!({
                "from": { "type": "integer", "minimum": 1, "maximum": MAX_STEPS, "default": 5 },
                "tick_ms": {
                    "type": "integer", "minimum": 0, "maximum": MAX_TICK_MILLIS,
                    "default": TICK_MILLIS, "description": "Milliseconds for each step.",
                },
            }),
            &[],
        ),
        tool(
            "ask_name",
            "Asks you for your name, if your client can ask you.",
            &json!({}),
            &[],
        ),
        tool(
            "admin_about",
            "Tells the version and the process of this server. An example of a tool that a gateway may keep for some users.",
            &json!({}),
            &[],
        ),
    ];
    if revision >= Revision::V2025_03_26 {
        for tool in &mut tools {
            let hints = json!({ "readOnlyHint": true, "openWorldHint": false });
            add_member(tool, "annotations", hints);
        }
    }
    tools
}

fn tool(name: &str, description: &str, properties: &Value, required: &[&str]) -> Value {
    let schema = json!({ "type": "object", "properties": properties, "required": required });
    json!({ "name": name, "description": description, "inputSchema": schema })
}

/// `tools/call`.
pub(super) fn call(peer: &Arc<DemoPeer>, id: Value, params: &Value) -> std::io::Result<()> {
    let result = match text_at(params, "/name") {
        Some("echo") => match text_at(params, "/arguments/text") {
            Some(said) => {
                peer.log("info", "echo was called")?;
                text(said)
            }
            None => failure("`text` is missing"),
        },
        Some("add") => add(params, peer.revision()),
        Some("clock") => text(&time(peer)),
        Some("admin_about") => text(&about()),
        Some("countdown") => {
            let params = params.clone();
            return in_background(peer, id, move |peer, _, inbox| {
                countdown(peer, &params, inbox)
            });
        }
        Some("ask_name") if !peer.can_elicit() => {
            failure("your client cannot ask you: it has no form elicitation")
        }
        Some("ask_name") => return in_background(peer, id, ask_name),
        _ => return peer.refuse(&id, &RpcRefusal::new(-32602, "no such tool")),
    };
    peer.reply(&id, &result)
}

fn add(params: &Value, revision: Revision) -> Value {
    let number = |pointer| params.pointer(pointer).and_then(Value::as_f64);
    let (Some(a), Some(b)) = (number("/arguments/a"), number("/arguments/b")) else {
        return failure("`a` and `b` must be numbers");
    };
    let sum = a + b;
    let mut result = text(&sum.to_string());
    if revision >= Revision::V2025_06_18 {
        add_member(&mut result, "structuredContent", json!({ "sum": sum }));
    }
    result
}

fn about() -> String {
    let (version, process) = (env!("CARGO_PKG_VERSION"), std::process::id());
    format!("drawbridge {version}, process {process}")
}

fn time(peer: &DemoPeer) -> String {
    let now = i64::try_from(peer.clock.now().as_secs()).unwrap_or_default();
    jiff::Timestamp::from_second(now).map_or_else(|_| "unknown".to_owned(), |now| now.to_string())
}

fn countdown(
    peer: &DemoPeer,
    params: &Value,
    inbox: &Receiver<CallSignal>,
) -> std::io::Result<Option<Value>> {
    let number = |pointer| params.pointer(pointer).and_then(Value::as_u64);
    let from = number("/arguments/from").unwrap_or(5).clamp(1, MAX_STEPS);
    let tick = number("/arguments/tick_ms")
        .unwrap_or(TICK_MILLIS)
        .min(MAX_TICK_MILLIS);
    let token = params.pointer("/_meta/progressToken");
    for step in 1..=from {
        match inbox.recv_timeout(Duration::from_millis(tick)) {
            Err(RecvTimeoutError::Timeout) => {}
            // This tool asks no question, so any signal is a cancellation.
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
        if let Some(token) = token {
            let progress = json!({ "progressToken": token, "progress": step, "total": from });
            peer.notify("notifications/progress", &progress)?;
        }
    }
    Ok(Some(text(&format!("counted down from {from}"))))
}

fn ask_name(
    peer: &DemoPeer,
    id: &Value,
    inbox: &Receiver<CallSignal>,
) -> std::io::Result<Option<Value>> {
    let name = json!({ "type": "string", "title": "Name", "maxLength": 100 });
    let schema = json!({ "type": "object", "properties": { "name": name }, "required": ["name"] });
    let params = json!({ "message": "What is your name?", "requestedSchema": schema });
    peer.ask(id, "elicitation/create", &params)?;
    let Ok(signal) = inbox.recv_timeout(ASK_PATIENCE) else {
        return Ok(Some(failure("nobody answered")));
    };
    let answer = match signal {
        CallSignal::Cancelled => return Ok(None),
        CallSignal::Answer(answer) => answer,
    };
    let at = |pointer| text_at(&answer, pointer);
    Ok(Some(
        match (at("/result/action"), at("/result/content/name")) {
            (Some("accept"), Some(name)) => text(&format!("Hello, {name}!")),
            (Some("decline"), _) => text("You prefer not to say."),
            (Some("cancel"), _) => text("You closed the question."),
            _ => failure("the answer makes no sense"),
        },
    ))
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn failure(why: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": why }], "isError": true })
}
