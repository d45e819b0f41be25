use rstest::rstest;

use super::*;

const OWNER: Ownership = Ownership { node: 7, epoch: 3 };
const NOW: Duration = Duration::from_secs(1_000);

fn request_binding(subject: &str, endpoint: &str, params: &str) -> RequestBinding {
    let principal = Principal::new("https://issuer", subject, "client", Vec::new(), None);
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{params}}}}}"#);
    let message = Message::parse(text.into(), 128).unwrap();
    RequestBinding {
        binding: principal.binding(),
        endpoint: endpoint.into(),
        message,
    }
}

fn tickets() -> [RequestState; 3] {
    let carried = |state: Option<&'static [u8]>| {
        RequestState::Carried(CarriedState {
            upstream: "files".into(),
            state: state.map(Bytes::from_static),
            digest: [3; 32],
        })
    };
    let parked = RequestState::Parked {
        owner: OWNER,
        key: [7; KEY_LEN],
        round: 300,
    };
    [parked, carried(Some("ä\u{0}\"".as_bytes())), carried(None)]
}

const CALL: &str = r#""name":"t","arguments":{"a":1,"b":["x",{"c":2,"d":"é"}]}"#;

// SPEC M-64.
#[rstest]
#[case::same("alice", "mcp", CALL, true)]
#[case::rewritten(
    "alice",
    "mcp",
    r#""arguments": {"b": ["x", {"d": "\u00e9", "c": 2}], "a": 1}, "name": "t""#,
    true
)]
#[case::other_user("mallory", "mcp", CALL, false)]
#[case::other_endpoint("alice", "files", CALL, false)]
#[case::other_arguments("alice", "mcp", r#""name":"t","arguments":{"a":2}"#, false)]
#[case::other_tool(
    "alice",
    "mcp",
    r#""name":"u","arguments":{"a":1,"b":["x",{"c":2,"d":"é"}]}"#,
    false
)]
fn a_ticket_opens_for_the_request_it_was_given_to(
    #[case] subject: &str,
    #[case] endpoint: &str,
    #[case] params: &str,
    #[case] opens: bool,
) {
    let sealer = Sealer::new(&[]).unwrap();
    for request_state in tickets() {
        let text = request_binding("alice", "mcp", CALL).seal(&sealer, &request_state, NOW + LIFE);
        let opened = request_binding(subject, endpoint, params).open(&sealer, &text, NOW, OWNER);
        assert_eq!(opened, opens.then_some(request_state));
    }
}

#[test]
fn a_ticket_expires_and_cannot_be_altered() {
    let sealer = Sealer::new(&[]).unwrap();
    let request_binding = request_binding("alice", "mcp", CALL);
    let [request_state, ..] = tickets();
    let text = request_binding.seal(&sealer, &request_state, NOW);
    assert!(request_binding.open(&sealer, &text, NOW, OWNER).is_some());
    let later = NOW + Duration::from_millis(1);
    assert_eq!(request_binding.open(&sealer, &text, later, OWNER), None);
    for at in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] ^= 1;
        let altered = String::from_utf8(bytes).unwrap();
        assert_eq!(
            request_binding.open(&sealer, &altered, NOW, OWNER),
            None,
            "{at}"
        );
    }
}

// The other states are no call of ours: any replica continues them.
#[test]
fn state_of_a_call_parked_elsewhere_is_refused() {
    let sealer = Sealer::new(&[]).unwrap();
    let request_binding = request_binding("alice", "mcp", CALL);
    for request_state in tickets() {
        let text = request_binding.seal(&sealer, &request_state, NOW + LIFE);
        let is_parked = matches!(request_state, RequestState::Parked { .. });
        for other in [
            Ownership { node: 8, ..OWNER },
            Ownership { epoch: 4, ..OWNER },
        ] {
            let opened = request_binding.open(&sealer, &text, NOW, other);
            assert_eq!(opened.is_none(), is_parked);
        }
    }
}

