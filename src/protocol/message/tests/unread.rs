//! Messages that are refused before all of them was read, and the id to answer under.

use rstest::rstest;

use super::super::*;
use super::parse;

/// A message of `members` and many or deep `values`.
fn message(members: [&str; 2], values: &str) -> String {
    let [before, behind] = members;
    format!(r#"{{{before}"params":{{"arguments":[{values}]}},"jsonrpc":"2.0"{behind}}}"#)
}

// The TypeScript SDK writes the id last.
#[rstest]
fn request_over_a_bound_names_its_id(
    #[values(["0,", "0"], ["[", "]"])] brackets: [&str; 2],
    #[values(
        [r#""id":"x","method":"m","#, ""],
        [r#""method":"m","#, r#","id":"x""#]
    )]
    members: [&str; 2],
) {
    let bounds = MessageBounds {
        depth: 8,
        values: 100,
    };
    let [open, close] = brackets;
    let closings = if open == "[" { 200 } else { 1 };
    let values = open.repeat(200) + &close.repeat(closings);
    let error = Message::parse(message(members, &values).into(), bounds).unwrap_err();
    assert!(error.is_over_bound(), "{error}");
    assert_eq!(error.id(), Some("\"x\""), "{error}");
    // A second id, or no method: not to be answered under either.
    let [before, behind] = members;
    let twice = message([before, &format!(r#"{behind},"ID":2"#)], &values);
    let error = Message::parse(twice.into(), bounds).unwrap_err();
    assert_eq!(error.id(), None, "{error}");
    let response = message(members, &values).replace(r#""method":"m""#, r#""result":{}"#);
    let error = Message::parse(response.into(), bounds).unwrap_err();
    assert_eq!(error.id(), None, "{error}");
}

#[rstest]
#[case::in_params(
    r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1,"a":2}}"#,
    Some("1")
)]
#[case::method(r#"{"jsonrpc":"2.0","method":"m","method":"n","id":1}"#, Some("1"))]
#[case::id(r#"{"jsonrpc":"2.0","id":1,"id":1,"method":"m"}"#, None)]
#[case::id_by_case(r#"{"jsonrpc":"2.0","id":1,"Id":2,"method":"m"}"#, None)]
#[case::response(r#"{"jsonrpc":"2.0","id":1,"result":{},"x":1,"x":2}"#, None)]
#[case::notification(r#"{"jsonrpc":"2.0","method":"m","x":1,"x":2}"#, None)]
fn repeated_member_leaves_a_single_id_readable(#[case] text: &str, #[case] id: Option<&str>) {
    let error = parse(text).unwrap_err();
    assert!(matches!(error, DecodeError::Ambiguous { .. }), "{error}");
    assert!(!error.is_over_bound(), "{error}");
    assert_eq!(error.id(), id);
}

#[test]
fn id_of_a_very_long_message_is_not_searched() {
    let text = |len| {
        let long = "x".repeat(len);
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"a":1,"a":"{long}"}}}}"#)
    };
    assert_eq!(parse(&text(1 << 20)).unwrap_err().id(), Some("1"));
    assert_eq!(parse(&text(4 << 20)).unwrap_err().id(), None);
}
