//! Commands to Redis. Each looks its series up, which is little beside a round trip.

use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;

use crate::telemetry::names::{SCOPE, attribute, metric};

/// Upper bounds in seconds.
const BOUNDARIES: [f64; 11] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 0.5, 2.0,
];

static DURATIONS: OnceLock<Histogram<f64>> = OnceLock::new();

/// Notes that a command, or a batch of one round trip, has ended. `outcome` is `ok` or one word for a failure.
pub fn redis_command_ended(operation: &'static str, outcome: &'static str, took: Duration) {
    let durations = DURATIONS.get_or_init(|| {
        opentelemetry::global::meter(SCOPE)
            .f64_histogram(metric::REDIS_COMMAND_DURATION)
            .with_unit("s")
            .with_description("How long commands to Redis take, and how they end.")
            .with_boundaries(BOUNDARIES.to_vec())
            .build()
    });
    let attributes = [
        KeyValue::new(attribute::REDIS_OPERATION, operation),
        KeyValue::new(attribute::OUTCOME, outcome),
    ];
    durations.record(took.as_secs_f64(), &attributes);
}
