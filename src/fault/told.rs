//! A fault as a client of the legacy era is told of it: one table from faults to JSON-RPC codes.
//! Spec: SPEC E-01…E-05; BRIDGING §3.10.

use std::borrow::Cow;
use std::iter::once;

use bytes::Bytes;

use super::{Fault, FaultKind, FaultSide, RetryHint};
use crate::protocol::error_codes::SESSION_NOT_FOUND;
use crate::protocol::json::{self, ObjectWriter};
use crate::protocol::{content, rpc};
use crate::telemetry::request_tag;

/// JSON text of the error object for a legacy client.
#[must_use]
pub fn error_object(fault: &Fault) -> Bytes {
    let data = data_of(fault);
    rpc::error(legacy_code(fault.kind), &fault.public, data.as_deref()).into()
}

/// JSON text of a tool result that tells the model what went wrong (SPEC E-05).
#[must_use]
pub fn tool_error(fault: &Fault) -> Bytes {
    content::tool_error(&fault.public).into()
}

/// Whether a failed `tools/call` is told as a tool result: what a model can act on.
#[must_use]
pub fn is_tool_error(kind: FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::UpstreamUnavailable
            | FaultKind::UpstreamLost
            | FaultKind::UpstreamTimeout
            | FaultKind::ReplyDropped
            | FaultKind::CannotAsk
    )
}

/// The code of a fault in a legacy client's error object.
#[must_use]
pub fn legacy_code(kind: FaultKind) -> i64 {
    match kind {
        FaultKind::Parse => -32700,
        FaultKind::InvalidRequest | FaultKind::MissingSession => -32600,
        FaultKind::UnknownSession => SESSION_NOT_FOUND,
        FaultKind::UnknownMethod => -32601,
        FaultKind::InvalidParams => -32602,
        FaultKind::ResourceNotFound => -32002,
        FaultKind::HeaderMismatch => -32020,
        FaultKind::UnsupportedVersion => -32022,
        FaultKind::CallerBusy
        | FaultKind::GatewayBusy
        | FaultKind::UpstreamUnavailable
        | FaultKind::UpstreamLost
        | FaultKind::UpstreamTimeout
        | FaultKind::UpstreamInvalid
        | FaultKind::ReplyDropped
        | FaultKind::CannotAsk
        | FaultKind::Cancelled
        | FaultKind::Internal => -32603,
    }
}

/// JSON text of `error.data`, with the id of the request that is being served; nothing where there is none,
/// and the fault is the client's own and says no more.
#[must_use]
pub fn data_of(fault: &Fault) -> Option<String> {
    with_request_id(said_of(fault))
}

/// JSON text of `error.data`, an object of ours or nothing, with the id of the request that is being served.
#[must_use]
pub fn with_request_id(data: Option<String>) -> Option<String> {
    let Some(tag) = request_tag::current() else {
        return data;
    };
    match json::members(data.as_deref().unwrap_or("{}")) {
        Ok(members) => {
            let id = json::quote(tag.as_str());
            let id = (Cow::Borrowed("requestId"), &*id);
            Some(json::object(once(id).chain(members)))
        }
        // Not an object of ours.
        Err(_) => data,
    }
}

fn said_of(fault: &Fault) -> Option<String> {
    if fault.data.is_some() {
        return fault.data.clone();
    }
    let side = match fault.side {
        FaultSide::Downstream => return None,
        FaultSide::Upstream => "upstream",
        FaultSide::Gateway => "gateway",
    };
    let mut said = ObjectWriter::default();
    said.member("side", &json::quote(side));
    match fault.retry {
        RetryHint::After(after) => said.member("retryAfterMs", &after.as_millis().to_string()),
        RetryHint::Same => said.member("retryAfterMs", "0"),
        RetryHint::Never => {}
    }
    Some(said.finish())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::telemetry::request_tag::RequestTag;

    #[rstest]
    #[case::of_the_caller(None, json!({}))]
    #[case::of_ours(Some(r#"{"maxMessages":3}"#), json!({"maxMessages": 3}))]
    #[case::empty(Some("{}"), json!({}))]
    fn an_error_names_its_request(#[case] data: Option<&str>, #[case] mut expected: Value) {
        let mut fault = Fault::downstream(FaultKind::InvalidParams, "no");
        fault.data = data.map(str::to_owned);
        let tag = RequestTag::random();
        let error = tag.within(|| error_object(&fault));
        let error: Value = serde_json::from_slice(&error).unwrap();
        expected["requestId"] = tag.as_str().into();
        assert_eq!(error["data"], expected);
    }

    #[test]
    fn without_a_request_nothing_is_added() {
        let fault = Fault::downstream(FaultKind::InvalidParams, "no");
        assert_eq!(data_of(&fault), None);
        assert_eq!(
            with_request_id(Some("[1]".to_owned())).as_deref(),
            Some("[1]")
        );
    }
}
