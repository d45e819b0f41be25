//! What a merged server can do.

use crate::protocol::{Era, Revision, extensions, json};

/// Extensions that pass through a gateway; the declaration of the first upstream stands for all.
/// Spec: BRIDGING §5.1, SPEC L-09, N-01.
const EXTENSIONS: [&str; 2] = ["io.modelcontextprotocol/ui", extensions::TASKS];

/// Capabilities of several upstreams as those of one, for `initialize`: JSON text of an object.
///
/// Tools, prompts and resources are always there and always announce changes, because legacy
/// capabilities cannot change later and upstreams can (DESIGN §4). What is no object counts as `{}`.
#[must_use]
pub fn merged<'t>(upstreams: impl IntoIterator<Item = &'t str>, revision: Revision) -> String {
    let (mut subscribe, mut completions, mut logging) = (false, false, false);
    let mut extensions: [Option<&str>; EXTENSIONS.len()] = [None; EXTENSIONS.len()];
    for (name, value) in upstreams.into_iter().flat_map(objects) {
        match &*name {
            "completions" => completions = true,
            "logging" => logging = true,
            "resources" => {
                subscribe |= objects(value).any(|(n, v)| n == "subscribe" && v == "true");
            }
            "extensions" => {
                for (name, settings) in objects(value) {
                    let known = EXTENSIONS
                        .iter()
                        .zip(&mut extensions)
                        .find(|(n, _)| **n == name);
                    if let Some((_, place)) = known {
                        place.get_or_insert(settings);
                    }
                }
            }
            _ => {}
        }
    }
    let mut out = String::from(r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true}"#);
    out.push_str(r#","resources":{"listChanged":true"#);
    out.push_str(if subscribe {
        r#","subscribe":true}"#
    } else {
        "}"
    });
    // Spec: SPEC L-02.
    if completions && revision.has_completions_capability() {
        out.push_str(r#","completions":{}"#);
    }
    if logging {
        out.push_str(r#","logging":{}"#);
    }
    let declared = EXTENSIONS
        .iter()
        .zip(extensions)
        .filter_map(|(name, s)| Some((name, s?)));
    for (index, (name, settings)) in declared.enumerate() {
        out.push_str(if index == 0 { ",\"extensions\":{" } else { "," });
        out.push_str(&json::quote(name));
        out.push(':');
        out.push_str(settings);
    }
    if extensions.iter().any(Option::is_some) {
        out.push('}');
    }
    out.push('}');
    out
}

/// The capabilities of an upstream of revision `from` without what `revision` does not know: JSON
/// text of an object, the rest as it came. Tasks are carried where both are modern, as the
/// extension that they are there. Spec: SPEC L-02, K-15; BRIDGING §3.8.
#[must_use]
pub fn projected(capabilities: &str, from: Revision, revision: Revision) -> String {
    let carries_tasks = from.era() == Era::Modern && revision.era() == Era::Modern;
    let kept = objects(capabilities).filter(|(name, _)| match &**name {
        "completions" => revision.has_completions_capability(),
        "tasks" => false,
        _ => true,
    });
    let members: Vec<String> = kept
        .map(|(name, value)| match &*name {
            "extensions" if !carries_tasks => format!("\"extensions\":{}", without_tasks(value)),
            name => format!("{}:{value}", json::quote(name)),
        })
        .collect();
    format!("{{{}}}", members.join(","))
}

/// The extensions of a client or a server but tasks, which mean nothing in the legacy era (SPEC
/// K-15, M-52).
#[must_use]
pub fn without_tasks(declared: &str) -> String {
    let Ok(members) = json::members(declared) else {
        return declared.to_owned();
    };
    let kept: Vec<String> = members
        .iter()
        .filter(|(name, _)| name != extensions::TASKS)
        .map(|(name, value)| format!("{}:{value}", json::quote(name)))
        .collect();
    format!("{{{}}}", kept.join(","))
}

/// Members of an object; none of anything else.
fn objects(text: &str) -> impl Iterator<Item = (std::borrow::Cow<'_, str>, &str)> {
    json::members(text).unwrap_or_default().into_iter()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const LEGACY: Revision = Revision::V2025_11_25;
    const MODERN: Revision = Revision::V2026_07_28;
    const ALWAYS: &str = r#""tools":{"listChanged":true},"prompts":{"listChanged":true}"#;

    #[test]
    fn tools_prompts_and_resources_are_always_there() {
        for upstreams in [&[][..], &["{}", "nonsense", "[]"][..]] {
            let text = merged(upstreams.iter().copied(), Revision::V2025_11_25);
            assert_eq!(
                text,
                format!(r#"{{{ALWAYS},"resources":{{"listChanged":true}}}}"#)
            );
        }
    }

    // SPEC L-02, C-21.
    #[rstest]
    #[case(Revision::V2024_11_05, r#","logging":{}"#)]
    #[case(Revision::V2025_03_26, r#","completions":{},"logging":{}"#)]
    fn the_rest_is_there_if_any_upstream_and_the_revision_have_it(
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
        assert_eq!(merged(upstreams, revision), expected);
    }

    #[test]
    fn known_extensions_pass_and_others_do_not() {
        let upstreams = [
            r#"{"extensions":{"com.vendor/x":{}}}"#,
            r#"{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["a"]}}}"#,
            r#"{"extensions":{"io.modelcontextprotocol/ui":{}}}"#,
        ];
        let text = merged(upstreams, Revision::V2025_11_25);
        assert!(
            text.ends_with(r#","extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["a"]}}}"#)
        );
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
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
