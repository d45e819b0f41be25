//! The kinds of instruments that are plain atomics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A number that only grows.
#[derive(Debug)]
pub struct Counter {
    /// As exported, in OpenTelemetry spelling.
    pub name: &'static str,
    /// UCUM unit.
    pub unit: &'static str,
    /// One sentence for operators.
    pub help: &'static str,
    value: AtomicU64,
}

impl Counter {
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
pub struct Gauge {
    /// As exported, in OpenTelemetry spelling.
    pub name: &'static str,
    /// UCUM unit.
    pub unit: &'static str,
    /// One sentence for operators.
    pub help: &'static str,
    value: AtomicI64,
}

impl Gauge {
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
    pub fn enter(&'static self) -> Open {
        self.add(1);
        Open(self)
    }
}

/// One thing that a [`Gauge`] counts.
#[derive(Debug)]
pub struct Open(&'static Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

/// Counts per value of one label, for things that are rare: each count takes a lock.
#[derive(Debug)]
pub struct Labeled {
    /// As exported, in OpenTelemetry spelling.
    pub name: &'static str,
    /// UCUM unit.
    pub unit: &'static str,
    /// One sentence for operators.
    pub help: &'static str,
    /// Name of the label.
    pub label: &'static str,
    values: Mutex<BTreeMap<String, u64>>,
}

impl Labeled {
    /// Values told apart; what comes on top is counted as [`Self::OTHER`].
    pub const MAX_VALUES: usize = 100;
    /// Stands for all values beyond the bound.
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

    /// Counts `n` more for `value`.
    pub fn add(&self, value: &str, n: u64) {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// All counts so far.
    pub fn get(&self) -> Vec<(String, u64)> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values
            .iter()
            .map(|(value, count)| (value.clone(), *count))
            .collect()
    }
}

/// A number per value of one label that goes up and down, for things that are rare.
#[derive(Debug)]
pub struct Level {
    /// As exported, in OpenTelemetry spelling.
    pub name: &'static str,
    /// UCUM unit.
    pub unit: &'static str,
    /// One sentence for operators.
    pub help: &'static str,
    /// Name of the label.
    pub label: &'static str,
    values: Mutex<BTreeMap<String, i64>>,
}

impl Level {
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

    /// Sets the number of `value`, a name from the configuration: their number is its bound.
    pub fn set(&self, value: &str, n: i64) {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.insert(value.to_owned(), n);
    }

    /// All numbers as they are.
    pub fn get(&self) -> Vec<(String, i64)> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values
            .iter()
            .map(|(value, n)| (value.clone(), *n))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_counts_what_is_open() {
        static GAUGE: Gauge = Gauge::new("g", "1", "");
        let first = GAUGE.enter();
        let second = GAUGE.enter();
        assert_eq!(GAUGE.get(), 2);
        drop(first);
        assert_eq!(GAUGE.get(), 1);
        drop(second);
        assert_eq!(GAUGE.get(), 0);
    }

    #[test]
    fn label_values_are_bounded() {
        static LABELED: Labeled = Labeled::new("l", "1", "", "reason");
        for n in 0..1000 {
            LABELED.add(&format!("value {n}"), 1);
        }
        let counts = LABELED.get();
        assert_eq!(counts.len(), Labeled::MAX_VALUES + 1);
        let other = counts
            .iter()
            .find(|(value, _)| value == Labeled::OTHER)
            .unwrap();
        assert_eq!(other.1, 1000 - Labeled::MAX_VALUES as u64);
    }
}
