//! Requests that are passed on to another replica.

use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;

use crate::telemetry::names::{SCOPE, attribute, metric};

/// Upper bounds in seconds.
const BOUNDARIES: [f64; 11] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 10.0, 60.0,
];

static DURATIONS: OnceLock<Histogram<f64>> = OnceLock::new();

/// Notes that the head of the answer has arrived, or that no answer will. `outcome` is `ok` or one word for a failure.
pub fn forward_ended(outcome: &'static str, took: Duration) {
    let durations = DURATIONS.get_or_init(|| {
        opentelemetry::global::meter(SCOPE)
            .f64_histogram(metric::CLUSTER_FORWARD_DURATION)
            .with_unit("s")
            .with_description(
                "How long requests to other replicas take up to the head of the answer.",
            )
            .with_boundaries(BOUNDARIES.to_vec())
            .build()
    });
    let attributes = [KeyValue::new(attribute::OUTCOME, outcome)];
    durations.record(took.as_secs_f64(), &attributes);
}
