//! Output schemas and structured content that are no objects, for clients that know only objects.
//! Spec: BRIDGING §3.9; SPEC C-92.

use std::borrow::Cow;
use std::ops::Range;

use super::object::{MemberFate, object, string_member};
use crate::protocol::json::{self, JsonError, JsonScanner, ObjectWriter, RawString, WalkStop};
use crate::translate::rewrite::SpliceSet;

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

/// A schema whose references to its own root find it at its new place.
fn moved(schema: &str) -> Result<Cow<'_, str>, JsonError> {
    let mut scanner = JsonScanner::new(schema, json::MAX_DEPTH);
    let mut references = MovedReferences::new();
    let walked = read_schema(&mut scanner, &mut references);
    let whole = walked.and_then(|()| Ok(scanner.finish()?));
    whole.map_err(|stop| stop.at(scanner.offset()))?;
    let mut splices = SpliceSet::default();
    for (span, text) in references {
        splices.replace(span, text.into());
    }
    Ok(splices.apply(schema))
}

/// Where references stand, and the JSON text that comes in their place.
type MovedReferences = Vec<(Range<usize>, String)>;

/// Notes the references in a schema, or in an array of schemas, in one pass: the time that it takes does not grow with
/// the depth. Below an `$id` references mean that schema's root, which moves along.
fn read_schema(scanner: &mut JsonScanner<'_>, found: &mut MovedReferences) -> Result<(), WalkStop> {
    match scanner.peek() {
        Some(b'{') => {}
        Some(b'[') => return scanner.array(|scanner| read_schema(scanner, found)),
        _ => return Ok(scanner.value().map(drop)?),
    }
    let before = found.len();
    let mut has_id = false;
    scanner.members(|scanner, name| {
        match &**name {
            "$id" => has_id = scanner.string_value()?.is_some(),
            "$ref" | "$dynamicRef" => {
                let raw = scanner.string_value()?;
                found.extend(raw.and_then(reference));
            }
            word if MAPS.contains(&word) => read_map(scanner, found)?,
            word if SCHEMAS.contains(&word) => read_schema(scanner, found)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if has_id {
        found.truncate(before);
    }
    Ok(())
}

/// Notes the references in the schemas that an object names, if it is one.
fn read_map(scanner: &mut JsonScanner<'_>, found: &mut MovedReferences) -> Result<(), WalkStop> {
    if scanner.peek() != Some(b'{') {
        return Ok(scanner.value().map(drop)?);
    }
    scanner.members(|scanner, _| {
        read_schema(scanner, found)?;
        Ok(true)
    })
}

/// A reference by pointer to the document's root; anchors are found wherever they stand.
fn reference(raw: RawString<'_>) -> Option<(Range<usize>, String)> {
    let target = raw.decode().ok()?;
    let pointer = target.strip_prefix('#')?;
    let is_of_root = pointer.is_empty() || pointer.starts_with('/');
    is_of_root.then(|| (raw.span(), json::quote(&format!("{PLACE}{pointer}"))))
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

    #[test]
    fn reference_far_below_follows_the_root_and_what_surrounds_it_keeps_its_bytes() {
        let nested =
            |inner: &str| format!("{}{inner}{}", r#"{ "items":"#.repeat(100), "}".repeat(100));
        let wrapped = wrapped_schema(&nested(r##"{ "a" : 1, "$ref": "#" }"##)).unwrap();
        let kept = nested(r##"{ "a" : 1, "$ref": "#/properties/result" }"##);
        assert!(wrapped.contains(&kept), "{wrapped}");
    }

    #[test]
    fn schema_that_two_parsers_read_differently_is_refused() {
        assert!(wrapped_schema(r#"{"items":{"not":{"$ref":"a","$ref":"b"}}}"#).is_err());
    }
}
