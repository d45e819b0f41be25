use rstest::rstest;

use super::*;

const ENVELOPE: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}"#;

fn request(method: &str, params: &str) -> Message {
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}}}}}"#);
    Message::parse(text.into(), 128).unwrap()
}

fn modern(method: &str, params: &str) -> Message {
    request(method, &format!(r#"{params}"_meta":{{{ENVELOPE}}}"#))
}

fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
    headers
        .iter()
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        })
        .collect()
}

const VERSION: (&str, &str) = ("mcp-protocol-version", "2026-07-28");

fn code(headers: &[(&'static str, &'static str)], message: &Message) -> i64 {
    read(&map(headers), message).map_or_else(|refusal| refusal.code, |_| 0)
}

#[test]
fn a_request_whose_headers_repeat_its_body_is_read() {
    let call = modern("tools/call", r#""name":"é","#);
    let headers = [
        VERSION,
        ("mcp-method", "tools/call"),
        ("mcp-name", "=?base64?w6k=?="),
    ];
    let envelope = read(&map(&headers), &call).unwrap();
    assert_eq!(envelope.capabilities, "{}");
    assert_eq!((envelope.level, envelope.progress), (None, None));
}

// SPEC M-05, M-07 to M-14: the first failure is told.
#[rstest]
#[case::version_missing(&[("mcp-method", "tools/list")], -32020)]
#[case::version_differs(&[("mcp-protocol-version", "2025-11-25"), ("mcp-method", "tools/list")], -32020)]
#[case::version_twice(&[VERSION, VERSION, ("mcp-method", "tools/list")], -32020)]
#[case::method_missing(&[VERSION], -32020)]
#[case::method_by_case(&[VERSION, ("mcp-method", "TOOLS/LIST")], -32020)]
#[case::method_padded(&[VERSION, ("mcp-method", " tools/list\t")], 0)]
#[case::mark_by_case(&[VERSION, ("mcp-method", "=?BASE64?dG9vbHMvbGlzdA==?=")], -32020)]
#[case::encoded(&[VERSION, ("mcp-method", "=?base64?dG9vbHMvbGlzdA==?=")], 0)]
#[case::name_is_not_looked_at(&[VERSION, ("mcp-method", "tools/list"), ("mcp-name", "x")], 0)]
fn headers_must_repeat_the_body(
    #[case] headers: &[(&'static str, &'static str)],
    #[case] expected: i64,
) {
    assert_eq!(code(headers, &modern("tools/list", "")), expected);
}

// SPEC M-09.
#[rstest]
#[case("tools/call", r#""name":"x","#)]
#[case("prompts/get", r#""name":"x","#)]
#[case("resources/read", r#""uri":"x","#)]
fn what_is_named_must_be_named_in_the_header(#[case] method: &'static str, #[case] params: &str) {
    let message = modern(method, params);
    let with = |name| {
        code(
            &[VERSION, ("mcp-method", method), ("mcp-name", name)],
            &message,
        )
    };
    assert_eq!(code(&[VERSION, ("mcp-method", method)], &message), -32020);
    assert_eq!((with("y"), with("X"), with("x")), (-32020, -32020, 0));
    assert_eq!(with("=?base64?eA?="), -32020);
}

// SPEC M-05, M-06.
#[rstest]
#[case("")]
#[case(r#""_meta":{}"#)]
#[case(r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#)]
#[case(r#""_meta":{"io.modelcontextprotocol/clientCapabilities":{}}"#)]
#[case(r#""_meta":{"io.modelcontextprotocol/protocolVersion":2026,"io.modelcontextprotocol/clientCapabilities":{}}"#)]
#[case(r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":[]}"#)]
#[case(r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/logLevel":"loud"}"#)]
fn the_envelope_must_be_whole(#[case] params: &str) {
    let headers = [VERSION, ("mcp-method", "tools/list")];
    assert_eq!(code(&headers, &request("tools/list", params)), -32602);
}

// SPEC C-20.
#[test]
fn no_level_is_none() {
    let params = format!(r#""_meta":{{{ENVELOPE},"io.modelcontextprotocol/logLevel":null}}"#);
    let headers = map(&[VERSION, ("mcp-method", "tools/list")]);
    let envelope = read(&headers, &request("tools/list", &params)).unwrap();
    assert_eq!(envelope.level, None);
}

// SPEC M-13: after the comparison.
#[test]
fn a_version_that_both_name_and_we_do_not_serve_is_told_what_is() {
    let params = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"1900-01-01","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let message = request("tools/list", params);
    let named = [
        ("mcp-protocol-version", "1900-01-01"),
        ("mcp-method", "tools/list"),
    ];
    assert_eq!(code(&named, &message), -32022);
    assert_eq!(
        code(&[VERSION, ("mcp-method", "tools/list")], &message),
        -32020
    );
}

// SPEC M-10, K-12: without a declared extension, the missing declaration is reported first.
#[rstest]
fn tasks_are_for_those_who_declare_them(
    #[values("tasks/get", "tasks/update", "tasks/cancel")] method: &'static str,
) {
    let declared = ENVELOPE.replace(
        "{}",
        r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#,
    );
    let with = request(method, &format!(r#""taskId":"t","_meta":{{{declared}}}"#));
    let without = modern(method, r#""taskId":"t","#);
    let named = |name| [VERSION, ("mcp-method", method), ("mcp-name", name)];
    assert_eq!(code(&named("t"), &with), 0);
    assert_eq!(code(&named("u"), &with), -32020);
    assert_eq!(code(&named("t"), &without), -32021);
}

// SPEC M-14, K-15.
#[rstest]
fn removed_methods_are_unknown(
    #[values(
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/list",
        "tasks/result",
        "sampling/createMessage",
        "elicitation/create",
        "roots/list",
        "notifications/progress"
    )]
    method: &'static str,
) {
    assert_eq!(
        code(&[VERSION, ("mcp-method", method)], &modern(method, "")),
        -32601
    );
}

// SPEC M-19.
#[test]
fn the_body_chooses_the_era() {
    let (with, without) = (map(&[VERSION]), map(&[]));
    assert!(is_modern(&with, &modern("tools/list", "")));
    assert!(is_modern(&without, &modern("initialize", "")));
    assert!(is_modern(&with, &request("tools/list", "")));
    assert!(!is_modern(&with, &request("initialize", "")));
    assert!(!is_modern(&without, &request("tools/list", "")));
}
