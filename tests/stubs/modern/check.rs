//! Checks of a strict server before a request runs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{CAPABILITIES, PROTOCOL_VERSION, REVISION};
use crate::rpc::error_reply;

/// A refusal: status and body.
type Refusal = (u16, String);

/// Checks a request; `headers` are absent on a pipe.
pub(crate) fn check(message: &Value, headers: Option<&[(String, String)]>) -> Result<(), Refusal> {
    let id = message["id"].to_string();
    let refuse = |code: i64, text: &str| Err((400, error_reply(&id, code, text)));
    let meta = &message["params"]["_meta"];
    let method = message["method"].as_str().unwrap_or_default();
    let Some(version) = meta.get(PROTOCOL_VERSION).and_then(Value::as_str) else {
        // An older client: the refusal lists the revisions served.
        return if method == "initialize" || headers.is_none() {
            Err((400, unsupported(&message["id"], "")))
        } else {
            refuse(-32020, "headers of the modern era are missing")
        };
    };
    if !meta.get(CAPABILITIES).is_some_and(Value::is_object) {
        return refuse(-32602, "clientCapabilities are missing");
    }
    if let Some(headers) = headers {
        let one = |name: &str| {
            let mut values = headers.iter().filter(|(known, _)| known == name);
            match (values.next(), values.next()) {
                (Some((_, value)), None) => Ok(Some(decode(value))),
                (None, None) => Ok(None),
                _ => Err(()),
            }
        };
        let expect = |name: &str, value: &str| one(name) == Ok(Some(value.to_owned()));
        if !expect("mcp-protocol-version", version) {
            return refuse(-32020, "MCP-Protocol-Version");
        }
        if !expect("mcp-method", method) {
            return refuse(-32020, "Mcp-Method");
        }
        let params = &message["params"];
        let name = match method {
            "tools/call" | "prompts/get" => params["name"].as_str(),
            "resources/read" => params["uri"].as_str(),
            "tasks/get" | "tasks/update" | "tasks/cancel" => params["taskId"].as_str(),
            _ => None,
        };
        if one("mcp-name") != Ok(name.map(str::to_owned)) {
            return refuse(-32020, "Mcp-Name");
        }
        for (header, value) in mirrored(params) {
            if one(header) != Ok(value) {
                return refuse(-32020, header);
            }
        }
    }
    if version == REVISION {
        Ok(())
    } else {
        Err((400, unsupported(&message["id"], version)))
    }
}

/// The parameter headers that a call needs.
fn mirrored(params: &Value) -> Vec<(&'static str, Option<String>)> {
    let arguments = &params["arguments"];
    let text = |value: &Value| match value {
        Value::Null | Value::Array(_) | Value::Object(_) => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    match params["name"].as_str() {
        Some("headered") => vec![
            ("mcp-param-region", text(&arguments["region"])),
            ("mcp-param-depth", text(&arguments["deep"]["depth"])),
            ("mcp-param-verbose", text(&arguments["verbose"])),
        ],
        Some("shifting") if params["arguments"]["strict"] == true => {
            vec![("mcp-param-shift", text(&arguments["shift"]))]
        }
        _ => Vec::new(),
    }
}

/// The tools with header parameters; after `shifted`, one more parameter requires a header.
pub(super) fn tools(shifted: bool) -> Vec<Value> {
    let tool = |name: &str, properties: Value| json!({"name": name, "inputSchema": {"type": "object", "properties": properties}});
    let mut shift = json!({"type": "string"});
    if shifted {
        shift["x-mcp-header"] = "Shift".into();
    }
    vec![
        tool(
            "headered",
            json!({
                "region": {"type": "string", "x-mcp-header": "Region"},
                "verbose": {"type": "boolean", "x-mcp-header": "Verbose"},
                "deep": {"type": "object", "properties": {
                    "depth": {"type": "integer", "x-mcp-header": "Depth"}}},
            }),
        ),
        tool("shifting", json!({ "shift": shift })),
        tool("shift", json!({})),
        tool("end_listens", json!({})),
        tool("odd_result", json!({})),
        tool("server_request", json!({})),
        tool("break_off", json!({})),
    ]
}

fn unsupported(id: &Value, requested: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id,
           "error": {"code": -32022, "message": "unsupported protocol version",
                     "data": {"supported": [REVISION], "requested": requested}}})
    .to_string()
}

fn decode(value: &str) -> String {
    let marked = value
        .strip_prefix("=?base64?")
        .and_then(|rest| rest.strip_suffix("?="));
    let decoded = marked.and_then(|text| String::from_utf8(STANDARD.decode(text).ok()?).ok());
    decoded.unwrap_or_else(|| value.to_owned())
}
