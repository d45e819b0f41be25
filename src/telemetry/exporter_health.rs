//! Export failures of the collector: counts them, and logs a line when exports begin to fail, and when they succeed
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
use url::Url;

use crate::lock::lock;
use crate::telemetry::chain::chain;
use crate::telemetry::metrics::COUNTERS;

/// Interval between log lines about failing exports of one signal.
const SAY_EVERY: Duration = Duration::from_mins(5);

/// An exporter of one signal with rate-limited log lines about failures.
#[derive(Debug)]
pub(super) struct WatchedExporter<E> {
    exporter: E,
    signal: &'static str,
    /// Scheme, host and port: a path may hold a key.
    collector: String,
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
    /// Watches `exporter`; lines name its `signal` and the origin of `endpoint`.
    pub(super) fn new(signal: &'static str, endpoint: &Url, exporter: E) -> Self {
        Self {
            exporter,
            signal,
            collector: endpoint.origin().ascii_serialization(),
            state: Mutex::default(),
        }
    }

    fn note(&self, outcome: OTelSdkResult) -> OTelSdkResult {
        if outcome.is_err() {
            COUNTERS.exports_failed.add(1);
        }
        let line = lock(&self.state).note(outcome.is_ok(), Instant::now());
        let (signal, collector) = (self.signal, &*self.collector);
        match (line, &outcome) {
            (Some(ExporterLine::Down(failed)), Err(error)) => {
                let error = chain(&error);
                let remedy = remedy(&error);
                tracing::warn!(
                    signal,
                    collector,
                    failed,
                    error,
                    remedy,
                    "the collector does not take what is exported"
                );
            }
            (Some(ExporterLine::Up(failed)), _) => {
                tracing::info!(signal, collector, failed, "collector accepts exports again");
            }
            _ => {}
        }
        outcome
    }
}

/// What helps against a failed export. The exporter tells the HTTP status at most, and of everything else that it was the
/// network.
fn remedy(error: &str) -> &'static str {
    let is = |status: &str| error.ends_with(&format!("status code: {status}"));
    if error.contains("network error") {
        "look whether the collector runs at `telemetry.otlp_endpoint`, can be reached from here (HTTPS_PROXY, HTTP_PROXY, \
         NO_PROXY), and has a certificate that this machine trusts: curl -v shows it"
    } else if is("401") || is("403") {
        "give the collector's credentials in OTEL_EXPORTER_OTLP_HEADERS"
    } else if is("404") || is("405") {
        "correct `telemetry.otlp_endpoint`: the base URL of a collector that takes OTLP over HTTP, on port 4318 mostly"
    } else if error.contains("status code: 3") {
        "name in `telemetry.otlp_endpoint` the address that the collector redirects to, which curl -i shows: a redirection \
         from http is not followed"
    } else {
        "look into the log of the collector"
    }
}

/// Whether an SDK event reports a failed batch, which [`WatchedExporter`] already logs per signal, that a line about the
/// last export came after it, or that the last export failed, which the gateway says at its stop.
pub(super) fn is_repetition(event: &Metadata<'_>) -> bool {
    let name = event.name();
    event.target().starts_with("opentelemetry")
        && (name.ends_with(".ExportError")
            || name.ends_with(".Emit.AfterShutdown")
            || name.ends_with(".Shutdown.Timeout")
            || name.ends_with(".Shutdown.Error")
            || name.starts_with("Export.Failed."))
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
    use opentelemetry_sdk::error::OTelSdkError;

    use super::*;
    use crate::telemetry::captured::LogCapture;

    #[test]
    fn collector_is_named_without_its_path_and_with_a_remedy() {
        let endpoint = Url::parse("https://otlp.test:4318/key-of-the-tenant").unwrap();
        let failed = |text: &str| Err(OTelSdkError::InternalFailure(text.to_owned()));
        for (text, said) in [
            ("HTTP export failed: network error", "curl -v"),
            (
                "HTTP export failed with status code: 401",
                "OTEL_EXPORTER_OTLP_HEADERS",
            ),
            (
                "HTTP export failed with status code: 404",
                "telemetry.otlp_endpoint",
            ),
            ("HTTP export failed with status code: 308", "redirects to"),
            (
                "HTTP export failed with status code: 500",
                "log of the collector",
            ),
        ] {
            let caught = LogCapture::begin();
            let watched = WatchedExporter::new("logs", &endpoint, ());
            let before = COUNTERS.exports_failed.get();
            assert!(watched.note(failed(text)).is_err());
            assert!(COUNTERS.exports_failed.get() > before, "not counted");
            let lines = caught.of_level("WARN");
            let [line] = &lines[..] else {
                panic!("one line: {lines:?}")
            };
            assert_eq!(line["collector"], "https://otlp.test:4318");
            assert!(line["remedy"].as_str().unwrap().contains(said), "{line}");
            assert!(!line.to_string().contains("key-of-the-tenant"), "{line}");
        }
    }

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
