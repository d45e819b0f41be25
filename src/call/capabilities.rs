//! What a client can be asked.

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;

/// Effective client capabilities: the JSON text that is declared upstream, and what it says.
#[derive(Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a capability of its own on the wire"
)]
pub struct ClientCapabilities {
    raw: Bytes,
    digest: u64,
    /// Form elicitation.
    pub elicitation_form: bool,
    /// URL elicitation.
    pub elicitation_url: bool,
    /// Sampling.
    pub sampling: bool,
    /// Roots.
    pub roots: bool,
}

impl ClientCapabilities {
    /// Reads the JSON text of a `ClientCapabilities` object; anything else counts as `{}`.
    #[must_use]
    pub fn read(raw: Bytes) -> Self {
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&raw).unwrap_or_default();
        let raw = if object.is_empty() {
            Bytes::from_static(b"{}")
        } else {
            raw
        };
        let modes = object
            .get("elicitation")
            .and_then(serde_json::Value::as_object);
        // An elicitation object without modes means forms only. Spec: MCP 2025-11-25, SPEC C-80.
        let form = modes.is_some_and(|m| m.contains_key("form") || !m.contains_key("url"));
        Self {
            digest: short_digest(&raw),
            elicitation_form: form,
            elicitation_url: modes.is_some_and(|m| m.contains_key("url")),
            sampling: object.contains_key("sampling"),
            roots: object.contains_key("roots"),
            raw,
        }
    }

    /// No capability at all.
    #[must_use]
    pub fn none() -> Self {
        Self::read(Bytes::from_static(b"{}"))
    }

    /// JSON text of the object.
    #[must_use]
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Tells different declarations apart.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.digest
    }

    /// Whether a question of `method` may be put in one mode or another.
    #[must_use]
    pub fn allows_any(&self, method: &str) -> bool {
        self.allows(method, false) || self.allows(method, true)
    }

    /// Whether a question of `method` may be put at all.
    #[must_use]
    pub fn allows(&self, method: &str, url_mode: bool) -> bool {
        match method {
            "elicitation/create" if url_mode => self.elicitation_url,
            "elicitation/create" => self.elicitation_form,
            "sampling/createMessage" => self.sampling,
            "roots/list" => self.roots,
            _ => false,
        }
    }
}

impl std::fmt::Debug for ClientCapabilities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.raw))
    }
}

fn short_digest(bytes: &[u8]) -> u64 {
    let full = digest(&SHA256, bytes);
    full.as_ref()
        .iter()
        .take(8)
        .fold(0, |acc, byte| (acc << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &'static str) -> ClientCapabilities {
        ClientCapabilities::read(Bytes::from_static(text.as_bytes()))
    }

    // SPEC C-80.
    #[test]
    fn empty_elicitation_means_forms_only() {
        let caps = read(r#"{"elicitation":{}}"#);
        assert!(caps.allows("elicitation/create", false));
        assert!(!caps.allows("elicitation/create", true));
    }

    #[test]
    fn url_only_elicitation_excludes_forms() {
        let caps = read(r#"{"elicitation":{"url":{}}}"#);
        assert!(!caps.allows("elicitation/create", false));
        assert!(caps.allows("elicitation/create", true));
    }

    #[test]
    fn what_is_not_an_object_counts_as_none() {
        let caps = read("[1]");
        assert_eq!(caps.raw().as_ref(), b"{}");
        assert!(!caps.allows("roots/list", false));
    }
}
