//! Refusals of the modern era, and how faults look in it: HTTP status and JSON-RPC code.
//! Spec: SPEC M-05, M-07, M-13 to M-16, M-23; E-05; BRIDGING §3.10.

use std::borrow::Cow;

use axum::body::Body;
use bytes::Bytes;
use bytestring::ByteString;
use http::{Response, StatusCode};

use crate::call::Reply;
use crate::downstream::reply::{self, data_of, json_response, retry_after, with_request_id};
use crate::fault::{Fault, FaultKind};
use crate::protocol::error_codes::{
    HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY, PARSE_ERROR, UNSUPPORTED_VERSION,
};
use crate::protocol::{Revision, content, json, meta, rpc};

/// Characters of a client's text repeated in a refusal.
const REPEATED: usize = 64;

/// A refusal of a request before any call is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestRefusal {
    pub(super) status: StatusCode,
    pub(super) code: i64,
    message: Cow<'static, str>,
    data: Option<String>,
}

impl RequestRefusal {
    fn new(status: StatusCode, code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            data: None,
        }
    }

    /// A header is missing, repeated, malformed, or says something else than the body.
    pub(super) fn mismatch(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, HEADER_MISMATCH, message)
    }

    /// A key of `params._meta` is missing or not `kind`.
    pub(super) fn key(key: &str, kind: &str) -> Self {
        let message = format!("params._meta[\"{key}\"] must be {kind}");
        Self::new(StatusCode::BAD_REQUEST, INVALID_PARAMS, message)
    }

    /// The revision is not one of ours.
    pub(super) fn version(requested: &str) -> Self {
        let message = "unsupported protocol version";
        Self::new(StatusCode::BAD_REQUEST, UNSUPPORTED_VERSION, message)
            .with(reply::supported(&Revision::SERVED, requested))
    }

    /// Unknown method in this revision. The refusal of an `initialize` lists the served revisions.
    /// Spec: SPEC M-14, M-21.
    pub(super) fn method(method: &str, version: &str) -> Self {
        let message = format!("unknown method {:?}", bounded(method));
        let refusal = Self::new(StatusCode::NOT_FOUND, METHOD_NOT_FOUND, message);
        if method == "initialize" {
            return refusal.with(reply::supported(&Revision::SERVED, version));
        }
        refusal
    }

    /// The client has to declare more capabilities; `needed` is a `ClientCapabilities` object.
    pub(super) fn capability(message: &'static str, needed: &str) -> Self {
        let data = json::object([("requiredCapabilities", needed)]);
        Self::new(StatusCode::BAD_REQUEST, MISSING_CLIENT_CAPABILITY, message).with(data)
    }

    /// Parameters that cannot be served, found by the handler of the method (SPEC M-23).
    pub(super) fn params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::OK, INVALID_PARAMS, message)
    }

    fn with(mut self, data: String) -> Self {
        self.data = Some(data);
        self
    }

    /// The error as a reply.
    pub(super) fn reply(&self) -> Reply {
        let data = with_request_id(self.data.clone());
        Reply::Error(rpc::error(self.code, &self.message, data.as_deref()).into())
    }

    /// The answer to the request `id` (JSON text), or to what had none.
    pub(super) fn response(&self, id: Option<&str>) -> Response<Body> {
        let body = self.reply().into_response(id.unwrap_or("null"));
        json_response(self.status, body)
    }
}

/// A fault as the reply of the call of a tool: a result where the model can act on it; `server_info`,
/// JSON text, says whose that is.
pub(super) fn of_tool_fault(
    fault: &Fault,
    server_info: impl FnOnce() -> ByteString,
) -> (StatusCode, Reply) {
    if reply::is_tool_error(fault.kind) {
        let result = tool_error(fault, &server_info());
        return (StatusCode::OK, Reply::Result(result));
    }
    of_fault(fault)
}

/// A fault as the reply of a call, and its status where no stream has begun.
pub(super) fn of_fault(fault: &Fault) -> (StatusCode, Reply) {
    let (status, code) = status_and_code(fault.kind);
    let error = rpc::error(code, &fault.public, data_of(fault).as_deref());
    (status, Reply::Error(error.into()))
}

/// The posted message is not a request. Spec: SPEC M-03.
pub(super) fn not_a_request() -> Fault {
    let text = "only requests and notifications are posted in this revision";
    Fault::downstream(FaultKind::InvalidRequest, text)
}

/// The JSON-RPC code of a fault.
pub(super) fn code_of(kind: FaultKind) -> i64 {
    status_and_code(kind).1
}

