//! Log lines and counts of evicted tasks.

use crate::session::SessionTask;
use crate::telemetry::metrics::COUNTERS;

/// Counts and logs evicted tasks that were still running or whose result was never fetched.
pub(super) fn note_forgotten(forgotten: &[SessionTask]) {
    for task in forgotten {
        COUNTERS.tasks_forgotten.add(1);
        tracing::warn!(
            upstream = %task.upstream,
            "evicted a task that ran or was never fetched: the session has too many tasks or results"
        );
    }
}
