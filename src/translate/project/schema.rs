//! Output schemas and structured content that are no objects, for clients that know only objects.
//! Spec: BRIDGING §3.9; SPEC C-92.

use std::borrow::Cow;

use super::object::{MemberFate, array, object, string_member};
use crate::protocol::json::{self, JsonError, ObjectWriter};

/// Where a wrapped schema stands inside the wrapping one.
const PLACE: &str = "#/properties/result";
/// Members whose value maps names to schemas; `dependencies` also to arrays of names.
const MAPS: [&str; 6] = [
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
];
/// Members whose value is a schema, or an array of schemas.
const SCHEMAS: [&str; 17] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "extends",
];

/// Whether a schema has to be wrapped, and with it what it describes: its root is no object.
pub(super) fn needs_wrapping(schema: &str) -> bool {
    string_member(schema, "type").as_deref() != Some("object")
}

/// A value as the wrapping schema describes it.
pub(super) fn wrapped_value(value: &str) -> String {
    json::object([("result", value)])
}

/// The schema of an object whose one member is described by `schema`.
///
/// # Errors
/// When a schema in it repeats a member.
pub(super) fn wrapped_schema(schema: &str) -> Result<String, JsonError> {
    let mut dialect = None;
    let inner = object(schema, |name, value| {
        if name == "$schema" {
            // Says how the whole document is read, so it stands at its root.
            dialect = Some(value);
            return Ok(MemberFate::Drop);
        }
        Ok(MemberFate::Keep)
    })?;
    let moved = moved(&inner)?;
    let mut out = ObjectWriter::default();
    if let Some(dialect) = dialect {
        out.member("$schema", dialect);
    }
    out.member("type", "\"object\"");
    out.member("properties", &wrapped_value(&moved));
    out.member("required", r#"["result"]"#);
    Ok(out.finish())
}

/// A schema whose references to its own root find it at its new place. Below an `$id` references
/// mean that schema's root, which moves along.
fn moved(schema: &str) -> Result<Cow<'_, str>, JsonError> {
    if !schema.starts_with('{') || string_member(schema, "$id").is_some() {
        return Ok(Cow::Borrowed(schema));
    }
    object(schema, |name, value| {
        if name == "$ref" || name == "$dynamicRef" {
            return Ok(reference(value));
        }
        if MAPS.contains(&name) {
            let all = object(value, |_, schema| Ok(moved(schema)?.into()))?;
            return Ok(all.into());
        }
        if SCHEMAS.contains(&name) {
            let all = if value.starts_with('[') {
                array(value, |schema| Ok(moved(schema)?.into()))?
            } else {
                moved(value)?
            };
            return Ok(all.into());
        }
        Ok(MemberFate::Keep)
    })
}

/// A reference by pointer to the document's root; anchors are found wherever they stand.
fn reference(value: &str) -> MemberFate<'_> {
    let target = json::string(value);
    match target
        .as_deref()
        .and_then(|target| target.strip_prefix('#'))
    {
        Some(pointer) if pointer.is_empty() || pointer.starts_with('/') => {
            MemberFate::Put(json::quote(&format!("{PLACE}{pointer}")).into())
        }
        _ => MemberFate::Keep,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wrapped(schema: &Value) -> Value {
        serde_json::from_str(&wrapped_schema(&schema.to_string()).unwrap()).unwrap()
    }

    #[test]
    fn only_a_root_of_type_object_stays() {
        assert!(!needs_wrapping(r#"{"type":"object"}"#));
        for schema in [
            r#"{"type":"array"}"#,
            r#"{"anyOf":[]}"#,
            r#"{"type":["object"]}"#,
            "true",
        ] {
            assert!(needs_wrapping(schema), "{schema}");
        }
    }

    #[test]
    fn references_to_the_root_follow_it_and_the_dialect_stays_at_the_top() {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "array",
            "items": {"$ref": "#/$defs/item"},
            "$defs": {"item": {"anyOf": [{"$ref": "#"}, {"$ref": "#name"}, {"$ref": "other#/x"}]}}
        });
        assert_eq!(
            wrapped(&schema),
            json!({
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {"result": {
                    "type": "array",
                    "items": {"$ref": "#/properties/result/$defs/item"},
                    "$defs": {"item": {"anyOf": [
                        {"$ref": "#/properties/result"}, {"$ref": "#name"}, {"$ref": "other#/x"}
                    ]}}
                }},
                "required": ["result"]
            })
        );
    }

    // Spec: JSON Schema draft 7, validation §6.5.7.
    #[test]
    fn references_in_dependencies_follow_the_root_and_names_stay() {
        let schema = json!({"dependencies": {"a": ["b"], "$ref": {"$ref": "#/x"}, "items": {"items": {"$ref": "#"}}}});
        let moved = json!({"dependencies": {
            "a": ["b"],
            "$ref": {"$ref": "#/properties/result/x"},
            "items": {"items": {"$ref": "#/properties/result"}}
        }});
        assert_eq!(wrapped(&schema)["properties"]["result"], moved);
    }

    #[test]
    fn what_only_looks_like_a_reference_stays() {
        let schema = json!({
            "anyOf": [
                {"const": {"$ref": "#/a"}},
                {"enum": [{"$ref": "#/a"}]},
                {"properties": {"$ref": {"type": "string", "default": {"$ref": "#"}}}},
                {"$id": "https://example.com/s", "items": {"$ref": "#/a"}}
            ]
        });
        assert_eq!(wrapped(&schema)["properties"]["result"], schema);
    }
}
