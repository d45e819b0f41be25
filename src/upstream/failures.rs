//! Why calls fail that have reached their upstream: what only their callers would be told otherwise.
//! An upstream that is not reached is told of by `health`.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::error::LinkError;
use super::lock;

/// How often the log repeats that calls fail for a cause of the same kind.
const REPEAT: Duration = Duration::from_mins(1);

/// What the log was told of the calls of one upstream: a line a minute for each kind of cause.
#[derive(Debug)]
pub(super) struct Failures {
    upstream: Arc<str>,
    told: Mutex<HashMap<Discriminant<LinkError>, Told>>,
}

#[derive(Debug)]
struct Told {
    at: Instant,
    /// Failures since then.
    muted: u64,
}

impl Failures {
    pub(super) fn new(upstream: Arc<str>) -> Self {
        Self {
            upstream,
            told: Mutex::default(),
        }
    }

    /// A call came to nothing.
    pub(super) fn note(&self, error: &LinkError) {
        if is_ours(error) {
            return;
        }
        if let Some(muted) = self.admit(error) {
            tracing::warn!(upstream = %self.upstream, muted, error = %error, "a call of the upstream failed");
        }
    }

    /// Whether it is logged: the failures before it that were not.
    fn admit(&self, error: &LinkError) -> Option<u64> {
        let now = Instant::now();
        let mut told = lock(&self.told);
        let Some(last) = told.get_mut(&discriminant(error)) else {
            told.insert(discriminant(error), Told { at: now, muted: 0 });
            return Some(0);
        };
        if now.duration_since(last.at) < REPEAT {
            last.muted += 1;
            return None;
        }
        last.at = now;
        Some(std::mem::take(&mut last.muted))
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cause_is_told_once_a_minute_and_another_at_once() {
        let failures = Failures::new("failures-test".into());
        let expired = LinkError::Status(401);
        assert_eq!(failures.admit(&expired), Some(0));
        assert_eq!(failures.admit(&expired), None);
        assert_eq!(failures.admit(&LinkError::Timeout), Some(0));
        tokio::time::advance(REPEAT / 2).await;
        assert_eq!(failures.admit(&expired), None);
        tokio::time::advance(REPEAT / 2).await;
        assert_eq!(failures.admit(&expired), Some(2));
        assert_eq!(failures.admit(&expired), None);
    }
}
