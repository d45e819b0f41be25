//! How long sessions lived.

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;

use super::load::{LoadGuard, UpstreamLoad};
use super::seconds_histogram::SecondsHistogram;
use super::{GAUGES, GaugeGuard};
use crate::telemetry::names::{attribute, metric};

/// Upper bounds in seconds; sessions last from one call to a day.
const BOUNDARIES: [f64; 12] = [
    0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0,
];

static SERVER: SecondsHistogram = SecondsHistogram::new(
    metric::SERVER_SESSION_DURATION,
    "Life of a client's session.",
    &BOUNDARIES,
);
static CLIENT: SecondsHistogram = SecondsHistogram::new(
    metric::CLIENT_SESSION_DURATION,
    "Life of a session with an upstream.",
    &BOUNDARIES,
);

/// A client's session in `revision` ended.
pub fn server_session_ended(revision: &'static str, lived: Duration) {
    let revision = KeyValue::new(attribute::PROTOCOL_VERSION, revision);
    SERVER.record(lived, &[revision]);
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
        CLIENT.record(self.started.elapsed(), &[upstream]);
    }
}
