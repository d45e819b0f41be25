use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;

fn read(properties: &str) -> Result<ParamHeaders, AnnotationError> {
    ParamHeaders::read(&format!(r#"{{"type":"object","properties":{properties}}}"#))
}

fn headers(pairs: &[(&'static str, &str)]) -> Vec<(HeaderName, HeaderValue)> {
    let pair = |(name, value): &(&'static str, &str)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_str(value).unwrap(),
        )
    };
    pairs.iter().map(pair).collect()
}

#[test]
fn annotations_are_found_at_their_paths() {
    let found = read(
        r#"{"region":{"x-mcp-header":"Region","type":"string"},
            "deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"Depth"}}},
            "plain":{"type":"array","items":{"type":"string"}}}"#,
    )
    .unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|p| (p.path.join("/"), p.kind, p.name.as_str(), p.token.as_str()))
        .collect();
    let region = (
        "region".to_owned(),
        ParamType::String,
        "mcp-param-region",
        "Region",
    );
    let depth = (
        "deep/n".to_owned(),
        ParamType::Integer,
        "mcp-param-depth",
        "Depth",
    );
    assert_eq!(found, [region, depth]);
}

#[test]
fn the_keyword_is_known_however_it_is_spelled() {
    let found = read(r#"{"a":{"type":"boolean","x\u002dmcp-header":"A"}}"#).unwrap();
    assert_eq!(found.iter().count(), 1);
}

#[test]
fn names_and_data_that_look_like_annotations_are_none() {
    for text in [
        r#"{"x-mcp-header":{"type":"string"}}"#,
        r#"{"a":{"type":"object","default":{"x-mcp-header":"A"}}}"#,
        r#"{"a":{"enum":[{"x-mcp-header":"A"}]}}"#,
        r#"{"a":{"const":{"x-mcp-header":1}},"b":{"examples":[{"x-mcp-header":1}]}}"#,
    ] {
        assert!(read(text).unwrap().is_empty(), "{text}");
    }
}

// SPEC M-30: one schema per violation.
#[rstest]
#[case::empty(r#"{"a":{"type":"string","x-mcp-header":""}}"#, "no HTTP token")]
#[case::space(r#"{"a":{"type":"string","x-mcp-header":"a b"}}"#, "no HTTP token")]
#[case::colon(r#"{"a":{"type":"string","x-mcp-header":"a:b"}}"#, "no HTTP token")]
#[case::beyond_ascii(r#"{"a":{"type":"string","x-mcp-header":"é"}}"#, "no HTTP token")]
#[case::control(r#"{"a":{"type":"string","x-mcp-header":"a\r\nb"}}"#, "no HTTP token")]
#[case::no_string(r#"{"a":{"type":"string","x-mcp-header":1}}"#, "no HTTP token")]
#[case::twice(
    r#"{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"A"}}"#,
    "twice"
)]
#[case::twice_in_other_case(
    r#"{"a":{"type":"string","x-mcp-header":"My"},"b":{"properties":{"c":{"type":"string","x-mcp-header":"mY"}}}}"#,
    "twice"
)]
#[case::number(r#"{"a":{"type":"number","x-mcp-header":"A"}}"#, "no string")]
#[case::object(r#"{"a":{"type":"object","x-mcp-header":"A"}}"#, "no string")]
#[case::array(r#"{"a":{"type":"array","x-mcp-header":"A"}}"#, "no string")]
#[case::null(r#"{"a":{"type":"null","x-mcp-header":"A"}}"#, "no string")]
#[case::type_array(r#"{"a":{"type":["string"],"x-mcp-header":"A"}}"#, "no string")]
#[case::no_type(r#"{"a":{"x-mcp-header":"A"}}"#, "no string")]
#[case::items(
    r#"{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}"#,
    "no property"
)]
#[case::items_properties(
    r#"{"a":{"items":{"properties":{"b":{"type":"string","x-mcp-header":"A"}}}}}"#,
    "no property"
)]
#[case::any_of(
    r#"{"a":{"anyOf":[{"type":"string","x-mcp-header":"A"}]}}"#,
    "no property"
)]
#[case::condition(r#"{"a":{"if":{"type":"string","x-mcp-header":"A"}}}"#, "no property")]
#[case::pattern(
    r#"{"a":{"patternProperties":{"x":{"type":"string","x-mcp-header":"A"}}}}"#,
    "no property"
)]
#[case::definition(
    r#"{"a":{"$defs":{"x":{"type":"string","x-mcp-header":"A"}},"$ref":"x"}}"#,
    "no property"
)]
#[case::additional(
    r#"{"a":{"additionalProperties":{"type":"string","x-mcp-header":"A"}}}"#,
    "no property"
)]
#[case::ambiguous(
    r#"{"a":{"type":"string","x-mcp-header":"A","type":"integer"}}"#,
    "cannot be read"
)]
fn an_invalid_annotation_is_an_error(#[case] properties: &str, #[case] reason: &str) {
    let error = read(properties).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn the_root_cannot_be_annotated() {
    let error = ParamHeaders::read(r#"{"type":"string","x-mcp-header":"A"}"#);
    assert_eq!(error, Err(AnnotationError::Place("A".to_owned())));
}

#[test]
fn annotations_are_bounded() {
    let many = |count: usize| {
        let properties: Vec<String> = (0..count)
            .map(|n| format!(r#""p{n}":{{"type":"string","x-mcp-header":"P{n}"}}"#))
            .collect();
        read(&format!("{{{}}}", properties.join(",")))
    };
    assert!(many(MAX_ANNOTATIONS).is_ok());
    assert_eq!(many(MAX_ANNOTATIONS + 1), Err(AnnotationError::TooMany));
}

fn sample() -> ParamHeaders {
    read(
        r#"{"s":{"type":"string","x-mcp-header":"S"},"i":{"type":"integer","x-mcp-header":"I"},
            "b":{"type":"boolean","x-mcp-header":"B"},
            "o":{"properties":{"s":{"type":"string","x-mcp-header":"Deep"}}}}"#,
    )
    .unwrap()
}

// SPEC M-32.
#[rstest]
#[case(r#"{"s":"x","i":42,"b":false,"o":{"s":"y"}}"#, &["S=x", "I=42", "B=false", "Deep=y"])]
#[case(r#"{"s":"","i":-7.0}"#, &["S=", "I=-7"])]
#[case(r#"{"s":null,"b":null,"o":null}"#, &[])]
#[case(r#"{"o":[{"s":"y"}],"s":{"a":1}}"#, &[])]
#[case(r#"{"i":1e3,"s":"\u00e9"}"#, &["S==?base64?w6k=?=", "I=1000"])]
fn present_values_become_headers(#[case] arguments: &str, #[case] expected: &[&str]) {
    let written: Vec<String> = sample()
        .write(Some(arguments))
        .unwrap()
        .iter()
        .map(|(name, value)| {
            let token = sample()
                .iter()
                .find(|p| p.name == name)
                .unwrap()
                .token
                .clone();
            format!("{token}={}", value.to_str().unwrap())
        })
        .collect();
    assert_eq!(written, expected);
}

#[test]
fn without_arguments_there_are_no_headers() {
    assert_eq!(sample().write(None), Ok(Vec::new()));
    assert_eq!(sample().check(None, &[]), Ok(()));
}

// SPEC M-33.
#[rstest]
#[case::agree(r#"{"s":"x","i":42}"#, &[("mcp-param-s", "x"), ("mcp-param-i", "42")], None)]
#[case::encoded(r#"{"s":"x"}"#, &[("mcp-param-s", "=?base64?eA==?=")], None)]
#[case::by_value(r#"{"i":42}"#, &[("mcp-param-i", "42.0")], None)]
#[case::null(r#"{"s":null}"#, &[], None)]
#[case::unknown_header("{}", &[("mcp-param-foo", "x")], None)]
#[case::missing(r#"{"s":"x"}"#, &[], Some("missing"))]
#[case::differs(r#"{"s":"x"}"#, &[("mcp-param-s", "y")], Some("does not match"))]
#[case::case_differs(r#"{"s":"x"}"#, &[("mcp-param-s", "X")], Some("does not match"))]
#[case::strings_are_no_numbers(r#"{"s":"42"}"#, &[("mcp-param-s", "42.0")], Some("does not match"))]
#[case::number_differs(r#"{"i":42}"#, &[("mcp-param-i", "43")], Some("does not match"))]
#[case::no_number(r#"{"i":42}"#, &[("mcp-param-i", "many")], Some("does not match"))]
#[case::unexpected("{}", &[("mcp-param-s", "x")], Some("not there"))]
#[case::unexpected_null(r#"{"s":null}"#, &[("mcp-param-s", "null")], Some("not there"))]
#[case::no_value(r#"{"s":{"a":1}}"#, &[], None)]
#[case::differs_from_no_value(r#"{"s":{"a":1}}"#, &[("mcp-param-s", "x")], Some("does not match"))]
#[case::malformed(r#"{"s":"x"}"#, &[("mcp-param-s", "=?base64?eA?=")], Some("malformed"))]
#[case::repeated(r#"{"s":"x"}"#, &[("mcp-param-s", "x"), ("mcp-param-s", "x")], Some("repeated"))]
#[case::ambiguous(r#"{"s":"x","s":"y"}"#, &[("mcp-param-s", "x")], Some("ambiguous"))]
fn headers_agree_with_the_arguments_or_are_refused(
    #[case] arguments: &str,
    #[case] given: &[(&'static str, &str)],
    #[case] problem: Option<&str>,
) {
    match (sample().check(Some(arguments), &headers(given)), problem) {
        (Ok(()), None) => {}
        (Err(error), Some(problem)) => {
            assert!(error.to_string().contains(problem), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn what_is_written_agrees(s in any::<Option<String>>(), i in any::<Option<i64>>(), b in any::<Option<bool>>()) {
        let arguments = json!({"s": s, "i": i, "b": b, "o": {"s": s}}).to_string();
        let headers = sample().write(Some(&arguments)).unwrap();
        prop_assert_eq!(sample().check(Some(&arguments), &headers), Ok(()));
    }

    #[test]
    fn no_schema_panics(text in r#"[\[\]{}",:a-z0-9\\ -]{0,60}"#) {
        drop(ParamHeaders::read(&format!(r#"{{"properties":{{"x-mcp-header":{text}"#)));
    }
}
