//! Token requests for upstreams, which are rare: each looks its series up.

use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;

use crate::telemetry::names::{SCOPE, attribute, metric};

/// Upper bounds in seconds.
const BOUNDARIES: [f64; 10] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

static DURATIONS: OnceLock<Histogram<f64>> = OnceLock::new();

/// Notes that a token request for `upstream` has ended, with what had to be found out before it. `outcome` is `ok`, an
/// error code of OAuth, or one word for another failure.
pub fn token_request_ended(
    upstream: &str,
    kind: &'static str,
    outcome: &'static str,
    took: Duration,
) {
    let durations = DURATIONS.get_or_init(|| {
        opentelemetry::global::meter(SCOPE)
            .f64_histogram(metric::TOKEN_REQUEST_DURATION)
            .with_unit("s")
            .with_description("How long token requests for upstreams take, and how they end.")
            .with_boundaries(BOUNDARIES.to_vec())
            .build()
    });
    let attributes = [
        KeyValue::new(attribute::UPSTREAM, upstream.to_owned()),
        KeyValue::new(attribute::ACCOUNT_KIND, kind),
        KeyValue::new(attribute::OUTCOME, outcome),
    ];
    durations.record(took.as_secs_f64(), &attributes);
}
