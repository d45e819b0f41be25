//! Names and strict readers of MCP's HTTP headers.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::revision::Revision;

/// The session id. Spec: SPEC T-19, T-40.
pub const MCP_SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// The negotiated revision. Spec: SPEC T-60.
pub const MCP_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The last event received. Spec: SPEC T-25.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Modern: the method of the body.
pub const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// Modern: the name or URI of the body.
pub const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");
/// Modern: prefix of the headers that carry single arguments.
pub const MCP_PARAM_PREFIX: &str = "mcp-param-";
/// Asks proxies to pass a stream on at once. Spec: SPEC T-14.
pub const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// W3C trace context, parent. Spec: SPEC C-98.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// W3C trace context, vendor state.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Longer values are refused; our own handles are far shorter.
const MAX_VALUE_BYTES: usize = 1024;

/// Why a header was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It stands there more than once.
    #[error("header {0} is repeated")]
    Repeated(HeaderName),
    /// Empty, too long, or with characters beyond visible ASCII.
    #[error("header {0} is malformed")]
    Malformed(HeaderName),
    /// No published revision.
    #[error("unknown protocol version {0:?}")]
    UnknownVersion(String),
}

/// A header that may stand there once, of visible ASCII without spaces.
///
/// # Errors
/// When it is repeated or malformed.
pub fn single<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a str>, HeaderError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(HeaderError::Repeated(name.clone()));
    }
    let fits = !value.is_empty() && value.len() <= MAX_VALUE_BYTES;
    let text = std::str::from_utf8(value.as_bytes()).ok();
    // Every byte is looked at, wherever a bad one stands: many at a time.
    let graphic = |text: &str| text.bytes().fold(true, |all, b| all & b.is_ascii_graphic());
    text.filter(|text| fits && graphic(text))
        .map(Some)
        .ok_or_else(|| HeaderError::Malformed(name.clone()))
}

/// The session id. An empty one is none: some clients and proxies send the header without having an id.
/// Spec: SPEC T-41, T-42.
///
/// # Errors
/// When it is repeated or malformed.
pub fn session_id(headers: &HeaderMap) -> Result<Option<&str>, HeaderError> {
    match single(headers, &MCP_SESSION_ID) {
        Err(HeaderError::Malformed(name))
            if headers.get(&name).is_some_and(HeaderValue::is_empty) =>
        {
            Ok(None)
        }
        read => read,
    }
}

/// The last event that the client received. One without a name is none: where there is none, a client
/// sends no header. Spec: HTML, "Server-sent events", reestablishing the connection.
#[must_use]
pub fn last_event_id(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(LAST_EVENT_ID).filter(|id| !id.is_empty())
}

/// The revision that the client names. Whether it is served is for the caller to say.
/// Spec: SPEC T-60, T-63.
///
/// # Errors
/// When the header is repeated, a list, trailed by anything, or no published revision.
pub fn protocol_version(headers: &HeaderMap) -> Result<Option<Revision>, HeaderError> {
    let Some(text) = single(headers, &MCP_PROTOCOL_VERSION)? else {
        return Ok(None);
    };
    let known = Revision::parse(text);
    known
        .map(Some)
        .ok_or_else(|| HeaderError::UnknownVersion(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn headers(name: &HeaderName, values: &[&[u8]]) -> HeaderMap {
        let values = values.iter().map(|v| HeaderValue::from_bytes(v).unwrap());
        values.map(|value| (name.clone(), value)).collect()
    }

    // SPEC T-60, T-63.
    #[rstest]
    #[case(&["2025-06-18"], Ok(Some(Revision::V2025_06_18)))]
    #[case(&[], Ok(None))]
    #[case(&["1999-01-01"], Err(HeaderError::UnknownVersion("1999-01-01".to_owned())))]
    #[case(&["2025-06-18", "2025-06-18"], Err(HeaderError::Repeated(MCP_PROTOCOL_VERSION)))]
    #[case(&["2025-06-18, 2025-11-25"], Err(HeaderError::Malformed(MCP_PROTOCOL_VERSION)))]
    #[case(&["2025-06-18 x"], Err(HeaderError::Malformed(MCP_PROTOCOL_VERSION)))]
    #[case(&["2025-06-18x"], Err(HeaderError::UnknownVersion("2025-06-18x".to_owned())))]
    #[case(&[""], Err(HeaderError::Malformed(MCP_PROTOCOL_VERSION)))]
    fn a_version_is_one_exact_word(
        #[case] values: &[&str],
        #[case] expected: Result<Option<Revision>, HeaderError>,
    ) {
        let values: Vec<&[u8]> = values.iter().map(|v| v.as_bytes()).collect();
        assert_eq!(
            protocol_version(&headers(&MCP_PROTOCOL_VERSION, &values)),
            expected
        );
    }

    #[test]
    fn session_ids_are_visible_ascii_of_bounded_length() {
        let of = |value: &[u8]| {
            session_id(&headers(&MCP_SESSION_ID, &[value]))
                .ok()
                .flatten()
                .is_some()
        };
        assert!(of(b"abc.~!"));
        assert!(!of(b"a b"));
        assert!(!of(b"\xc3\xa9"));
        assert!(!of(&[b'x'; 1025]));
    }

    // SPEC T-42.
    #[test]
    fn empty_session_id_is_none() {
        let read = |values: &[&[u8]]| {
            session_id(&headers(&MCP_SESSION_ID, values)).map(|id| id.map(str::to_owned))
        };
        assert_eq!(read(&[b""]), Ok(None));
        assert_eq!(read(&[]), Ok(None));
        let repeated = Err(HeaderError::Repeated(MCP_SESSION_ID));
        assert_eq!(read(&[b"", b"abc"]), repeated);
    }
}
