//! How long sessions lived.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;

use super::load::{LoadGuard, UpstreamLoad};
use super::{GAUGES, GaugeGuard};
use crate::telemetry::names::{SCOPE, attribute, metric};

/// Upper bounds in seconds; sessions last from one call to a day.
const BOUNDARIES: [f64; 12] = [
    0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0,
];

static SERVER: LazyLock<Histogram<f64>> = LazyLock::new(|| {
    histogram(
        metric::SERVER_SESSION_DURATION,
        "Life of a client's session.",
    )
});
static CLIENT: LazyLock<Histogram<f64>> = LazyLock::new(|| {
    histogram(
        metric::CLIENT_SESSION_DURATION,
        "Life of a session with an upstream.",
    )
});

/// A client's session in `revision` ended.
pub fn server_session_ended(revision: &'static str, lived: Duration) {
    SERVER.record(
        lived.as_secs_f64(),
        &[KeyValue::new(attribute::PROTOCOL_VERSION, revision)],
    );
}

/// A session with an upstream, counted while it lives and timed when it is dropped.
#[derive(Debug)]
pub struct UpstreamSession {
    load: Arc<UpstreamLoad>,
    started: Instant,
    _open: GaugeGuard,
    _of_upstream: LoadGuard,
}

impl UpstreamSession {
    /// The session has just been opened.
    #[must_use]
    pub fn begin(load: &Arc<UpstreamLoad>) -> Self {
        Self {
            load: Arc::clone(load),
            started: Instant::now(),
            _open: GAUGES.upstream_sessions_open.enter(),
            _of_upstream: load.session(),
        }
    }
}

impl Drop for UpstreamSession {
    fn drop(&mut self) {
        let upstream = KeyValue::new(attribute::UPSTREAM, Arc::clone(self.load.name()));
        CLIENT.record(self.started.elapsed().as_secs_f64(), &[upstream]);
    }
}

fn histogram(name: &'static str, help: &'static str) -> Histogram<f64> {
    opentelemetry::global::meter(SCOPE)
        .f64_histogram(name)
        .with_unit("s")
        .with_description(help)
        .with_boundaries(BOUNDARIES.to_vec())
        .build()
}