#[test]
fn state_of_an_unknown_version_is_refused() {
    let sealer = Sealer::new(&[]).unwrap();
    let request_binding = request_binding("alice", "mcp", CALL);
    for request_state in tickets() {
        let text = request_binding.seal(&sealer, &request_state, NOW + LIFE);
        let next = sealer.of_next_version(SealPurpose::RequestState, b"mcp", &text);
        assert_eq!(request_binding.open(&sealer, &next, NOW, OWNER), None);
    }
}

fn spelled(value: &str) -> Vec<u8> {
    CanonicalJson::of(value).out
}

#[rstest]
#[case(" 1 ", "1")]
#[case("1.0", "1.0")]
#[case("[ ]", "[]")]
#[case("[1, [ \"\\u0061\" ,null]]", "[1,[\"a\",null]]")]
#[case("\"\\udc00\"", "\"\\udc00\"")]
#[case("", "")]
fn one_value_has_one_spelling(#[case] value: &str, #[case] spelling: &str) {
    assert_eq!(spelled(value), spelling.as_bytes());
}

#[rstest]
#[case("{ }", "{}", true)]
#[case(
    r#"{"b":{"d":1,"c":[2, {}]},"a":[]}"#,
    r#"{"a":[],"b":{"c":[2,{}],"d":1}}"#,
    true
)]
#[case(r#"{"\ud800":1,"\u0061":2}"#, r#"{"a":2,"\ud800":1}"#, true)]
#[case::name(r#"{"a":1}"#, r#"{"b":1}"#, false)]
#[case::value(r#"{"a":{"b":1}}"#, r#"{"a":{"b":2}}"#, false)]
#[case::place(r#"{"a":{"b":1},"c":{}}"#, r#"{"a":{},"c":{"b":1}}"#, false)]
#[case::elements(r#"[{"a":1},{}]"#, r#"[{},{"a":1}]"#, false)]
#[case::borders(r#"{"a":1,"b":2}"#, r#"{"a":"1,\"b\":2"}"#, false)]
#[case::repeated(r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#, false)]
#[case::kind("{}", "[]", false)]
#[case::long(
    r#"{"b":"0123456789012345678901234567890123456789","a":{"d":"0123456789","c":{}}}"#,
    r#"{"a":{"c":{},"d":"0123456789"},"b":"0123456789012345678901234567890123456789"}"#,
    true
)]
fn objects_are_one_whatever_the_order_of_their_members(
    #[case] one: &str,
    #[case] other: &str,
    #[case] same: bool,
) {
    assert_eq!(spelled(one) == spelled(other), same);
}

// Else a request of a few hundred kilobytes would keep a thread for seconds.
#[rstest]
#[case::arrays("[", "]")]
#[case::objects_in_order("{\"a\":", ",\"b\":1}")]
#[case::objects_out_of_order("{\"b\":", ",\"a\":1}")]
fn what_is_long_and_deep_is_handled_once_or_twice(#[case] open: &str, #[case] close: &str) {
    const DEPTH: usize = 100;
    let long = format!("[{}1]", "1,".repeat(10_000));
    let deep = format!("{}{long}{}", open.repeat(DEPTH), close.repeat(DEPTH));
    let spelling = CanonicalJson::of(&deep);
    // Each level adds an object or its digest, moved at most as often as the object stays short.
    let most = 2 * deep.len() + 2 * DEPTH * (SHORT + DIGEST_LEN);
    assert!(spelling.handled <= most, "{} of {most}", spelling.handled);
}

#[rstest]
#[case::empty("{}", 0)]
#[case::tiny(r#"{"b":1,"a":{}}"#, 0)]
#[case::nested(&nested(100), 100 * 6 / (SHORT - 1 - DIGEST_LEN))]
fn many_small_objects_need_few_digests(#[case] object: &str, #[case] most: usize) {
    const MANY: usize = 1_000;
    let list = format!("[{}{object}]", format!("{object},").repeat(MANY - 1));
    let spelling = CanonicalJson::of(&list);
    let digests = spelling.digests;
    assert!(digests <= most * MANY, "{digests} of {}", most * MANY);
    let most = 2 * list.len() + MANY * 100 * SHORT;
    assert!(spelling.handled <= most, "{} of {most}", spelling.handled);
}

/// Nested objects, `depth` levels deep.
fn nested(depth: usize) -> String {
    format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth))
}
