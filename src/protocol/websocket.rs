//! What both sides of a WebSocket handshake know. Spec: RFC 6455 §1.3, §4.

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// The subprotocol that is spoken.
pub const SUBPROTOCOL: &str = "mcp";

/// Bytes of a key.
const KEY_LEN: usize = 16;
/// Spec: RFC 6455 §1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A fresh `Sec-WebSocket-Key`.
#[must_use]
pub fn fresh_key() -> String {
    BASE64_STANDARD.encode(rand::random::<[u8; KEY_LEN]>())
}

/// The `Sec-WebSocket-Accept` that answers a key; `None` for what is no key.
#[must_use]
pub fn accept_key(key: &[u8]) -> Option<String> {
    let decoded = BASE64_STANDARD.decode(key).ok()?;
    if decoded.len() != KEY_LEN {
        return None;
    }
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key);
    context.update(GUID);
    Some(BASE64_STANDARD.encode(context.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Spec: RFC 6455 §1.3, the sample handshake.
    #[test]
    fn the_sample_key_has_the_sample_answer() {
        let accept = accept_key(b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept.as_deref(), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(accept_key(b"c2hvcnQ="), None);
        assert!(accept_key(fresh_key().as_bytes()).is_some());
    }
}
