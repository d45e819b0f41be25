//! Why calls fail that have reached their upstream: what only their callers would be told otherwise.
//! An upstream that is not reached is told of by `health`.

use std::mem::{Discriminant, discriminant};
use std::sync::Arc;

use super::error::LinkError;
use crate::telemetry::line_limit::LineLimit;

/// What the log was told of the calls of one upstream: a line a minute for each kind of cause.
#[derive(Debug)]
pub(super) struct Failures {
    upstream: Arc<str>,
    told: LineLimit<Discriminant<LinkError>>,
}

impl Failures {
    pub(super) fn new(upstream: Arc<str>) -> Self {
        Self {
            upstream,
            told: LineLimit::default(),
        }
    }

    /// A call came to nothing.
    pub(super) fn note(&self, error: &LinkError) {
        if is_ours(error) {
            return;
        }
        if let Some(muted) = self.told.admit(discriminant(error)) {
            tracing::warn!(upstream = %self.upstream, muted, error = %error, "a call of the upstream failed");
        }
    }
}

/// Whether a call failed for its client or for a cap of ours.
fn is_ours(error: &LinkError) -> bool {
    matches!(
        error,
        LinkError::Cancelled
            | LinkError::AtCapacity { .. }
            | LinkError::AwaitsAnswer
            | LinkError::Unsendable(_)
            | LinkError::Unanswered(_)
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HALF: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_cause_is_told_once_a_minute_and_another_at_once() {
        let failures = Failures::new("failures-test".into());
        let admit = |error| failures.told.admit(discriminant(error));
        let expired = LinkError::Status(401);
        assert_eq!(admit(&expired), Some(0));
        assert_eq!(admit(&expired), None);
        assert_eq!(admit(&LinkError::Timeout), Some(0));
        tokio::time::advance(HALF).await;
        assert_eq!(admit(&expired), None);
        tokio::time::advance(HALF).await;
        assert_eq!(admit(&expired), Some(2));
        assert_eq!(admit(&expired), None);
    }
}
