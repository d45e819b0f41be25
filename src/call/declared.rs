//! `ServerDeclaration`: an upstream's capabilities, server info and instructions.

use std::borrow::Cow;

use bytes::Bytes;
use bytestring::ByteString;

use crate::protocol::{Era, Revision, extensions, icons, json, without_nulls};

/// The capabilities whose lists may change.
const LISTS: [&str; 3] = ["tools", "prompts", "resources"];

/// An upstream's declaration in its handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct ServerDeclaration {
    /// The revision negotiated with the upstream.
    pub revision: Revision,
    /// JSON text of its `capabilities`.
    pub capabilities: ByteString,
    /// JSON text of its `serverInfo`, without icons that a client must not load (SPEC C-96).
    pub server_info: ByteString,
    /// Its `instructions`, decoded.
    pub instructions: Option<String>,
    /// Parsed once, like the fields below: every `tools/call` needs them.
    has_tools: bool,
    takes_tasks: bool,
    hosts_tasks: bool,
    tells_changes: bool,
    icons_left_out: usize,
    kept_ms: DeclarationTtl,
}

/// Cache lifetime of the declaration in milliseconds. Ignored by `PartialEq`: a server may count down,
/// and declare the same otherwise.
#[derive(Debug, Clone, Copy)]
struct DeclarationTtl(u64);

impl PartialEq for DeclarationTtl {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for DeclarationTtl {}

impl ServerDeclaration {
    /// How many bytes its texts have.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let instructions = self.instructions.as_ref().map_or(0, String::len);
        self.capabilities.len() + self.server_info.len() + instructions
    }

    /// A declaration from JSON texts of objects and decoded instructions.
    #[must_use]
    pub fn new(
        revision: Revision,
        capabilities: Bytes,
        server_info: Bytes,
        instructions: Option<String>,
    ) -> Self {
        let (capabilities, info) = (pruned(capabilities), pruned(server_info));
        let (server_info, icons_left_out) = match icons::purged(&info) {
            Some(purged) => (purged.text.into(), purged.icons),
            None => (info, 0),
        };
        Self {
            has_tools: json::member(&capabilities, "tools").is_some(),
            takes_tasks: revision.era() == Era::Legacy && takes_tasks(&capabilities),
            hosts_tasks: revision.era() == Era::Modern
                && extensions::declares(&capabilities, extensions::TASKS),
            tells_changes: true,
            revision,
            capabilities,
            server_info,
            instructions,
            icons_left_out,
            kept_ms: DeclarationTtl(u64::MAX),
        }
    }

    /// The same declaration with a cache lifetime in milliseconds (SPEC M-80).
    #[must_use]
    pub fn kept_for(self, ms: u64) -> Self {
        Self {
            kept_ms: DeclarationTtl(ms),
            ..self
        }
    }

    /// Cache lifetime in milliseconds; `u64::MAX` if the upstream gave none.
    #[must_use]
    pub fn kept_ms(&self) -> u64 {
        self.kept_ms.0
    }

    /// The same declaration for an upstream whose tasks the gateway does not host.
    #[must_use]
    pub fn without_hosted_tasks(self) -> Self {
        Self {
            hosts_tasks: false,
            ..self
        }
    }

    /// The same declaration for an upstream whose list changes are not announced to clients.
    #[must_use]
    pub fn without_list_changed(self) -> Self {
        Self {
            tells_changes: false,
            ..self
        }
    }

    /// JSON text of its `capabilities` as clients may be told of them.
    #[must_use]
    pub fn shown_capabilities(&self) -> Cow<'_, str> {
        let text = &*self.capabilities;
        let members = match json::members(text) {
            Ok(members) if !self.tells_changes => members,
            _ => return Cow::Borrowed(text),
        };
        let kept = members.into_iter().map(|(name, value)| {
            let value = match json::members(value) {
                Ok(flags) if LISTS.contains(&&*name) => {
                    let other = flags.into_iter().filter(|(flag, _)| flag != "listChanged");
                    Cow::Owned(json::object(other))
                }
                _ => Cow::Borrowed(value),
            };
            (name, value)
        });
        Cow::Owned(json::object(kept))
    }

    /// Whether it has log messages, whose level can be set.
    #[must_use]
    pub fn logs(&self) -> bool {
        json::member(&self.capabilities, "logging").is_some()
    }

    /// Whether clients are told when its `what` changes.
    #[must_use]
    pub fn tells(&self, what: &str) -> bool {
        self.tells_changes && self.announces(what)
    }

    /// Whether it says when its `what` changes: `tools`, `prompts` or `resources`.
    #[must_use]
    pub fn announces(&self, what: &str) -> bool {
        let list = json::member(&self.capabilities, what);
        list.and_then(|list| json::member(list, "listChanged")) == Some("true")
    }

    /// The kinds with `listChanged`.
    #[must_use]
    pub fn announced(&self) -> Vec<&'static str> {
        let mut lists = LISTS.to_vec();
        lists.retain(|what| self.announces(what));
        lists
    }

    /// How many icons its `serverInfo` had that a client must not load.
    #[must_use]
    pub fn icons_left_out(&self) -> usize {
        self.icons_left_out
    }

    /// Whether the upstream declares `tools`.
    #[must_use]
    pub fn has_tools(&self) -> bool {
        self.has_tools
    }

    /// Whether it takes calls as tasks of 2025-11-25. Spec: SPEC K-01.
    #[must_use]
    pub fn takes_tasks(&self) -> bool {
        self.takes_tasks
    }

    /// Whether calls of it are run here as tasks of 2025-11-25: it knows those of the extension.
    /// Spec: BRIDGING §3.8.
    #[must_use]
    pub fn hosts_tasks(&self) -> bool {
        self.hosts_tasks
    }
}

