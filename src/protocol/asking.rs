//! What an upstream may ask a client in a form, and what a client may answer about its roots, of
//! every revision. Spec: SPEC C-71, C-81.

use super::json::{self, member};

/// Whether a `requestedSchema`, JSON text, is one level deep: properties that are objects, or lists
/// of anything but plain values, cannot be put to a user. What else stands in it is the client's
/// business. Spec: SPEC C-81.
pub(crate) fn is_flat(schema: &str) -> bool {
    let Some(properties) = member(schema, "properties") else {
        return true;
    };
    json::members(properties).is_ok_and(|all| all.iter().all(|(_, property)| is_plain(property)))
}

fn is_plain(property: &str) -> bool {
    match kind(property).as_deref() {
        Some("object") => false,
        Some("array") => member(property, "items").is_none_or(|items| {
            !matches!(kind(items).as_deref(), Some("object" | "array"))
                && member(items, "properties").is_none()
        }),
        _ => member(property, "properties").is_none(),
    }
}

fn kind(schema: &str) -> Option<String> {
    let kind = member(schema, "type").and_then(json::string)?;
    Some(kind.into_owned())
}

/// Whether all roots of a `roots/list` result, JSON text, are files. Spec: SPEC C-71.
pub(crate) fn are_files(result: &[u8]) -> bool {
    const SCHEME: &str = "file://";
    let roots = std::str::from_utf8(result)
        .ok()
        .and_then(|text| json::elements(member(text, "roots")?).ok());
    let is_file = |root: &&str| {
        let uri = member(root, "uri").and_then(json::string);
        uri.is_some_and(|uri| {
            uri.get(..SCHEME.len())
                .is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
        })
    };
    roots.is_some_and(|roots| roots.iter().all(is_file))
}

/// The same of every answer among `inputResponses`, JSON text, that is one about roots: no other
/// result has any.
pub(crate) fn name_only_files(responses: &str) -> bool {
    let answers = json::members(responses).unwrap_or_default();
    answers
        .iter()
        .all(|(_, answer)| member(answer, "roots").is_none() || are_files(answer.as_bytes()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(r#"{"type":"object"}"#, true)]
    #[case(r#"{"type":"object","properties":{}}"#, true)]
    #[case(
        r#"{"properties":{"a":{"type":"string"},"b":{"type":"boolean","default":true}}}"#,
        true
    )]
    #[case(
        r#"{"properties":{"a":{"type":"string","oneOf":[{"const":"x","title":"X"}]}}}"#,
        true
    )]
    #[case(
        r#"{"properties":{"a":{"type":"array","items":{"type":"string","enum":["x"]}}}}"#,
        true
    )]
    #[case(
        r#"{"properties":{"a":{"type":"array","items":{"anyOf":[{"const":"x"}]}}}}"#,
        true
    )]
    #[case(r#"{"properties":{"a":{"type":"object"}}}"#, false)]
    #[case(
        r#"{"properties":{"a":{"properties":{"b":{"type":"string"}}}}}"#,
        false
    )]
    #[case(
        r#"{"properties":{"a":{"type":"array","items":{"type":"object"}}}}"#,
        false
    )]
    #[case(
        r#"{"properties":{"a":{"type":"array","items":{"type":"array"}}}}"#,
        false
    )]
    #[case(r#"{"properties":[]}"#, false)]
    fn a_form_is_one_level_deep(#[case] schema: &str, #[case] expected: bool) {
        assert_eq!(is_flat(schema), expected);
    }

    #[rstest]
    #[case(r#"{"roots":[]}"#, true)]
    #[case(
        r#"{"roots":[{"uri":"file:///a"},{"uri":"FILE:///b","name":"b"}]}"#,
        true
    )]
    #[case(r#"{"roots":[{"uri":"file:///a"},{"uri":"https://a.test/"}]}"#, false)]
    #[case(r#"{"roots":[{"name":"a"}]}"#, false)]
    #[case(r#"{"roots":"file:///a"}"#, false)]
    #[case("{}", false)]
    fn roots_are_files(#[case] result: &str, #[case] expected: bool) {
        assert_eq!(are_files(result.as_bytes()), expected);
    }

    #[rstest]
    #[case(r#"{"a":{"action":"accept","content":{"roots":"x"}}}"#, true)]
    #[case(
        r#"{"a":{"role":"assistant"},"b":{"roots":[{"uri":"file:///a"}]}}"#,
        true
    )]
    #[case(
        r#"{"a":{"roots":[{"uri":"file:///a"}]},"b":{"roots":[{"uri":"https://a.test/"}]}}"#,
        false
    )]
    #[case("{}", true)]
    fn answers_name_only_files(#[case] responses: &str, #[case] expected: bool) {
        assert_eq!(name_only_files(responses), expected);
    }
}
