//! Evidence that an upstream does not speak the era in which it is addressed: errors about the form of a request,
//! before anything has run. Evidence only causes a probe, once in a few seconds at most (`EraCell::may_reconsider`), so
//! that a false alarm costs a probe and nothing else.
//! Spec: SPEC U-07, U-09, E-04.

use crate::call::Reply;
use crate::protocol::error_codes::{
    HEADER_MISMATCH, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, UNSUPPORTED_VERSION,
};
use crate::protocol::{Era, Message};
use crate::upstream::error::LinkError;

/// Codes of errors whose messages are searched: those of the SDKs' transports (-32000 to -32002) and of invalid
/// requests.
const CODES: [i64; 5] = [-32000, -32001, -32002, INVALID_REQUEST, INVALID_PARAMS];
/// Words of legacy servers about a modern request, which lacks the handshake. The last text is all that the Python SDK
/// says before `initialize`.
const BEFORE_HANDSHAKE: [&str; 3] = ["initializ", "session id", "invalid request parameters"];
/// Words of modern servers about a legacy request, which lacks members that every modern request has.
const WITHOUT_META: [&str; 4] = [
    "_meta",
    "protocolversion",
    "protocol version",
    "io.modelcontextprotocol/",
];
/// How much of an error is searched, bytes.
const LOOKED_AT: usize = 1024;

/// Whether an outcome contradicts the era `was`.
pub(super) fn is_in(was: Era, is_piped: bool, outcome: &Result<Reply, LinkError>) -> bool {
    match outcome {
        Err(LinkError::Handshake(_)) => true,
        // No JSON-RPC answer. A lost session has an error of its own, `SessionGone`.
        Err(LinkError::Status(status)) => {
            !is_piped && matches!(status, 400 | 404..=406 | 410 | 415 | 422)
        }
        Err(_) | Ok(Reply::Result(_) | Reply::Error(_)) => false,
        Ok(Reply::Relayed(reply)) => reply.error_code().is_some_and(|code| match code {
            UNSUPPORTED_VERSION => true,
            HEADER_MISMATCH => was == Era::Legacy,
            // An HTTP server refused the request before it read the id.
            _ if !is_piped && reply.id().is_none() => true,
            _ => CODES.contains(&code) && names_other_era(was, reply),
        }),
    }
}

/// Whether an outcome says that the form of a modern request was refused.
// Spec: SPEC U-09, M-35
pub(super) fn is_of_form(outcome: &Result<Reply, LinkError>) -> bool {
    match outcome {
        Err(LinkError::Status(404)) => true,
        Err(_) => false,
        Ok(reply) => matches!(
            reply.error_code(),
            Some(HEADER_MISMATCH | UNSUPPORTED_VERSION)
        ),
    }
}

/// Whether the answer to a `ping` says that the method is unknown: a modern server may look at the method before it looks
/// at the version. Weak evidence, as some legacy servers do not know it either.
// Spec: MCP 2026-07-28, Streamable HTTP, Protocol Version Header; MCP 2025-11-25, Ping
pub(super) fn knows_no_ping(answer: &Result<Reply, LinkError>) -> bool {
    let reply = answer.as_ref().ok();
    reply.and_then(Reply::error_code) == Some(METHOD_NOT_FOUND)
}

fn names_other_era(was: Era, reply: &Message) -> bool {
    let words: &[&str] = match was {
        Era::Legacy => &WITHOUT_META,
        Era::Modern => &BEFORE_HANDSHAKE,
    };
    let error = reply.error().unwrap_or_default().as_bytes();
    let error = error.get(..LOOKED_AT).unwrap_or(error);
    let text = String::from_utf8_lossy(error).to_ascii_lowercase();
    words.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn said(body: &str) -> Reply {
        let text = format!(r#"{{"jsonrpc":"2.0",{body}}}"#);
        Reply::Relayed(Message::parse(text.into(), 128).unwrap())
    }

    // Answers of SDKs to a request of the other era.
    #[rstest]
    #[case::typescript_1_template(
        r#""id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}"#,
        [true, true]
    )]
    #[case::typescript_1_transport(
        r#""id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}"#,
        [true, true]
    )]
    #[case::python_1(
        r#""id":4,"error":{"code":-32602,"message":"Invalid request parameters","data":""}"#,
        [false, true]
    )]
    #[case::typescript_2(
        r#""id":4,"error":{"code":-32602,"message":"Invalid _meta envelope for protocol version 2026-07-28"}"#,
        [true, false]
    )]
    #[case::unsupported(r#""id":4,"error":{"code":-32022,"message":"no"}"#, [true, true])]
    #[case::mismatch(r#""id":4,"error":{"code":-32020,"message":"no"}"#, [true, false])]
    #[case::tool(r#""id":4,"error":{"code":-32602,"message":"Unknown tool: x"}"#, [false, false])]
    #[case::method(r#""id":4,"error":{"code":-32601,"message":"no such method"}"#, [false, false])]
    #[case::own(r#""id":4,"error":{"code":-32050,"message":"_meta session id"}"#, [false, false])]
    #[case::result(r#""id":4,"result":{"content":[]}"#, [false, false])]
    fn refusals_for_form_contradict_an_era(#[case] body: &str, #[case] eras: [bool; 2]) {
        let found = [Era::Legacy, Era::Modern].map(|era| is_in(era, false, &Ok(said(body))));
        assert_eq!(found, eras);
    }

    #[rstest]
    #[case(400, true)]
    #[case(404, true)]
    #[case(401, false)]
    #[case(403, false)]
    #[case(500, false)]
    #[case(502, false)]
    fn statuses_of_refusals_contradict_an_era(#[case] status: u16, #[case] is: bool) {
        let outcome = Err(LinkError::Status(status));
        assert_eq!(is_in(Era::Modern, false, &outcome), is);
    }
}