/// Whether a legacy upstream, by its capabilities, takes calls as tasks. Spec: SPEC K-01.
#[must_use]
pub fn takes_tasks(capabilities: &str) -> bool {
    let path = ["tasks", "requests", "tools", "call"];
    let found = path
        .into_iter()
        .try_fold(capabilities, |text, name| json::member(text, name));
    found.is_some()
}

/// The JSON text `declared` without members that are `null`; `{}` for what is no text.
fn pruned(declared: Bytes) -> ByteString {
    let declared = ByteString::try_from(declared).unwrap_or(ByteString::from_static("{}"));
    let said = match without_nulls(&declared) {
        Cow::Borrowed(_) => None,
        Cow::Owned(said) => Some(said.into()),
    };
    said.unwrap_or(declared)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"tasks":{"requests":{"tools":{"call":{}}}}}"#;

    #[test]
    fn only_the_whole_capability_lets_calls_be_tasks() {
        assert!(takes_tasks(WHOLE));
        assert!(!takes_tasks(
            r#"{"tasks":{"list":{},"requests":{"tools":{}}}}"#
        ));
        assert!(!takes_tasks(r#"{"tools":{"call":{}}}"#));
    }

    #[test]
    fn only_a_legacy_upstream_takes_calls_as_its_tasks() {
        let declared = |revision| {
            let capabilities = Bytes::from_static(WHOLE.as_bytes());
            ServerDeclaration::new(revision, capabilities, Bytes::from_static(b"{}"), None)
        };
        assert!(declared(Revision::V2025_11_25).takes_tasks());
        assert!(!declared(Revision::V2026_07_28).takes_tasks());
    }

    #[test]
    fn tasks_are_run_here_for_an_upstream_with_the_extension() {
        let declared = |revision| {
            let capabilities = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
            let capabilities = Bytes::from_static(capabilities.as_bytes());
            ServerDeclaration::new(revision, capabilities, Bytes::from_static(b"{}"), None)
        };
        let modern = declared(Revision::V2026_07_28);
        assert!(modern.hosts_tasks());
        assert!(!modern.without_hosted_tasks().hosts_tasks());
        assert!(!declared(Revision::V2025_11_25).hosts_tasks());
    }

    #[test]
    fn what_an_upstream_declares_as_null_it_does_not_have() {
        let capabilities = r#"{"logging":null,"prompts":{"listChanged":null},"tools":null}"#;
        let info = r#"{"name":"n","title":null,"version":"1"}"#;
        let declared = ServerDeclaration::new(
            Revision::V2025_06_18,
            Bytes::from_static(capabilities.as_bytes()),
            Bytes::from_static(info.as_bytes()),
            None,
        );
        assert!(!declared.logs() && !declared.has_tools());
        assert_eq!(declared.shown_capabilities(), r#"{"prompts":{}}"#);
        assert_eq!(declared.server_info, r#"{"name":"n","version":"1"}"#);
    }

    #[test]
    fn only_a_declared_flag_announces_changes() {
        let capabilities =
            r#"{"tools":{"listChanged":true},"prompts":{"listChanged":false},"resources":{}}"#;
        let declared = ServerDeclaration::new(
            Revision::V2026_07_28,
            Bytes::from_static(capabilities.as_bytes()),
            Bytes::from_static(b"{}"),
            None,
        );
        assert_eq!(declared.announced(), ["tools"]);
        assert!(!declared.announces("completions"));
        let quiet = declared.without_list_changed();
        let kept = r#"{"tools":{},"prompts":{},"resources":{}}"#;
        assert_eq!(quiet.shown_capabilities(), kept);
        assert!(quiet.announces("tools") && !quiet.tells("tools"));
    }
}
