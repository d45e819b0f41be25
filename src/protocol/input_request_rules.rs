//! What an upstream may ask a client in a form, and what a client may answer about its roots, of
//! every revision. Spec: SPEC C-71, C-81.

use super::json::{self, member};
use super::{links, sampling};

/// What is wrong with a question of `method` with these `params` (JSON text) that no client may be asked,
/// whatever it declares; for who asked it. Parameters that two parsers could read differently are flawed: the client
/// could find another link in them. Spec: SPEC C-70, C-81, C-82.
pub(crate) fn flaw(method: &str, params: &str) -> Option<&'static str> {
    match method {
        "elicitation/create" | "sampling/createMessage" if !json::is_object(params) => {
            Some("params must be an object that repeats no member")
        }
        "elicitation/create" if is_url(params) => {
            let url = member(params, "url").and_then(json::string);
            let is_link = url.is_some_and(|url| links::is_link(&url));
            (!is_link).then_some("url must be an http or https URL with a host")
        }
        "elicitation/create" => {
            let schema = member(params, "requestedSchema");
            let is_nested = schema.is_some_and(|schema| !is_flat(schema));
            is_nested.then_some("requestedSchema must be a flat object of plain values")
        }
        "sampling/createMessage" if !sampling::is_balanced(params) => {
            Some("every tool use must be answered by the next message, of nothing but tool results")
        }
        _ => None,
    }
}

/// The same of the first flawed one among `inputRequests` (JSON text of an object). Those that two parsers
/// could read differently are flawed.
pub(crate) fn flaw_among(requests: &str) -> Option<&'static str> {
    let Ok(requests) = json::members(requests) else {
        return Some("the questions must be told apart");
    };
    requests.iter().find_map(|(_, request)| {
        if !json::is_object(request) {
            return Some("a question must be an object that repeats no member");
        }
        let method = member(request, "method").and_then(json::string)?;
        flaw(&method, member(request, "params").unwrap_or("{}"))
    })
}

/// Whether an elicitation wants a link to be opened.
fn is_url(params: &str) -> bool {
    let mode = member(params, "mode").and_then(json::string);
    mode.is_some_and(|mode| mode == "url")
}

/// Whether a `requestedSchema`, JSON text, is one level deep: properties that are objects, or lists
/// of anything but plain values, cannot be put to a user. What else stands in it is the client's
/// business. Spec: SPEC C-81.
fn is_flat(schema: &str) -> bool {
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

    // SPEC C-70, C-81, C-82.
    #[rstest]
    #[case(
        "elicitation/create",
        r#"{"mode":"url","url":"https://a.example/"}"#,
        ""
    )]
    #[case(
        "elicitation/create",
        r#"{"mode":"url","url":"javascript:x"}"#,
        "url must be"
    )]
    #[case("elicitation/create", r#"{"mode":"\u0075rl"}"#, "url must be")]
    #[case(
        "elicitation/create",
        r#"{"mode":"form","mode":"url","url":"javascript:x"}"#,
        "repeats"
    )]
    #[case(
        "elicitation/create",
        r#"{"mode":"url","url":"https://a.example/","url":"javascript:x"}"#,
        "repeats"
    )]
    #[case(
        "sampling/createMessage",
        r#"{"messages":[],"messages":[{"role":"assistant","content":{"type":"tool_use","id":"1"}}]}"#,
        "repeats"
    )]
    #[case("elicitation/create", r#"{"message":"m"}"#, "")]
    #[case(
        "elicitation/create",
        r#"{"requestedSchema":{"properties":{"a":{"type":"object"}}}}"#,
        "flat"
    )]
    #[case("sampling/createMessage", r#"{"messages":[]}"#, "")]
    #[case(
        "sampling/createMessage",
        r#"{"messages":[{"role":"assistant","content":{"type":"tool_use","id":"1"}}]}"#,
        "answered"
    )]
    #[case("roots/list", "{}", "")]
    fn flawed_questions_are_told_apart(
        #[case] method: &str,
        #[case] params: &str,
        #[case] why: &str,
    ) {
        let flaw = flaw(method, params);
        assert_eq!(flaw.is_none(), why.is_empty());
        assert!(flaw.is_none_or(|flaw| flaw.contains(why)), "{flaw:?}");
    }

    // SPEC C-82, K-14.
    #[rstest]
    #[case(r#"{"a":{"method":"roots/list"}}"#, false)]
    #[case(r#"{"a":{"method":"roots/list"},"a":{"method":"roots/list"}}"#, true)]
    #[case(
        r#"{"a":{"method":"roots/list"},"b":{"method":"elicitation/create","params":{"mode":"url","url":"x:y"}}}"#,
        true
    )]
    #[case(
        r#"{"a":{"method":"elicitation/create","params":{"mode":"form","mode":"url","url":"x:y"}}}"#,
        true
    )]
    #[case(
        r#"{"a":{"method":"elicitation/create","params":{},"params":{"mode":"url","url":"x:y"}}}"#,
        true
    )]
    fn one_flawed_question_among_several_is_found(#[case] requests: &str, #[case] is_flawed: bool) {
        assert_eq!(flaw_among(requests).is_some(), is_flawed);
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
