mod edit;
mod properties;
mod unread;

use bytes::Bytes;
use rstest::rstest;

use super::*;

fn parse(text: &str) -> Result<Message, DecodeError> {
    Message::parse(Bytes::copy_from_slice(text.as_bytes()), 128)
}

fn read(text: &str) -> Message {
    parse(text).unwrap()
}

fn refusal(text: &str) -> (&'static str, Option<String>) {
    match parse(text) {
        Err(DecodeError::InvalidRequest { reason, id }) => (reason, id),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn a_request_shows_what_routing_needs() {
    let text = r#" {"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a\u0062","arguments":{"x":[1.0e2]},"_meta":{"progressToken":"p","k":{}}}} "#;
    let message = read(text);
    assert_eq!(message.kind(), MessageKind::Request);
    assert_eq!(message.id(), Some("7"));
    assert_eq!(message.method(), Some("tools/call"));
    assert_eq!(message.param("name"), Some("\"a\\u0062\""));
    assert_eq!(message.param_str("name").as_deref(), Some("ab"));
    assert_eq!(message.param("arguments"), Some(r#"{"x":[1.0e2]}"#));
    assert_eq!(message.meta("progressToken"), Some("\"p\""));
    assert_eq!(message.meta("none"), None);
    assert!(message.params().unwrap().starts_with("{\"name\""));
    assert_eq!(message.bytes().as_ref(), text.as_bytes());
}

#[test]
fn escaped_names_and_methods_are_understood() {
    let message = read(r#"{"jsonrpc":"2.\u0030","\u006dethod":"tools\/list"}"#);
    assert_eq!(
        (message.kind(), message.method()),
        (MessageKind::Notification, Some("tools/list"))
    );
    assert_eq!(message.params(), None);
}

// SPEC U-14, M-40.
#[rstest]
#[case(r#""result":{}"#, true)]
#[case(r#""result":{"content":[]}"#, true)]
#[case(r#""\u0072esult":{"content":[]}"#, true)]
#[case(r#""error":{"code":1,"message":"m"}"#, true)]
#[case(r#""result":null"#, false)]
#[case(r#""result":"{}""#, false)]
#[case(r#""result":[{}]"#, false)]
fn a_response_has_an_outcome_when_that_is_an_object(#[case] member: &str, #[case] has: bool) {
    let response = read(&format!(r#"{{"jsonrpc":"2.0","id":1,{member}}}"#));
    assert_eq!(response.has_outcome(), has, "{member}");
}

#[test]
fn responses_show_result_or_error() {
    let ok = read(r#"{"jsonrpc":"2.0","id":"x","result":{"tools":[],"nextCursor":""}}"#);
    assert_eq!(ok.kind(), MessageKind::Response);
    assert_eq!(ok.result_member("nextCursor"), Some("\"\""));
    assert_eq!(ok.error(), None);
    let bad = read(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m","data":1}}"#);
    assert_eq!((bad.id(), bad.error_code()), (None, Some(-32700)));
    assert_eq!(bad.error_member("data"), Some("1"));
    assert_eq!(read(r#"{"jsonrpc":"2.0","error":{"code":1}}"#).id(), None);
    assert_eq!(
        read(r#"{"jsonrpc":"2.0","id":1,"result":null}"#).result(),
        Some("null")
    );
}

// Spec: JSON-RPC 2.0 §5.
#[rstest]
#[case(
    r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1]},"error":null}"#,
    r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1]}}"#
)]
#[case(
    r#"{"jsonrpc": "2.0", "result": null, "error": {"code":1,"message":"m"}, "id": 1}"#,
    r#"{"jsonrpc":"2.0","error":{"code":1,"message":"m"},"id":1}"#
)]
fn a_second_outcome_that_is_null_is_left_out(#[case] text: &str, #[case] left: &str) {
    assert_eq!(read(text).bytes().as_ref(), left.as_bytes());
}

#[rstest]
#[case(r#"{"jsonrpc":"2.0","id":1,"result":null,"error":null}"#)]
#[case(r#"{"jsonrpc":"2.0","id":1,"method":"a","result":null}"#)]
#[case(r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#)]
fn what_may_be_of_several_kinds_is_refused(#[case] text: &str) {
    assert!(refusal(text).0.starts_with("only one of"), "{text}");
}

// Spec: SPEC T-07.
#[rstest]
#[case("1", Some("1"))]
#[case("\"1\"", Some("\"1\""))]
#[case("\"a b\"", Some("\"a b\""))]
#[case("9007199254740993", Some("9007199254740993"))]
#[case(
    "123456789012345678901234567890",
    Some("123456789012345678901234567890")
)]
#[case("1.5", None)]
#[case("1.0", None)]
#[case("null", None)]
#[case("true", None)]
#[case("{}", None)]
#[case("[1]", None)]
fn an_id_is_a_string_or_an_integer(#[case] id: &str, #[case] read: Option<&str>) {
    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
    match parse(&text) {
        Ok(message) => assert_eq!(message.id(), read),
        Err(error) => {
            assert_eq!(read, None);
            assert!(!error.is_parse_error());
        }
    }
}

