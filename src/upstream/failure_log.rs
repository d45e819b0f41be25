//! Rate limit for the log of a failing upstream: a line a minute for each kind of cause, whether the upstream was not
//! reached or a call of it failed.

use std::mem::{Discriminant, discriminant};
use std::sync::Arc;

use super::carrier::http::login::UpstreamLogin;
use super::error::LinkError;
use crate::cause::chain;
use crate::telemetry::line_limit::LineLimit;

/// Kinds of cause: the error, and its HTTP status. Both have few values.
type FailureKind = (Discriminant<LinkError>, u16);

/// Failures of one upstream that were logged, for the rate limit.
#[derive(Debug)]
pub(super) struct FailureLog {
    upstream: Arc<str>,
    told: LineLimit<FailureKind>,
}

impl FailureLog {
    pub(super) fn new(upstream: Arc<str>) -> Self {
        Self {
            upstream,
            told: LineLimit::default(),
        }
    }

    /// Notes the failure of a call that had reached the upstream.
    pub(super) fn note(&self, error: &LinkError, login: Option<&UpstreamLogin>) {
        let remedy = error.remedy_of_call(login);
        self.tell(error, remedy.as_deref(), "a call of the upstream failed");
    }

    /// The upstream was not reached.
    pub(super) fn note_unreached(&self, error: &LinkError, login: Option<&UpstreamLogin>) {
        let remedy = error.remedy(login);
        self.tell(error, remedy.as_deref(), "upstream fails");
    }

    fn tell(&self, error: &LinkError, remedy: Option<&str>, what: &str) {
        if let Some(muted) = self.told.admit(kind(error)) {
            tracing::warn!(
                upstream = %self.upstream,
                error = chain(error),
                remedy,
                muted,
                "{what}"
            );
        }
    }
}

fn kind(error: &LinkError) -> FailureKind {
    let status = match error {
        LinkError::Status(status) | LinkError::Busy { status, .. } => *status,
        _ => 0,
    };
    (discriminant(error), status)
}

/// Whether a call failed for its client or for a cap of ours.
pub(super) fn is_ours(error: &LinkError) -> bool {
    matches!(
        error,
        LinkError::Cancelled
            | LinkError::AtCapacity { .. }
            | LinkError::AwaitsAnswer
            | LinkError::NoRoom
            | LinkError::Fenced
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
        let failures = FailureLog::new("failures-test".into());
        let admit = |error| failures.told.admit(kind(error));
        let expired = LinkError::Status(401);
        assert_eq!(admit(&expired), Some(0));
        assert_eq!(admit(&expired), None);
        assert_eq!(admit(&LinkError::Timeout), Some(0));
        assert_eq!(admit(&LinkError::Status(502)), Some(0));
        tokio::time::advance(HALF).await;
        assert_eq!(admit(&expired), None);
        tokio::time::advance(HALF).await;
        assert_eq!(admit(&expired), Some(2));
        assert_eq!(admit(&expired), None);
    }
}
