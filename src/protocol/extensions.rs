//! Extensions of the protocol, which both sides declare in `capabilities.extensions`: those whose
//! messages we understand, and what two sides have in common that we do not.
//! Spec: MCP 2026-07-28, versioning, "Extension Negotiation"; SPEC §12; SPEC N-01, L-09.

use super::json;

/// User interfaces of tools. Spec: MCP Apps 2026-01-26, SPEC N-02.
pub const UI: &str = "io.modelcontextprotocol/ui";
/// Skills as resources. Spec: Skills over MCP, SPEC N-04.
pub const SKILLS: &str = "io.modelcontextprotocol/skills";
/// Calls that go on after their first answer. Spec: SPEC §11.
pub const TASKS: &str = "io.modelcontextprotocol/tasks";

/// Extensions whose messages can be told apart and mapped.
pub const UNDERSTOOD: [&str; 3] = [UI, SKILLS, TASKS];

/// Where capabilities name what goes beyond the core; the second is of the legacy era.
const PLACES: [&str; 2] = ["extensions", "experimental"];

/// The settings under which `capabilities`, JSON text of an object, declare the extension `id`.
#[must_use]
pub fn settings<'t>(capabilities: &'t str, id: &str) -> Option<&'t str> {
    json::member(json::member(capabilities, "extensions")?, id)
}

/// Whether `capabilities`, JSON text of an object, declare the extension `id`.
#[must_use]
pub fn declares(capabilities: &str, id: &str) -> bool {
    settings(capabilities, id).is_some()
}

/// Whether a server that declares `capabilities` answers `resources/directory/read`.
#[must_use]
pub fn reads_directories(capabilities: &str) -> bool {
    settings(capabilities, SKILLS).and_then(|settings| json::member(settings, "directoryRead"))
        == Some("true")
}

/// Whether both sides declare the same extension, or experimental feature, unknown to the gateway. An
/// unknown method may then belong to that extension; declarations do not list methods, so the gateway
/// cannot tell.
#[must_use]
pub fn share_foreign(client: &str, server: &str) -> bool {
    PLACES.iter().any(|place| {
        let declared = |side| json::members(json::member(side, place)?).ok();
        let (Some(client), Some(server)) = (declared(client), declared(server)) else {
            return false;
        };
        client.iter().any(|(id, _)| {
            !UNDERSTOOD.contains(&&**id) && server.iter().any(|(other, _)| other == id)
        })
    })
}

/// The members of a declaration, JSON text of an object of extensions, for which `keeps` holds.
#[must_use]
pub fn filtered(extensions: &str, keeps: impl Fn(&str) -> bool) -> String {
    let members = json::members(extensions).unwrap_or_default();
    json::object(members.into_iter().filter(|(id, _)| keeps(id)))
}

/// The same capabilities with the extension `id`, which has no settings.
#[must_use]
pub fn with(capabilities: &str, id: &str) -> String {
    let members = json::members(capabilities).unwrap_or_default();
    json::object_with(&members, "extensions", id, "{}")
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

    // SPEC N-01.
    #[test]
    fn only_what_both_sides_declare_and_we_do_not_understand_is_shared() {
        let vendor = r#"{"extensions":{"io.modelcontextprotocol/ui":{},"v/x":{}}}"#;
        let known = r#"{"extensions":{"io.modelcontextprotocol/ui":{}}}"#;
        assert!(share_foreign(vendor, vendor));
        assert!(!share_foreign(vendor, known) && !share_foreign(known, vendor));
        assert!(!share_foreign(known, known) && !share_foreign("{}", vendor));
        let experimental = r#"{"experimental":{"v/x":{}}}"#;
        assert!(share_foreign(experimental, experimental));
        assert!(!share_foreign(experimental, vendor));
    }

    // SPEC N-04.
    #[test]
    fn directories_are_read_where_the_setting_says_so() {
        let of = |settings: &str| {
            format!(r#"{{"extensions":{{"io.modelcontextprotocol/skills":{settings}}}}}"#)
        };
        assert!(reads_directories(&of(r#"{"directoryRead":true}"#)));
        assert!(!reads_directories(&of(r#"{"directoryRead":false}"#)));
        assert!(!reads_directories(&of("{}")) && !reads_directories("{}"));
    }

    #[test]
    fn a_filtered_declaration_keeps_settings_as_they_came() {
        let text = r#"{"v/x":{ "a":1 },"v/y":{}}"#;
        assert_eq!(filtered(text, |id| id == "v/x"), r#"{"v/x":{ "a":1 }}"#);
        assert_eq!(filtered("[]", |_| true), "{}");
    }
}
