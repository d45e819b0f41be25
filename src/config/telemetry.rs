//! `[telemetry]`.

use url::Url;

use super::reader::{ConfigSection, read_keys};
use super::types::{LogFormat, TelemetryConfig};

/// Reads `[telemetry]`.
pub(super) fn read(s: &mut ConfigSection<'_>) -> TelemetryConfig {
    read_keys!(s => TelemetryConfig {
        otlp_endpoint: otlp_endpoint(s),
        /// Whether the collector gets access and audit lines of requests that went well, too, or of failures only. Each
        /// costs about 10 µs; standard output has them all.
        otlp_every_request: flag(true),
        /// Share of traces recorded, of those that start here.
        sample_ratio: share(0.01),
        /// Traces recorded beyond that share because a caller's `traceparent` says `sampled`, all callers together:
        /// anybody can set the flag. Set it higher where only programs of yours can.
        caller_traces: rate("5/s"),
        /// One JSON object per line, or text for people.
        log_format: choice(LogFormat::Json),
        /// From which level on lines are written: off, error, warn, info, debug or trace, and after it other levels for
        /// parts, as in "info,drawbridge::upstream=debug". Libraries stay at warn unless they are named. Access and
        /// audit lines are always written. The variable DRAWBRIDGE_LOG goes before it, and `/log-level` on the admin
        /// port changes it at run time.
        log_level: log_levels("info"),
        /// `service.name` of what is exported.
        service_name: text("drawbridge"),
    })
}

fn otlp_endpoint(s: &mut ConfigSection<'_>) -> Option<Url> {
    let url = read_keys!(s =>
        /// Collector for traces, metrics and logs, OTLP over HTTP; off when missing.
        otlp_endpoint: url("http://collector:4318"))?;
    let path = url.path().trim_end_matches('/');
    let signals = ["/v1/traces", "/v1/metrics", "/v1/logs"];
    if url.query().is_some() || signals.iter().any(|signal| path.ends_with(signal)) {
        let what = "expected the collector's base URL: /v1/traces and such are added to it";
        let hint = Some("for example \"http://collector:4318\"");
        s.error("otlp_endpoint", what, hint);
    }
    Some(url)
}
