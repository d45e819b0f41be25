use rstest::rstest;

use super::*;

fn ids(text: &str, piece: usize) -> Vec<String> {
    let mut scan = IdScan::default();
    text.as_bytes()
        .chunks(piece)
        .for_each(|piece| scan.feed(piece));
    scan.ids()
}

#[rstest]
#[case(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"id":9,"method":["x"]}}"#, &["1"])]
#[case(r#" { "method" : "a\"{" , "params":[{"a":"\\"},"}"], "id" : "x\"y" } "#, &[r#""x\"y""#])]
#[case(r#"{"\u0069d":-5,"method":"m"}"#, &["-5"])]
#[case(r#"[{"id":1,"method":"a"},[{"id":8,"method":"n"}],{"id":"b","method":"c","params":{}}]"#, &["1", "\"b\""])]
#[case(r#"[{"method":"n"},{"id":3,"result":{}},{"id":4,"method":"m"}]"#, &["4"])]
#[case(r#"{"params":[0,-1.5,true,{"a":null,"b":[0,"]",1]}, 2 ],"id":5,"method":"m"}"#, &["5"])]
fn ids_of_requests_are_found_in_any_pieces(
    #[case] text: &str,
    #[case] expected: &[&str],
    #[values(1, 2, 7, 4096)] piece: usize,
) {
    assert_eq!(ids(text, piece), expected);
}

#[rstest]
#[case(r#"{"result":{"id":9,"method":"x"},"jsonrpc":"2.0","id":"a"}"#, ScannedMessage::Reply(RequestId::parse("\"a\"").unwrap()))]
#[case(
    " {\"id\":5,\"error\":{}}\n\n",
    ScannedMessage::Reply(RequestId::from(5))
)]
#[case(
    r#"{"params":{"id":5,"result":{}},"method":"n"}"#,
    ScannedMessage::NoReply
)]
#[case(r#"{"id":5,"method":"m"}"#, ScannedMessage::NoReply)]
#[case(r#"{"id":null,"error":{}}"#, ScannedMessage::Unclear)]
#[case(r#"{"id":1,"id":2,"result":{}}"#, ScannedMessage::Unclear)]
#[case(r#"{"id":5,"result":{}"#, ScannedMessage::Unclear)]
#[case(r#"[{"id":5,"result":{}}]"#, ScannedMessage::Unclear)]
#[case("", ScannedMessage::Unclear)]
fn one_message_says_what_it_answers(
    #[case] text: &str,
    #[case] expected: ScannedMessage,
    #[values(1, 3, 4096)] piece: usize,
) {
    let mut scan = IdScan::default();
    text.as_bytes()
        .chunks(piece)
        .for_each(|piece| scan.feed(piece));
    assert_eq!(scan.message(), expected);
}

#[rstest]
fn what_is_no_clear_request_has_no_id(
    #[values(
        r#"{"method":"n"}"#,
        r#"{"id":1,"result":{"method":"x"}}"#,
        r#"{"id":1,"id":2,"method":"m"}"#,
        r#"{"id":1,"\u0069d":2,"method":"m"}"#,
        r#"{"id":1,"ID":2,"method":"m"}"#,
        r#"{"Id":1,"method":"m"}"#,
        r#"{"id":1,"method":"m","method":"n"}"#,
        r#"{"id":{"id":1},"method":"m"}"#,
        r#"{"id":[1],"method":"m"}"#,
        r#"{"id":null,"method":"m"}"#,
        r#"{"id":1.5,"method":"m"}"#,
        r#"{"id":1,"method":5}"#,
        r#"{"id":1,"method":"initialize"}"#,
        r#"{"id":1,"method":"m"]"#,
        r#"{"id":1,"method":"m"}{}"#,
        r#"{"params":{"id":1,"method":"m"}}"#,
        r#"x{"id":1,"method":"m"}"#,
        "}",
        ""
    )]
    text: &str,
) {
    assert_eq!(ids(text, 3), Vec::<String>::new(), "{text}");
}

#[rstest]
#[case(
    r#"{"method":"m","params":{"id":9},"jsonrpc":"2.0","id":"a"}"#,
    Some("\"a\"")
)]
#[case(
    r#"{"id":1,"method":"m","method":"initialize","x":1,"x":2}"#,
    Some("1")
)]
#[case(r#"{"id":1,"id":1,"method":"m"}"#, None)]
#[case(r#"{"id":1,"iD":2,"method":"m"}"#, None)]
#[case(r#"{"id":1,"result":{"method":"m"}}"#, None)]
#[case(r#"{"method":"m"}"#, None)]
#[case(r#"{"id":1,"method":"m""#, None)]
#[case(r#"[{"id":1,"method":"m"}]"#, None)]
#[case(r#"{"id":1,"method":"m"}{"id":2,"method":"m"}"#, None)]
fn one_request_has_an_id_whatever_else_is_repeated(
    #[case] text: &str,
    #[case] expected: Option<&str>,
    #[values(1, 3, 4096)] piece: usize,
) {
    let mut scan = IdScan::default();
    text.as_bytes()
        .chunks(piece)
        .for_each(|piece| scan.feed(piece));
    assert_eq!(scan.request().as_deref(), expected, "{text}");
}

#[test]
fn memory_stays_bounded_whatever_comes() {
    let mut scan = IdScan::default();
    scan.feed(b"{\"id\":\"");
    scan.feed("x".repeat(1 << 20).as_bytes());
    assert!(scan.token.capacity() <= 2 * TOKEN);
    let many = (0..5000).map(|id| format!(r#"{{"id":{id},"method":"m"}}"#));
    let many = format!("[{}]", many.collect::<Vec<_>>().join(","));
    assert_eq!(ids(&many, 999), Vec::<String>::new(), "more than is kept");
}

#[test]
fn what_was_cut_off_counts_as_far_as_it_came() {
    assert_eq!(ids(r#"{"id":1,"method":"m","params":{"a":"xx"#, 5), ["1"]);
    assert_eq!(
        ids(r#"{"method":"m","params":{"a":"xx"#, 5),
        Vec::<String>::new()
    );
}
