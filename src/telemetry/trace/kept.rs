//! Keeps the spans that end, for tests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};

use super::SpanPipeline;
use crate::config::RateConfig;

#[derive(Debug, Clone, Default)]
pub(super) struct KeptSpans(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for KeptSpans {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

impl KeptSpans {
    /// A pipeline that records `ratio` of the traces and two more an hour for callers, and keeps their spans.
    pub(super) fn pipeline(&self, ratio: f64) -> SpanPipeline {
        let provider = SdkTracerProvider::builder().with_simple_exporter(self.clone());
        let callers = RateConfig {
            count: 2,
            per: Duration::from_hours(1),
        };
        SpanPipeline::new(provider.build().tracer("t"), ratio, callers)
    }

    /// The spans that have ended.
    pub(super) fn all(&self) -> Vec<SpanData> {
        self.0.lock().unwrap().clone()
    }
}
