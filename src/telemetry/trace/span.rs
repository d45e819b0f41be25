//! One call as operators see it: a span when it is sampled, and always a duration.
//!
//! Most calls are not sampled; those cost two clock reads, a random number and one look-up.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use opentelemetry::trace::{
    Span, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer,
};
use opentelemetry::{Context, KeyValue, Value};

use super::sampling::SpanPipeline;
use super::{HexPosition, KNOWN_FLAGS, TraceContext};
use crate::protocol::{Message, Revision, json};
use crate::runtime::poll_time;
use crate::telemetry::metrics::{CallEnd, DurationHistogram, SeriesKey, UpstreamLoad};
use crate::telemetry::names::{attribute, error_type, method, metric};
use crate::telemetry::redact::shown;
use crate::telemetry::request_tag;

/// What peers chose is cut here, in bytes.
const MAX_CHOSEN_BYTES: usize = 128;

static SERVER: DurationHistogram = DurationHistogram::new(
    metric::SERVER_OPERATION_DURATION,
    "Time from reading an MCP request to its reply, as the client sees it.",
    attribute::ENDPOINT,
);
static CLIENT: DurationHistogram = DurationHistogram::new(
    metric::CLIENT_OPERATION_DURATION,
    "Time from sending an MCP request upstream to its reply.",
    attribute::UPSTREAM,
);

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanOutcome {
    /// With a result.
    Ok,
    /// With a tool result that says `isError`.
    ToolError,
    /// With a JSON-RPC error.
    Rpc(i64),
    /// Without a reply, or with a tool result of our own; a word of `names::error_type`.
    Failed(&'static str),
    /// With a JSON-RPC error of our own: such a word, and the code.
    Refused(&'static str, i64),
}

impl SpanOutcome {
    /// `error.type`: absent for success, bounded for metrics.
    #[must_use]
    pub fn error_type(self) -> Option<&'static str> {
        match self {
            Self::Ok => None,
            Self::ToolError => Some("tool_error"),
            Self::Rpc(code) => Some(rpc_code(code)),
            Self::Failed(word) | Self::Refused(word, _) => Some(word),
        }
    }

    /// How it counts for its upstream; not at all where the client cancelled it.
    fn ended(self) -> Option<CallEnd> {
        match self {
            Self::Ok | Self::ToolError => Some(CallEnd::Answered { failed: false }),
            Self::Rpc(_) => Some(CallEnd::Answered { failed: true }),
            Self::Failed(error_type::CANCELLED) => None,
            Self::Failed(_) | Self::Refused(..) => Some(CallEnd::Unanswered),
        }
    }

    /// The code of the JSON-RPC error that was answered.
    fn code(self) -> Option<i64> {
        match self {
            Self::Rpc(code) | Self::Refused(_, code) => Some(code),
            Self::Ok | Self::ToolError | Self::Failed(_) => None,
        }
    }
}

/// Upstreams choose their codes, so only those with a meaning are told apart.
fn rpc_code(code: i64) -> &'static str {
    match code {
        -32700 => "-32700",
        -32600 => "-32600",
        -32601 => "-32601",
        -32602 => "-32602",
        -32603 => "-32603",
        -32800 => "-32800",
        -32042 => "-32042",
        -32020 => "-32020",
        -32021 => "-32021",
        -32022 => "-32022",
        -32002 => "-32002",
        -32001 => "-32001",
        -32000 => "-32000",
        _ => "_OTHER",
    }
}

/// Where a call goes.
#[derive(Debug)]
enum SpanTarget {
    Endpoint(Arc<str>),
    Upstream(Arc<UpstreamLoad>),
}

impl SpanTarget {
    fn name(&self) -> &Arc<str> {
        match self {
            Self::Endpoint(name) => name,
            Self::Upstream(load) => load.name(),
        }
    }
}

/// One call that is running; ended by [`CallSpan::finish`], or as cancelled when dropped.
#[derive(Debug)]
pub struct CallSpan {
    context: TraceContext,
    durations: &'static DurationHistogram,
    method: &'static str,
    place: SpanTarget,
    tool: Option<Box<str>>,
    started: Instant,
    recorded: Option<Box<opentelemetry_sdk::trace::Span>>,
    finished: bool,
}

impl CallSpan {
    /// A request that a client sent to `endpoint`, under the parent it brought.
    #[must_use]
    pub fn server(parent: &TraceContext, method: &str, endpoint: &Arc<str>) -> Self {
        let tracing = SpanPipeline::installed();
        Self::start(
            tracing,
            parent,
            method,
            SpanTarget::Endpoint(Arc::clone(endpoint)),
            &SERVER,
            &SpanKind::Server,
        )
    }

