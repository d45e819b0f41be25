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
mod tests;
