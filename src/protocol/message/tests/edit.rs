//! Messages with members replaced: nothing else changes.

use rstest::rstest;

use super::super::*;
use super::read;

#[test]
fn replacing_the_id_touches_nothing_else() {
    let text = r#"{ "jsonrpc" : "2.0",  "id":  "old" , "result":{"a": 1.0e2, "b":[ ] } }"#;
    assert_eq!(read(text).with_id("42"), text.replace("\"old\"", "42"));
}

#[rstest]
#[case::id_first(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"k":1},"n":"_meta"}}"#)]
#[case::id_last(r#"{"params":{"n":[], "_meta" : { } },"method":"m","jsonrpc":"2.0","id":"x"}"#)]
fn id_and_meta_are_exchanged_in_one_go(#[case] text: &str) {
    let message = read(text);
    let exchanged = message.with_id_and_meta("42", 0, |out| out.push_str(r#"{"own":2}"#));
    let edited = message.edit().id("42").param("_meta", r#"{"own":2}"#);
    assert_eq!(exchanged, Some(edited.finish()));
}

#[rstest]
#[case::absent(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":{"_meta":1}}}"#)]
#[case::no_object(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":null}}"#)]
#[case::of_no_request(r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{}}}"#)]
fn a_meta_that_is_not_there_is_not_exchanged(#[case] text: &str) {
    assert_eq!(read(text).with_id_and_meta("42", 0, |_| ()), None);
}

#[rstest]
#[case(
    r#"{"jsonrpc":"2.0","method":"m"}"#,
    r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"k":1}}}"#
)]
#[case(
    r#"{"jsonrpc":"2.0","method":"m","params":null}"#,
    r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"k":1}}}"#
)]
#[case(
    r#"{"jsonrpc":"2.0","method":"m","params":{ }}"#,
    r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"k":1} }}"#
)]
#[case(
    r#"{"params":{"a":1, "_meta":{ "k":0 }},"jsonrpc":"2.0","method":"m"}"#,
    r#"{"params":{"a":1, "_meta":{ "k":1 }},"jsonrpc":"2.0","method":"m"}"#
)]
#[case(
    r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"z":0}}}"#,
    r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"z":0,"k":1}}}"#
)]
fn meta_is_replaced_added_or_created(#[case] before: &str, #[case] after: &str) {
    assert_eq!(read(before).edit().meta("k", "1").finish(), after);
}

#[test]
fn removing_leaves_valid_neighbours() {
    let message = read(r#"{"jsonrpc":"2.0","method":"m","params":{"a":1, "b":2 ,"c":3}}"#);
    let params = |editor: MessageEditor<'_>| {
        String::from(
            Message::parse(editor.finish(), 128)
                .unwrap()
                .params()
                .unwrap(),
        )
    };
    assert_eq!(
        params(message.edit().remove_param("a")),
        r#"{"b":2 ,"c":3}"#
    );
    assert_eq!(
        params(message.edit().remove_param("b")),
        r#"{"a":1 ,"c":3}"#
    );
    assert_eq!(
        params(message.edit().remove_param("c")),
        r#"{"a":1, "b":2}"#
    );
    let all = message
        .edit()
        .remove_param("a")
        .remove_param("b")
        .remove_param("c");
    assert_eq!(params(all), "{}");
    let swapped = message
        .edit()
        .remove_param("a")
        .remove_param("c")
        .param("d", "4");
    assert_eq!(params(swapped), r#"{"b":2,"d":4}"#);
    assert_eq!(
        message.edit().remove_meta("x").remove_param("y").finish(),
        message.bytes()
    );
}

#[test]
fn removing_from_nothing_creates_nothing() {
    for text in [
        r#"{"jsonrpc":"2.0","method":"m"}"#,
        r#"{"jsonrpc":"2.0","method":"m","params":null}"#,
        r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":null}}"#,
    ] {
        assert_eq!(
            read(text)
                .edit()
                .remove_meta("k")
                .remove_param("p")
                .finish(),
            text
        );
    }
}

#[test]
fn several_parts_change_in_one_pass() {
    let message = read(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__x","arguments":{},"_meta":{"progressToken":1}}}"#,
    );
    let edited = message
        .edit()
        .id("9")
        .method("a/b")
        .param("name", "\"x\"")
        .meta("progressToken", "77");
    assert_eq!(
        edited.finish(),
        r#"{"jsonrpc":"2.0","id":9,"method":"a/b","params":{"name":"x","arguments":{},"_meta":{"progressToken":77}}}"#,
    );
    let response = read(r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[],"nextCursor":"c"}}"#);
    let edited = response
        .edit()
        .result_member("tools", "[1]")
        .remove_result_member("nextCursor");
    assert_eq!(
        edited.finish(),
        r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[1]}}"#
    );
}
