//! Switches telemetry on at the start of the process, and off so that nothing is lost.

use std::io::IsTerminal;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::logs::LoggerProvider;
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{
    ExporterBuildError, LogExporter, MetricExporter, Protocol, SpanExporter, WithExportConfig,
    WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::logs::{BatchConfigBuilder, BatchLogProcessor, SdkLoggerProvider};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use prometheus::{Registry, TextEncoder};
use reqwest::blocking::Client;
use reqwest::redirect::Policy;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use url::Url;

use super::exporter_health::WatchedExporter;
pub use super::log::LogControl;
use super::log::{self, ExportLayer, LineFormat, LineLayer, LogWriter, WriterGuard};
use super::metrics::{COUNTERS, GAUGES, LABELED, LEVELS, STATES, process};
use super::names::{SCOPE, attribute};
use super::record;
use super::trace::SpanPipeline;
use crate::clock::{Clock, SystemClock};
use crate::config::{self, process_environment};
use crate::telemetry::chain::chain;

/// For one export at the end; a collector that is gone must not hold up the exit.
const LAST_EXPORT: Duration = Duration::from_secs(2);
/// On top of it, for threads to end.
const SLACK: Duration = Duration::from_millis(250);
/// Log records that wait to be exported: as many as the audit may hand over at once. What is beyond is
/// dropped, and the SDK says so.
const LOG_QUEUE: usize = 16 * 1024;
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why telemetry cannot be switched on.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The OTLP exporter cannot be built.
    #[error("cannot export to telemetry.otlp_endpoint")]
    Export(#[from] ExporterBuildError),
    /// The HTTP client of the exporters cannot be built.
    #[error("cannot export to telemetry.otlp_endpoint: no HTTP client can be made")]
    Client(#[from] reqwest::Error),
    /// The Prometheus exporter cannot be built.
    #[error("cannot collect metrics")]
    Metrics(#[from] OTelSdkError),
    /// Another part of the process has installed a subscriber.
    #[error("logging is already set up")]
    AlreadySetUp(#[from] tracing_subscriber::util::TryInitError),
    /// The system refuses a thread.
    #[error("cannot start the log writer")]
    Thread(#[from] std::io::Error),
}

/// Keeps telemetry running; what is still queued is sent when it is dropped.
///
/// Dropping blocks for some seconds at most: drop it outside the runtime.
#[derive(Debug)]
pub struct TelemetryGuard {
    registry: Registry,
    tracer: Option<SdkTracerProvider>,
    logger: Option<SdkLoggerProvider>,
    meter: SdkMeterProvider,
    control: LogControl,
    /// The last field, dropped last, so that the shutdown of the other fields can still log.
    _writer: WriterGuard,
}

/// A guard for log lines on standard error; waiting lines are flushed when dropped.
#[derive(Debug)]
pub struct LinesGuard {
    _writer: WriterGuard,
}

/// The metrics as Prometheus reads them; cheap to clone.
#[derive(Debug, Clone)]
pub struct MetricsPage(Registry);

impl MetricsPage {
    /// The page, in the text format.
    #[must_use]
    pub fn render(&self) -> String {
        let families = self.0.gather();
        TextEncoder::new()
            .encode_to_string(&families)
            .unwrap_or_default()
    }
}

/// Sets up logging, metrics and, with an endpoint, the export of all three signals. Once per
/// process; sends logs of panics to the log as well.
///
/// # Errors
/// An exporter cannot be built, or it was set up before.
pub fn init(settings: &config::TelemetryConfig) -> Result<TelemetryGuard, TelemetryError> {
    let resource = resource(settings);
    let registry = Registry::new();
    let mut meter = SdkMeterProvider::builder()
        .with_resource(resource.clone())
        .with_reader(
            opentelemetry_prometheus::exporter()
                .with_registry(registry.clone())
                .scope_info_enabled(false)
                .build()?,
        );
    let (mut tracer, mut logger) = (None, None);
    if let Some(endpoint) = &settings.otlp_endpoint {
        let exporters = Exporters::new(endpoint)?;
        meter = meter.with_periodic_exporter(exporters.metrics()?);
        tracer = Some(
            SdkTracerProvider::builder()
                .with_resource(resource.clone())
                // Whether to record is decided before the SDK is asked: see `trace::SpanPipeline`.
                .with_sampler(Sampler::AlwaysOn)
                .with_batch_exporter(exporters.spans()?)
                .build(),
        );
        logger = Some(
            SdkLoggerProvider::builder()
                .with_resource(resource)
                .with_log_processor(
                    BatchLogProcessor::builder(exporters.logs()?)
                        .with_batch_config(
                            BatchConfigBuilder::default()
                                .with_max_queue_size(LOG_QUEUE)
                                .build(),
                        )
                        .build(),
                )
                .build(),
        );
    }
    let meter = meter.build();
    let look = LineFormat::new(settings.log_format, shows_colours());
    let (writer, writer_guard) = LogWriter::start(std::io::stdout())?;
    record::install(record::RecordLog {
        look,
        writer: writer.clone(),
        exporter: logger.as_ref().map(|provider| provider.logger(SCOPE)),
        exports_all: settings.otlp_every_request,
    });
    let export = logger
        .as_ref()
        .map(|provider| ExportLayer::new(provider.logger(SCOPE)));
    let (filter, control) = log::filter(settings.log_level.clone());
    tracing_subscriber::registry()
        .with(filter)
        .with(LineLayer::new(look, writer).and_then(export))
        .try_init()?;
    std::panic::set_hook(Box::new(report_panic));
    if let Some(tracer) = &tracer {
        SpanPipeline::install(
            tracer.tracer(SCOPE),
            settings.sample_ratio,
            settings.caller_traces,
        );
    }
    opentelemetry::global::set_meter_provider(meter.clone());
    let meters = meter.meter(SCOPE);
    observe(&meters);
    process::observe(&meters, SystemClock.now());
    Ok(TelemetryGuard {
        registry,
        tracer,
        logger,
        meter,
        control,
        _writer: writer_guard,
    })
}

/// Writes log lines to standard error until the guard is dropped, and exports nothing: for a command whose standard
/// output is its report. Once per process.
///
/// # Errors
/// Logging was set up before, or the system refuses a thread.
pub fn lines_to_stderr(settings: &config::TelemetryConfig) -> Result<LinesGuard, TelemetryError> {
    let look = LineFormat::new(settings.log_format, false);
    let (writer, guard) = LogWriter::start(std::io::stderr())?;
    let (filter, _) = log::filter(settings.log_level.clone());
    tracing_subscriber::registry()
        .with(filter)
        .with(LineLayer::new(look, writer))
        .try_init()?;
    Ok(LinesGuard { _writer: guard })
}

/// What every export says of its sender.
fn resource(settings: &config::TelemetryConfig) -> Resource {
    let instance = format!("{:016x}", rand::random::<u64>());
    Resource::builder()
        .with_service_name(settings.service_name.clone())
        .with_attribute(KeyValue::new(
            attribute::SERVICE_VERSION,
            env!("CARGO_PKG_VERSION"),
        ))
        .with_attribute(KeyValue::new(attribute::SERVICE_INSTANCE, instance))
        .build()
}

impl TelemetryGuard {
    /// What `/metrics` shows.
    #[must_use]
    pub fn metrics_page(&self) -> MetricsPage {
        MetricsPage(self.registry.clone())
    }

    /// What shows and changes the levels of log lines while the gateway runs.
    #[must_use]
    pub fn log_control(&self) -> LogControl {
        self.control.clone()
    }
}

/// Shuts down one signal's exporter, if configured.
type ShutDown = Box<dyn FnOnce() -> Option<Result<(), OTelSdkError>> + Send>;

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        let (tracer, logger, meter) = (self.tracer.take(), self.logger.take(), self.meter.clone());
        let signals: [ShutDown; 3] = [
            Box::new(move || tracer.map(|t| t.shutdown_with_timeout(LAST_EXPORT))),
            Box::new(move || logger.map(|l| l.shutdown_with_timeout(LAST_EXPORT))),
            Box::new(move || Some(meter.shutdown_with_timeout(LAST_EXPORT))),
        ];
        // On threads of their own: one deadline for all, and kept even where the SDK has its own.
        let (done, outcomes) = mpsc::sync_channel(signals.len());
        for signal in signals {
            let done = done.clone();
            drop(std::thread::spawn(move || done.send(signal())));
        }
        drop(done);
        let deadline = Instant::now() + LAST_EXPORT + SLACK;
        let left = || deadline.saturating_duration_since(Instant::now());
        while let Ok(outcome) = outcomes.recv_timeout(left()) {
            if let Some(Err(error)) = outcome {
                tracing::warn!(
                    error = chain(&error),
                    remedy = "look whether the collector at `telemetry.otlp_endpoint` answers",
                    "telemetry was not exported to its end"
                );
            }
        }
    }
}

/// Lets the exporters read the plain atomics.
fn observe(meter: &Meter) {
    for counter in COUNTERS.all() {
        meter
            .u64_observable_counter(counter.name)
            .with_unit(counter.unit)
            .with_description(counter.help)
            .with_callback(|observer| observer.observe(counter.get(), &[]))
            .build();
    }
    for gauge in GAUGES.all() {
        meter
            .i64_observable_up_down_counter(gauge.name)
            .with_unit(gauge.unit)
            .with_description(gauge.help)
            .with_callback(|observer| observer.observe(gauge.get(), &[]))
            .build();
    }
    for labeled in LABELED.all() {
        meter
            .u64_observable_counter(labeled.name)
            .with_unit(labeled.unit)
            .with_description(labeled.help)
            .with_callback(|observer| {
                for (value, count) in labeled.get() {
                    observer.observe(count, &[KeyValue::new(labeled.label, value)]);
                }
            })
            .build();
    }
    for level in LEVELS.all() {
        meter
            .i64_observable_gauge(level.name)
            .with_unit(level.unit)
            .with_description(level.help)
            .with_callback(|observer| {
                for (value, n) in level.get() {
                    observer.observe(n, &[KeyValue::new(level.label, value)]);
                }
            })
            .build();
    }
    for gauge in STATES.all() {
        meter
            .i64_observable_gauge(gauge.name)
            .with_unit(gauge.unit)
            .with_description(gauge.help)
            .with_callback(|observer| {
                let [first, second] = gauge.labels;
                for ((value, state), n) in gauge.get() {
                    let labels = [KeyValue::new(first, value), KeyValue::new(second, state)];
                    observer.observe(n, &labels);
                }
            })
            .build();
    }
}

/// Whether standard output is a terminal whose user wants colours (<https://no-color.org>).
fn shows_colours() -> bool {
    let is_set = |name| process_environment(name).filter(|value| !value.is_empty());
    std::io::stdout().is_terminal()
        && is_set("NO_COLOR").is_none()
        && is_set("TERM").is_some_and(|terminal| terminal != "dumb")
}

fn report_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let location = panic
        .location()
        .map(ToString::to_string)
        .unwrap_or_default();
    let message = panic.payload_as_str().unwrap_or("no message");
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or_default();
    tracing::error!(location, thread, "panic: {message}");
}

fn signal_url(endpoint: &Url, signal: &str) -> String {
    format!("{}/v1/{signal}", endpoint.as_str().trim_end_matches('/'))
}

/// Whether a proxy of `environment` that `http` URLs may go through is itself reached by HTTPS.
fn has_https_proxy(environment: impl Fn(&str) -> Option<String>) -> bool {
    let names = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
    let mut proxies = names.into_iter().filter_map(environment);
    proxies.any(|proxy| proxy.to_ascii_lowercase().starts_with("https:"))
}

/// Builds the exporters of traces, metrics and logs. They share one HTTP client, which takes a thread and reads the
/// certificates of the system.
struct Exporters<'a> {
    endpoint: &'a Url,
    client: Client,
}

impl<'a> Exporters<'a> {
    fn new(endpoint: &'a Url) -> Result<Self, TelemetryError> {
        let mut builder = Client::builder().timeout(EXPORT_TIMEOUT);
        if endpoint.scheme() == "http" && !has_https_proxy(process_environment) {
            // Reading the certificates takes most of the time of a start. A redirection could lead to HTTPS, which needs them.
            builder = builder.tls_certs_only([]).redirect(Policy::none());
        }
        // Within a runtime it may not wait for its own.
        let built = std::thread::Builder::new().spawn(|| builder.build())?;
        let client = built.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok(Self { endpoint, client })
    }

    fn spans(&self) -> Result<WatchedExporter<SpanExporter>, ExporterBuildError> {
        let builder = self.configured(SpanExporter::builder().with_http(), "traces");
        Ok(self.watched("traces", builder.build()?))
    }

    fn metrics(&self) -> Result<WatchedExporter<MetricExporter>, ExporterBuildError> {
        let builder = self.configured(MetricExporter::builder().with_http(), "metrics");
        Ok(self.watched("metrics", builder.build()?))
    }

    fn logs(&self) -> Result<WatchedExporter<LogExporter>, ExporterBuildError> {
        let builder = self.configured(LogExporter::builder().with_http(), "logs");
        Ok(self.watched("logs", builder.build()?))
    }

    fn configured<B: WithExportConfig + WithHttpConfig>(&self, builder: B, signal: &str) -> B {
        builder
            .with_http_client(self.client.clone())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(EXPORT_TIMEOUT)
            .with_endpoint(signal_url(self.endpoint, signal))
    }

    fn watched<E>(&self, signal: &'static str, exporter: E) -> WatchedExporter<E> {
        WatchedExporter::new(signal, self.endpoint, exporter)
    }
}

#[cfg(test)]
mod tests;
