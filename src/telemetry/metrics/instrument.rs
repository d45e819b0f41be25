//! The kinds of instruments that are plain atomics.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::lock::lock;

/// A number that only grows.
#[derive(Debug)]
pub struct CounterHandle {
    /// As exported, in OpenTelemetry spelling.
    pub name: &'static str,
    /// UCUM unit.
    pub unit: &'static str,
    /// One sentence for operators.
    pub help: &'static str,
    value: AtomicU64,
}

impl CounterHandle {
    pub(super) const fn new(name: &'static str, unit: &'static str, help: &'static str) -> Self {
        Self {
            name,
            unit,
            help,
            value: AtomicU64::new(0),
        }
    }

    /// Counts `n` more.
    pub fn add(&self, n: u64) {
        self.value.fetch_add(n, Ordering::Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug)]
pub struct GaugeHandle {
    /// As exported, in OpenTelemetry spelling.
    pub name: &'static str,
    /// UCUM unit.
    pub unit: &'static str,
    /// One sentence for operators.
    pub help: &'static str,
    value: AtomicI64,
}

impl GaugeHandle {
    pub(super) const fn new(name: &'static str, unit: &'static str, help: &'static str) -> Self {
        Self {
            name,
            unit,
            help,
            value: AtomicI64::new(0),
        }
    }

    /// Adds `n`, which may be negative.
    pub fn add(&self, n: i64) {
        self.value.fetch_add(n, Ordering::Relaxed);
    }