    /// A request that we send to the upstream of `load`, under the call's own context.
    #[must_use]
    pub fn client(parent: &TraceContext, method: &str, load: &Arc<UpstreamLoad>) -> Self {
        let tracing = SpanPipeline::installed();
        load.call_began();
        Self::start(
            tracing,
            parent,
            method,
            SpanTarget::Upstream(Arc::clone(load)),
            &CLIENT,
            &SpanKind::Client,
        )
    }

    fn start(
        tracing: Option<&SpanPipeline>,
        parent: &TraceContext,
        wanted: &str,
        place: SpanTarget,
        durations: &'static DurationHistogram,
        kind: &SpanKind,
    ) -> Self {
        let method = method::known(wanted);
        let attributes = || {
            vec![
                KeyValue::new(attribute::METHOD, method),
                KeyValue::new(durations.place, Arc::clone(place.name())),
            ]
        };
        let recorded = record(tracing, parent, (method.into(), kind), attributes);
        let context = context_of(tracing, parent, recorded.as_deref());
        Self {
            context,
            durations,
            method,
            place,
            tool: None,
            started: poll_time::now().into_std(),
            recorded,
            finished: false,
        }
    }

    /// What goes on below this call: stamped on what is sent upstream, kept in `Call::trace`.
    #[must_use]
    pub fn context(&self) -> &TraceContext {
        &self.context
    }

    /// Sets the tool's name. A tool gets a metric series only after a first result, so that unknown names
    /// create none.
    pub fn tool(&mut self, name: &str) {
        // A short name is masked when its series begins; a cut secret would no longer be recognised as one.
        let is_short = name.len() <= MAX_CHOSEN_BYTES;
        let kept = if is_short {
            name.into()
        } else {
            shown(name, MAX_CHOSEN_BYTES)
        };
        self.tool = Some(kept.into());
    }

    /// Spec: the conventions' span name, `{method} {target}`.
    fn target(&mut self, key: &'static str, name: &str) {
        let method = self.method;
        if let Some(span) = &mut self.recorded {
            let name = shown(name, MAX_CHOSEN_BYTES);
            span.update_name(format!("{method} {name}"));
            span.set_attribute(KeyValue::new(key, name.into_owned()));
        }
    }

    /// What a request says of itself, `id` as JSON text; only a recorded span tells it. SPEC C-99.
    pub fn request<'a>(
        &mut self,
        message: &Message,
        id: impl FnOnce() -> Cow<'a, str>,
        revision: Revision,
    ) {
        if self.recorded.is_none() {
            return;
        }
        let name = || message.param_str("name");
        match self.method {
            "tools/call" => {
                if let Some(name) = name() {
                    self.target(attribute::TOOL, &name);
                }
                self.attribute(attribute::OPERATION, || "execute_tool");
            }
            "prompts/get" => {
                if let Some(name) = name() {
                    self.target(attribute::PROMPT, &name);
                }
            }
            _ => {}
        }
        if let Some(uri) = message.param_str("uri") {
            self.chosen(attribute::RESOURCE, &uri);
        }
        self.attribute(attribute::PROTOCOL_VERSION, || revision.as_str());
        let id = id();
        // Without the quotes of a text: the other side says it in the same form.
        let id = json::string(&id).unwrap_or(Cow::Borrowed(&*id));
        self.chosen(attribute::REQUEST_ID, &id);
    }

    /// Adds what a peer chose: masked where it looks like a secret, and cut (SPEC C-22).
    fn chosen(&mut self, key: &'static str, value: &str) {
        self.attribute(key, || shown(value, MAX_CHOSEN_BYTES).into_owned());
    }

    /// Adds an attribute of the gateway's own; `value` is computed only if the call is recorded.
    pub fn attribute<V: Into<Value>>(&mut self, key: &'static str, value: impl FnOnce() -> V) {
        if let Some(span) = &mut self.recorded {
            span.set_attribute(KeyValue::new(key, value()));
        }
    }

    /// Ends the call.
    pub fn finish(mut self, outcome: SpanOutcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: SpanOutcome) {
        self.finished = true;
        let error = outcome.error_type();
        let series = SeriesKey {
            method: self.method,
            place: self.place.name(),
            tool: self.tool.as_deref(),
            error: error.map(|kind| (kind, outcome.code().map(rpc_code))),
        };
        let took = self.started.elapsed();
        self.durations.record(&series, took);
        if let SpanTarget::Upstream(load) = &self.place {
            load.call_ended(self.started, took, outcome.ended());
        }
        let Some(span) = &mut self.recorded else {
            return;
        };
        if let Some(error) = error {
            span.set_attribute(KeyValue::new(attribute::ERROR_TYPE, error));
            span.set_status(Status::error(""));
        }
        if let Some(code) = outcome.code() {
            span.set_attribute(KeyValue::new(attribute::RPC_STATUS, code.to_string()));
        }
        span.end();
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        if !self.finished {
            self.end(SpanOutcome::Failed(error_type::CANCELLED));
        }
    }
}

