use super::super::kept::KeptSpans;
use super::*;

const SAMPLED_PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED_PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

fn mcp() -> SpanTarget {
    SpanTarget::Endpoint("mcp".into())
}

fn server(tracing: Option<&SpanPipeline>, parent: &TraceContext) -> CallSpan {
    let kind = SpanKind::Server;
    CallSpan::start(tracing, parent, "tools/call", mcp(), &SERVER, &kind)
}

fn client(tracing: Option<&SpanPipeline>, parent: &TraceContext) -> CallSpan {
    let kind = SpanKind::Client;
    CallSpan::start(tracing, parent, "tools/call", mcp(), &CLIENT, &kind)
}

fn parent(text: &str) -> TraceContext {
    TraceContext::parse(text, Some("vendor=1")).unwrap()
}

// SPEC C-98.
#[test]
fn a_call_has_a_place_of_its_own_also_when_it_is_not_recorded() {
    for above in [UNSAMPLED_PARENT, SAMPLED_PARENT] {
        let span = server(None, &parent(above));
        let text = span.context().traceparent().unwrap();
        assert_eq!(text.as_str()[..36], above[..36], "the same trace");
        assert_ne!(text.as_str()[36..52], above[36..52], "another span");
        assert_eq!(text.as_str()[52..], above[52..], "the same verdict");
        assert_eq!(span.context().tracestate(), Some("vendor=1"));
    }
}

#[test]
fn a_recorded_call_continues_the_trace_of_its_parent() {
    let tracing = KeptSpans::default().pipeline(0.0);
    let outer = server(Some(&tracing), &parent(SAMPLED_PARENT));
    let inner = client(Some(&tracing), outer.context());
    let [above, below] = [&outer, &inner].map(|s| s.context().traceparent().unwrap());
    assert_eq!(above.as_str()[..36], SAMPLED_PARENT[..36]);
    assert_ne!(above.as_str()[36..], SAMPLED_PARENT[36..]);
    assert_ne!(above.as_str()[36..], below.as_str()[36..]);
    assert!(outer.recorded.is_some() && inner.recorded.is_some());
    assert!(inner.context().is_sampled());
    let root = server(Some(&tracing), &TraceContext::default());
    assert!(
        !root.context().is_sampled(),
        "no root is recorded at ratio 0"
    );
}

// SPEC C-98, C-99. Upstreams are not told to record what was not recorded here.
#[test]
fn callers_have_traces_recorded_up_to_their_rate() {
    let tracing = KeptSpans::default().pipeline(0.0);
    let asked = || server(Some(&tracing), &parent(SAMPLED_PARENT));
    let outer: Vec<_> = (0..10).map(|_| asked()).collect();
    let recorded = |span: &CallSpan| span.recorded.is_some();
    assert_eq!(outer.iter().filter(|span| recorded(span)).count(), 2);
    for span in &outer {
        let inner = client(Some(&tracing), span.context());
        let told = span.context().is_sampled();
        assert_eq!((recorded(&inner), told), (recorded(span), recorded(span)));
    }
}

// SPEC C-22, C-99.
#[test]
fn what_peers_chose_is_masked_and_cut() {
    let kept = KeptSpans::default();
    let tracing = kept.pipeline(1.0);
    let long = "x".repeat(4 * 1024 * 1024);
    let secret = "X-Amz-Signature=5ECRET5ECRET";
    let state = Some("vendor=5ECRET");
    let above = TraceContext::parse(SAMPLED_PARENT, state).unwrap();
    for (method, member) in [
        ("tools/call", "name"),
        ("prompts/get", "name"),
        ("resources/read", "uri"),
    ] {
        let kind = SpanKind::Server;
        let mut span = CallSpan::start(Some(&tracing), &above, method, mcp(), &SERVER, &kind);
        let params = format!(r#"{{"{member}":"a?{secret}&token=5ECRET&{long}"}}"#);
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}"#);
        let message = Message::parse(text.into(), 128).unwrap();
        span.tool(&message.param_str(member).unwrap());
        let tool = span.tool.as_ref().unwrap();
        assert!(tool.len() <= MAX_CHOSEN_BYTES && !tool.contains("5ECRET"));
        let id = format!("\"{secret}{long}\"");
        span.request(&message, || id.as_str().into(), Revision::V2025_11_25);
        span.finish(SpanOutcome::Ok);
    }
    let kept = kept.all();
    assert_eq!(kept.len(), 3);
    for span in &kept {
        let told = format!("{span:?}");
        assert!(
            !told.contains("5ECRET") && told.contains("[redacted]"),
            "{told}"
        );
        for attribute in &span.attributes {
            assert!(attribute.value.as_str().len() <= MAX_CHOSEN_BYTES);
        }
        assert!(span.name.len() <= 2 * MAX_CHOSEN_BYTES);
    }
}

