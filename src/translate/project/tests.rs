//! One test per row of BRIDGING §3.9 and §3.10; here what a result is wrapped in.

mod content;
mod errors;
mod messages;
mod questions;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::protocol::Revision::{
    V2024_11_05 as R1, V2025_03_26 as R2, V2025_06_18 as R3, V2025_11_25 as R4, V2026_07_28 as R5,
};

fn message(result: &Value) -> Message {
    let text = json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string();
    Message::parse(text.into(), 128).unwrap()
}

fn origin(method: &str) -> ResultOrigin<'_> {
    ResultOrigin {
        method,
        name: "up",
        server: r#"{"name":"s","version":"1"}"#,
        is_merged: false,
        upstream: None,
        hints: CacheHints {
            ttl_ms: 0,
            scope: CacheScope::Private,
        },
        wraps: false,
        extended: false,
        missing: None,
    }
}

fn shown_as(from: Revision, to: Revision, origin: &ResultOrigin<'_>, result: &Value) -> Value {
    let message = RevisionProjection::new(from, to)
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
    let same = RevisionProjection::new(revision, revision)
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
    let same = RevisionProjection::new(from, to)
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

// SPEC M-80. Servers that keep every number as a float write it with a point.
#[test]
fn a_lifetime_may_be_spelled_as_a_float() {
    let result = json!({"ttlMs": 60_000.0, "cacheScope": "public"});
    let shown = shown(R5, R5, "tools/list", &result);
    assert_eq!(shown["ttlMs"], json!(60_000));
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
#[case::shows_what_nobody_may_load(R5, json!({"io.modelcontextprotocol/serverInfo": {"name": "own", "icons": [{"src": "javascript:x"}]}}), "declared")]
#[case::of_the_legacy_era(R4, json!({"io.modelcontextprotocol/serverInfo": {"name": "x"}}), "declared")]
#[case::uses_our_key(R5, json!({"dev.drawbridge/upstream": {"name": "x"}}), "declared")]
fn on_a_merged_endpoint_the_gateway_is_the_server_and_names_the_upstream(
    #[case] from: Revision,
    #[case] meta: Value,
    #[case] upstream: &str,
) {
    let came = json!({"resultType": "complete", "_meta": meta});
    let merged = ResultOrigin {
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
        let merged = ResultOrigin {
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
    let refused = RevisionProjection::new(R5, R5).result(came, &origin("tools/call"));
    assert!(matches!(refused, Err(UnusableResult::Kind(_))));
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

// SPEC M-31, beyond annotations: a single bad tool does not hide the rest of the list.
#[rstest]
#[case::up(R4, R5)]
#[case::down(R5, R2)]
fn a_tool_that_repeats_a_member_is_left_out_and_the_others_stay(
    #[case] from: Revision,
    #[case] to: Revision,
) {
    let bad = r#"{"name":"a","name":"b","inputSchema":{"type":"object"}}"#;
    let good = r#"{"name":"c","inputSchema":{"type":"object"}}"#;
    let projection = RevisionProjection::new(from, to);
    let list = format!("[{bad},{good}]");
    let upstream = format!("flawed-{from:?}");
    let items = projection.items(methods::ListKind::Tools, &list, &upstream);
    assert_eq!(items.unwrap(), format!("[{good}]"));
    let counted = LABELED.upstream_garbage.get();
    assert!(counted.contains(&(upstream, 1)), "{counted:?}");
}
