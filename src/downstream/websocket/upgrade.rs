//! The upgrade of an HTTP/1.1 request to a WebSocket. Spec: RFC 6455 §4.2.

use axum::body::Body;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};

use crate::downstream::reply;
use crate::protocol::websocket::{SUBPROTOCOL, accept_key};

/// Why a request is not upgraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoUpgrade {
    /// The request lacks `Upgrade: websocket` or `Connection: upgrade`.
    NotAsked,
    /// The request is not HTTP/1.1.
    Http2,
    /// `Sec-WebSocket-Version` is not 13.
    Version,
    /// `Sec-WebSocket-Key` is missing or malformed.
    Malformed,
    /// The offered subprotocols do not include `mcp`.
    Subprotocol,
}

impl NoUpgrade {
    /// The answer. Spec: RFC 6455 §4.2.2, §4.4; RFC 9110 §15.5.22.
    pub(super) fn response(self) -> Response<Body> {
        let (status, text) = match self {
            Self::NotAsked => (
                StatusCode::UPGRADE_REQUIRED,
                "this path serves WebSockets: ask for an upgrade",
            ),
            Self::Http2 => (
                StatusCode::UPGRADE_REQUIRED,
                "WebSockets are served over HTTP/1.1 only",
            ),
            Self::Version => (
                StatusCode::UPGRADE_REQUIRED,
                "Sec-WebSocket-Version must be 13",
            ),
            Self::Malformed => (StatusCode::BAD_REQUEST, "Sec-WebSocket-Key is not a key"),
            Self::Subprotocol => (
                StatusCode::BAD_REQUEST,
                "Sec-WebSocket-Protocol must offer mcp, or be left out",
            ),
        };
        let mut response = reply::plain(status, text);
        let headers = response.headers_mut();
        if status == StatusCode::UPGRADE_REQUIRED {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        }
        response
    }
}

/// The 101 response that switches protocols.
///
/// # Errors
/// [`NoUpgrade`] when the request cannot be upgraded.
pub(super) fn accept(version: Version, headers: &HeaderMap) -> Result<Response<Body>, NoUpgrade> {
    if version != Version::HTTP_11 {
        return Err(NoUpgrade::Http2);
    }
    if !lists(headers, &CONNECTION, "upgrade") || !lists(headers, &UPGRADE, "websocket") {
        return Err(NoUpgrade::NotAsked);
    }
    if headers
        .get(SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version != "13")
    {
        return Err(NoUpgrade::Version);
    }
    let key = headers.get(SEC_WEBSOCKET_KEY);
    let accept = key
        .and_then(|key| accept_key(key.as_bytes()))
        .ok_or(NoUpgrade::Malformed)?;
    // The answer may name only a subprotocol that was offered, letter by letter; LangChain4j offers
    // none. Spec: RFC 6455 §4.2.2.
    let is_offered = headers.contains_key(SEC_WEBSOCKET_PROTOCOL);
    if is_offered && !items(headers, &SEC_WEBSOCKET_PROTOCOL).any(|item| item == SUBPROTOCOL) {
        return Err(NoUpgrade::Subprotocol);
    }
    let mut response = reply::empty(StatusCode::SWITCHING_PROTOCOLS);
    let answer = response.headers_mut();
    answer.insert(UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if is_offered {
        answer.insert(
            SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_static(SUBPROTOCOL),
        );
    }
    if let Ok(accept) = HeaderValue::from_str(&accept) {
        answer.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    Ok(response)
}

/// Whether a header that is a list names `wanted`, in any case.
fn lists(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    items(headers, name).any(|item| item.eq_ignore_ascii_case(wanted))
}

/// The items of a header that is a list, over all its lines.
fn items<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let lines = headers.get_all(name).into_iter();
    let lines = lines.map(|line| line.to_str().unwrap_or_default());
    lines.flat_map(|line| line.split(',').map(str::trim))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(changes: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "other, mcp"),
        ]
        .iter()
        .chain(changes)
        {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        headers
    }

    // Spec: RFC 6455 §1.3, the sample handshake.
    #[test]
    fn the_sample_key_has_the_sample_answer() {
        let response = accept(Version::HTTP_11, &asking(&[])).unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(
            response.headers()[SEC_WEBSOCKET_ACCEPT],
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        assert_eq!(response.headers()[SEC_WEBSOCKET_PROTOCOL], "mcp");
    }

    // Spec: RFC 6455 §4.2.2.
    #[test]
    fn upgrade_without_subprotocol_is_accepted() {
        let mut headers = asking(&[]);
        headers.remove(SEC_WEBSOCKET_PROTOCOL);
        let response = accept(Version::HTTP_11, &headers).unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert!(!response.headers().contains_key(SEC_WEBSOCKET_PROTOCOL));
    }

    #[test]
    fn what_cannot_be_upgraded_is_told_why() {
        for (change, why) in [
            (("upgrade", "h2c"), NoUpgrade::NotAsked),
            (("connection", "close"), NoUpgrade::NotAsked),
            (("sec-websocket-version", "8"), NoUpgrade::Version),
            (("sec-websocket-protocol", "MCP"), NoUpgrade::Subprotocol),
            (("sec-websocket-key", "c2hvcnQ="), NoUpgrade::Malformed),
            (("sec-websocket-protocol", "chat"), NoUpgrade::Subprotocol),
        ] {
            let refused = accept(Version::HTTP_11, &asking(&[change])).unwrap_err();
            assert_eq!(refused, why, "{change:?}");
            assert!(refused.response().status().is_client_error());
        }
        let refused = accept(Version::HTTP_2, &asking(&[])).unwrap_err();
        assert_eq!(refused, NoUpgrade::Http2);
    }
}