/// A span below `parent`, if it is recorded. Only a client span has a parent of the gateway's own, which has decided.
pub(super) fn record(
    tracing: Option<&SpanPipeline>,
    parent: &TraceContext,
    (name, kind): (Cow<'static, str>, &SpanKind),
    attributes: impl FnOnce() -> Vec<KeyValue>,
) -> Option<Box<opentelemetry_sdk::trace::Span>> {
    let is_ours = *kind == SpanKind::Client;
    let tracing = tracing.filter(|tracing| tracing.samples(parent, is_ours))?;
    let builder = tracing.tracer.span_builder(name).with_kind(kind.clone());
    let builder = builder.with_attributes(attributes());
    let above = above(parent, !is_ours);
    let mut span = tracing.tracer.build_with_context(builder, &above);
    if let Some(tag) = request_tag::current() {
        let id = tag.as_str().to_owned();
        span.set_attribute(KeyValue::new(attribute::REQUEST_TAG, id));
    }
    Some(Box::new(span))
}

/// The context of what goes on below a span, whether it is `recorded` or not.
pub(super) fn context_of(
    tracing: Option<&SpanPipeline>,
    parent: &TraceContext,
    recorded: Option<&opentelemetry_sdk::trace::Span>,
) -> TraceContext {
    match recorded {
        Some(span) => below(parent, span.span_context()),
        // Spec: SPEC C-98: the gateway's own position, recorded or not. If sampling denied a caller's
        // request to record, the `sampled` flag is cleared for upstreams.
        None if tracing.is_some() => parent.child().unsampled(),
        None => parent.child(),
    }
}

/// Our context as the SDK's parent, without its `tracestate`: what vendors of callers wrote there is passed
/// on, and not exported.
fn above(parent: &TraceContext, remote: bool) -> Context {
    let Some(position) = parent.position else {
        return Context::new();
    };
    Context::new().with_remote_span_context(SpanContext::new(
        TraceId::from(position.trace),
        SpanId::from(position.span),
        TraceFlags::new(position.flags),
        remote,
        TraceState::NONE,
    ))
}

/// The SDK's span as our context; the state stays as it came.
fn below(parent: &TraceContext, span: &SpanContext) -> TraceContext {
    let position = HexPosition {
        trace: u128::from_be_bytes(span.trace_id().to_bytes()),
        span: u64::from_be_bytes(span.span_id().to_bytes()),
        flags: span.trace_flags().to_u8() & KNOWN_FLAGS,
    };
    TraceContext {
        position: Some(position),
        state: parent.state.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};

    use super::*;
    use crate::config::RateConfig;

    const CALLERS: RateConfig = RateConfig {
        count: 2,
        per: std::time::Duration::from_hours(1),
    };

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
        let tracing = SpanPipeline::new(
            SdkTracerProvider::builder().build().tracer("t"),
            0.0,
            CALLERS,
        );
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
        let tracing = SpanPipeline::new(
            SdkTracerProvider::builder().build().tracer("t"),
            0.0,
            CALLERS,
        );
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
        let kept = Keep::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(kept.clone())
            .build();
        let tracing = SpanPipeline::new(provider.tracer("t"), 1.0, CALLERS);
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
        let kept = kept.0.lock().unwrap();
        assert_eq!(kept.len(), 3);
        for span in kept.iter() {
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

    /// Keeps what ends.
    #[derive(Debug, Clone, Default)]
    struct Keep(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Keep {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().unwrap().extend(batch);
            Ok(())
        }
    }

    // SPEC C-99.
    #[test]
    fn a_recorded_request_says_what_it_is_about_on_both_sides() {
        let kept = Keep::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(kept.clone())
            .build();
        let tracing = SpanPipeline::new(provider.tracer("t"), 1.0, CALLERS);
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
        let kept = kept.0.lock().unwrap();
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
        let kept = Keep::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(kept.clone())
            .build();
        let tracing = SpanPipeline::new(provider.tracer("t"), 1.0, CALLERS);
        for outcome in [
            SpanOutcome::Refused("upstream_invalid", -32603),
            SpanOutcome::Rpc(4711),
            SpanOutcome::Failed("cancelled"),
        ] {
            server(Some(&tracing), &TraceContext::default()).finish(outcome);
        }
        let kept = kept.0.lock().unwrap();
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
}
