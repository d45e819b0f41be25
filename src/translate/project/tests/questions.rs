//! Questions of an upstream toward the client. Spec: BRIDGING §3.9.

use bytes::Bytes;
use serde_json::{Value, json};

use super::super::*;
use super::{R2, R3, R4, R5, text};
use crate::call::InputRequest;

fn asked(from: Revision, to: Revision, method: &str, params: &Value) -> Result<Value, String> {
    let question = InputRequest {
        method: method.to_owned(),
        params: Some(Bytes::from(params.to_string())),
    };
    let question = RevisionProjection::new(from, to).question(question, || "minted".to_owned());
    let question = question.map_err(|why| why.to_string())?;
    Ok(serde_json::from_slice(&question.params.unwrap()).unwrap())
}

// SPEC C-80, C-81.
#[test]
fn a_form_is_put_in_the_words_of_2025_06_18() {
    let params = json!({"mode": "form", "message": "m", "requestedSchema": {"type": "object", "properties": {
        "color": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g"}]},
        "name": {"type": "string", "default": "x"},
        "sure": {"type": "boolean", "default": true}
    }}});
    assert_eq!(
        asked(R4, R3, "elicitation/create", &params).unwrap(),
        json!({"message": "m", "requestedSchema": {"type": "object", "properties": {
            "color": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "g"]},
            "name": {"type": "string"},
            "sure": {"type": "boolean", "default": true}
        }}})
    );
    assert_eq!(
        asked(R5, R4, "elicitation/create", &params).unwrap(),
        params
    );
}

// Parsers differ about a repeated member.
#[test]
fn a_field_with_choices_and_an_enum_gets_one_enum() {
    let field = r#"{"enum":["x"],"oneOf":[{"const":"r"}],"type":"string"}"#;
    let params = format!(r#"{{"message":"m","requestedSchema":{{"properties":{{"a":{field}}}}}}}"#);
    let question = InputRequest {
        method: "elicitation/create".to_owned(),
        params: Some(Bytes::from(params)),
    };
    let question = RevisionProjection::new(R4, R3).question(question, String::new);
    let params = question.unwrap().params.unwrap();
    let text = std::str::from_utf8(&params).unwrap();
    let plain = r#"{"a":{"enum":["r"],"enumNames":["r"],"type":"string"}}"#;
    assert!(text.contains(plain), "{text}");
}

#[test]
fn what_a_revision_has_no_words_for_is_not_asked() {
    let several = json!({"message": "m", "requestedSchema": {"type": "object",
        "properties": {"a": {"type": "array", "items": {"enum": ["x"]}}}}});
    assert!(asked(R5, R3, "elicitation/create", &several).is_err());
    let url = json!({"mode": "url", "url": "https://e.example", "message": "m"});
    assert!(asked(R5, R3, "elicitation/create", &url).is_err());
    assert!(asked(R5, R2, "elicitation/create", &json!({"message": "m"})).is_err());
    let tools = json!({"messages": [], "tools": []});
    assert!(asked(R5, R3, "sampling/createMessage", &tools).is_err());
}

// SPEC C-70. Some serialisers write null for none.
#[test]
fn tools_that_are_null_are_none() {
    let none = json!({"messages": [], "tools": null, "toolChoice": null});
    let shown = asked(R5, R3, "sampling/createMessage", &none).unwrap();
    assert_eq!(shown, json!({"messages": []}));
}

// SPEC C-82.
#[test]
fn only_2025_11_25_names_a_visit() {
    let url = json!({"mode": "url", "url": "https://e.example", "message": "m"});
    let named = asked(R5, R4, "elicitation/create", &url).unwrap();
    assert_eq!(named["elicitationId"], "minted");
    let mut null = url.clone();
    null["elicitationId"] = json!(null);
    assert_eq!(asked(R5, R4, "elicitation/create", &null).unwrap(), named);
    let mut legacy = url.clone();
    legacy["elicitationId"] = json!("theirs");
    assert_eq!(asked(R4, R5, "elicitation/create", &legacy).unwrap(), url);
}

#[test]
fn a_modern_client_sees_no_token_and_no_task_of_ours() {
    let params = json!({"message": "m", "task": {}, "_meta": {"progressToken": 1, "own": 2}});
    assert_eq!(
        asked(R4, R5, "elicitation/create", &params).unwrap(),
        json!({"message": "m", "_meta": {"own": 2}})
    );
}

#[test]
fn a_message_of_several_blocks_becomes_several_messages() {
    let params = json!({"maxTokens": 5, "messages": [
        {"role": "user", "content": [text("a"), text("b")]},
        {"role": "assistant", "content": text("c")}
    ]});
    let asked_for = asked(R5, R3, "sampling/createMessage", &params).unwrap();
    assert_eq!(
        asked_for["messages"],
        json!([
            {"role": "user", "content": text("a")},
            {"role": "user", "content": text("b")},
            {"role": "assistant", "content": text("c")}
        ])
    );
    assert_eq!(
        asked(R5, R4, "sampling/createMessage", &params).unwrap(),
        params
    );
}
