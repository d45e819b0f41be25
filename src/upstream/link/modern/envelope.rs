//! Headers and `_meta` of outgoing modern requests: built for this hop from the outgoing body, never copied from the
//! client's. Spec: SPEC U-08, M-05…M-09, M-32, M-34, M-38; BRIDGING §3.9.

use std::sync::LazyLock;

use bytes::Bytes;
use http::HeaderValue;

use super::OutgoingCall;
use crate::call::Call;
use crate::protocol::header_value;
use crate::protocol::headers::{
    MCP_METHOD, MCP_NAME, MCP_PARAM_PREFIX, MCP_PROTOCOL_VERSION, TRACEPARENT, TRACESTATE,
};
use crate::protocol::json::{self, JsonError};
use crate::protocol::param_headers::ParamHeaders;
use crate::protocol::{Message, Revision, meta, methods};
use crate::telemetry::trace::{TraceContext, TraceParent};
use crate::upstream::OWN_INFO_TEXT;
use crate::upstream::carrier::http::message_headers::MessageHeaders;

/// Most unknown headers of the client that are passed on.
const MAX_UNKNOWN: usize = 64;

/// Approximate bytes of an outgoing `_meta` besides client info and capabilities.
const OWN_META: usize = 512;
/// Keys of `_meta` that each hop sets or removes itself, besides the reserved keys.
const OF_ONE_HOP: [&str; 5] = [
    meta::BAGGAGE,
    meta::GATEWAY,
    meta::PROGRESS_TOKEN,
    meta::TRACEPARENT,
    meta::TRACESTATE,
];

/// Constant parts of every outgoing `_meta`: before, between and after client info and capabilities.
static LASTING: LazyLock<[String; 3]> = LazyLock::new(|| {
    let mut parts = [
        format!(
            r#"{{"{}":"{}""#,
            meta::PROTOCOL_VERSION,
            Revision::V2026_07_28.as_str()
        ),
        String::new(),
        String::new(),
    ];
    let [opening, between, after] = &mut parts;
    put(opening, meta::CLIENT_INFO, "");
    put(between, meta::CLIENT_CAPABILITIES, "");
    put(after, meta::GATEWAY, OWN_INFO_TEXT);
    parts
});

/// The client's answers and the upstream's state, for a retry.
#[derive(Debug, Clone, Default)]
pub(super) struct RetryInputs {
    /// JSON text of `inputResponses`.
    pub(super) responses: Option<String>,
    /// JSON text of `requestState`, byte for byte (SPEC M-63).
    pub(super) state: Option<String>,
}

/// Trace context of an outgoing request as text, for headers and body.
#[derive(Debug)]
pub(super) struct OutgoingTrace<'a> {
    parent: Option<&'a str>,
    state: Option<&'a str>,
}

impl<'a> OutgoingTrace<'a> {
    /// The trace context of `trace`, with `parent` as its `traceparent`.
    pub(super) fn of(trace: &'a TraceContext, parent: Option<&'a TraceParent>) -> Self {
        Self {
            parent: parent.map(TraceParent::as_str),
            state: trace.tracestate(),
        }
    }
}

/// The outgoing bytes of `request`, with the gateway's `id`.
pub(super) fn body(
    id: u64,
    request: &Message,
    call: &Call,
    client_info: &str,
    inputs: &RetryInputs,
    place: &OutgoingTrace<'_>,
) -> Bytes {
    let mut digits = itoa::Buffer::new();
    let own = digits.format(id);
    let added = OWN_META + client_info.len() + call.link.capabilities().text().len();
    let put_meta = |out: &mut String| {
        put_own_meta(out, own, request, call, client_info, place);
    };
    let brought = [
        ("inputResponses", inputs.responses.as_deref()),
        ("requestState", inputs.state.as_deref()),
    ];
    // The common case, a request with `_meta` and without inputs for a retry: rewritten in one pass.
    let is_first = brought
        .iter()
        .all(|(name, value)| value.is_none() && request.param(name).is_none());
    if is_first && let Some(bytes) = request.with_id_and_meta(own, added, put_meta) {
        return bytes;
    }
    let mut meta = String::with_capacity(added);
    put_meta(&mut meta);
    let mut edit = request.edit().id(own).param("_meta", meta);
    for (name, value) in brought {
        edit = match value {
            Some(value) => edit.param(name, value),
            None if request.param(name).is_some() => edit.remove_param(name),
            None => edit,
        };
    }
    edit.finish()
}

