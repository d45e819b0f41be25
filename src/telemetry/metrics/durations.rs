//! Durations by method, place, tool and error, cheap enough for every call.
//!
//! The exporter's own look-up hashes every attribute on every record; here each series is bound
//! once, and found again by one hash.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::{LazyLock, PoisonError, RwLock};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::BoundHistogram;

use super::seconds_histogram::SecondsHistogram;
use crate::sync::fast_maps::FastState;
use crate::telemetry::names::attribute;
use crate::telemetry::redact::redact;

/// Series with a tool name; later tools are counted without theirs.
const MAX_SERIES: usize = 1500;

/// Upper bounds in seconds: those of the MCP conventions, and three for what never leaves the
/// machine.
const BOUNDARIES: [f64; 17] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0,
];

/// Tells series apart. A collision counts two names together and has no other effect.
static HASHER: LazyLock<FastState> = LazyLock::new(FastState::default);

/// Histograms by hash of the `SeriesKey`.
type KnownSeries = HashMap<u64, BoundHistogram<f64>, BuildHasherDefault<IdentityHasher>>;

/// A histogram of durations. Nothing is kept before telemetry is set up.
#[derive(Debug)]
pub(in crate::telemetry) struct DurationHistogram {
    histogram: SecondsHistogram,
    /// The attribute that says where: the endpoint or the upstream.
    pub(in crate::telemetry) place: &'static str,
    series: LazyLock<RwLock<KnownSeries>>,
}

/// What tells one series from another.
#[derive(Debug, Hash)]
pub(in crate::telemetry) struct SeriesKey<'a> {
    /// A known method.
    pub(in crate::telemetry) method: &'static str,
    /// Endpoint or upstream.
    pub(in crate::telemetry) place: &'a str,
    /// The tool asked for.
    pub(in crate::telemetry) tool: Option<&'a str>,
    /// `error.type`, and the code of the JSON-RPC error where that was the answer.
    pub(in crate::telemetry) error: Option<(&'static str, Option<&'static str>)>,
}

impl DurationHistogram {
    pub(in crate::telemetry) const fn new(
        name: &'static str,
        help: &'static str,
        place: &'static str,
    ) -> Self {
        Self {
            histogram: SecondsHistogram::new(name, help, &BOUNDARIES),
            place,
            series: LazyLock::new(RwLock::default),
        }
    }

    /// Adds one duration.
    pub(in crate::telemetry) fn record(&self, series: &SeriesKey<'_>, took: Duration) {
        let key = HASHER.hash_one(series);
        let known = self.series.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(bound) = known.get(&key) {
            return bound.record(took.as_secs_f64());
        }
        // An error does not prove that the tool exists; an earlier result does.
        let unproven = || {
            let proof = SeriesKey {
                error: None,
                ..*series
            };
            series.error.is_some() && !known.contains_key(&HASHER.hash_one(&proof))
        };
        let nameless = series.tool.is_some() && (known.len() >= MAX_SERIES || unproven());
        drop(known);
        if nameless {
            return self.record(
                &SeriesKey {
                    tool: None,
                    ..*series
                },
                took,
            );
        }
        let bound = self.bind(series);
        bound.record(took.as_secs_f64());
        self.series
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(key)
            .or_insert(bound);
    }

    fn bind(&self, series: &SeriesKey<'_>) -> BoundHistogram<f64> {
        let mut attributes = vec![
            KeyValue::new(attribute::METHOD, series.method),
            KeyValue::new(self.place, series.place.to_owned()),
        ];
        attributes.extend(
            series
                .tool
                .map(|tool| KeyValue::new(attribute::TOOL, redact(tool).into_owned())),
        );
        if let Some((kind, code)) = series.error {
            attributes.push(KeyValue::new(attribute::ERROR_TYPE, kind));
            attributes.extend(code.map(|code| KeyValue::new(attribute::RPC_STATUS, code)));
        }
        self.histogram.built().bind(&attributes)
    }
}

/// For keys that are hashes already.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
