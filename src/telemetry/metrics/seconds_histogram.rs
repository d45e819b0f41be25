//! `SecondsHistogram`: a histogram of durations, built when it is first used: telemetry is set up by then.

use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;

use crate::telemetry::names::SCOPE;

/// A histogram with these upper bounds in seconds.
#[derive(Debug)]
pub(super) struct SecondsHistogram {
    name: &'static str,
    help: &'static str,
    boundaries: &'static [f64],
    built: OnceLock<Histogram<f64>>,
}

impl SecondsHistogram {
    pub(super) const fn new(
        name: &'static str,
        help: &'static str,
        boundaries: &'static [f64],
    ) -> Self {
        Self {
            name,
            help,
            boundaries,
            built: OnceLock::new(),
        }
    }

    /// The instrument of the exporter.
    pub(super) fn built(&self) -> &Histogram<f64> {
        self.built.get_or_init(|| {
            opentelemetry::global::meter(SCOPE)
                .f64_histogram(self.name)
                .with_unit("s")
                .with_description(self.help)
                .with_boundaries(self.boundaries.to_vec())
                .build()
        })
    }

    /// Adds one duration. Looks the series of `attributes` up.
    pub(super) fn record(&self, took: Duration, attributes: &[KeyValue]) {
        self.built().record(took.as_secs_f64(), attributes);
    }
}
