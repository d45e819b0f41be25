//! Log lines about messages of upstreams that break the protocol: one a minute for each upstream and kind of breach, as an
//! upstream can send as many of them as it likes.

use std::sync::{Arc, LazyLock};

use crate::telemetry::line_limit::LineLimit;
use crate::telemetry::metrics::LABELED;

/// The lines that were written, by upstream and kind. Both are few.
static TOLD: LazyLock<LineLimit<(Arc<str>, String)>> = LazyLock::new(LineLimit::default);

/// Counts a message that breaks the protocol, and logs it unless one of its kind was logged within the last minute. What
/// stands in `what` behind its first colon does not make another kind.
pub(super) fn note(upstream: &Arc<str>, what: &str) {
    LABELED.upstream_garbage.add(upstream, 1);
    if let Some(muted) = admit(upstream, what) {
        tracing::warn!(%upstream, what, muted, "upstream breaks the protocol");
    }
}

/// The number of messages of this kind that were not logged before; `None` if this one is not to be logged either.
pub(super) fn admit(upstream: &Arc<str>, what: &str) -> Option<u64> {
    let kind = what.split_once(':').map_or(what, |(kind, _)| kind);
    TOLD.admit((Arc::clone(upstream), kind.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_breach_is_told_once_a_minute_and_one_of_another_kind_at_once() {
        let upstream = Arc::from("breaches-test");
        let told = |what| admit(&upstream, what);
        assert_eq!(told("an event is no message: not UTF-8"), Some(0));
        assert_eq!(told("an event is no message: nested too deeply"), None);
        assert_eq!(told("it answered twice"), Some(0));
        assert_eq!(
            admit(&"breaches-other".into(), "it answered twice"),
            Some(0)
        );
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(told("an event is no message: not UTF-8"), Some(1));
    }
}
