//! What every modern request carries of its own: made on this hop from the outgoing body, never
//! copied from the client's. Spec: SPEC U-08, M-05…M-09, M-32, M-34, M-38; BRIDGING §3.9.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use crate::call::Call;
use crate::protocol::header_value;
use crate::protocol::headers::{MCP_METHOD, MCP_NAME, MCP_PARAM_PREFIX};
use crate::protocol::json::{self, JsonError};
use crate::protocol::param_headers::ParamHeaders;
use crate::protocol::{Message, Revision, meta};
use crate::telemetry::trace::TraceContext;
use crate::upstream::OWN_INFO;
use crate::upstream::http::client::MessageHeaders;

/// Headers of the client's that we do not know and pass on, at most.
const MAX_UNKNOWN: usize = 64;

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
    let own = id.to_string();
    let version = json::quote(Revision::V2026_07_28.as_str());
    let capabilities = String::from_utf8_lossy(call.link.capabilities().raw());
    let mut edit = request.edit().id(own.as_str());
    // What is reserved belongs to one hop, and this is another.
    for key in reserved(request) {
        edit = edit.remove_meta(key);
    }
    edit = edit
        .remove_meta(meta::BAGGAGE)
        .meta(meta::PROTOCOL_VERSION, version)
        .meta(meta::CLIENT_INFO, client_info)
        .meta(meta::CLIENT_CAPABILITIES, capabilities)
        .meta(
            meta::GATEWAY,
            String::from_utf8_lossy(&OWN_INFO).into_owned(),
        );
    if let Some(level) = call.link.level() {
        edit = edit.meta(meta::LOG_LEVEL, json::quote(level.as_str()));
    }
    if meta::progress_token(request).is_some() {
        edit = edit.meta(meta::PROGRESS_TOKEN, own.as_str());
    } else if request.meta(meta::PROGRESS_TOKEN).is_some() {
        edit = edit.remove_meta(meta::PROGRESS_TOKEN);
    }
    // Spec: SPEC C-98; what the client put there must not stay the parent.
    edit = match trace.traceparent() {
        Some(parent) => edit.meta(meta::TRACEPARENT, json::quote(parent.as_str())),
        None => edit.remove_meta(meta::TRACEPARENT),
    };
    edit = match trace.tracestate() {
        Some(state) => edit.meta(meta::TRACESTATE, json::quote(state)),
        None => edit.remove_meta(meta::TRACESTATE),
    };
    edit = match &inputs.responses {
        Some(responses) => edit.param("inputResponses", responses.as_str()),
        None => edit.remove_param("inputResponses"),
    };
    edit = match &inputs.state {
        Some(state) => edit.param("requestState", state.as_str()),
        None => edit.remove_param("requestState"),
    };
    edit.finish()
}

/// The reserved `_meta` keys of a request.
fn reserved(request: &Message) -> Vec<String> {
    let text = request.param("_meta").unwrap_or("{}");
    let members = json::members(text).unwrap_or_default();
    members
        .into_iter()
        .filter(|(name, _)| name.starts_with(meta::RESERVED))
        .map(|(name, _)| name.into_owned())
        .collect()
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
    let mut mirrors = HeaderMap::new();
    let method = request.method().unwrap_or_default();
    if let Ok(value) = HeaderValue::from_str(method) {
        mirrors.insert(MCP_METHOD, value);
    }
    if let Some(name) = name_param(method).and_then(|param| request.param_str(param)) {
        mirrors.insert(MCP_NAME, header_value::encode(&name));
    }
    if method == "tools/call" {
        // Spec: SPEC M-34; those that the tool asks for are made anew.
        let known = |name| params.is_some_and(|params| params.recognizes(name));
        let given = call.param_headers.iter().flat_map(|given| given.iter());
        let unknown =
            given.filter(|(name, _)| name.as_str().starts_with(MCP_PARAM_PREFIX) && !known(name));
        for (name, value) in unknown.take(MAX_UNKNOWN) {
            if header_value::decode(value).is_some() {
                mirrors.append(name, value.clone());
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