fn status_and_code(kind: FaultKind) -> (StatusCode, i64) {
    match kind {
        FaultKind::Parse => (StatusCode::BAD_REQUEST, PARSE_ERROR),
        FaultKind::InvalidRequest => (StatusCode::BAD_REQUEST, INVALID_REQUEST),
        FaultKind::HeaderMismatch => (StatusCode::BAD_REQUEST, HEADER_MISMATCH),
        FaultKind::UnsupportedVersion => (StatusCode::BAD_REQUEST, UNSUPPORTED_VERSION),
        FaultKind::UnknownMethod => (StatusCode::NOT_FOUND, METHOD_NOT_FOUND),
        FaultKind::InvalidParams | FaultKind::ResourceNotFound => (StatusCode::OK, INVALID_PARAMS),
        FaultKind::CallerBusy => (StatusCode::TOO_MANY_REQUESTS, INTERNAL_ERROR),
        // Retryable: if the implicit session (`Relay::visit`) has just ended, the next request opens another.
        FaultKind::GatewayBusy | FaultKind::UnknownSession | FaultKind::MissingSession => {
            (StatusCode::SERVICE_UNAVAILABLE, INTERNAL_ERROR)
        }
        FaultKind::UpstreamUnavailable
        | FaultKind::UpstreamLost
        | FaultKind::UpstreamTimeout
        | FaultKind::UpstreamInvalid
        | FaultKind::ReplyDropped
        | FaultKind::CannotAsk
        | FaultKind::Cancelled
        | FaultKind::Internal => (StatusCode::OK, INTERNAL_ERROR),
    }
}

/// The answer to a request that a fault ended before it became a call.
pub(super) fn fault_response(fault: &Fault, id: Option<&str>) -> Response<Body> {
    let (status, reply) = of_fault(fault);
    let mut response = json_response(status, reply.into_response(id.unwrap_or("null")));
    retry_after(&mut response, fault.retry);
    response
}

/// The status of a reply, where no stream has begun. Spec: SPEC M-14, M-16, M-23.
pub(super) fn status_of(reply: &Reply) -> StatusCode {
    match reply.error_code() {
        Some(METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(
            HEADER_MISMATCH
            | MISSING_CLIENT_CAPABILITY
            | UNSUPPORTED_VERSION
            | INVALID_REQUEST
            | PARSE_ERROR,
        ) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// A tool result with the fault's public text, for the model. Spec: SPEC E-05, M-40, M-41.
fn tool_error(fault: &Fault, server_info: &str) -> Bytes {
    json::object([
        ("resultType", "\"complete\""),
        ("content", &*content::text_content(&fault.public)),
        ("isError", "true"),
        ("_meta", &*json::object([(meta::SERVER_INFO, server_info)])),
    ])
    .into()
}

fn bounded(text: &str) -> String {
    text.chars().take(REPEATED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relayed(code: i64) -> StatusCode {
        status_of(&Reply::Error(rpc::error(code, "x", None).into()))
    }

    // SPEC M-23.
    #[test]
    fn what_an_upstream_answers_decides_the_status() {
        assert_eq!(relayed(METHOD_NOT_FOUND), StatusCode::NOT_FOUND);
        assert_eq!(relayed(MISSING_CLIENT_CAPABILITY), StatusCode::BAD_REQUEST);
        assert_eq!(relayed(INVALID_PARAMS), StatusCode::OK);
        assert_eq!(relayed(INTERNAL_ERROR), StatusCode::OK);
        assert_eq!(status_of(&Reply::Result("{}".into())), StatusCode::OK);
    }

    // SPEC C-51, M-16.
    #[test]
    fn a_missing_resource_is_a_matter_of_parameters() {
        let fault = Fault::downstream(FaultKind::ResourceNotFound, "none")
            .with_data(r#"{"uri":"a:b"}"#.to_owned());
        let (status, reply) = of_fault(&fault);
        assert_eq!(
            (status, reply.error_code()),
            (StatusCode::OK, Some(INVALID_PARAMS))
        );
        assert!(reply.error().unwrap().contains(r#""data":{"uri":"a:b"}"#));
    }

    // SPEC E-05, M-40, M-41.
    #[test]
    fn a_failed_tool_call_is_told_to_the_model_in_a_whole_result() {
        let fault = Fault::upstream(FaultKind::UpstreamLost, "gone");
        let server = || ByteString::from_static(r#"{"name":"s"}"#);
        let (_, reply) = of_tool_fault(&fault, server);
        let result: serde_json::Value = serde_json::from_str(reply.result().unwrap()).unwrap();
        assert_eq!(
            (&result["isError"], &result["resultType"]),
            (&true.into(), &"complete".into())
        );
        assert_eq!(
            result["_meta"],
            serde_json::json!({"io.modelcontextprotocol/serverInfo": {"name": "s"}})
        );
    }
}
