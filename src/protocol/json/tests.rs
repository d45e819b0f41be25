use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn is_json(text: &str) -> bool {
    let mut scanner = JsonScanner::new(text, MAX_DEPTH);
    scanner.value().and_then(|_| scanner.finish()).is_ok()
}

#[rstest]
fn what_the_grammar_allows_passes(
    #[values(
        "0",
        "-0",
        "-1.5e+10",
        "1E2",
        "\"\"",
        "\"\\u00e9\\n\\/\"",
        "[]",
        "{}",
        " [ 1 , 2 ] ",
        "{\"a\":{\"b\":[true,false,null]}}",
        "\"\\ud800\"",
        "\"å😀\"",
        "123456789012345678901234",
        "[0,-0.5,12,3.25e-7,1E2 , 4]",
        "[0,1,{\"a\":[],\"b\":-1},\"\\n\\u00e9x\\\\\"]"
    )]
    text: &str,
) {
    assert!(is_json(text));
}

#[rstest]
#[case("{}", true)]
#[case(" {\"a\":1,\"b\":{}} ", true)]
#[case("{\"a\":1,\"a\":2}", false)]
#[case("{\"a\":1,\"\\u0061\":2}", false)]
#[case("[]", false)]
#[case("{}{}", false)]
#[case("{\"a\":}", false)]
fn an_object_repeats_no_member(#[case] text: &str, #[case] expected: bool) {
    assert_eq!(is_object(text), expected);
    assert_eq!(members(text).is_ok(), expected);
}

#[rstest]
fn what_the_grammar_forbids_is_refused(
    #[values(
        "",
        " ",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "+1",
        "\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\u12",
        "\"a\u{1}\"",
        "\"long enough for a word \u{1f}\"",
        "[1,]",
        "[1,2,]",
        "[1,02]",
        "[1,-]",
        "[1,2.,3]",
        "[1,2e,3]",
        "[1,tru]",
        "[1,\"\\x\"]",
        "[1,\"\\n\u{1}\"]",
        "[[1]}",
        "{\"a\":[1}]",
        "[,1]",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{\"a\":1,}",
        "{,}",
        "[1 2]",
        "[",
        "{",
        "]",
        "[}",
        "tru",
        "nul",
        "NaN",
        "1 2",
        "{\"a\":1}}",
        "'a'",
        "\u{feff}{}",
        "\"tab\there\""
    )]
    text: &str,
) {
    assert!(!is_json(text));
}

#[test]
fn depth_is_bounded_without_recursion_beyond_the_bound() {
    let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    let mut scanner = JsonScanner::new("", 0);
    assert!(is_json(&nested(MAX_DEPTH)));
    assert_eq!(elements(&nested(MAX_DEPTH + 1)), Err(JsonError::TooDeep));
    assert_eq!(elements(&"[".repeat(1_000_000)), Err(JsonError::TooDeep));
    assert_eq!(scanner.value(), Err(JsonFlaw::Syntax));
}

/// `kinds` containers in each other around `inside`, closed in the right order but for the one at `wrong`.
fn nested(kinds: &[bool], inside: &str, wrong: Option<usize>) -> String {
    let open = kinds
        .iter()
        .map(|is_object| if *is_object { "{\"a\":" } else { "[" });
    let close = kinds.iter().enumerate().rev().map(|(place, is_object)| {
        if *is_object == (wrong != Some(place)) {
            "}"
        } else {
            "]"
        }
    });
    open.chain([inside]).chain(close).collect()
}

