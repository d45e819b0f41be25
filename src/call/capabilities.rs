//! Client capabilities, and the questions they allow.

use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use bytestring::ByteString;

use super::InputRequest;
use crate::protocol::json::{self, member};
use crate::protocol::{Revision, extensions, icons, sampling};

/// Bytes of JSON text allowed for a client's `capabilities`, and likewise for `clientInfo`. A session keeps
/// both for its whole life, and a principal may have many sessions.
pub const MAX_DECLARED: usize = 64 * 1024;

/// No capability at all.
pub(super) static NONE: LazyLock<ClientCapabilities> =
    LazyLock::new(|| ClientCapabilities::read(Bytes::new()));

/// Effective client capabilities: the JSON text declared to upstreams, parsed. Cloning shares it.
#[derive(Clone)]
pub struct ClientCapabilities {
    /// The capabilities that the client's revision can express.
    own: Arc<Capabilities>,
    /// The larger declaration for upstreams that negotiated the same revision.
    beyond: Option<(Revision, Arc<Capabilities>)>,
}

/// One parsed declaration of [`ClientCapabilities`].
#[derive(Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a capability of its own on the wire"
)]
pub struct Capabilities {
    raw: ByteString,
    digest: u64,
    /// Form elicitation.
    pub elicitation_form: bool,
    /// URL elicitation.
    pub elicitation_url: bool,
    /// Sampling.
    pub sampling: bool,
    /// Sampling with tools. Spec: SPEC C-70.
    pub sampling_tools: bool,
    /// Sampling with the client's context. Spec: SPEC C-70.
    sampling_context: bool,
    /// Roots.
    pub roots: bool,
}

impl ClientCapabilities {
    /// Reads the JSON text of a `ClientCapabilities` object; anything else counts as `{}`.
    #[must_use]
    pub fn read(raw: Bytes) -> Self {
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&raw).unwrap_or_default();
        let raw = ByteString::try_from(raw)
            .ok()
            .filter(|_| !object.is_empty());
        let raw = raw.unwrap_or(ByteString::from_static("{}"));
        let modes = object
            .get("elicitation")
            .and_then(serde_json::Value::as_object);
        // An elicitation object without modes means forms only. Spec: MCP 2025-11-25, SPEC C-80.
        let form = modes.is_some_and(|m| m.contains_key("form") || !m.contains_key("url"));
        let own = Arc::new(Capabilities {
            digest: short_digest(raw.as_bytes()),
            elicitation_form: form,
            elicitation_url: modes.is_some_and(|m| m.contains_key("url")),
            sampling: object.contains_key("sampling"),
            sampling_tools: object
                .get("sampling")
                .is_some_and(|sampling| sampling.get("tools").is_some()),
            sampling_context: object
                .get("sampling")
                .is_some_and(|sampling| sampling.get("context").is_some()),
            roots: object.contains_key("roots"),
            raw,
        });
        Self { own, beyond: None }
    }

    /// The same, with what is declared to upstreams that negotiate `revision` instead.
    #[must_use]
    pub fn with_beyond(self, revision: Revision, declared: Bytes) -> Self {
        let more = Self::read(declared).own;
        if more.raw == self.own.raw {
            return self;
        }
        // Links are shared by this: it has to tell both declarations apart.
        let both = [&*self.own.raw, &*more.raw].join("\n");
        let own = Capabilities {
            digest: short_digest(both.as_bytes()),
            ..(*self.own).clone()
        };
        Self {
            own: Arc::new(own),
            beyond: Some((revision, more)),
        }
    }

    /// The same of a revision in which sampling with the client's context was no capability of its own.
    #[must_use]
    pub fn with_context(self) -> Self {
        let with = |said: &Arc<Capabilities>| {
            Arc::new(Capabilities {
                sampling_context: said.sampling,
                ..(**said).clone()
            })
        };
        let beyond = self.beyond.as_ref();
        Self {
            own: with(&self.own),
            beyond: beyond.map(|(revision, more)| (*revision, with(more))),
        }
    }

    /// The declaration for an upstream that negotiated `revision`; it bounds that upstream's questions.
    #[must_use]
    pub fn towards(&self, revision: Revision) -> &Capabilities {
        match &self.beyond {
            Some((same, more)) if *same == revision => more,
            _ => &self.own,
        }
    }

    /// What [`read`](Self::read), [`with_beyond`](Self::with_beyond) and [`with_context`](Self::with_context) make the
    /// same from: the JSON text, the larger declaration with its revision, and whether sampling has a context.
    #[must_use]
    pub fn parts(&self) -> (&str, Option<(Revision, &str)>, bool) {
        let beyond = self.beyond.as_ref();
        let has_context =
            self.own.sampling_context || beyond.is_some_and(|(_, more)| more.sampling_context);
        let beyond = beyond.map(|(revision, more)| (*revision, &*more.raw));
        (&self.own.raw, beyond, has_context)
    }

    /// Whether some upstream may put a question.
    #[must_use]
    pub fn allow_any(&self) -> bool {
        let more = self.beyond.as_ref();
        self.own.allow_some() || more.is_some_and(|(_, more)| more.allow_some())
    }

    /// No capability at all.
    #[must_use]
    pub fn none() -> Self {
        NONE.clone()
    }

    /// The same with the extension `id`, which has no settings.
    #[must_use]
    pub fn with_extension(&self, id: &str) -> Self {
        Self::read(extensions::with(&self.raw, id).into())
    }
}

