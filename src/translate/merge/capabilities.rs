//! The capabilities of a merged endpoint.

use std::borrow::Cow;

use crate::call::{ServerDeclaration, takes_tasks};
use crate::protocol::extensions::{self, UNDERSTOOD};
use crate::protocol::json::{self, ObjectWriter};
use crate::protocol::{Era, Revision};

/// Calls as tasks of 2025-11-25; their list is made here.
const TASKS: &str = r#"{"list":{},"requests":{"tools":{"call":{}}}}"#;
/// [`TASKS`] if an upstream allows to cancel them.
const CANCELLABLE_TASKS: &str = r#"{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}"#;
/// Skills whose directories can be read.
const READS_DIRECTORIES: &str = r#"{"directoryRead":true}"#;

/// Capabilities of several upstreams as those of one, for `initialize`: JSON text of an object. Each
/// was [`shown`] to the client's revision before.
///
/// Tools, prompts and resources are always there and announce changes (unless `tells_changes` is `false`),
/// because legacy capabilities cannot change later and upstreams can (DESIGN §4). Only extensions that the gateway
/// understands are included, with the settings of the first upstream; directories of skills can be read if any
/// upstream allows it. A value that is no object counts as `{}`. Spec: BRIDGING §5.1, SPEC N-01.
#[must_use]
pub fn merged<'t>(upstreams: impl IntoIterator<Item = &'t str>, tells_changes: bool) -> String {
    let (mut subscribe, mut completions, mut logging) = (false, false, false);
    let mut tasks = None;
    let mut declared: [Option<&str>; UNDERSTOOD.len()] = [None; UNDERSTOOD.len()];
    for (name, value) in upstreams.into_iter().flat_map(objects) {
        match &*name {
            // Each is projected already. Spec: SPEC L-02.
            "completions" => completions = true,
            "logging" => logging = true,
            "tasks" if value == CANCELLABLE_TASKS => tasks = Some(CANCELLABLE_TASKS),
            "tasks" if value == TASKS => tasks = tasks.or(Some(TASKS)),
            "resources" => {
                subscribe |= objects(value).any(|(n, v)| n == "subscribe" && v == "true");
            }
            "extensions" => {
                for (name, settings) in objects(value) {
                    let mut known = UNDERSTOOD.iter().zip(&mut declared);
                    let Some((id, place)) = known.find(|(id, _)| **id == name) else {
                        continue;
                    };
                    let reads = *id == extensions::SKILLS
                        && json::member(settings, "directoryRead") == Some("true");
                    if reads {
                        *place = Some(READS_DIRECTORIES);
                    }
                    place.get_or_insert(settings);
                }
            }
            _ => {}
        }
    }
    let flags = |subscribe: bool| {
        let flags = [("listChanged", tells_changes), ("subscribe", subscribe)];
        let set = flags.into_iter().filter(|(_, is_set)| *is_set);
        json::object(set.map(|(name, _)| (name, "true")))
    };
    let plain = flags(false);
    let resources = flags(subscribe);
    let mut out = ObjectWriter::default();
    out.member("tools", &plain);
    out.member("prompts", &plain);
    out.member("resources", &resources);
    if completions {
        out.member("completions", "{}");
    }
    if logging {
        out.member("logging", "{}");
    }
    if let Some(tasks) = tasks {
        out.member("tasks", tasks);
    }
    let declared = UNDERSTOOD.iter().zip(declared);
    let mut declared = declared
        .filter_map(|(id, settings)| Some((id, settings?)))
        .peekable();
    if declared.peek().is_some() {
        out.member("extensions", &json::object(declared));
    }
    out.finish()
}

/// Capabilities of an upstream projected to `revision`: JSON text of an object. For clients of 2025-11-25
/// they include tasks if the gateway runs them. Spec: BRIDGING §3.8, §5.1.
#[must_use]
pub fn shown(declared: &ServerDeclaration, revision: Revision) -> String {
    let text = declared.shown_capabilities();
    let shown = projected(&text, declared.revision, revision);
    if !(declared.hosts_tasks() && revision.has_tasks_capability()) {
        return shown;
    }
    json::object(objects(&shown).chain([("tasks".into(), CANCELLABLE_TASKS)]))
}

