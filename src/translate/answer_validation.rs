//! Whether an answer fits its question. Spec: SPEC M-65.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use crate::call::InputRequest;
use crate::protocol::json::{self, member};

/// Whether `answer` (JSON text of a result) fits `question`; if not, the client is asked again.
#[must_use]
pub(crate) fn is_answered_by(question: &InputRequest, answer: &str) -> bool {
    let has = |name| member(answer, name).is_some();
    match question.method.as_str() {
        "elicitation/create" => match member(answer, "action").and_then(json::string).as_deref() {
            Some("decline" | "cancel") => true,
            Some("accept") => is_content_valid(question.params_text(), member(answer, "content")),
            _ => false,
        },
        "sampling/createMessage" => has("role") && has("content"),
        "roots/list" => member(answer, "roots").is_some_and(|roots| json::elements(roots).is_ok()),
        _ => false,
    }
}

/// Whether `content` satisfies the requested schema: required properties are present, and every value is
/// allowed by its property. An optional property may be null: some clients write one for each field left empty.
fn is_content_valid(params: &str, content: Option<&str>) -> bool {
    let Some(schema) = member(params, "requestedSchema") else {
        return true;
    };
    // Some serialisers write null for what is absent.
    let content = content.filter(|content| *content != "null");
    let Ok(content) = json::members(content.unwrap_or("{}")) else {
        return false;
    };
    let content: HashMap<_, _> = content.into_iter().collect();
    let required = member(schema, "required")
        .and_then(|names| json::elements(names).ok())
        .unwrap_or_default();
    let required: HashSet<_> = required
        .iter()
        .filter_map(|name| json::string(name))
        .collect();
    let complete = required.iter().all(|name| content.contains_key(name));
    let properties = member(schema, "properties")
        .and_then(|properties| json::members(properties).ok())
        .unwrap_or_default();
    complete
        && properties.iter().all(|(name, property)| {
            let left_empty = |value: &str| value == "null" && !required.contains(name);
            let value = content.get(name);
            value.is_none_or(|value| left_empty(value) || is_allowed(property, value))
        })
}

/// Whether a value is of its property's type, within its bounds, and one of its choices. The format of a text
/// is left to the upstream.
fn is_allowed(property: &str, value: &str) -> bool {
    member(property, "type")
        .and_then(json::string)
        .is_none_or(|kind| is_a(&kind, value))
        && is_within(property, value)
        && is_offered(property, value)
}

/// Whether a value is one of the choices; of an array, whether each of its values is. Choices are looked up in a
/// set, since the client decides how many values there are.
fn is_offered(property: &str, value: &str) -> bool {
    let several = value.starts_with('[');
    let of_one = if several {
        member(property, "items").unwrap_or("{}")
    } else {
        property
    };
    let Some(choices) = AllowedValues::read(of_one) else {
        return true;
    };
    if several {
        json::elements(value).is_ok_and(|values| values.iter().all(|value| choices.offer(value)))
    } else {
        choices.offer(value)
    }
}

/// The choices for a value.
struct AllowedValues<'s>(HashSet<AllowedValue<'s>>);

