//! Errors of an upstream, by row of BRIDGING §3.10.

use rstest::rstest;
use serde_json::{Value, json};

use super::super::*;
use super::{R2, R3, R4, R5, origin};
use crate::call::Reply;

fn failure(from: Revision, to: Revision, method: &str, error: &Value) -> Reply {
    let text = json!({"jsonrpc": "2.0", "id": 1, "error": error}).to_string();
    let message = Message::parse(text.into(), 128).unwrap();
    let asked = ErrorSubject {
        method,
        name: Some("a:b"),
        upstream: "up",
        declared: br#"{"sampling":{}}"#,
    };
    let code = message.error_code().unwrap();
    let projection = RevisionProjection::new(from, to);
    let turned = super::super::error(projection, message, code, &asked);
    turned.into_reply(|result| projection.authored(result, &origin(method)))
}

// SPEC E-01, E-04: no spelling of a code passes by the rules about it.
#[rstest]
#[case("-32042.0", "-32042")]
#[case("-3.2042e4", "-32042")]
#[case("-32020.00", "-32020")]
#[case("-32042.00000000000000000001", "-32603")]
#[case("-99999999999999999999", "-32603")]
#[case("\"-32042\"", "-32603")]
#[case("null", "-32603")]
#[case("7", "7")]
fn code_of_an_error_is_an_integer(#[case] given: &str, #[case] shown: &str) {
    let data = r#""data":{"a":1}"#;
    let text =
        format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{given},"message":"m",{data}}}}}"#);
    let message = readable_error(Message::parse(text.into(), 128).unwrap());
    let expected = format!(r#"{{"code":{shown},"message":"m",{data}}}"#);
    assert_eq!(message.error(), Some(&*expected));
    assert_eq!(message.error_code(), shown.parse().ok());
}

#[rstest]
#[case(r#"{"code":5}"#)]
#[case(r#"{"code":5,"message":null}"#)]
#[case(r#"{"message":{"a":1},"code":5}"#)]
fn error_without_a_text_gets_one(#[case] error: &str) {
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#);
    let message = readable_error(Message::parse(text.into(), 128).unwrap());
    assert_eq!(message.error_code(), Some(5));
    let text = message
        .error_member("message")
        .and_then(crate::protocol::json::string);
    assert!(text.is_some_and(|text| !text.is_empty()));
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

// SPEC E-01: the range is reserved from 2026-07-28 on.
#[rstest]
#[case(-32050, -32050)]
#[case(-32099, -32099)]
#[case(-32021, -32021)]
#[case(-32020, -32603)]
#[case(-32022, -32603)]
fn legacy_peers_keep_codes_of_their_own(#[case] code: i64, #[case] expected: i64) {
    for (from, to) in [(R4, R4), (R4, R2), (R2, R4)] {
        let error = json!({"code": code, "message": "m"});
        let reply = failure(from, to, "tools/call", &error);
        assert_eq!(reply.error_code(), Some(expected));
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
fn url_elicitation_is_relayed_to_one_revision_and_text_before_it() {
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
