use http::HeaderValue;
use rstest::rstest;

use super::*;

const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OTHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn written(context: &TraceContext) -> Option<String> {
    context.traceparent().map(|text| text.as_str().to_owned())
}

// Spec: W3C Trace Context §3.2.2; SPEC C-98.
#[rstest]
#[case::usual(GOOD, true)]
#[case::unsampled(OTHER, true)]
#[case::later_version("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what", true)]
#[case::later_version_glued("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01what", false)]
#[case::version_ff("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false)]
#[case::upper_case("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", false)]
#[case::zero_trace("00-00000000000000000000000000000000-00f067aa0ba902b7-01", false)]
#[case::zero_span("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", false)]
#[case::longer("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-", false)]
#[case::shorter("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0", false)]
#[case::other_separator("00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01", false)]
#[case::empty("", false)]
fn only_well_formed_parents_are_continued(#[case] text: &str, #[case] good: bool) {
    assert_eq!(TraceContext::parse(text, None).is_some(), good);
}

#[test]
fn what_is_read_is_written_back() {
    let context = TraceContext::parse(GOOD, Some("vendor=a b,other=1")).unwrap();
    assert_eq!(written(&context).as_deref(), Some(GOOD));
    assert_eq!(context.tracestate(), Some("vendor=a b,other=1"));
    assert_eq!(
        context.trace_id().unwrap().as_str(),
        "4bf92f3577b34da6a3ce929d0e0e4736"
    );
    assert!(context.is_sampled());
}

#[test]
fn unknown_flags_are_not_passed_on() {
    let text = GOOD.replace("-01", "-ff");
    let context = TraceContext::parse(&text, None).unwrap();
    assert!(written(&context).unwrap().ends_with("-03"));
}

#[rstest]
#[case::no_value("vendor", None)]
#[case::upper_case_key("Vendor=1", None)]
#[case::control_character("vendor=a\u{7}", None)]
#[case::empty("", None)]
#[case::empty_members_are_fine(" a=1 , ,b=2, ", Some("a=1 , ,b=2"))]
#[case::tenant("fw529a3039@dt=FfAL", Some("fw529a3039@dt=FfAL"))]
fn a_malformed_state_is_dropped_alone(#[case] state: &str, #[case] kept: Option<&str>) {
    let context = TraceContext::parse(GOOD, Some(state)).unwrap();
    assert_eq!(context.tracestate(), kept);
}

#[test]
fn a_state_is_bounded() {
    let long = format!("a={}", "x".repeat(600));
    assert_eq!(
        TraceContext::parse(GOOD, Some(&long)).unwrap().tracestate(),
        None
    );
    let many = vec!["a=1"; 33].join(",");
    assert_eq!(
        TraceContext::parse(GOOD, Some(&many)).unwrap().tracestate(),
        None
    );
}

// SPEC C-98.
#[test]
fn meta_wins_over_the_header() {
    let headers = headers(&[(TRACEPARENT, OTHER), (TRACESTATE, "h=1")]);
    let meta = format!("\"{GOOD}\"");
    let context = TraceContext::incoming(&headers, Some(&meta), None);
    assert_eq!(written(&context).as_deref(), Some(GOOD));
    assert_eq!(
        context.tracestate(),
        None,
        "a state belongs to its own parent"
    );
}

#[rstest]
#[case::not_a_string("17")]
#[case::malformed("\"00-1\"")]
#[case::not_json("x")]
fn a_malformed_meta_counts_as_absent(#[case] meta: &str) {
    let headers = headers(&[
        (TRACEPARENT, OTHER),
        (TRACESTATE, "a=1"),
        (TRACESTATE, "b=2"),
    ]);
    let context = TraceContext::incoming(&headers, Some(meta), None);
    assert_eq!(written(&context).as_deref(), Some(OTHER));
    assert_eq!(context.tracestate(), Some("a=1,b=2"));
}

#[test]
fn two_parent_headers_are_none() {
    let headers = headers(&[(TRACEPARENT, OTHER), (TRACEPARENT, GOOD)]);
    assert_eq!(
        TraceContext::incoming(&headers, None, None),
        TraceContext::default()
    );
}

#[test]
fn a_child_stays_in_the_trace_under_a_new_span() {
    let parent = TraceContext::parse(GOOD, Some("a=1")).unwrap();
    let child = parent.child();
    let (old, new) = (written(&parent).unwrap(), written(&child).unwrap());
    assert_eq!(old[..36], new[..36]);
    assert_eq!(old[52..], new[52..]);
    assert_ne!(old, new);
    assert_eq!(child.tracestate(), Some("a=1"));
}

#[test]
fn without_a_parent_a_trace_begins_that_nobody_records() {
    let root = TraceContext::default().child();
    let text = written(&root).unwrap();
    assert!(TraceContext::parse(&text, None).is_some(), "{text}");
    assert!(!root.is_sampled());
}