// Spec: SPEC U-14.
#[rstest]
#[case("7", Some(7))]
#[case("\"7\"", Some(7))]
#[case("7.0", Some(7))]
#[case("7e0", Some(7))]
fn the_number_in_the_id_of_a_response_is_read(#[case] id: &str, #[case] number: Option<u64>) {
    let reply = read(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
    assert_eq!((reply.id(), reply.number()), (Some(id), number));
    let half = parse(r#"{"jsonrpc":"2.0","id":7.5,"result":{}}"#);
    assert!(half.is_err(), "{half:?}");
}

#[rstest]
#[case(r#"{"id":1,"method":"a"}"#, Some("1"))]
#[case(r#"{"jsonrpc":2.0,"id":1,"method":"a"}"#, Some("1"))]
#[case(r#"{"jsonrpc":"1.0","id":"q","method":"a"}"#, Some("\"q\""))]
#[case(r#"{"jsonrpc":"2.0","id":1}"#, Some("1"))]
#[case(r#"{"jsonrpc":"2.0","id":1,"method":"a","result":{}}"#, Some("1"))]
// SPEC T-12: the id of a response is its receiver's.
#[case(r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1}}"#, None)]
#[case(r#"{"jsonrpc":"2.0","id":1,"error":"text"}"#, None)]
#[case(r#"{"jsonrpc":"2.0","result":{}}"#, None)]
#[case(r#"{"jsonrpc":"2.0","id":null,"result":{}}"#, None)]
#[case(r#"{"jsonrpc":"2.0","id":1,"method":7}"#, Some("1"))]
#[case(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":[1]}"#, Some("1"))]
#[case(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":"x"}"#, Some("1"))]
#[case("[]", None)]
#[case("1", None)]
#[case("\"text\"", None)]
fn json_that_is_no_message_is_an_invalid_request(#[case] text: &str, #[case] id: Option<&str>) {
    assert_eq!(refusal(text).1.as_deref(), id);
}

#[rstest]
#[case::message(r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#)]
#[case::escaped(r#"{"jsonrpc":"2.0","id":1,"method":"a","m\u0065thod":"b"}"#)]
#[case::case(r#"{"jsonrpc":"2.0","id":1,"method":"a","Method":"b"}"#)]
#[case::long_s(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{},"paramſ":{}}"#)]
#[case::id(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"a"}"#)]
#[case::params(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"x","name":"y"}}"#)]
#[case::params_case(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"x","NAME":"y"}}"#)]
#[case::meta(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"a":1,"a":2}}}"#)]
#[case::error(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"code":2}}"#)]
#[case::result(r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[],"tools":[]}}"#)]
#[case::lone_long_s(r#"{"jsonrpc":"2.0","method":"a","params":{"s":1,"ſ":2}}"#)]
#[case::long_name(r#"{"jsonrpc":"2.0","method":"a","params":{"arguments":1,"argumentſ":2}}"#)]
#[case::kelvin("{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"params\":{\"k\":1,\"\u{212a}\":2}}")]
#[case::surrogate(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"\ud800":1}}"#)]
fn members_that_two_parsers_could_read_differently_are_refused(#[case] text: &str) {
    let error = parse(text).unwrap_err();
    assert!(matches!(error, DecodeError::Ambiguous { .. }), "{error:?}");
    assert!(error.is_parse_error());
}

#[test]
fn repeated_members_inside_opaque_payload_pass_unread() {
    read(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":{"a":1,"a":2}}}"#);
    read(r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"a":1,"a":2}],"_meta":{"k":1,"k":2}}}"#);
}