// SPEC C-99.
#[test]
fn a_recorded_request_says_what_it_is_about_on_both_sides() {
    let kept = KeptSpans::default();
    let tracing = kept.pipeline(1.0);
    let read = |params: &str| {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}"#);
        Message::parse(text.into(), 128).unwrap()
    };
    let none = TraceContext::default();
    let show = |method: &str, params: &str, id: &'static str| {
        for (durations, kind) in [(&SERVER, SpanKind::Server), (&CLIENT, SpanKind::Client)] {
            let tracing = Some(&tracing);
            let mut span = CallSpan::start(tracing, &none, method, mcp(), durations, &kind);
            span.request(&read(params), || id.into(), Revision::V2025_11_25);
            span.finish(SpanOutcome::Ok);
        }
    };
    show("tools/call", r#"{"name":"echo"}"#, "\"request-7\"");
    show("prompts/get", r#"{"name":"greet"}"#, "8");
    show("resources/read", r#"{"uri":"memo:1"}"#, "9");
    let kept = kept.all();
    let told: Vec<_> = kept
        .iter()
        .map(|span| {
            let mut all: Vec<_> = span
                .attributes
                .iter()
                .map(|all| format!("{}={}", all.key, all.value))
                .collect();
            all.retain(|attribute| !attribute.starts_with("drawbridge"));
            format!("{} {}", span.name, all.join(" "))
        })
        .collect();
    let expected = [
        "tools/call echo mcp.method.name=tools/call gen_ai.tool.name=echo \
             gen_ai.operation.name=execute_tool mcp.protocol.version=2025-11-25 \
             jsonrpc.request.id=request-7",
        "prompts/get greet mcp.method.name=prompts/get gen_ai.prompt.name=greet \
             mcp.protocol.version=2025-11-25 jsonrpc.request.id=8",
        "resources/read mcp.method.name=resources/read mcp.resource.uri=memo:1 \
             mcp.protocol.version=2025-11-25 jsonrpc.request.id=9",
    ];
    let twice: Vec<_> = expected.iter().flat_map(|one| [*one, *one]).collect();
    assert_eq!(told, twice);
}

// SPEC C-99.
#[test]
fn an_error_of_our_own_has_its_word_and_the_code_that_was_answered() {
    let kept = KeptSpans::default();
    let tracing = kept.pipeline(1.0);
    for outcome in [
        SpanOutcome::Refused("upstream_invalid", -32603),
        SpanOutcome::Rpc(4711),
        SpanOutcome::Failed("cancelled"),
    ] {
        server(Some(&tracing), &TraceContext::default()).finish(outcome);
    }
    let kept = kept.all();
    let told: Vec<_> = kept
        .iter()
        .map(|span| {
            let value = |key: &str| {
                let mut all = span.attributes.iter();
                let found = all.find(|all| all.key.as_str() == key);
                found.map(|all| all.value.to_string())
            };
            [attribute::ERROR_TYPE, attribute::RPC_STATUS].map(value)
        })
        .collect();
    let expected = [
        [Some("upstream_invalid"), Some("-32603")],
        [Some("_OTHER"), Some("4711")],
        [Some("cancelled"), None],
    ];
    assert_eq!(
        told,
        expected.map(|one| one.map(|one| one.map(str::to_owned)))
    );
}

#[test]
fn codes_that_upstreams_invent_are_one_series() {
    assert_eq!(SpanOutcome::Rpc(-32602).error_type(), Some("-32602"));
    // Those of 2026-07-28: a proxy that changes headers, a client that cannot be asked.
    assert_eq!(SpanOutcome::Rpc(-32020).error_type(), Some("-32020"));
    assert_eq!(SpanOutcome::Rpc(-32021).error_type(), Some("-32021"));
    assert_eq!(SpanOutcome::Rpc(4711).error_type(), Some("_OTHER"));
    assert_eq!(SpanOutcome::Ok.error_type(), None);
}