/// The capabilities of an upstream of revision `from`, without those that `revision` does not have: JSON text of
/// an object, otherwise unchanged. Modern clients get tasks as the extension, clients of 2025-11-25 the tasks of
/// upstreams of 2025-11-25. Spec: SPEC L-02, K-15, M-52; BRIDGING §3.8.
fn projected(capabilities: &str, from: Revision, revision: Revision) -> String {
    let modern = revision.era() == Era::Modern;
    let carries_tasks = modern && from.era() == Era::Modern;
    // Those of 2025-11-25 are shown as the extension's.
    let shows_tasks = modern && from.era() == Era::Legacy && takes_tasks(capabilities);
    let carried = carried_tasks(capabilities)
        .filter(|_| from.has_tasks_capability() && revision.has_tasks_capability());
    let kept = objects(capabilities).filter(|(name, _)| match &**name {
        "completions" => revision.has_completions_capability() || revision.allows_beyond(from),
        "tasks" => carried.is_some(),
        _ => true,
    });
    let shown = json::object(kept.map(|(name, value)| {
        let value = match (&*name, carried) {
            ("extensions", _) if !carries_tasks => {
                Cow::Owned(extensions::filtered(value, |id| id != extensions::TASKS))
            }
            ("tasks", Some(tasks)) => Cow::Borrowed(tasks),
            _ => Cow::Borrowed(value),
        };
        (name, value)
    }));
    if !shows_tasks {
        return shown;
    }
    extensions::with(&shown, extensions::TASKS)
}

/// The task capability for clients of an upstream that runs calls as tasks.
fn carried_tasks(capabilities: &str) -> Option<&'static str> {
    let tasks = json::member(capabilities, "tasks").filter(|_| takes_tasks(capabilities))?;
    let cancels = json::member(tasks, "cancel").is_some();
    Some(if cancels { CANCELLABLE_TASKS } else { TASKS })
}

