//! Export failures of the collector: logs a line when exports begin to fail, and when they succeed
//! again. The SDK would log every failed batch, see [`is_repetition`].

use std::fmt::Debug;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogBatch, LogExporter};
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tracing::Metadata;

use crate::lock::lock;
use crate::telemetry::chain::chain;

/// Interval between log lines about failing exports of one signal.
const SAY_EVERY: Duration = Duration::from_mins(5);

/// An exporter of one signal with rate-limited log lines about failures.
#[derive(Debug)]
pub(super) struct WatchedExporter<E> {
    exporter: E,
    signal: &'static str,
    state: Mutex<ExporterState>,
}

/// What was said of one signal.
#[derive(Debug, Default)]
struct ExporterState {
    /// Exports that failed in a row.
    failed: u64,
    /// When a failure was said last.
    said: Option<Instant>,
    /// Whether that is the last thing that was said.
    is_told_down: bool,
}

/// What there is to say.
#[derive(Debug, PartialEq, Eq)]
enum ExporterLine {
    /// So many exports have failed in a row.
    Down(u64),
    /// After so many an export has succeeded.
    Up(u64),
}

impl ExporterState {
    fn note(&mut self, succeeded: bool, now: Instant) -> Option<ExporterLine> {
        if succeeded {
            let failed = std::mem::take(&mut self.failed);
            return std::mem::take(&mut self.is_told_down).then_some(ExporterLine::Up(failed));
        }
        self.failed += 1;
        let is_due = |said| now.saturating_duration_since(said) >= SAY_EVERY;
        if !self.said.is_none_or(is_due) {
            return None;
        }
        self.said = Some(now);
        self.is_told_down = true;
        Some(ExporterLine::Down(self.failed))
    }
}

impl<E> WatchedExporter<E> {
    /// Watches `exporter`; lines name its `signal`.
    pub(super) fn new(signal: &'static str, exporter: E) -> Self {
        Self {
            exporter,
            signal,
            state: Mutex::default(),
        }
    }

    fn note(&self, outcome: OTelSdkResult) -> OTelSdkResult {
        let line = lock(&self.state).note(outcome.is_ok(), Instant::now());
        let signal = self.signal;
        match (line, &outcome) {
            (Some(ExporterLine::Down(failed)), Err(error)) => {
                tracing::warn!(
                    signal,
                    failed,
                    error = chain(&error),
                    "the collector does not take what is exported"
                );
            }
            (Some(ExporterLine::Up(failed)), _) => {
                tracing::info!(signal, failed, "collector accepts exports again");
            }
            _ => {}
        }
        outcome
    }
}

/// Whether an SDK event reports a failed batch, which [`WatchedExporter`] already logs per signal.
pub(super) fn is_repetition(event: &Metadata<'_>) -> bool {
    let name = event.name();
    event.target().starts_with("opentelemetry")
        && (name.ends_with(".ExportError") || name.starts_with("Export.Failed."))
}

impl<E: LogExporter> LogExporter for WatchedExporter<E> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        self.note(self.exporter.export(batch).await)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl<E: SpanExporter> SpanExporter for WatchedExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.note(self.exporter.export(batch).await)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for WatchedExporter<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        self.note(self.exporter.export(metrics).await)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_the_collector_is_said_once_and_again_after_a_while() {
        let (start, mut state) = (Instant::now(), ExporterState::default());
        let second = Duration::from_secs(1);
        assert_eq!(state.note(true, start), None);
        assert_eq!(state.note(false, start), Some(ExporterLine::Down(1)));
        for n in 1..=4 {
            assert_eq!(state.note(false, start + second * n), None);
        }
        assert_eq!(
            state.note(false, start + SAY_EVERY),
            Some(ExporterLine::Down(6))
        );
        assert_eq!(
            state.note(true, start + SAY_EVERY),
            Some(ExporterLine::Up(6))
        );
        assert_eq!(state.note(true, start + SAY_EVERY), None);
    }

    #[test]
    fn a_collector_that_comes_and_goes_is_not_said_each_time() {
        let (start, mut state) = (Instant::now(), ExporterState::default());
        let said = (0..600_u32).filter_map(|n| {
            let at = start + Duration::from_secs(1) * n;
            state.note(n % 2 == 1, at)
        });
        let down = ExporterLine::Down(1);
        assert_eq!(
            said.collect::<Vec<_>>(),
            [
                down,
                ExporterLine::Up(1),
                ExporterLine::Down(1),
                ExporterLine::Up(1)
            ]
        );
    }
}
