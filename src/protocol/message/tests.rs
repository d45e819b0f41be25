use bytes::Bytes;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

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
    assert_eq!(message.kind(), Kind::Request);
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
        (Kind::Notification, Some("tools/list"))
    );
    assert_eq!(message.params(), None);
}

#[test]
fn responses_show_result_or_error() {
    let ok = read(r#"{"jsonrpc":"2.0","id":"x","result":{"tools":[],"nextCursor":""}}"#);
    assert_eq!(ok.kind(), Kind::Response);
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

#[rstest]
#[case(r#"{"id":1,"method":"a"}"#, Some("1"))]
#[case(r#"{"jsonrpc":2.0,"id":1,"method":"a"}"#, Some("1"))]
#[case(r#"{"jsonrpc":"1.0","id":"q","method":"a"}"#, Some("\"q\""))]
#[case(r#"{"jsonrpc":"2.0","id":1}"#, Some("1"))]
#[case(r#"{"jsonrpc":"2.0","id":1,"method":"a","result":{}}"#, Some("1"))]
#[case(
    r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1}}"#,
    Some("1")
)]
#[case(r#"{"jsonrpc":"2.0","id":1,"error":"text"}"#, Some("1"))]
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
    assert_eq!(parse(&nested(127)).unwrap_err(), DecodeError::TooDeep);
    assert_eq!(parse(&nested(100_000)).unwrap_err(), DecodeError::TooDeep);
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
    let members: Vec<String> = (0..5000).map(|n| format!("\"m{n}\":1")).collect();
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
fn replacing_the_id_touches_nothing_else() {
    let text = r#"{ "jsonrpc" : "2.0",  "id":  "old" , "result":{"a": 1.0e2, "b":[ ] } }"#;
    assert_eq!(read(text).with_id("42"), text.replace("\"old\"", "42"));
}

#[rstest]
#[case::id_first(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"k":1},"n":"_meta"}}"#)]
#[case::id_last(r#"{"params":{"n":[], "_meta" : null },"method":"m","jsonrpc":"2.0","id":"x"}"#)]
fn id_and_meta_are_exchanged_in_one_go(#[case] text: &str) {
    let message = read(text);
    let exchanged = message.with_id_and_meta("42", 0, |out| out.push_str(r#"{"own":2}"#));
    let edited = message.edit().id("42").param("_meta", r#"{"own":2}"#);
    assert_eq!(exchanged, Some(edited.finish()));
}

#[test]
fn a_meta_that_is_not_there_is_not_exchanged() {
    let message = read(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":{"_meta":1}}}"#);
    assert_eq!(message.with_id_and_meta("42", 0, |_| ()), None);
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
    let params = |editor: Editor<'_>| {
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

#[test]
fn debug_output_shows_no_payload() {
    let text = format!(
        "{:?}",
        read(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"s":"hush"}}"#)
    );
    assert!(text.contains("\"m\"") && !text.contains("hush"));
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        any::<i32>().prop_map(|n| json!(n)),
        ".{0,12}".prop_map(|s| json!(s)),
        prop::collection::vec(".{0,4}", 0..3).prop_map(|v| json!({ "list": v })),
    ]
}

fn object(keys: &'static str) -> impl Strategy<Value = serde_json::Map<String, Value>> {
    prop::collection::btree_map(keys, value(), 0..5).prop_map(|m| m.into_iter().collect())
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(Message::parse(bytes.into(), 16));
    }

    #[test]
    fn no_json_like_text_makes_parser_or_editor_panic(
        text in "(\\{|\\}|\\[|\\]|:|,|\"jsonrpc\":\"2.0\"|\"method\":\"m\"|\"params\"|\"_meta\"|\"id\":1| |\"a\"){0,14}"
    ) {
        if let Ok(message) = parse(&text) {
            let edited = message.edit().id("5").param("p", "1").meta("m", "2").remove_param("a").finish();
            prop_assert!(Message::parse(edited, 128).is_ok());
        }
    }

    /// The reference does the same edits on a tree.
    #[test]
    fn splicing_changes_only_what_it_should(
        params in object("[a-e]"),
        meta in prop::option::of(object("[k-o]")),
        pretty: bool,
        set in object("[a-g]"),
        set_meta in object("[k-q]"),
        remove in prop::collection::vec("[a-g]", 0..3),
        remove_meta in prop::collection::vec("[k-q]", 0..3),
    ) {
        let mut tree = json!({"jsonrpc": "2.0", "id": 1, "method": "m", "params": params});
        if let Some(meta) = meta {
            tree["params"]["_meta"] = Value::Object(meta);
        }
        let text = if pretty { format!("{tree:#}") } else { tree.to_string() };
        let message = read(&text);
        let mut editor = message.edit();
        for name in &remove {
            editor = editor.remove_param(name);
            tree["params"].as_object_mut().unwrap().remove(name);
        }
        for name in &remove_meta {
            editor = editor.remove_meta(name);
            if let Some(meta) = tree["params"].get_mut("_meta") {
                meta.as_object_mut().unwrap().remove(name);
            }
        }
        for (name, value) in set {
            editor = editor.param(name.clone(), value.to_string());
            tree["params"][name] = value;
        }
        for (name, value) in set_meta {
            editor = editor.meta(name.clone(), value.to_string());
            tree["params"]["_meta"][name] = value;
        }
        let edited: Value = serde_json::from_slice(&editor.finish()).unwrap();
        prop_assert_eq!(edited, tree);
    }
}
