//! One test per row of BRIDGING §3.9 and §3.10.

use bytes::Bytes;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::call::{Question, Reply};
use crate::protocol::Revision::{
    V2024_11_05 as R1, V2025_03_26 as R2, V2025_06_18 as R3, V2025_11_25 as R4, V2026_07_28 as R5,
};

fn message(result: &Value) -> Message {
    let text = json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string();
    Message::parse(text.into(), 128).unwrap()
}

fn origin(method: &str) -> Origin<'_> {
    Origin {
        method,
        server: r#"{"name":"s","version":"1"}"#,
        is_merged: false,
        upstream: None,
        hints: Hints {
            ttl_ms: 0,
            scope: Scope::Private,
        },
        wraps: false,
        extended: false,
    }
}

fn shown_as(from: Revision, to: Revision, origin: &Origin<'_>, result: &Value) -> Value {
    let message = Projection::new(from, to)
        .result(message(result), origin)
        .unwrap();
    serde_json::from_str(message.result().unwrap()).unwrap()
}

fn shown(from: Revision, to: Revision, method: &str, result: &Value) -> Value {
    shown_as(from, to, &origin(method), result)
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

// The fast path: not a byte is copied.
#[rstest]
#[case(R1)]
#[case(R2)]
#[case(R3)]
#[case(R4)]
#[case(R5)]
fn an_equal_revision_leaves_the_very_bytes(#[case] revision: Revision) {
    let info = json!({"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}});
    let result = json!({"resultType": "complete", "ttlMs": 5, "cacheScope": "public", "_meta": info,
        "tools": [{"name": "a", "outputSchema": {"type": "array"}}]});
    let came = message(&result);
    let before = came.bytes().as_ptr();
    let same = Projection::new(revision, revision)
        .result(came, &origin("tools/list"))
        .unwrap();
    assert_eq!(same.bytes().as_ptr(), before);
}

#[rstest]
#[case(R4, R3, "tools/call", json!({"content": [text("a")], "isError": false}))]
#[case(R3, R1, "tools/call", json!({"content": [text("a")]}))]
#[case(R4, R2, "resources/read", json!({"contents": [{"uri": "a:b", "text": ""}]}))]
#[case(R5, R4, "prompts/get", json!({"messages": []}))]
fn what_needs_no_change_leaves_the_very_bytes(
    #[case] from: Revision,
    #[case] to: Revision,
    #[case] method: &str,
    #[case] result: Value,
) {
    let came = message(&result);
    let before = came.bytes().as_ptr();
    let same = Projection::new(from, to)
        .result(came, &origin(method))
        .unwrap();
    assert_eq!(same.bytes().as_ptr(), before);
}

// SPEC M-40, M-41.
#[test]
fn a_modern_client_learns_of_kind_and_server() {
    let came = json!({"content": [], "_meta": {"own": 1}});
    let info = json!({"name": "s", "version": "1"});
    assert_eq!(
        shown(R4, R5, "tools/call", &came),
        json!({"content": [], "resultType": "complete",
            "_meta": {"own": 1, "io.modelcontextprotocol/serverInfo": info}})
    );
}

// SPEC M-80, M-83.
#[rstest]
#[case("tools/list")]
#[case("prompts/list")]
#[case("resources/list")]
#[case("resources/templates/list")]
#[case("resources/read")]
fn a_legacy_upstream_promises_nothing_about_keeping(#[case] method: &str) {
    let shown = shown(R3, R5, method, &json!({"ttlMs": 9, "cacheScope": "public"}));
    assert_eq!(
        (&shown["ttlMs"], &shown["cacheScope"]),
        (&json!(0), &json!("private"))
    );
}

#[test]
fn only_what_can_be_kept_says_how_long() {
    assert_eq!(shown(R4, R5, "tools/call", &json!({})).get("ttlMs"), None);
}

// SPEC M-83, M-85: as long as it is kept here.
#[test]
fn nothing_is_promised_for_more_than_a_day() {
    let result = json!({"ttlMs": 1_000_000_000_000_u64, "cacheScope": "public"});
    let shown = shown(R5, R5, "resources/read", &result);
    assert_eq!(
        (&shown["ttlMs"], &shown["cacheScope"]),
        (&json!(86_400_000), &json!("public"))
    );
}

// SPEC M-80, M-85: absent and negative promise nothing.
#[rstest]
#[case(json!({}))]
#[case(json!({"ttlMs": -5, "cacheScope": "private"}))]
#[case(json!({"ttlMs": "5", "cacheScope": "everybody"}))]
#[case(json!({"ttlMs": 0.5, "cacheScope": null}))]
fn a_modern_upstream_without_a_lifetime_promises_nothing(#[case] result: Value) {
    let shown = shown(R5, R5, "tools/list", &result);
    assert_eq!(
        (&shown["ttlMs"], &shown["cacheScope"]),
        (&json!(0), &json!("private"))
    );
}

// BRIDGING §3.9.
#[rstest]
#[case::says_so_itself(R5, json!({"io.modelcontextprotocol/serverInfo": {"name": "own"}}), "own")]
#[case::said_so_before(R5, json!({}), "declared")]
#[case::of_the_legacy_era(R4, json!({"io.modelcontextprotocol/serverInfo": {"name": "x"}}), "declared")]
#[case::uses_our_key(R5, json!({"dev.drawbridge/upstream": {"name": "x"}}), "declared")]
fn on_a_merged_endpoint_the_gateway_is_the_server_and_names_the_upstream(
    #[case] from: Revision,
    #[case] meta: Value,
    #[case] upstream: &str,
) {
    let came = json!({"resultType": "complete", "_meta": meta});
    let merged = Origin {
        is_merged: true,
        upstream: Some(r#"{"name":"declared"}"#),
        ..origin("tools/call")
    };
    let shown = shown_as(from, R5, &merged, &came);
    let name = |key: &str| shown["_meta"][key]["name"].as_str();
    assert_eq!(name("io.modelcontextprotocol/serverInfo"), Some("s"));
    assert_eq!(name("dev.drawbridge/upstream"), Some(upstream));
}

#[test]
fn an_upstream_that_says_nothing_or_too_much_of_itself_is_not_described() {
    let long = json!({"name": "n".repeat(5000)}).to_string();
    for upstream in [None, Some("{}"), Some(long.as_str())] {
        let merged = Origin {
            is_merged: true,
            upstream,
            ..origin("tools/call")
        };
        let shown = shown_as(R4, R5, &merged, &json!({}));
        assert!(shown["_meta"].get("dev.drawbridge/upstream").is_none());
    }
}

// SPEC M-40.
#[test]
fn a_result_of_an_unknown_kind_is_refused() {
    let came = message(&json!({"resultType": "zzz"}));
    let refused = Projection::new(R5, R5).result(came, &origin("tools/call"));
    assert!(matches!(refused, Err(Unusable::Kind(_))));
}

#[test]
fn a_task_of_2025_11_25_is_not_mentioned_to_a_modern_client() {
    let related = json!({"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t"}}});
    let shown = shown(R4, R5, "tools/call", &related);
    assert_eq!(
        shown.pointer("/_meta/io.modelcontextprotocol~1related-task"),
        None
    );
}

#[rstest]
#[case(R1)]
#[case(R2)]
#[case(R3)]
#[case(R4)]
fn a_legacy_client_sees_nothing_of_the_modern_envelope(#[case] to: Revision) {
    let came = json!({"resultType": "complete", "ttlMs": 5, "cacheScope": "public", "contents": [],
        "_meta": {"io.modelcontextprotocol/serverInfo": {}}});
    assert_eq!(
        shown(R5, to, "resources/read", &came),
        json!({"contents": []})
    );
    let other = json!({"_meta": {"io.modelcontextprotocol/serverInfo": {}, "own": 1}});
    assert_eq!(
        shown(R5, to, "resources/read", &other),
        json!({"_meta": {"own": 1}})
    );
}

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
    let wraps = Origin {
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

fn failure(from: Revision, to: Revision, method: &str, error: &Value) -> Reply {
    let text = json!({"jsonrpc": "2.0", "id": 1, "error": error}).to_string();
    let message = Message::parse(text.into(), 128).unwrap();
    let asked = Asked {
        method,
        name: Some("a:b"),
        upstream: "up",
        declared: br#"{"sampling":{}}"#,
    };
    let code = message.error_code().unwrap();
    let projection = Projection::new(from, to);
    let turned = super::error(projection, message, code, &asked);
    turned.into_reply(|result| projection.authored(result, &origin(method)))
}

// SPEC C-51, E-03.
#[test]
fn a_missing_resource_has_the_code_of_the_clients_era() {
    let gone = json!({"code": -32002, "message": "m", "data": {"uri": "a:b"}});
    let reply = failure(R4, R5, "resources/read", &gone);
    assert_eq!(reply.error_code(), Some(-32602));
    let error: Value = serde_json::from_str(reply.error().unwrap()).unwrap();
    assert_eq!(error["data"], json!({"uri": "a:b"}));

    let gone = json!({"code": -32602, "message": "m", "data": {"uri": "a:b"}});
    assert_eq!(
        failure(R5, R3, "resources/read", &gone).error_code(),
        Some(-32002)
    );
    assert_eq!(
        failure(R5, R3, "prompts/get", &gone).error_code(),
        Some(-32602)
    );
    let other = json!({"code": -32602, "message": "m", "data": {"uri": "a:c"}});
    assert_eq!(
        failure(R5, R3, "resources/read", &other).error_code(),
        Some(-32602)
    );
}

// SPEC E-01, E-04.
#[rstest]
#[case(-32020)]
#[case(-32022)]
#[case(-32050)]
fn errors_of_one_hop_are_not_relayed(#[case] code: i64) {
    for (from, to) in [(R5, R4), (R5, R5), (R4, R5)] {
        let reply = failure(
            from,
            to,
            "tools/call",
            &json!({"code": code, "message": "m"}),
        );
        assert_eq!(reply.error_code(), Some(-32603));
        assert!(reply.error().unwrap().contains(&code.to_string()));
    }
}

// SPEC E-04, M-16.
#[test]
fn a_missing_capability_is_the_clients_only_when_it_lacks_it() {
    let lacks = |caps: Value| json!({"code": -32021, "message": "m", "data": {"requiredCapabilities": caps}});
    let own = lacks(json!({"elicitation": {}}));
    assert_eq!(
        failure(R5, R5, "tools/call", &own).error_code(),
        Some(-32021)
    );
    let masked = lacks(json!({"sampling": {}}));
    let reply = failure(R5, R5, "tools/call", &masked);
    assert!(reply.result().unwrap().contains(r#""isError":true"#));
    assert!(
        reply
            .result()
            .unwrap()
            .contains(r#""resultType":"complete""#)
    );
    assert_eq!(
        failure(R5, R5, "prompts/get", &masked).error_code(),
        Some(-32603)
    );
    let reply = failure(R5, R4, "tools/call", &own);
    assert!(reply.result().unwrap().contains("elicitation"));
    assert!(!reply.result().unwrap().contains("resultType"));
    assert_eq!(
        failure(R5, R4, "resources/read", &own).error_code(),
        Some(-32603)
    );
}

// SPEC C-83, E-03.
#[test]
fn a_visit_is_relayed_to_one_revision_and_told_in_words_before_it() {
    let visit = json!({"code": -32042, "message": "log in",
        "data": {"elicitations": [{"mode": "url", "url": "https://e.example/x", "elicitationId": "1"}]}});
    assert_eq!(
        failure(R4, R4, "tools/call", &visit).error_code(),
        Some(-32042)
    );
    let told = failure(R4, R3, "tools/call", &visit);
    assert!(told.result().unwrap().contains("https://e.example/x"));
    assert_eq!(
        failure(R4, R5, "prompts/get", &visit).error_code(),
        Some(-32021)
    );
    assert_eq!(
        failure(R4, R5, "completion/complete", &visit).error_code(),
        Some(-32603)
    );
    assert_eq!(
        failure(R4, R2, "prompts/get", &visit).error_code(),
        Some(-32603)
    );
}

fn asked(from: Revision, to: Revision, method: &str, params: &Value) -> Result<Value, String> {
    let question = Question {
        method: method.to_owned(),
        params: Some(Bytes::from(params.to_string())),
    };
    let question = Projection::new(from, to).question(question, || "minted".to_owned());
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

// SPEC C-82.
#[test]
fn only_2025_11_25_names_a_visit() {
    let url = json!({"mode": "url", "url": "https://e.example", "message": "m"});
    let named = asked(R5, R4, "elicitation/create", &url).unwrap();
    assert_eq!(named["elicitationId"], "minted");
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

fn notice(kind: NoticeKind, method: &str, params: &Value) -> Notice {
    let text = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
    Notice {
        kind,
        bytes: text.into(),
    }
}

// SPEC C-03.
#[test]
fn progress_has_no_message_in_the_first_revision() {
    let token = || NoticeKind::Progress { token: "1".into() };
    let params = json!({"progressToken": 1, "progress": 1, "message": "m"});
    let progress = || notice(token(), "notifications/progress", &params);
    let told = Projection::new(R4, R1).notice(progress()).unwrap();
    assert!(!String::from_utf8_lossy(&told.bytes).contains("message\""));
    let told = Projection::new(R4, R2).notice(progress()).unwrap();
    assert_eq!(told, progress());
}

#[test]
fn a_notice_is_told_only_to_revisions_that_have_it() {
    let complete = || {
        let id = json!({"elicitationId": "e"});
        notice(NoticeKind::ElicitationComplete, ELICITATION_COMPLETE, &id)
    };
    assert!(Projection::new(R4, R4).notice(complete()).is_some());
    assert!(Projection::new(R4, R3).notice(complete()).is_none());
    assert!(Projection::new(R4, R5).notice(complete()).is_none());
    let task = || notice(NoticeKind::Other, "notifications/tasks/status", &json!({}));
    assert!(Projection::new(R4, R5).notice(task()).is_none());
    let own = || notice(NoticeKind::Other, "notifications/acme/x", &json!({}));
    assert!(Projection::new(R4, R5).notice(own()).is_some());
}

fn requested(from: Revision, to: Option<Revision>, method: &str, params: &Value) -> Value {
    let text = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let message = Message::parse(text.into(), 128).unwrap();
    let bytes = request(from, to, &message).unwrap_or_else(|| message.bytes().clone());
    let sent: Value = serde_json::from_slice(&bytes).unwrap();
    sent["params"].clone()
}

#[test]
fn a_legacy_upstream_sees_nothing_of_the_modern_envelope() {
    let params = json!({"name": "t", "inputResponses": {}, "requestState": "s", "task": {}, "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {},
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/logLevel": "info",
        "progressToken": 1, "own": 2
    }});
    let bare = json!({"name": "t", "_meta": {"progressToken": 1, "own": 2}});
    assert_eq!(requested(R5, Some(R4), "tools/call", &params), bare);
    assert_eq!(requested(R5, None, "tools/call", &params), bare);
    assert_eq!(requested(R5, Some(R5), "tools/call", &params), params);
    // SPEC K-02: a task that nobody advertised is not asked for.
    let mut without = params.clone();
    without.as_object_mut().unwrap().remove("task");
    assert_eq!(requested(R4, Some(R4), "tools/call", &params), without);
}

// SPEC C-30.
#[test]
fn the_context_of_a_completion_goes_only_where_it_is_known() {
    let params = json!({"ref": {}, "context": {"arguments": {}}});
    assert_eq!(
        requested(R4, Some(R2), "completion/complete", &params),
        json!({"ref": {}})
    );
    assert_eq!(
        requested(R4, Some(R3), "completion/complete", &params),
        params
    );
}