#[test]
fn meta_of_a_result_is_read_unless_a_name_may_be_repeated() {
    let meta_k = |meta: &str| {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"_meta":{meta},"a":1}}}}"#);
        let message = read(&text);
        assert_eq!(message.result_member("_meta"), Some(meta));
        assert_eq!(message.result_member("a"), Some("1"));
        message.result_meta("k").map(str::to_owned)
    };
    assert_eq!(meta_k(r#"{"k":{"x":1},"l":2}"#).unwrap(), r#"{"x":1}"#);
    assert_eq!(meta_k(r#"{"k":1,"k":2}"#), None);
    assert_eq!(meta_k(r#"{"k":1,"\ud800":2}"#), None);
    assert_eq!(meta_k(r#"[{"k":1}]"#), None);
}

#[test]
fn broken_bytes_are_parse_errors() {
    let invalid_utf8 = Message::parse(Bytes::from_static(b"{\"jsonrpc\":\"2.0\xff\"}"), 128);
    assert_eq!(invalid_utf8.unwrap_err(), DecodeError::NotUtf8);
    for text in [
        "",
        "{",
        "{}x",
        "{\"a\":1,}",
        "\u{feff}{}",
        "nul",
        "{\"a\":\"\u{1}\"}",
    ] {
        assert!(
            matches!(parse(text), Err(DecodeError::NotJson { .. })),
            "{text}"
        );
    }
    let trailing = r#"{"jsonrpc":"2.0","method":"a"} {"#;
    assert_eq!(
        parse(trailing).unwrap_err(),
        DecodeError::NotJson { offset: 31 }
    );
}

#[test]
fn depth_counts_from_the_message_itself() {
    let nested = |n: usize| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"a","params":{{"x":{}{}}}}}"#,
            "[".repeat(n),
            "]".repeat(n)
        )
    };
    assert!(parse(&nested(126)).is_ok());
    let too_deep = DecodeError::TooDeep { id: None };
    assert_eq!(parse(&nested(127)).unwrap_err(), too_deep);
    assert_eq!(parse(&nested(100_000)).unwrap_err(), too_deep);
}

#[test]
fn oversized_ids_are_refused_and_not_echoed() {
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":"{}","method":"a"}}"#,
        "x".repeat(5000)
    );
    assert_eq!(refusal(&text).1, None);
}

// SPEC T-07.
#[test]
fn a_null_id_makes_no_notification() {
    let null = r#"{"jsonrpc":"2.0","id":null,"method":"tools/call"}"#;
    assert_eq!(refusal(null), ("\"id\" must not be null", None));
}

#[test]
fn many_members_are_still_compared() {
    let members: Vec<String> = (0..1000).map(|n| format!("\"m{n}\":1")).collect();
    let text = |extra: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"a","params":{{{}{extra}}}}}"#,
            members.join(",")
        )
    };
    assert!(parse(&text("")).is_ok());
    assert!(parse(&text(",\"m77\":2")).is_err());
}

#[test]
fn each_element_of_an_array_keeps_its_own_verdict() {
    let text = br#" [{"jsonrpc":"2.0","id":1,"method":"ping"}, 5, {"jsonrpc":"2.0","method":"n"},{"jsonrpc":"2.0","id":2,"id":3,"method":"x"}]"#;
    assert!(Message::is_batch(text));
    assert!(!Message::is_batch(b" {"));
    let elements = Message::parse_batch(Bytes::from_static(text), 128, 50).unwrap();
    assert_eq!(elements.len(), 4);
    assert_eq!(elements[0].as_ref().unwrap().id(), Some("1"));
    assert!(!elements[1].as_ref().unwrap_err().is_parse_error());
    assert_eq!(elements[2].as_ref().unwrap().method(), Some("n"));
    assert!(matches!(elements[3], Err(DecodeError::Ambiguous { .. })));
}

#[test]
fn arrays_are_bounded_whole_and_not_empty() {
    let batch =
        |text: &'static str| Message::parse_batch(Bytes::from_static(text.as_bytes()), 8, 2);
    assert_eq!(batch("[1,2,3").unwrap_err(), DecodeError::TooMany);
    assert!(matches!(
        batch("[1,2").unwrap_err(),
        DecodeError::NotJson { .. }
    ));
    assert!(matches!(
        batch("[1,2] 3").unwrap_err(),
        DecodeError::NotJson { .. }
    ));
    assert!(!batch("[]").unwrap_err().is_parse_error());
    assert!(batch("{}").unwrap_err().is_parse_error());
}

