//! `[telemetry]`.

use super::reader::Section;
use super::types::{LogFormat, Telemetry};

/// Reads `[telemetry]`.
pub(super) fn read(s: &mut Section<'_>) -> Telemetry {
    Telemetry {
        otlp_endpoint: s
            .key(
                "otlp_endpoint",
                "Collector for traces, metrics and logs, OTLP over HTTP; off when missing.",
            )
            .url("http://collector:4318"),
        otlp_every_request: s
            .key(
                "otlp_every_request",
                "Whether the collector gets access and audit lines of requests that went well, too, or \
                 of failures only. Each costs about 10 µs; standard output has them all.",
            )
            .flag(true),
        sample_ratio: s
            .key(
                "sample_ratio",
                "Share of traces recorded, of those that start here.",
            )
            .share(0.01),
        log_format: s
            .key(
                "log_format",
                "One JSON object per line, or text for people.",
            )
            .choice(
                "json",
                &[("json", LogFormat::Json), ("text", LogFormat::Text)],
            )
            .unwrap_or(LogFormat::Json),
        service_name: s
            .key("service_name", "`service.name` of what is exported.")
            .text("drawbridge"),
    }
}
