//! The error of a task that failed, in the state of the task. Spec: BRIDGING §3.10; SPEC E-01, E-04, K-13.

use crate::call::{Call, Reply};
use crate::protocol::error_codes::INTERNAL_ERROR;
use crate::protocol::{Message, json, meta, rpc};
use crate::translate::project::{self, ErrorSubject, ProjectedError, RevisionProjection};

/// The error of a task of `upstream` as the client of `call` gets it: as a plain call of the tool would have failed. A
/// result stays unchanged.
pub(super) fn shown(
    came: Reply,
    call: &Call,
    upstream: &str,
    projection: RevisionProjection,
) -> Reply {
    let message = match came {
        Reply::Relayed(message) if message.error().is_some() => message,
        came => return came,
    };
    let message = project::readable_error(message);
    let code = message.error_code().unwrap_or(INTERNAL_ERROR);
    let declared = call.message.meta(meta::CLIENT_CAPABILITIES);
    let declared = declared.unwrap_or_else(|| call.link.capabilities().text());
    let asked = ErrorSubject {
        method: "tools/call",
        name: None,
        upstream,
        declared: declared.as_bytes(),
    };
    match project::error(projection, message, code, &asked) {
        ProjectedError::Relayed(message) => Reply::Relayed(message),
        ProjectedError::Written(error) => Reply::Error(error),
        ProjectedError::ToolError(text) => {
            Reply::Error(rpc::error(INTERNAL_ERROR, &text, None).into())
        }
    }
}

/// The same for the JSON text of an error that stands in the state of a task; `None` where it is not changed.
pub(super) fn shown_text(
    error: &str,
    call: &Call,
    upstream: &str,
    projection: RevisionProjection,
) -> Option<String> {
    let text = rpc::response(0, "error", error);
    let message = Message::parse(text.into(), json::MAX_DEPTH).ok()?;
    let shown = shown(Reply::Relayed(message), call, upstream, projection);
    let shown = shown.error().filter(|shown| *shown != error)?;
    Some(shown.to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::protocol::Revision;
    use crate::tasks::wait::tests::call;

    // SPEC E-01, E-04: of the reserved range only what the client's revision defines, and nothing about one hop.
    #[rstest]
    #[case(
        r#"{"code":-32042,"message":"m","data":{"elicitations":[]}}"#,
        Some("-32021")
    )]
    #[case(r#"{"code":-32020,"message":"m"}"#, Some("-32603"))]
    #[case(r#"{"code":-32002,"message":"m"}"#, Some("-32602"))]
    #[case(r#"{"code":7.5,"message":"m"}"#, Some("-32603"))]
    #[case(r#"{"code":-32000,"message":"m"}"#, None)]
    fn error_of_a_task_is_that_of_a_call(#[case] error: &str, #[case] code: Option<&str>) {
        let call = call();
        for from in [Revision::V2025_11_25, Revision::V2026_07_28] {
            let projection = RevisionProjection::new(from, call.revision);
            let shown = shown_text(error, &call, "up", projection);
            let shown = shown
                .as_deref()
                .and_then(|shown| json::member(shown, "code"));
            assert_eq!(shown, code, "{from}");
        }
    }
}
