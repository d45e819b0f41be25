//! `SpanPipeline`: which traces are recorded, and where their spans go.

use std::num::NonZeroU32;
use std::sync::OnceLock;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use opentelemetry_sdk::trace::SdkTracer;

use super::TraceContext;
use crate::config::RateConfig;

static TRACING: OnceLock<SpanPipeline> = OnceLock::new();

/// Where recorded spans go, and how many there are.
#[derive(Debug)]
pub struct SpanPipeline {
    pub(super) tracer: SdkTracer,
    /// A random 64-bit number below this is sampled.
    bound: u64,
    /// Traces that are recorded because their caller asked for it.
    callers: DefaultDirectRateLimiter,
}

impl SpanPipeline {
    /// Records `ratio` (0 to 1) of the traces that begin here or that a caller wants recorded, and of the
    /// latter as many more as `callers` allows, all callers together. `tracer` must record everything it is
    /// given. Only the first of a process counts.
    pub fn install(tracer: SdkTracer, ratio: f64, callers: RateConfig) {
        drop(TRACING.set(Self::new(tracer, ratio, callers)));
    }

    /// What was installed, if traces are exported.
    pub(super) fn installed() -> Option<&'static Self> {
        TRACING.get()
    }

    pub(super) fn new(tracer: SdkTracer, ratio: f64, callers: RateConfig) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "saturates at both ends; the last bits do not matter"
        )]
        let bound = (ratio.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
        let count = NonZeroU32::new(callers.count).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(callers.per / count.get());
        let quota = quota.unwrap_or(Quota::per_second(count)).allow_burst(count);
        Self {
            tracer,
            bound,
            callers: RateLimiter::direct(quota),
        }
    }

    /// Whether a call below `parent` is recorded. A gateway span (`is_ours`) has decided already; a caller's
    /// `sampled` flag is only a request, rate-limited, since any client can set the flag.
    pub(super) fn samples(&self, parent: &TraceContext, is_ours: bool) -> bool {
        match parent.position {
            Some(_) if !parent.is_sampled() => false,
            Some(_) if is_ours => true,
            Some(_) => self.is_chosen() || self.callers.check().is_ok(),
            None => self.is_chosen(),
        }
    }

    fn is_chosen(&self) -> bool {
        self.bound > 0 && rand::random::<u64>() <= self.bound
    }
}
