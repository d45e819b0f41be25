//! Durations of requests beside calls: to Redis, to other replicas, to authorization servers. Each looks its series up,
//! which is little beside a round trip.

use std::time::Duration;

use opentelemetry::KeyValue;

use super::seconds_histogram::SecondsHistogram;
use crate::telemetry::names::{attribute, metric};

static REDIS_COMMANDS: SecondsHistogram = SecondsHistogram::new(
    metric::REDIS_COMMAND_DURATION,
    "How long commands to Redis take, and how they end.",
    &[
        0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 0.5, 2.0,
    ],
);
static FORWARDS: SecondsHistogram = SecondsHistogram::new(
    metric::CLUSTER_FORWARD_DURATION,
    "How long requests to other replicas take up to the head of the answer.",
    &[
        0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 10.0, 60.0,
    ],
);
static TOKEN_REQUESTS: SecondsHistogram = SecondsHistogram::new(
    metric::TOKEN_REQUEST_DURATION,
    "How long token requests for upstreams take, and how they end.",
    &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
);
/// Its bounds go up to the limit of a refresh.
static GRANT_REFRESHES: SecondsHistogram = SecondsHistogram::new(
    metric::GRANT_REFRESH_DURATION,
    "How long refreshes of callers' grants take, and how they end.",
    &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 45.0],
);

/// Notes that a command, or a batch of one round trip, has ended. `outcome` is `ok` or one word for a failure.
pub fn redis_command_ended(operation: &'static str, outcome: &'static str, took: Duration) {
    let attributes = [
        KeyValue::new(attribute::REDIS_OPERATION, operation),
        KeyValue::new(attribute::OUTCOME, outcome),
    ];
    REDIS_COMMANDS.record(took, &attributes);
}

/// Notes that the head of the answer has arrived, or that no answer will. `outcome` is `ok` or one word for a failure.
pub fn forward_ended(outcome: &'static str, took: Duration) {
    FORWARDS.record(took, &[KeyValue::new(attribute::OUTCOME, outcome)]);
}

/// Notes that a token request for `upstream` has ended, with what had to be found out before it. `outcome` is `ok`, an
/// error code of OAuth, or one word for another failure.
pub fn token_request_ended(
    upstream: &str,
    kind: &'static str,
    outcome: &'static str,
    took: Duration,
) {
    let attributes = [
        KeyValue::new(attribute::UPSTREAM, upstream.to_owned()),
        KeyValue::new(attribute::ACCOUNT_KIND, kind),
        KeyValue::new(attribute::OUTCOME, outcome),
    ];
    TOKEN_REQUESTS.record(took, &attributes);
}

/// Notes that the refresh of a grant at `upstream` has ended, its wait for another process included. `outcome` is `ok`,
/// an error code of OAuth, or one word for another failure.
pub fn grant_refresh_ended(upstream: &str, outcome: &'static str, took: Duration) {
    let attributes = [
        KeyValue::new(attribute::UPSTREAM, upstream.to_owned()),
        KeyValue::new(attribute::OUTCOME, outcome),
    ];
    GRANT_REFRESHES.record(took, &attributes);
}