#[test]
fn debug_output_shows_no_payload() {
    let text = format!(
        "{:?}",
        read(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"s":"hush"}}"#)
    );
    assert!(text.contains("\"m\"") && !text.contains("hush"));
}

/// A request whose `section` has `count` members of its own.
fn crowded(section: &str, count: usize) -> String {
    let members: Vec<String> = (0..count).map(|n| format!(r#""m{n}":1"#)).collect();
    let members = members.join(",");
    match section {
        "params" => format!(r#"{{"method":"m","params":{{{members}}},"jsonrpc":"2.0","id":7}}"#),
        "_meta" => {
            let params = format!(r#"{{"_meta":{{{members}}}}}"#);
            format!(r#"{{"method":"m","params":{params},"jsonrpc":"2.0","id":7}}"#)
        }
        "arguments" => {
            let params = format!(r#"{{"arguments":{{{members}}}}}"#);
            format!(r#"{{"method":"m","params":{params},"jsonrpc":"2.0","id":7}}"#)
        }
        _ => format!(r#"{{"method":"m","jsonrpc":"2.0","id":7,{members}}}"#),
    }
}

#[rstest]
fn message_with_too_many_members_is_refused(#[values("params", "_meta", "top")] section: &str) {
    let (reason, id) = refusal(&crowded(section, 5000));
    assert!(reason.contains("1024 members"), "{reason}");
    assert_eq!(id.as_deref(), Some("7"), "the id behind them is found");
    assert_eq!(read(&crowded(section, 1000)).id(), Some("7"));
}

#[test]
fn message_with_too_many_members_is_not_read_to_its_end() {
    let text = crowded("top", 5000) + "this is no JSON";
    let (reason, id) = refusal(&text);
    assert!(reason.contains("1024 members"), "{reason}");
    assert_eq!(id.as_deref(), Some("7"));
}

#[rstest]
#[case::numbers("0")]
#[case::objects("{}")]
#[case::strings(r#""""#)]
#[case::nested("[[[0]]]")]
fn message_with_too_many_values_is_refused(#[case] value: &str) {
    let bounds = MessageBounds {
        depth: 128,
        values: 1000,
    };
    let many = |count| vec![value; count].join(",");
    let request = |values: &str| {
        let params = format!(r#"{{"arguments":{{"a":[{values}]}}}}"#);
        format!(r#"{{"jsonrpc":"2.0","id":7,"method":"m","params":{params}}}"#)
    };
    assert!(Message::parse(request(&many(240)).into(), bounds).is_ok());
    let error = Message::parse(request(&many(1000)).into(), bounds).unwrap_err();
    assert!(error.to_string().contains("limits.json_values"), "{error}");
    assert_eq!(error.id(), Some("7"));
    // The id of a response is its receiver's. Spec: SPEC T-12.
    let response = format!(
        r#"{{"jsonrpc":"2.0","id":7,"result":{{"a":[{}]}}}}"#,
        many(1000)
    );
    let error = Message::parse(response.into(), bounds).unwrap_err();
    assert!(error.to_string().contains("limits.json_values"), "{error}");
    assert_eq!(error.id(), None);
    let array = format!("[{}]", request(&many(1000)));
    let error = Message::parse_batch(array.into(), bounds, 50).unwrap_err();
    assert!(error.to_string().contains("limits.json_values"), "{error}");
}

#[test]
fn arguments_may_have_any_number_of_members() {
    let message = read(&crowded("arguments", 50_000));
    assert!(message.layout.members.len() < 10);
    assert!(
        message
            .param("arguments")
            .unwrap()
            .ends_with(r#""m49999":1}"#)
    );
}

#[test]
fn result_meta_with_too_many_members_stays_unread() {
    let members: Vec<String> = (0..5000).map(|n| format!(r#""m{n}":1"#)).collect();
    let meta = members.join(",");
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"_meta":{{{meta}}},"a":2}}}}"#);
    let message = read(&text);
    assert_eq!(message.result_meta("m1"), None);
    assert_eq!(message.result_member("a"), Some("2"));
    assert!(message.layout.members.len() < 10);
}
