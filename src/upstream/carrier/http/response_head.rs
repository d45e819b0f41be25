//! What a response of an upstream says beside its message: whether its session is gone, how long to wait, and the
//! media type of its body.

use std::time::Duration;

use http::header::{CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use jiff::fmt::rfc2822;

use super::body::UpstreamBody;
use crate::protocol::{Message, error_codes};

/// Codes and words of SDKs for an unknown session, in place of or beside the 404 of the specification.
const LOST_SESSION_CODES: [i64; 3] = [-32000, -32001, error_codes::INVALID_REQUEST];
const LOST_SESSION_WORDS: [&str; 2] = ["session", "not initialized"];
/// Codes of errors about a request, which no SDK uses for an unknown session.
const REQUEST_CODES: [i64; 3] = [
    error_codes::METHOD_NOT_FOUND,
    error_codes::INVALID_PARAMS,
    error_codes::RESOURCE_NOT_FOUND,
];
/// The body of the Rust SDK before 0.17 about an unknown session, with 401.
const RUST_LOST_SESSION: &[u8] = b"Unauthorized: Session not found";
/// What php-mcp says of an unknown session, in an event stream with 200, where a JSON body would have 404.
const PHP_LOST_SESSION: &str = "Invalid or expired session. Please re-initialize the session.";
/// How much of a refusal is looked at, bytes.
const LONGEST_REFUSAL: usize = 1024;

/// Whether a status says that the session is unknown: 404 does, and some servers send 410.
pub(super) fn is_gone(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE)
}

/// Whether a refusal of a request says that the session is unknown: by its status, unless the body is an error about the
/// request, or by the words of a refusal with 400 or 401.
pub(super) fn is_of_lost_session(
    status: StatusCode,
    body: &[u8],
    message: Option<&Message>,
) -> bool {
    match status {
        StatusCode::BAD_REQUEST => return names_lost_session(body, message),
        StatusCode::UNAUTHORIZED => return body == RUST_LOST_SESSION,
        _ => {}
    }
    // Some servers answer with 404 that they do not know a method, and keep the session.
    is_gone(status) && !message.is_some_and(|it| it.id().is_some() && is_about_message(body, it))
}

/// Whether a reply that came with a good status says that the session is unknown: php-mcp looks for the session once it has
/// begun its event stream. Held to the exact words, as a request refused this way is sent again.
pub(super) fn is_reply_of_lost_session(reply: &Message) -> bool {
    reply.error_code() == Some(error_codes::INVALID_REQUEST)
        && reply
            .error()
            .is_some_and(|error| error.contains(PHP_LOST_SESSION))
}

/// Whether a refusal with 400 says that the session is unknown, where 404 is due: servers built after the examples of
/// older SDKs answer so after a restart. A request refused this way has not run.
fn names_lost_session(body: &[u8], message: Option<&Message>) -> bool {
    has_code_of(&LOST_SESSION_CODES, message) && has_words_of_lost_session(body)
}

/// Whether the body is an error about the message that was posted; the session goes on. An error about a request has
/// an id as well, which the caller looks at.
pub(super) fn is_about_message(body: &[u8], message: &Message) -> bool {
    has_code_of(&REQUEST_CODES, Some(message)) && !has_words_of_lost_session(body)
}

/// Whether the error has one of these codes. What is no message has any.
fn has_code_of(codes: &[i64], message: Option<&Message>) -> bool {
    message.is_none_or(|message| {
        let code = message.error_code();
        code.is_some_and(|code| codes.contains(&code))
    })
}

fn has_words_of_lost_session(body: &[u8]) -> bool {
    let start = body.get(..LONGEST_REFUSAL).unwrap_or(body);
    let text = String::from_utf8_lossy(start).to_ascii_lowercase();
    LOST_SESSION_WORDS.iter().any(|words| text.contains(words))
}

/// `Retry-After` of the upstream: seconds, or a time of its own clock, which is read from the `Date` of the response.
/// Spec: RFC 9110 §10.2.3.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text: &str| rfc2822::DateTimeParser::new().parse_timestamp(text).ok();
    let now = date(headers.get(DATE)?.to_str().ok()?)?;
    let wait = date(value)?.duration_since(now);
    Some(wait.try_into().unwrap_or(Duration::ZERO))
}

/// Whether the media type is `text/event-stream`, in any case and with any parameters. Spec: RFC 9110 §8.3.1.
pub(crate) fn is_event_stream(response: &Response<UpstreamBody>) -> bool {
    response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|media| media.trim().eq_ignore_ascii_case("text/event-stream"))
}