/// A value in the form in which it is compared: texts are decoded.
#[derive(PartialEq, Eq, Hash)]
enum AllowedValue<'s> {
    Text(Cow<'s, str>),
    Other(&'s str),
}

impl<'s> AllowedValues<'s> {
    /// The choices that a schema names, with or without titles; `None` when it names none.
    fn read(schema: &'s str) -> Option<Self> {
        #[cfg(test)]
        tests::CHOICES_READ.set(tests::CHOICES_READ.get() + 1);
        let listed = |name| member(schema, name).and_then(|text| json::elements(text).ok());
        let titled = || listed("oneOf").or_else(|| listed("anyOf"));
        let choices = listed("enum").or_else(|| {
            let titled = titled()?;
            titled.iter().map(|one| member(one, "const")).collect()
        })?;
        Some(Self(choices.into_iter().map(AllowedValue::of).collect()))
    }

    fn offer(&self, value: &str) -> bool {
        self.0.contains(&AllowedValue::of(value))
    }
}

impl<'s> AllowedValue<'s> {
    fn of(value: &'s str) -> Self {
        json::string(value).map_or(Self::Other(value), Self::Text)
    }
}

/// Whether a number, the length of a text, or the number of choices is within its bounds.
fn is_within(property: &str, value: &str) -> bool {
    fn lies<T: FromStr + PartialOrd>(property: &str, value: &T, bounds: [&str; 2]) -> bool {
        let [least, most] =
            bounds.map(|name| member(property, name).and_then(|bound| bound.parse::<T>().ok()));
        least.is_none_or(|least| *value >= least) && most.is_none_or(|most| *value <= most)
    }
    if let Some(text) = json::string(value) {
        let length = text.chars().count();
        return lies(property, &length, ["minLength", "maxLength"]);
    }
    if let Ok(values) = json::elements(value) {
        return lies(property, &values.len(), ["minItems", "maxItems"]);
    }
    value
        .parse::<f64>()
        .is_ok_and(|number| lies(property, &number, ["minimum", "maximum"]))
        || matches!(value, "true" | "false" | "null")
        || value.starts_with('{')
}

fn is_a(kind: &str, value: &str) -> bool {
    let number = value.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    match kind {
        "string" => value.starts_with('"'),
        "number" => number,
        "integer" => {
            number
                && value
                    .parse::<f64>()
                    .is_ok_and(|number| number.fract() == 0.0)
        }
        "boolean" => matches!(value, "true" | "false"),
        "array" => value.starts_with('['),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    thread_local! {
        pub(super) static CHOICES_READ: Cell<usize> = const { Cell::new(0) };
    }

    fn question(method: &str, params: &Value) -> InputRequest {
        InputRequest {
            method: method.to_owned(),
            params: Some(params.to_string().into()),
        }
    }

    fn form() -> InputRequest {
        let schema = json!({
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name"],
        });
        question(
            "elicitation/create",
            &json!({"message": "?", "requestedSchema": schema}),
        )
    }

    // SPEC M-65.
    #[rstest]
    #[case(r#"{"action":"accept","content":null}"#, true)]
    #[case(r#"{"action":"accept"}"#, true)]
    #[case(r#"{"action":"accept","content":[]}"#, false)]
    fn a_form_without_required_fields_may_have_no_content(
        #[case] answer: &str,
        #[case] valid: bool,
    ) {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let params = json!({"message": "?", "requestedSchema": schema});
        let form = question("elicitation/create", &params);
        assert_eq!(is_answered_by(&form, answer), valid);
    }

    // SPEC M-65.
    #[rstest]
    #[case(r#"{"action":"decline"}"#, true)]
    #[case(r#"{"action":"cancel","content":{}}"#, true)]
    #[case(
        r#"{"action":"accept","content":{"name":"x","age":3.0,"more":[]}}"#,
        true
    )]
    #[case(r#"{"action":"accept","content":{"name":"x","age":null}}"#, true)]
    #[case(r#"{"action":"accept","content":{"name":null}}"#, false)]
    #[case(r#"{"action":"accept","content":{"age":3}}"#, false)]
    #[case(r#"{"action":"accept","content":{"name":3}}"#, false)]
    #[case(r#"{"action":"accept","content":{"name":"x","age":3.5}}"#, false)]
    #[case(r#"{"action":"accept"}"#, false)]
    #[case(r#"{"action":"perhaps"}"#, false)]
    #[case(r#""accept""#, false)]
    fn a_form_is_answered_by_its_schema(#[case] answer: &str, #[case] valid: bool) {
        assert_eq!(is_answered_by(&form(), answer), valid);
    }

    // SPEC M-65.
    #[rstest]
    #[case::choice(json!({"type": "string", "enum": ["ä", "b"]}), json!("ä"), json!("c"))]
    #[case::titled(json!({"oneOf": [{"const": "a", "title": "A"}]}), json!("a"), json!("A"))]
    #[case::several(
        json!({"type": "array", "items": {"anyOf": [{"const": "a"}, {"const": "b"}]}}),
        json!(["b", "a"]),
        json!(["a", "c"])
    )]
    #[case::nested(
        json!({"type": "array", "items": {"enum": ["a"]}}),
        json!(["a", "a"]),
        json!([["a"]])
    )]
    #[case::number(json!({"enum": ["1", 2]}), json!(2), json!(1))]
    #[case::too_few(json!({"type": "array", "minItems": 1}), json!([1]), json!([]))]
    #[case::too_many(json!({"type": "array", "maxItems": 1}), json!([1]), json!([1, 2]))]
    #[case::short(json!({"type": "string", "minLength": 2}), json!("äö"), json!("ä"))]
    #[case::long(json!({"type": "string", "maxLength": 2}), json!("äö"), json!("äöü"))]
    #[case::small(json!({"type": "integer", "minimum": -1}), json!(-1), json!(-2))]
    #[case::large(json!({"type": "number", "maximum": 1.5}), json!(1.5), json!(1.6))]
    #[case::flag(json!({"type": "boolean"}), json!(false), json!("false"))]
    fn a_value_is_one_that_its_property_allows(
        #[case] property: Value,
        #[case] good: Value,
        #[case] bad: Value,
    ) {
        let property = property.to_string();
        // As some programs write it.
        let escaped = good.to_string().replace('ä', "\\u00e4");
        assert!(is_allowed(&property, &escaped), "{escaped}");
        assert!(!is_allowed(&property, &bad.to_string()), "{bad}");
    }

    // Else a request of a few megabytes would keep a thread, and its call, for a minute.
    #[rstest]
    #[case::many(json!(vec!["b"; 1000]), 1)]
    #[case::too_many(json!(vec!["b"; 1001]), 0)]
    fn choices_are_read_once_for_all_values(#[case] values: Value, #[case] times: usize) {
        let items = json!({"anyOf": [{"const": "a"}, {"const": "b"}]});
        let property = json!({"type": "array", "items": items, "maxItems": 1000});
        let before = CHOICES_READ.get();
        let allowed = is_allowed(&property.to_string(), &values.to_string());
        assert_eq!(allowed, times > 0);
        assert_eq!(CHOICES_READ.get() - before, times);
    }

    #[test]
    fn other_questions_have_their_own_shape() {
        let url = question(
            "elicitation/create",
            &json!({"mode": "url", "url": "https://x"}),
        );
        assert!(is_answered_by(&url, r#"{"action":"accept"}"#));
        let sampling = question("sampling/createMessage", &json!({}));
        assert!(is_answered_by(
            &sampling,
            r#"{"role":"assistant","content":{},"model":"m"}"#
        ));
        assert!(!is_answered_by(&sampling, "{}"));
        let roots = question("roots/list", &json!({}));
        assert!(is_answered_by(&roots, r#"{"roots":[]}"#));
        assert!(!is_answered_by(&roots, r#"{"roots":{}}"#));
    }
}