impl Deref for ClientCapabilities {
    type Target = Capabilities;

    fn deref(&self) -> &Capabilities {
        &self.own
    }
}

impl Capabilities {
    /// JSON text of the object.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.raw
    }

    /// Tells different declarations apart.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.digest
    }

    /// Whether any question may be put.
    #[must_use]
    pub fn allow_some(&self) -> bool {
        self.elicitation_form || self.elicitation_url || self.sampling || self.roots
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

    /// What would have to be declared for a question of `method` with these `params` (JSON text) to
    /// be put; nothing when it may be. Spec: SPEC M-62, C-70, C-80.
    #[must_use]
    pub fn missing(&self, method: &str, params: &str) -> Option<String> {
        let mode = member(params, "mode").and_then(json::string);
        let url = method == "elicitation/create" && mode.is_some_and(|mode| mode == "url");
        if !self.allows(method, url) {
            let mode = if url { " of a URL" } else { "" };
            return Some(format!("{method}{mode}"));
        }
        let brings_tools = || {
            method == "sampling/createMessage"
                && (sampling::offers_tools(params) || sampling::has_tool_content(params))
        };
        (!self.sampling_tools && brings_tools()).then(|| format!("{method} with tools"))
    }
}

impl Capabilities {
    /// The question as the client may be asked it: without its context where it did not offer that, and without icons
    /// that it must not load. Spec: SPEC C-70, C-96.
    #[must_use]
    pub fn fitted(&self, question: InputRequest) -> InputRequest {
        if question.method != "sampling/createMessage" {
            return question;
        }
        let given = question.params_text();
        let purged = icons::purged_sampling(given).map(|purged| purged.text);
        let asked = purged.as_deref().unwrap_or(given);
        let bare = (!self.sampling_context).then(|| sampling::without_context(asked));
        match bare.flatten().or(purged) {
            Some(params) => InputRequest {
                params: Some(params.into()),
                ..question
            },
            None => question,
        }
    }
}

impl std::fmt::Debug for ClientCapabilities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.own.fmt(f)
    }
}

