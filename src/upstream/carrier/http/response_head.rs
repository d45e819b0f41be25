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
/// How much of a refusal is looked at, bytes.
const LONGEST_REFUSAL: usize = 1024;

/// Whether a status says that the session is unknown: 404 does, and some servers send 410.
pub(super) fn is_gone(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE)
}

/// Whether a refusal with 400 says that the session is unknown, where 404 is due: servers built after the examples of
/// older SDKs answer so after a restart. A request refused this way has not run.
pub(super) fn names_lost_session(body: &[u8], message: Option<&Message>) -> bool {
    let may_say_so = message.is_none_or(|message| {
        let code = message.error_code();
        code.is_some_and(|code| LOST_SESSION_CODES.contains(&code))
    });
    let start = body.get(..LONGEST_REFUSAL).unwrap_or(body);
    let text = String::from_utf8_lossy(start).to_ascii_lowercase();
    may_say_so && LOST_SESSION_WORDS.iter().any(|words| text.contains(words))
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