#[test]
fn each_bracket_closes_its_own_container_at_any_depth() {
    for depth in [1, 2, 62, 63, 64, 65, 126, 127, 128, 200] {
        let kinds: Vec<bool> = (0..depth).map(|level| level % 3 == 0).collect();
        for inside in ["0", "[]", "{}", "\"\"", "[0,{\"b\":1},-0.5,2e3,\"c\"]"] {
            assert!(is_json(&nested(&kinds, inside, None)), "{depth} {inside}");
        }
        for wrong in 0..depth {
            assert!(
                !is_json(&nested(&kinds, "0", Some(wrong))),
                "{wrong} of {depth}"
            );
        }
        for (inside, deeper) in [("0", 0), ("[]", 1), ("{}", 1), ("[0]", 1)] {
            let text = nested(&kinds, inside, None);
            let mut scanner = JsonScanner::new(&text, depth + deeper);
            assert_eq!(scanner.value(), Ok(0..text.len()), "{depth} {inside}");
            let mut scanner = JsonScanner::new(&text, depth + deeper - 1);
            assert_eq!(scanner.value(), Err(JsonFlaw::TooDeep), "{depth} {inside}");
        }
    }
}

#[test]
fn members_are_decoded_names_and_raw_values() {
    let found = members(" { \"a\" : 1.0e2 , \"\\u0062\":[ 2 ], \"c\":\"\\n\" } ").unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|(name, value)| (name.as_ref(), *value))
        .collect();
    assert_eq!(found, [("a", "1.0e2"), ("b", "[ 2 ]"), ("c", "\"\\n\"")]);
}