    /// Replaces the value.
    pub fn set(&self, n: i64) {
        self.value.store(n, Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Counts one thing for as long as the guard lives.
    #[must_use = "the thing is counted while the guard lives"]
    pub fn enter(&'static self) -> GaugeGuard {
        self.add(1);
        GaugeGuard(self)
    }
}

/// One thing that a [`GaugeHandle`] counts.
#[derive(Debug)]
pub struct GaugeGuard(&'static GaugeHandle);

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

/// Numbers told apart by one label, for things that are rare: each change takes a lock.
#[derive(Debug)]
pub struct ByLabel<N> {
    /// As exported, in OpenTelemetry spelling.
    pub name: &'static str,
    /// UCUM unit.
    pub unit: &'static str,
    /// One sentence for operators.
    pub help: &'static str,
    /// Name of the label.
    pub label: &'static str,
    values: Mutex<BTreeMap<String, N>>,
}

/// Counts per value of one label.
pub type LabeledCounter = ByLabel<u64>;

/// Numbers per value of one label that go up and down.
pub type LabeledGauge = ByLabel<i64>;

/// Numbers told apart by two labels, such as counts by upstream and state. All are replaced at once.
#[derive(Debug)]
pub struct PairGauge {
    /// As exported, in OpenTelemetry spelling.
    pub name: &'static str,
    /// UCUM unit.
    pub unit: &'static str,
    /// One sentence for operators.
    pub help: &'static str,
    /// Names of the labels.
    pub labels: [&'static str; 2],
    values: Mutex<BTreeMap<(String, &'static str), i64>>,
}

impl PairGauge {
    pub(super) const fn new(
        name: &'static str,
        unit: &'static str,
        help: &'static str,
        labels: [&'static str; 2],
    ) -> Self {
        Self {
            name,
            unit,
            help,
            labels,
            values: Mutex::new(BTreeMap::new()),
        }
    }

    /// Sets every number. Labels that are not among `values` have none from now on. First labels must be names from
    /// the configuration, as for `LabeledGauge::set`.
    pub fn replace(&self, values: impl IntoIterator<Item = ((String, &'static str), i64)>) {
        let values = values.into_iter().collect();
        *lock(&self.values) = values;
    }

    /// All numbers as they are.
    pub fn get(&self) -> Vec<((String, &'static str), i64)> {
        let values = lock(&self.values);
        values.iter().map(|(of, n)| (of.clone(), *n)).collect()
    }
}

impl<N: Copy> ByLabel<N> {
    /// Distinct label values; any further value counts as [`Self::OTHER`].
    pub const MAX_VALUES: usize = 100;
    /// Stands for all values of counts beyond the bound.
    pub const OTHER: &'static str = "_OTHER";

    pub(super) const fn new(
        name: &'static str,
        unit: &'static str,
        help: &'static str,
        label: &'static str,
    ) -> Self {
        Self {
            name,
            unit,
            help,
            label,
            values: Mutex::new(BTreeMap::new()),
        }
    }

    /// All numbers as they are.
    pub fn get(&self) -> Vec<(String, N)> {
        let values = lock(&self.values);
        values
            .iter()
            .map(|(value, n)| (value.clone(), *n))
            .collect()
    }
}

impl LabeledCounter {
    /// The count of all values together.
    pub fn total(&self) -> u64 {
        lock(&self.values).values().sum()
    }

    /// Has a count of `value` from now on, as `increase` of Prometheus does not see the first one of a new series.
    /// `value` must be a constant or a name from the configuration: their number is not bounded here.
    pub fn begin(&self, value: &str) {
        lock(&self.values).entry(value.to_owned()).or_default();
    }

    /// Counts `n` more for `value`.
    pub fn add(&self, value: &str, n: u64) {
        let mut values = lock(&self.values);
        if let Some(count) = values.get_mut(value) {
            *count += n;
            return;
        }
        let value = if values.len() < Self::MAX_VALUES {
            value
        } else {
            Self::OTHER
        };
        *values.entry(value.to_owned()).or_default() += n;
    }
}

impl LabeledGauge {
    /// Sets the number of `value`, which must be a name from the configuration: the number of values is not
    /// bounded here. No `OTHER` as for counts: several gauges cannot share a number, as the last set would win.
    pub fn set(&self, value: &str, n: i64) {
        let mut values = lock(&self.values);
        match values.get_mut(value) {
            Some(number) => *number = n,
            None => drop(values.insert(value.to_owned(), n)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_counts_what_is_open() {
        static GAUGE: GaugeHandle = GaugeHandle::new("g", "1", "");
        let first = GAUGE.enter();
        let second = GAUGE.enter();
        assert_eq!(GAUGE.get(), 2);
        drop(first);
        assert_eq!(GAUGE.get(), 1);
        drop(second);
        assert_eq!(GAUGE.get(), 0);
    }

    #[test]
    fn numbers_of_a_pair_are_replaced_as_a_whole() {
        static PAIR: PairGauge = PairGauge::new("p", "1", "", ["upstream", "state"]);
        let of = |upstream: &str, state| (upstream.to_owned(), state);
        PAIR.replace([(of("a", "connected"), 1), (of("b", "ended"), 2)]);
        PAIR.replace([(of("a", "connected"), 3)]);
        assert_eq!(PAIR.get(), [(of("a", "connected"), 3)]);
    }

    #[test]
    fn every_level_has_a_value_of_its_own() {
        static LEVEL: LabeledGauge = LabeledGauge::new("l", "1", "", "upstream");
        let all = 0..2 * i64::try_from(LabeledGauge::MAX_VALUES).unwrap();
        for n in all.clone() {
            LEVEL.set(&format!("upstream {n}"), n);
        }
        let levels = LEVEL.get();
        assert_eq!(levels.len(), all.clone().count());
        for (name, n) in levels {
            assert_eq!(name, format!("upstream {n}"));
        }
    }

    #[test]
    fn names_of_the_configuration_keep_counts_of_their_own() {
        static LABELED: LabeledCounter = LabeledCounter::new("l", "1", "", "upstream");
        let names: Vec<String> = (0..=LabeledCounter::MAX_VALUES)
            .map(|n| format!("upstream {n}"))
            .collect();
        for name in &names {
            LABELED.begin(name);
        }
        LABELED.add("upstream 100", 2);
        LABELED.begin("upstream 100");
        let counts = LABELED.get();
        assert_eq!(counts.len(), names.len());
        assert!(counts.contains(&("upstream 100".to_owned(), 2)));
        assert!(counts.contains(&("upstream 0".to_owned(), 0)));
    }

    #[test]
    fn label_values_are_bounded() {
        static LABELED: LabeledCounter = LabeledCounter::new("l", "1", "", "reason");
        for n in 0..1000 {
            LABELED.add(&format!("value {n}"), 1);
        }
        let counts = LABELED.get();
        assert_eq!(counts.len(), LabeledCounter::MAX_VALUES + 1);
        let other = counts
            .iter()
            .find(|(value, _)| value == LabeledCounter::OTHER)
            .unwrap();
        assert_eq!(other.1, 1000 - LabeledCounter::MAX_VALUES as u64);
    }
}
