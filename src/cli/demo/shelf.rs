//! The demo's resources and prompts, and the completion of their arguments.

use serde_json::{Value, json};

use super::peer::RpcRefusal;
use super::text_at;

const ABOUT: &str = "demo://about";
const SQUARES: &str = "demo://squares/{number}";
const SQUARES_START: &str = "demo://squares/";
const STYLES: [&str; 3] = ["brief", "formal", "friendly"];

/// `resources/list`.
pub(super) fn resources() -> Value {
    json!([{
        "uri": ABOUT,
        "name": "about",
        "description": "What this server is.",
        "mimeType": "text/plain",
    }])
}

/// `resources/templates/list`.
pub(super) fn templates() -> Value {
    json!([{
        "uriTemplate": SQUARES,
        "name": "squares",
        "description": "The square of a number.",
        "mimeType": "text/plain",
    }])
}

/// `resources/read`.
pub(super) fn read(params: &Value) -> Result<Value, RpcRefusal> {
    let uri = text_at(params, "/uri").unwrap_or_default();
    let text = if uri == ABOUT {
        "The demonstration server that comes with Drawbridge.".to_owned()
    } else {
        let number = uri
            .strip_prefix(SQUARES_START)
            .and_then(|number| number.parse::<u32>().ok());
        let number = number.ok_or(RpcRefusal::new(-32002, "no such resource"))?;
        (u64::from(number) * u64::from(number)).to_string()
    };
    Ok(json!({ "contents": [{ "uri": uri, "mimeType": "text/plain", "text": text }] }))
}

/// `prompts/list`.
pub(super) fn prompts() -> Value {
    json!([{
        "name": "greet",
        "description": "Asks the model for a greeting.",
        "arguments": [
            { "name": "name", "description": "Who is greeted.", "required": true },
            { "name": "style", "description": "brief, formal or friendly", "required": false },
        ],
    }])
}

/// `prompts/get`.
pub(super) fn prompt(params: &Value) -> Result<Value, RpcRefusal> {
    if text_at(params, "/name") != Some("greet") {
        return Err(RpcRefusal::new(-32602, "no such prompt"));
    }
    let name =
        text_at(params, "/arguments/name").ok_or(RpcRefusal::new(-32602, "`name` is missing"))?;
    let style = text_at(params, "/arguments/style").unwrap_or("friendly");
    let text = format!("Write a {style} greeting for {name}.");
    let message = json!({ "role": "user", "content": { "type": "text", "text": text } });
    Ok(json!({ "description": "A greeting", "messages": [message] }))
}

/// `completion/complete`.
pub(super) fn complete(params: &Value) -> Result<Value, RpcRefusal> {
    let at = |pointer| text_at(params, pointer).unwrap_or_default();
    let start = at("/argument/value");
    let values: Vec<String> = match (
        at("/ref/type"),
        at("/ref/name"),
        at("/ref/uri"),
        at("/argument/name"),
    ) {
        ("ref/prompt", "greet", _, "style") => {
            STYLES.iter().map(|style| (*style).to_owned()).collect()
        }
        ("ref/prompt", "greet", _, "name") => Vec::new(),
        ("ref/resource", _, SQUARES, "number") => {
            (1..=100).map(|number: u32| number.to_string()).collect()
        }
        _ => return Err(RpcRefusal::new(-32602, "nothing to complete there")),
    };
    let fit: Vec<_> = values
        .into_iter()
        .filter(|value| value.starts_with(start))
        .collect();
    Ok(json!({ "completion": { "total": fit.len(), "hasMore": false, "values": fit } }))
}