impl std::fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.raw)
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
    use rstest::rstest;

    use super::*;

    fn read(text: &'static str) -> ClientCapabilities {
        ClientCapabilities::read(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn more_is_declared_to_the_same_revision() {
        let same = Revision::V2024_11_05;
        let own = read(r#"{"roots":{}}"#);
        let more = Bytes::from_static(br#"{"roots":{},"elicitation":{}}"#);
        let both = own.clone().with_beyond(same, more);
        assert_eq!(both.text(), own.text());
        assert!(both.towards(same).elicitation_form);
        let other = both.towards(Revision::V2025_03_26);
        assert!(!other.elicitation_form);
        assert_ne!(both.fingerprint(), own.fingerprint());
        let nothing = own
            .clone()
            .with_beyond(same, Bytes::from_static(br#"{"roots":{}}"#));
        assert_eq!(nothing.fingerprint(), own.fingerprint());
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

    // SPEC M-62, C-70, C-80.
    #[rstest]
    #[case(r#"{"elicitation":{}}"#, "elicitation/create", "{}", None)]
    #[case(
        r#"{"elicitation":{}}"#,
        "elicitation/create",
        r#"{"mode":"url"}"#,
        Some("elicitation/create of a URL")
    )]
    #[case(
        r#"{"sampling":{}}"#,
        "sampling/createMessage",
        r#"{"tools":[]}"#,
        Some("sampling/createMessage with tools")
    )]
    #[case(
        r#"{"sampling":{}}"#,
        "sampling/createMessage",
        r#"{"toolChoice":{}}"#,
        Some("sampling/createMessage with tools")
    )]
    #[case(
        r#"{"sampling":{}}"#,
        "sampling/createMessage",
        r#"{"tools":null,"toolChoice":null}"#,
        None
    )]
    #[case(
        r#"{"sampling":{"tools":{}}}"#,
        "sampling/createMessage",
        r#"{"tools":[]}"#,
        None
    )]
    #[case(
        r#"{"sampling":{}}"#,
        "sampling/createMessage",
        r#"{"messages":[{"role":"user","content":[{"type":"tool_result","toolUseId":"1"}]}]}"#,
        Some("sampling/createMessage with tools")
    )]
    #[case(r#"{"roots":{}}"#, "tools/call", "{}", Some("tools/call"))]
    fn modes_and_tools_are_capabilities_of_their_own(
        #[case] declared: &'static str,
        #[case] method: &str,
        #[case] params: &str,
        #[case] missing: Option<&str>,
    ) {
        assert_eq!(read(declared).missing(method, params).as_deref(), missing);
    }

    // SPEC C-70.
    #[rstest]
    #[case(r#"{"sampling":{}}"#, false, "none")]
    #[case(r#"{"sampling":{}}"#, true, "thisServer")]
    #[case(r#"{"sampling":{"context":{}}}"#, false, "thisServer")]
    fn context_is_for_clients_that_offer_it(
        #[case] declared: &'static str,
        #[case] is_old: bool,
        #[case] shown: &str,
    ) {
        let read = read(declared);
        let capabilities = if is_old { read.with_context() } else { read };
        let question = InputRequest {
            method: "sampling/createMessage".to_owned(),
            params: Some(Bytes::from_static(br#"{"includeContext":"thisServer"}"#)),
        };
        let fitted = capabilities.fitted(question);
        let expected = format!(r#"{{"includeContext":"{shown}"}}"#);
        assert_eq!(fitted.params_text(), expected);
    }

    // SPEC C-96.
    #[rstest]
    #[case(r#"{"sampling":{}}"#, "none")]
    #[case(r#"{"sampling":{"context":{}}}"#, "thisServer")]
    fn sampling_request_has_no_unsafe_icon(#[case] declared: &'static str, #[case] shown: &str) {
        let params = |context: &str, icons: &str| {
            let link = format!(r#"{{"type":"resource_link","uri":"a:b"{icons}}}"#);
            let result = format!(r#"{{"type":"tool_result","toolUseId":"1","content":[{link}]}}"#);
            let messages = format!(r#"[{{"role":"user","content":[{result}]}}]"#);
            format!(r#"{{"includeContext":"{context}","messages":{messages}}}"#)
        };
        let icons = r#","icons":[{"src":"javascript:x"}]"#;
        let fitted = read(declared).fitted(InputRequest {
            method: "sampling/createMessage".to_owned(),
            params: Some(params("thisServer", icons).into()),
        });
        assert_eq!(fitted.params_text(), params(shown, ""));
    }

    #[test]
    fn an_extension_is_declared_beside_what_was_declared() {
        let caps = read(r#"{"elicitation":{},"extensions":{"v/x":{"a":1},"v/y":{"b":2}}}"#);
        let with = caps.with_extension("v/y");
        assert_eq!(
            with.text(),
            r#"{"elicitation":{},"extensions":{"v/y":{},"v/x":{"a":1}}}"#
        );
        assert!(with.elicitation_form);
        let with = ClientCapabilities::none().with_extension("v/x");
        assert_eq!(with.text(), r#"{"extensions":{"v/x":{}}}"#);
    }

    #[test]
    fn what_is_not_an_object_counts_as_none() {
        let caps = read("[1]");
        assert_eq!(caps.text(), "{}");
        assert!(!caps.allows("roots/list", false));
    }
}