/// Appends the JSON text of the outgoing `_meta`: the members of this hop, then the client's members that are valid
/// beyond one hop.
fn put_own_meta(
    out: &mut String,
    id: &str,
    request: &Message,
    call: &Call,
    client_info: &str,
    place: &OutgoingTrace<'_>,
) {
    let capabilities = call.link.capabilities().text();
    let [opening, between, after] = &*LASTING;
    for part in [opening, client_info, between, capabilities, after] {
        out.push_str(part);
    }
    if let Some(level) = call.link.level() {
        put_text(out, meta::LOG_LEVEL, level.as_str());
    }
    if meta::progress_token(request).is_some() {
        put(out, meta::PROGRESS_TOKEN, id);
    }
    // Replaces the client's own value, which must not stay the parent. Spec: SPEC C-98
    if let Some(parent) = place.parent {
        // No escapes: hexadecimal digits and dashes.
        put(out, meta::TRACEPARENT, "\"");
        out.push_str(parent);
        out.push('"');
    }
    if let Some(state) = place.state {
        put_text(out, meta::TRACESTATE, state);
    }
    // Reserved keys are valid for one hop only.
    let goes_on = |key: &str| !(key.starts_with(meta::RESERVED) || OF_ONE_HOP.contains(&key));
    for (key, value) in request.metas(goes_on) {
        out.push(',');
        out.push_str(key);
        out.push(':');
        out.push_str(value);
    }
    out.push('}');
}

/// Appends a member whose key needs no escaping; `value` is JSON text.
fn put(out: &mut String, key: &str, value: &str) {
    out.push_str(",\"");
    out.push_str(key);
    out.push_str("\":");
    out.push_str(value);
}

/// [`put`] with a string value.
fn put_text(out: &mut String, key: &str, text: &str) {
    put(out, key, "");
    json::quote_into(out, text);
}

/// The headers of a request. `params` are the headers that its tool declares, if known.
///
/// # Errors
/// [`JsonError`] when the mirrored arguments are ambiguous.
pub(super) fn headers(
    outgoing: &OutgoingCall<'_>,
    params: Option<&ParamHeaders>,
    place: &OutgoingTrace<'_>,
) -> Result<MessageHeaders, JsonError> {
    let method = outgoing.method();
    let method_value = match methods::lookup(method) {
        Some(known) => Some(HeaderValue::from_static(known.name)),
        None => HeaderValue::from_str(method).ok(),
    };
    let value = |text: &str| HeaderValue::from_str(text).ok();
    let version = HeaderValue::from_static(Revision::V2026_07_28.as_str());
    let name = outgoing.name.as_deref().map(header_value::encode);
    let headers = MessageHeaders::default()
        .with(MCP_PROTOCOL_VERSION, Some(version))
        .with(TRACEPARENT, place.parent.and_then(value))
        .with(TRACESTATE, place.state.and_then(value))
        .with(MCP_METHOD, method_value)
        .with(MCP_NAME, name)
        .called_by(outgoing.call.principal.access());
    // Headers that a tool declares are computed again; the gateway's own requests have none. Spec: SPEC M-34
    let known = |name| params.is_some_and(|params| params.recognizes(name));
    let is_clients = outgoing.call.message.method() == Some(method);
    let given = outgoing
        .call
        .param_headers
        .as_deref()
        .filter(|_| is_clients);
    let given = given.unwrap_or_default().iter();
    let unknown =
        given.filter(|(name, _)| name.as_str().starts_with(MCP_PARAM_PREFIX) && !known(name));
    let unknown = unknown
        .take(MAX_UNKNOWN)
        .filter(|(_, value)| header_value::decode(value).is_some())
        .map(|(name, value)| (name.clone(), value.clone()));
    let headers = headers.and(unknown);
    match params {
        Some(params) if !params.is_empty() => {
            Ok(headers.and(params.write(outgoing.request.param("arguments"))?))
        }
        _ => Ok(headers),
    }
}
