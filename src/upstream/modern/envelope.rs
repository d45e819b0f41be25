//! What every modern request carries of its own: made on this hop from the outgoing body, never
//! copied from the client's. Spec: SPEC U-08, M-05…M-09, M-32, M-34, M-38; BRIDGING §3.9.

use bytes::Bytes;
use http::HeaderValue;

use crate::call::Call;
use crate::protocol::header_value;
use crate::protocol::headers::{MCP_METHOD, MCP_NAME, MCP_PARAM_PREFIX};
use crate::protocol::json::{self, JsonError};
use crate::protocol::param_headers::ParamHeaders;
use crate::protocol::{Message, Revision, meta, methods};
use crate::telemetry::trace::TraceContext;
use crate::upstream::OWN_INFO;
use crate::upstream::http::client::MessageHeaders;

/// Headers of the client's that we do not know and pass on, at most.
const MAX_UNKNOWN: usize = 64;

/// Bytes of an outgoing `_meta` besides what the client says of itself, about.
const OWN_META: usize = 512;
/// Keys of `_meta` that are made anew on each hop or end with it, besides the reserved ones.
const OF_ONE_HOP: [&str; 5] = [
    meta::BAGGAGE,
    meta::GATEWAY,
    meta::PROGRESS_TOKEN,
    meta::TRACEPARENT,
    meta::TRACESTATE,
];

/// What the client answered, and the upstream's state, both for a retry.
#[derive(Debug, Clone, Default)]
pub(super) struct Inputs {
    /// JSON text of `inputResponses`.
    pub(super) responses: Option<String>,
    /// JSON text of `requestState`, exactly as it came (SPEC M-63).
    pub(super) state: Option<String>,
}

/// The outgoing bytes of `request` under our `id`.
pub(super) fn body(
    id: u64,
    request: &Message,
    call: &Call,
    client_info: &str,
    inputs: &Inputs,
    trace: &TraceContext,
) -> Bytes {
    let mut digits = itoa::Buffer::new();
    let own = digits.format(id);
    let meta = own_meta(own, request, call, client_info, trace);
    let mut edit = request.edit().id(own).param("_meta", meta);
    let brought = [
        ("inputResponses", &inputs.responses),
        ("requestState", &inputs.state),
    ];
    for (name, value) in brought {
        edit = match value {
            Some(value) => edit.param(name, value.as_str()),
            None if request.param(name).is_some() => edit.remove_param(name),
            None => edit,
        };
    }
    edit.finish()
}

/// JSON text of the outgoing `_meta`: what this hop says of itself, then what the client put there
/// beyond its own hop.
fn own_meta(
    id: &str,
    request: &Message,
    call: &Call,
    client_info: &str,
    trace: &TraceContext,
) -> String {
    let capabilities = utf8(call.link.capabilities().raw());
    let given = request.param("_meta").map_or(0, str::len);
    let mut out = String::with_capacity(OWN_META + given + client_info.len() + capabilities.len());
    out.push_str("{\"");
    out.push_str(meta::PROTOCOL_VERSION);
    out.push_str("\":\"");
    out.push_str(Revision::V2026_07_28.as_str());
    out.push('"');
    put(&mut out, meta::CLIENT_INFO, client_info);
    put(&mut out, meta::CLIENT_CAPABILITIES, capabilities);
    put(&mut out, meta::GATEWAY, utf8(&OWN_INFO));
    if let Some(level) = call.link.level() {
        put_text(&mut out, meta::LOG_LEVEL, level.as_str());
    }
    if meta::progress_token(request).is_some() {
        put(&mut out, meta::PROGRESS_TOKEN, id);
    }
    // Spec: SPEC C-98; what the client put there must not stay the parent.
    if let Some(parent) = trace.traceparent() {
        put_text(&mut out, meta::TRACEPARENT, parent.as_str());
    }
    if let Some(state) = trace.tracestate() {
        put_text(&mut out, meta::TRACESTATE, state);
    }
    for (key, quoted, value) in request.metas() {
        // What is reserved belongs to one hop, and this is another.
        if !(key.starts_with(meta::RESERVED) || OF_ONE_HOP.contains(&key)) {
            out.push(',');
            out.push_str(quoted);
            out.push(':');
            out.push_str(value);
        }
    }
    out.push('}');
    out
}

/// JSON text that is ours, or was read before.
fn utf8(text: &[u8]) -> &str {
    std::str::from_utf8(text).unwrap_or("{}")
}

/// Appends a member whose key needs no escapes; `value` is JSON text.
fn put(out: &mut String, key: &str, value: &str) {
    out.push_str(",\"");
    out.push_str(key);
    out.push_str("\":");
    out.push_str(value);
}

/// The same with the text of a string.
fn put_text(out: &mut String, key: &str, text: &str) {
    put(out, key, "");
    json::quote_into(out, text);
}

/// The headers that go with `request`. `params` are those that its tool asks for, if it is known.
///
/// # Errors
/// When the arguments that they mirror are ambiguous.
pub(super) fn headers(
    request: &Message,
    call: &Call,
    params: Option<&ParamHeaders>,
    trace: &TraceContext,
) -> Result<MessageHeaders, JsonError> {
    let mut mirrors = Vec::with_capacity(2);
    let method = request.method().unwrap_or_default();
    let value = match methods::lookup(method) {
        Some(known) => Some(HeaderValue::from_static(known.name)),
        None => HeaderValue::from_str(method).ok(),
    };
    mirrors.extend(value.map(|value| (MCP_METHOD, value)));
    if let Some(name) = name_param(method).and_then(|param| request.param_str(param)) {
        mirrors.push((MCP_NAME, header_value::encode(&name)));
    }
    if method == "tools/call" {
        // Spec: SPEC M-34; those that the tool asks for are made anew.
        let known = |name| params.is_some_and(|params| params.recognizes(name));
        let given = call.param_headers.iter().flat_map(|given| given.iter());
        let unknown =
            given.filter(|(name, _)| name.as_str().starts_with(MCP_PARAM_PREFIX) && !known(name));
        for (name, value) in unknown.take(MAX_UNKNOWN) {
            if header_value::decode(value).is_some() {
                mirrors.push((name.clone(), value.clone()));
            }
        }
        if let Some(params) = params {
            mirrors.extend(params.write(request.param("arguments"))?);
        }
    }
    let (parent, state) = (trace.traceparent(), trace.tracestate());
    Ok(MessageHeaders {
        version: Some(HeaderValue::from_static(Revision::V2026_07_28.as_str())),
        traceparent: parent.and_then(|text| HeaderValue::from_str(text.as_str()).ok()),
        tracestate: state.and_then(|text| HeaderValue::from_str(text).ok()),
        mirrors,
        ..MessageHeaders::default()
    })
}

/// The parameter that `Mcp-Name` mirrors. Spec: SPEC M-09, M-10.
fn name_param(method: &str) -> Option<&'static str> {
    Some(match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return None,
    })
}
