//! W3C trace context as it travels with a call, and the spans that we record.
//!
//! Spec: W3C Trace Context; SPEC C-98. `baggage` is never read, so it is never forwarded.

#[cfg(test)]
mod kept;
mod parent;
mod sampling;
mod span;
mod state;
mod step;

use std::sync::Arc;

use http::{HeaderMap, HeaderName};

pub use parent::{ChildWork, below, is_recorded, keep, parent};
pub use sampling::SpanPipeline;
pub use span::{CallSpan, SpanOutcome};
pub use step::StepSpan;

/// HTTP header and `_meta` key of the position in a trace.
pub const TRACEPARENT: &str = "traceparent";
/// HTTP header and `_meta` key of what vendors add to it.
pub const TRACESTATE: &str = "tracestate";

const TRACEPARENT_HEADER: HeaderName = HeaderName::from_static(TRACEPARENT);
const TRACESTATE_HEADER: HeaderName = HeaderName::from_static(TRACESTATE);
const SAMPLED: u8 = 0x01;
/// `sampled` and, from level 2, `random`.
const KNOWN_FLAGS: u8 = 0x03;
const TRACEPARENT_BYTES: usize = 55;

/// The position of a call in a distributed trace; the default has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceContext {
    position: Option<HexPosition>,
    state: Option<Arc<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HexPosition {
    trace: u128,
    span: u64,
    flags: u8,
}

impl TraceContext {
    /// Whether there is a trace.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.position.is_some()
    }

    /// Reads the two texts; `None` when `traceparent` is malformed. A malformed `tracestate` is
    /// left out.
    #[must_use]
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let position = HexPosition::parse(traceparent.as_bytes())?;
        let state = tracestate.and_then(state::read);
        Some(Self {
            position: Some(position),
            state,
        })
    }

    /// The context of a request: from `_meta`, else from the headers; a malformed one counts as absent.
    /// The `_meta` members are given as JSON text; there may be no headers at all.
    #[must_use]
    pub fn incoming<'h>(
        headers: impl Into<Option<&'h HeaderMap>>,
        meta_traceparent: Option<&str>,
        meta_tracestate: Option<&str>,
    ) -> Self {
        let from_meta = || {
            let parent: String = serde_json::from_str(meta_traceparent?).ok()?;
            let state: Option<String> =
                meta_tracestate.and_then(|text| serde_json::from_str(text).ok());
            Self::parse(&parent, state.as_deref())
        };
        let from_headers = || {
            let headers = headers.into()?;
            let mut lines = headers.get_all(TRACEPARENT_HEADER).iter();
            let (line, None) = (lines.next()?, lines.next()) else {
                return None;
            };
            let states: Vec<&str> = headers
                .get_all(TRACESTATE_HEADER)
                .iter()
                .map(|line| line.to_str().ok())
                .collect::<Option<_>>()
                .unwrap_or_default();
            Self::parse(line.to_str().ok()?, Some(&states.join(",")))
        };
        from_meta().or_else(from_headers).unwrap_or_default()
    }

    /// The text for the header and for `_meta`.
    #[must_use]
    pub fn traceparent(&self) -> Option<TraceParent> {
        self.position.map(HexPosition::write)
    }

    /// The `tracestate` of vendors.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// The trace, 32 hexadecimal digits, for logs and audit records.
    #[must_use]
    pub fn trace_id(&self) -> Option<TraceId> {
        let mut id = [0; 32];
        put_hex(&mut id, self.position?.trace);
        Some(TraceId(id))
    }

    /// Whether the `sampled` flag is set: the caller or the gateway records this trace.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.position
            .is_some_and(|position| position.flags & SAMPLED != 0)
    }

    /// The same position without the `sampled` flag.
    fn unsampled(mut self) -> Self {
        if let Some(position) = &mut self.position {
            position.flags &= !SAMPLED;
        }
        self
    }

    /// A new position below this one, or the root of a new unsampled trace.
    #[must_use]
    pub fn child(&self) -> Self {
        let span = random_span();
        let position = match self.position {
            Some(parent) => HexPosition { span, ..parent },
            None => HexPosition {
                trace: rand::random::<u128>().max(1),
                span,
                flags: 0,
            },
        };
        Self {
            position: Some(position),
            state: self.state.clone(),
        }
    }
}

fn random_span() -> u64 {
    rand::random::<u64>().max(1)
}

impl HexPosition {
    /// `00-<32 hex>-<16 hex>-<2 hex>` in lower case; later versions may go on after a dash.
    /// Spec: W3C Trace Context §3.2.2.
    fn parse(text: &[u8]) -> Option<Self> {
        let (head, rest) = text.split_at_checked(TRACEPARENT_BYTES)?;
        let version = hex(head.get(..2)?)?;
        let dashes = [2, 35, 52].iter().all(|at| head.get(*at) == Some(&b'-'));
        let ends_well = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        let trace = hex(head.get(3..35)?)?;
        let span = u64::try_from(hex(head.get(36..52)?)?).ok()?;
        let flags = u8::try_from(hex(head.get(53..)?)?).ok()? & KNOWN_FLAGS;
        (dashes && ends_well && trace != 0 && span != 0).then_some(Self { trace, span, flags })
    }

    fn write(self) -> TraceParent {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        let (head, tail) = text.split_at_mut(35);
        let (_, trace) = head.split_at_mut(3);
        put_hex(trace, self.trace);
        if let Some(span) = tail.get_mut(1..17) {
            put_hex(span, u128::from(self.span));
        }
        if let Some(flags) = tail.get_mut(18..) {
            put_hex(flags, u128::from(self.flags));
        }
        TraceParent(text)
    }
}

fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0_u128, |sum, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some((sum << 4) | u128::from(value))
    })
}

/// Writes the last digits of `value`, two for each byte of it.
pub(super) fn put_hex(into: &mut [u8], value: u128) {
    let digit = |bits: u8| bits + if bits < 10 { b'0' } else { b'a' - 10 };
    for (pair, byte) in into.rchunks_exact_mut(2).zip(value.to_le_bytes()) {
        if let [high, low] = pair {
            (*high, *low) = (digit(byte >> 4), digit(byte & 0xf));
        }
    }
}

/// The text of a `traceparent`, kept in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceParent([u8; TRACEPARENT_BYTES]);

/// The text of a trace id, kept in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceId([u8; 32]);

impl TraceParent {
    /// The text; always ASCII, without characters that need escaping.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl TraceId {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl std::fmt::Debug for TraceParent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::fmt::Debug for TraceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
