//! Refreshes of callers' grants, which are rare: each looks its series up.

use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;

use crate::telemetry::names::{SCOPE, attribute, metric};

/// Upper bounds in seconds: up to the limit of a refresh.
const BOUNDARIES: [f64; 11] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 45.0];

static DURATIONS: OnceLock<Histogram<f64>> = OnceLock::new();

/// Notes that the refresh of a grant at `upstream` has ended, its wait for another process included. `outcome` is `ok`,
/// an error code of OAuth, or one word for another failure.
pub fn grant_refresh_ended(upstream: &str, outcome: &'static str, took: Duration) {
    let durations = DURATIONS.get_or_init(|| {
        opentelemetry::global::meter(SCOPE)
            .f64_histogram(metric::GRANT_REFRESH_DURATION)
            .with_unit("s")
            .with_description("How long refreshes of callers' grants take, and how they end.")
            .with_boundaries(BOUNDARIES.to_vec())
            .build()
    });
    let attributes = [
        KeyValue::new(attribute::UPSTREAM, upstream.to_owned()),
        KeyValue::new(attribute::OUTCOME, outcome),
    ];
    durations.record(took.as_secs_f64(), &attributes);
}
