//! W3C trace context as it travels with a call.

/// Where a call stands in a distributed trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceContext {
    /// A valid `traceparent`, if there is one.
    pub traceparent: Option<String>,
    /// Its `tracestate`.
    pub tracestate: Option<String>,
}
