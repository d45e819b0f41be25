//! Removes `null` members from declarations: some serialisers write one for every member without a value.

use std::borrow::Cow;

use super::json;

/// Objects in objects that are looked into.
const DEPTH: usize = 4;

/// Capabilities, `clientInfo` or `serverInfo` (JSON text of an object) without `null` members. Their reader may refuse a
/// `null`, or take the member for declared. `experimental`, `extensions` and objects that repeat a member stay as they are.
pub(crate) fn without_nulls(declared: &str) -> Cow<'_, str> {
    if declared.contains("null") {
        pruned(declared, DEPTH)
    } else {
        Cow::Borrowed(declared)
    }
}

fn pruned(object: &str, depth: usize) -> Cow<'_, str> {
    let Ok(members) = json::members(object) else {
        return Cow::Borrowed(object);
    };
    let said = members.into_iter().filter(|(_, value)| *value != "null");
    let said = said.map(|(name, value)| {
        let is_looked_into = depth > 1 && value.starts_with('{');
        let value = match &*name {
            "experimental" | "extensions" => Cow::Borrowed(value),
            _ if is_looked_into => pruned(value, depth - 1),
            _ => Cow::Borrowed(value),
        };
        (name, value)
    });
    Cow::Owned(json::object(said))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing_is_null(r#"{ "a" : "nul" }"#, r#"{ "a" : "nul" }"#)]
    #[case::a_member(r#"{"tools":null,"prompts":{}}"#, r#"{"prompts":{}}"#)]
    #[case::all_members(r#"{"tools":null}"#, "{}")]
    #[case::within(
        r#"{"elicitation":{"form":{},"url":null}}"#,
        r#"{"elicitation":{"form":{}}}"#
    )]
    #[case::deep(
        r#"{"tasks":{"requests":{"tools":{"call":null}}}}"#,
        r#"{"tasks":{"requests":{"tools":{}}}}"#
    )]
    #[case::too_deep(
        r#"{"a":{"b":{"c":{"d":{"e":null}}}}}"#,
        r#"{"a":{"b":{"c":{"d":{"e":null}}}}}"#
    )]
    #[case::text("{\"title\":\"null\"}", "{\"title\":\"null\"}")]
    #[case::of_others(
        r#"{"experimental":{"x":null},"extensions":{"y":{"z":null}},"x":null}"#,
        r#"{"experimental":{"x":null},"extensions":{"y":{"z":null}}}"#
    )]
    #[case::in_an_array(r#"{"a":[null]}"#, r#"{"a":[null]}"#)]
    #[case::repeated(r#"{"a":null,"a":{}}"#, r#"{"a":null,"a":{}}"#)]
    #[case::no_object("null", "null")]
    fn what_is_null_is_not_declared(#[case] declared: &str, #[case] told: &str) {
        assert_eq!(without_nulls(declared), told);
    }
}