/// Members of an object; none of anything else.
fn objects(text: &str) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    json::members(text).unwrap_or_default().into_iter()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Of upstreams whose clients are told of changed lists.
    fn merged<'t>(upstreams: impl IntoIterator<Item = &'t str>) -> String {
        super::merged(upstreams, true)
    }

    const LEGACY: Revision = Revision::V2025_11_25;
    const MODERN: Revision = Revision::V2026_07_28;
    const ALWAYS: &str = r#""tools":{"listChanged":true},"prompts":{"listChanged":true}"#;

    #[test]
    fn tools_prompts_and_resources_are_always_there() {
        for upstreams in [&[][..], &["{}", "nonsense", "[]"][..]] {
            let text = merged(upstreams.iter().copied());
            assert_eq!(
                text,
                format!(r#"{{{ALWAYS},"resources":{{"listChanged":true}}}}"#)
            );
        }
    }

    // SPEC L-02, C-21.
    #[rstest]
    #[case(Revision::V2025_03_26, Revision::V2024_11_05, r#","logging":{}"#)]
    #[case(
        Revision::V2024_11_05,
        Revision::V2024_11_05,
        r#","completions":{},"logging":{}"#
    )]
    #[case(
        Revision::V2024_11_05,
        Revision::V2025_03_26,
        r#","completions":{},"logging":{}"#
    )]
    fn the_rest_is_there_if_any_upstream_and_the_revision_have_it(
        #[case] from: Revision,
        #[case] revision: Revision,
        #[case] rest: &str,
    ) {
        let upstreams = [
            r#"{"tools":{},"experimental":{"x":{}}}"#,
            r#"{"resources":{"subscribe":true},"completions":{},"tasks":{}}"#,
            r#"{"resources":{"subscribe":false},"logging":{}}"#,
        ];
        let expected =
            format!(r#"{{{ALWAYS},"resources":{{"listChanged":true,"subscribe":true}}{rest}}}"#);
        let upstreams = upstreams.map(|text| projected(text, from, revision));
        assert_eq!(merged(upstreams.iter().map(String::as_str)), expected);
    }

    #[test]
    fn known_extensions_pass_and_others_do_not() {
        let upstreams = [
            r#"{"extensions":{"com.vendor/x":{}}}"#,
            r#"{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["a"]}}}"#,
            r#"{"extensions":{"io.modelcontextprotocol/ui":{}}}"#,
        ];
        let text = merged(upstreams);
        assert!(
            text.ends_with(r#","extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["a"]}}}"#)
        );
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }

    // SPEC N-04.
    #[test]
    fn directories_can_be_read_where_any_upstream_lets_them() {
        let skills = |settings: &str| {
            format!(r#"{{"extensions":{{"io.modelcontextprotocol/skills":{settings}}}}}"#)
        };
        let (plain, reads) = (skills("{}"), skills(r#"{"directoryRead":true}"#));
        for upstreams in [[&plain, &reads], [&reads, &plain]] {
            let text = merged(upstreams.map(String::as_str));
            let end = r#"{"io.modelcontextprotocol/skills":{"directoryRead":true}}}"#;
            assert!(text.ends_with(end), "{text}");
        }
        assert!(merged([plain.as_str()]).ends_with("skills\":{}}}"));
    }

    #[test]
    fn tasks_of_2025_11_25_are_told_of_in_its_own_words_alone() {
        let text = r#"{"tasks":{"cancel":{},"list":{},"requests":{"tools":{"call":{}},"x":{}}}}"#;
        let told = format!(r#"{{"tasks":{CANCELLABLE_TASKS}}}"#);
        assert_eq!(projected(text, LEGACY, LEGACY), told);
        assert_eq!(projected(text, LEGACY, Revision::V2025_06_18), "{}");
        let fixed = r#"{"tasks":{"requests":{"tools":{"call":{}}}}}"#;
        let also = projected(fixed, LEGACY, LEGACY);
        assert_eq!(also, format!(r#"{{"tasks":{TASKS}}}"#));
        for upstreams in [[&told, &also], [&also, &told]] {
            let all = merged(upstreams.map(String::as_str));
            assert!(
                all.ends_with(&format!(r#","tasks":{CANCELLABLE_TASKS}}}"#)),
                "{all}"
            );
        }
    }

    // BRIDGING §3.8, §5.1.
    #[test]
    fn tasks_of_the_extension_are_told_of_as_those_that_are_run_here() {
        let text = r#"{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
        let declared = || {
            let text = bytes::Bytes::from_static(text.as_bytes());
            ServerDeclaration::new(MODERN, text, bytes::Bytes::from_static(b"{}"), None)
        };
        let told = shown(&declared(), LEGACY);
        let expected = format!(r#"{{"tools":{{}},"extensions":{{}},"tasks":{CANCELLABLE_TASKS}}}"#);
        assert_eq!(told, expected);
        assert!(merged([told.as_str()]).contains(CANCELLABLE_TASKS));
        let nothing = r#"{"tools":{},"extensions":{}}"#;
        assert_eq!(shown(&declared(), Revision::V2025_06_18), nothing);
        assert_eq!(shown(&declared().without_hosted_tasks(), LEGACY), nothing);
        assert_eq!(shown(&declared(), MODERN), text);
    }

    #[test]
    fn a_pure_endpoint_hides_what_the_revision_does_not_know_and_tasks() {
        let text = r#"{"tools":{"x":1.0},"completions":{},"tasks":{},"experimental":{"e":{}}}"#;
        assert_eq!(
            projected(text, LEGACY, Revision::V2024_11_05),
            r#"{"tools":{"x":1.0},"experimental":{"e":{}}}"#
        );
        assert_eq!(
            projected(text, LEGACY, LEGACY),
            r#"{"tools":{"x":1.0},"completions":{},"experimental":{"e":{}}}"#
        );
        let text = r#"{"extensions":{"io.modelcontextprotocol/tasks":{},"v/x":{"a":1}}}"#;
        assert_eq!(
            projected(text, LEGACY, MODERN),
            r#"{"extensions":{"v/x":{"a":1}}}"#
        );
        assert_eq!(
            projected(text, MODERN, LEGACY),
            r#"{"extensions":{"v/x":{"a":1}}}"#
        );
        assert_eq!(projected(text, MODERN, MODERN), text);
    }
}