#[test]
fn repeated_members_are_refused_whatever_their_spelling() {
    let twice = members(r#"{"a":1,"\u0061":2}"#);
    assert_eq!(
        twice,
        Err(JsonError::Ambiguous {
            member: "a".to_owned()
        })
    );
    assert!(members(r#"{"\ud800":1}"#).is_err());
    assert!(members(r#"{"x":{"a":1,"a":2}}"#).is_ok());
}

#[test]
fn error_quotes_the_beginning_of_a_long_member_alone() {
    let name = "\u{1}é".repeat(100_000);
    let member = quote(&name);
    let object = format!("{{{member}:1,{member}:2}}");
    let in_object = members(&object).unwrap_err().to_string();
    let message = format!(r#"{{"jsonrpc":"2.0","method":"x","params":{object}}}"#);
    let in_message = crate::protocol::Message::parse(message.into(), MAX_DEPTH);
    for error in [in_object, in_message.unwrap_err().to_string()] {
        assert!(error.contains('é'), "{error}");
        assert!(error.len() < 400, "{} bytes", error.len());
    }
}

#[test]
fn other_kinds_and_trailing_text_are_refused() {
    assert!(members("[]").is_err());
    assert!(elements("{}").is_err());
    assert!(members("{} 1").is_err());
    assert!(elements("[] ]").is_err());
    assert_eq!(string("1"), None);
    assert_eq!(string("\"a\" 1"), None);
}

#[test]
fn spans_are_offsets_into_the_whole() {
    let whole = "[1, 22]";
    let parts = elements(whole).unwrap();
    assert_eq!(span_of(whole, parts[1]), Some(4..6));
    assert_eq!(span_of(parts[1], whole), None);
}

#[test]
fn an_object_is_written_with_quoted_names_and_raw_values() {
    let members = members(r#"{ "a\"b" : 1.0e2 , "c":[ 2 ] }"#).unwrap();
    assert_eq!(object(members), r#"{"a\"b":1.0e2,"c":[ 2 ]}"#);
    assert_eq!(object(ObjectMembers::new()), "{}");
}

#[test]
fn a_reopened_object_gets_further_members() {
    for (text, expected) in [("{}", r#"{"b":2}"#), (r#"{"a":{}}"#, r#"{"a":{},"b":2}"#)] {
        let mut out = ObjectWriter::reopen(text.to_owned());
        out.member("b", "2");
        assert_eq!(out.finish(), expected);
        let same = ObjectWriter::reopen(text.to_owned());
        assert_eq!(same.finish(), text);
        let open = ObjectWriter::reopen(text.to_owned()).finish_before("b");
        assert_eq!(format!("{open}2}}"), expected);
    }
}

#[test]
fn an_array_is_written_of_values_or_of_strings() {
    assert_eq!(array(["1", "{ }"]), "[1,{ }]");
    assert_eq!(strings(["a", "\"", ""]), r#"["a","\"",""]"#);
    assert_eq!(array::<&str>([]), "[]");
}

#[test]
fn member_is_replaced_where_it_stands() {
    let replaced = |name| object_replacing(members(r#"{"a":1,"b":2}"#).unwrap(), name, "[3]");
    assert_eq!(replaced("a"), r#"{"a":[3],"b":2}"#);
    assert_eq!(replaced("c"), r#"{"a":1,"b":2}"#);
}

#[test]
fn an_inner_member_is_put_in_place_of_what_had_its_name() {
    let put = |text: &str| object_with(&members(text).unwrap(), "in", "k", "1");
    assert_eq!(put("{}"), r#"{"in":{"k":1}}"#);
    assert_eq!(
        put(r#"{"in":{"k":0,"l":[2]},"a":3}"#),
        r#"{"a":3,"in":{"k":1,"l":[2]}}"#
    );
    assert_eq!(put(r#"{"in":null}"#), r#"{"in":{"k":1}}"#);
}

fn arb_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".{0,20}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::vec((".{0,6}", inner), 0..6)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

/// `value` and all values within it.
fn count(value: &serde_json::Value) -> usize {
    1 + match value {
        serde_json::Value::Array(elements) => elements.iter().map(count).sum(),
        serde_json::Value::Object(members) => members.values().map(count).sum(),
        _ => 0,
    }
}

proptest! {
    #[test]
    fn each_unread_value_counts_once(value in arb_json(), pretty: bool) {
        let text = if pretty { format!("{value:#}") } else { value.to_string() };
        let all = count(&value);
        let scan = |values| JsonScanner::new(&text, MAX_DEPTH).with_values(values).value().map(drop);
        prop_assert_eq!(scan(all), Ok(()));
        prop_assert_eq!(scan(all - 1), Err(JsonFlaw::TooMany));
    }

    #[test]
    fn quoting_round_trips(text in ".*") {
        let quoted = quote(&text);
        prop_assert_eq!(string(&quoted).unwrap(), text.as_str());
        prop_assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text);
    }

    /// `JsonScanner` accepts exactly the texts that serde_json accepts.
    #[test]
    fn damaged_json_is_judged_like_the_reference_parser(
        value in arb_json(),
        pretty: bool,
        damage in prop::collection::vec((any::<prop::sample::Index>(), "[\\[\\]{}:,\"\\\\0-9eE.+\\- \ntfnu\u{1}é]"), 0..3),
    ) {
        let mut text = if pretty { format!("{value:#}") } else { value.to_string() };
        for (place, with) in damage {
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            let at = places[place.index(places.len())];
            let end = at + text[at..].chars().next().unwrap().len_utf8();
            text.replace_range(at..end, &with);
            if text.is_empty() { break; }
        }
        let reference = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
        prop_assert_eq!(is_json(&text), reference, "{}", text);
    }
}

#[test]
fn the_first_end_of_a_plain_run_is_found_whatever_follows() {
    let ends = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1f);
    for (first, second) in (0..=u8::MAX).flat_map(|a| (0..=u8::MAX).map(move |b| (a, b))) {
        // Within a word and across two, as a string's start; in a block of a long one, and in the bytes at its end.
        for at in [2, 7, 60, 97] {
            let mut bytes = [b'x'; 99];
            (bytes[at], bytes[at + 1]) = (first, second);
            let expected = bytes.iter().position(ends).unwrap_or(bytes.len());
            assert_eq!(
                scan::plain_end(&bytes, 0),
                expected,
                "{first} {second} at {at}"
            );
        }
    }
}

#[test]
fn a_number_is_known_in_every_spelling() {
    let long = format!("7.{}", "0".repeat(1000));
    for (text, known) in [
        ("7", Some(7)),
        ("\"7\"", Some(7)),
        ("7.0", Some(7)),
        ("1e3", Some(1000)),
        ("\"7", None),
        ("\"seven\"", None),
        ("7.5", None),
        ("-7", None),
        ("-7.0", None),
        (&*long, None),
    ] {
        assert_eq!(number(text), known, "{text}");
    }
}
