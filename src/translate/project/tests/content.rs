//! Tools, tool results and prompt results, projected to older clients. Spec: BRIDGING §3.9.

use rstest::rstest;
use serde_json::json;

use super::super::*;
use super::{R1, R2, R3, R4, R5, origin, shown, shown_as, text};

// SPEC C-92.
#[rstest]
#[case(R3)]
#[case(R4)]
fn structured_content_and_its_schema_are_wrapped_alike(#[case] to: Revision) {
    let listed = json!({"tools": [
        {"name": "list", "outputSchema": {"type": "array", "items": {"$ref": "#/$defs/i"}}},
        {"name": "object", "outputSchema": {"type": "object"}}
    ]});
    let tools = shown(R5, to, "tools/list", &listed);
    let schema = &tools["tools"][0]["outputSchema"];
    assert_eq!(schema["type"], "object");
    let reference = schema.pointer("/properties/result/items/$ref");
    assert_eq!(reference, Some(&json!("#/properties/result/$defs/i")));
    assert_eq!(tools["tools"][1], listed["tools"][1]);

    let called = json!({"content": [text("x")], "structuredContent": [1, 2]});
    let result = shown(R5, to, "tools/call", &called);
    assert_eq!(result["structuredContent"], json!({"result": [1, 2]}));
    let called = json!({"content": [text("x")], "structuredContent": {"a": 1}});
    assert_eq!(shown(R5, to, "tools/call", &called), called);
    let wraps = ResultOrigin {
        wraps: true,
        ..origin("tools/call")
    };
    let result = shown_as(R5, to, &wraps, &called);
    assert_eq!(result["structuredContent"], json!({"result": {"a": 1}}));
}

#[rstest]
#[case(R5, R4)]
#[case(R5, R1)]
#[case(R4, R2)]
fn structured_content_alone_is_shown_as_text_too(#[case] from: Revision, #[case] to: Revision) {
    for content in [
        json!({"structuredContent": {"a": 1}, "content": []}),
        json!({"structuredContent": {"a": 1}}),
    ] {
        let result = shown(from, to, "tools/call", &content);
        assert_eq!(result["content"], json!([text(r#"{"a":1}"#)]));
    }
}

// Serialisers of legacy servers write null for none.
#[test]
fn structured_content_of_a_legacy_server_that_is_null_is_left_out() {
    let called = json!({"content": [], "structuredContent": null});
    for to in [R5, R3] {
        let result = shown(R4, to, "tools/call", &called);
        assert_eq!(result.get("structuredContent"), None, "{result}");
        assert_eq!(result["content"], json!([]));
    }
}

#[test]
fn result_type_that_is_null_is_none() {
    let called = json!({"content": [], "resultType": null});
    let result = shown(R5, R5, "tools/call", &called);
    assert_eq!(result["resultType"], "complete");
    let result = shown(R5, R4, "tools/call", &called);
    assert_eq!(result.get("resultType"), None);
}

#[test]
fn older_clients_get_no_output_schema_and_only_2025_11_25_learns_how_a_tool_is_run() {
    let tools = json!({"tools": [{"name": "t", "title": "T", "icons": [],
        "outputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}}]});
    let of = |from, to| {
        let shown = shown(from, to, "tools/list", &tools)["tools"][0].clone();
        (
            shown.get("outputSchema").is_some(),
            shown.get("execution").is_some(),
        )
    };
    assert_eq!(of(R4, R1), (false, false));
    assert_eq!(of(R4, R2), (false, false));
    assert_eq!(of(R4, R3), (true, false));
    assert_eq!(of(R5, R4), (true, false));
    assert_eq!(of(R4, R5), (true, false));
    assert_eq!(of(R4, R4), (true, true));
}

// BRIDGING §3.8: what has to be a task may be called plainly too.
#[test]
fn no_tool_says_that_it_has_to_be_a_task() {
    let of = |support: &str| {
        let tools = json!({"tools": [{"name": "t", "execution": {"taskSupport": support}}]});
        shown(R4, R4, "tools/list", &tools)["tools"][0]["execution"]["taskSupport"].clone()
    };
    assert_eq!(of("required"), "optional");
    assert_eq!(of("optional"), "optional");
    assert_eq!(of("forbidden"), "forbidden");
}

#[rstest]
#[case(R1)]
#[case(R2)]
fn a_link_to_a_resource_is_text_before_2025_06_18(#[case] to: Revision) {
    let link =
        json!({"type": "resource_link", "name": "n", "uri": "a:b", "annotations": {"priority": 1}});
    let result = shown(R4, to, "tools/call", &json!({"content": [link]}));
    let block = json!({"type": "text", "text": "n: a:b", "annotations": {"priority": 1}});
    assert_eq!(result["content"], json!([block]));
    let prompt = json!({"messages": [{"role": "user", "content": link}]});
    let result = shown(R4, to, "prompts/get", &prompt);
    assert_eq!(result["messages"][0]["content"], block);
    assert_eq!(shown(R4, R3, "prompts/get", &prompt), prompt);
}

#[test]
fn audio_is_text_for_the_first_revision_only() {
    let came = json!({"content": [{"type": "audio", "data": "AA==", "mimeType": "audio/wav"}]});
    let result = shown(R4, R1, "tools/call", &came);
    assert_eq!(result["content"][0]["type"], "text");
    assert_eq!(shown(R4, R2, "tools/call", &came), came);
}
