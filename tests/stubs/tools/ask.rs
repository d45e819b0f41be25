//! Tools that ask the client a question and return the answer.

use serde_json::{Value, json};

use super::Call;
use crate::rpc::Outcome;

pub(super) async fn run(call: &Call) -> Outcome {
    // Off the call's own stream, for tests of questions that name no call.
    let outlet = match call.text("via") {
        Some("get") => &call.session.general,
        _ => &call.outlet,
    };
    let session = &call.session;
    let answer = match call.name.as_str() {
        "ask_url" => session.ask(outlet, "elicitation/create", &url(call)).await,
        "ask_sampling" => {
            session
                .ask(outlet, "sampling/createMessage", &sampling(call))
                .await
        }
        "ask_roots" => session.ask(outlet, "roots/list", &json!({})).await,
        "ask_two" => {
            let (method, first, second) = match call.text("shape") {
                Some("sampling") => ("sampling/createMessage", sampling(call), sampling(call)),
                _ => ("elicitation/create", form("first"), form("second")),
            };
            let (first, second) = tokio::join!(
                session.ask(outlet, method, &first),
                session.ask(outlet, method, &second),
            );
            json!([first, second])
        }
        _ => {
            let kind = match call.text("shape") {
                Some("nested") => "object",
                _ => "string",
            };
            let form = form_of("Your name, please", kind);
            session.ask(outlet, "elicitation/create", &form).await
        }
    };
    tokio::time::sleep(call.millis("then_ms")).await;
    Outcome::text(&answer.to_string())
}

fn form(message: &str) -> Value {
    form_of(message, "string")
}

fn form_of(message: &str, kind: &str) -> Value {
    json!({
        "message": message,
        "requestedSchema": {
            "type": "object",
            "properties": {"name": {"type": kind, "title": "Name"}},
            "required": ["name"],
        },
    })
}

pub(super) fn url(call: &Call) -> Value {
    json!({
        "mode": "url",
        "message": "Please sign in",
        "url": call.text("url").unwrap_or("https://consent.example/start"),
        "elicitationId": "elicitation-1",
    })
}

fn sampling(call: &Call) -> Value {
    let mut params = json!({
        "messages": [{"role": "user", "content": {"type": "text", "text": "Say hello"}}],
        "maxTokens": 16,
        "includeContext": "thisServer",
    });
    if let (Some("tools"), Some(params)) = (call.text("shape"), params.as_object_mut()) {
        let tools = json!([{"name": "t", "inputSchema": {"type": "object"}}]);
        params.insert("tools".to_owned(), tools);
    }
    if let (Some("used"), Some(params)) = (call.text("shape"), params.as_object_mut()) {
        let used = json!({"type": "tool_use", "id": "1", "name": "t", "input": {}});
        let messages = json!([{"role": "assistant", "content": [used]}]);
        params.insert("messages".to_owned(), messages);
    }
    params
}
