//! Extensions of the protocol, which both sides declare in `capabilities.extensions`.
//! Spec: SPEC §12, N-01.

use super::json;

/// Calls that go on after their first answer. Spec: SPEC §11b.
pub const TASKS: &str = "io.modelcontextprotocol/tasks";

/// Whether `capabilities`, JSON text of an object, declare the extension `id`.
#[must_use]
pub fn declares(capabilities: &str, id: &str) -> bool {
    let members = json::members(capabilities).unwrap_or_default();
    let extensions = members.iter().find(|(name, _)| name == "extensions");
    extensions
        .and_then(|(_, extensions)| json::members(extensions).ok())
        .is_some_and(|extensions| extensions.iter().any(|(name, _)| name == id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_is_declared_among_the_extensions() {
        let declared = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
        assert!(declares(declared, TASKS));
        assert!(!declares(declared, "v/x"));
        assert!(!declares(
            r#"{"tasks":{},"io.modelcontextprotocol/tasks":{}}"#,
            TASKS
        ));
        assert!(!declares(r#"{"extensions":[]}"#, TASKS));
    }
}
