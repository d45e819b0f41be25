//! `StoreOutage`: whether the store of a quota answers, and the log lines about it.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::cause::chain;
use crate::redis_client::RedisFailure;

/// Whether a quota holds in sum over all replicas.
#[derive(Debug)]
pub(super) struct StoreOutage {
    /// What the quota counts.
    kind: &'static str,
    /// Whether the store was not connected when a call last failed.
    is_down: AtomicBool,
    /// Whether a line says that calls fail.
    has_warned: AtomicBool,
}

impl StoreOutage {
    pub(super) fn new(kind: &'static str) -> Self {
        Self {
            kind,
            is_down: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
        }
    }

    /// Whether the store was not connected when a call last failed.
    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// Notes an answer.
    pub(super) fn answered(&self) {
        self.is_down.store(false, Ordering::Relaxed);
    }

    /// Notes a call that failed. Says once in each outage that the quota holds for this replica alone.
    pub(super) fn failed(&self, is_down: bool, error: Option<&RedisFailure>) {
        self.is_down.store(is_down, Ordering::Relaxed);
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let error = error.map(|error| chain(error));
            let remedy =
                "see the errors of Redis: until it answers each replica has the whole quota";
            tracing::warn!(
                quota = self.kind,
                error,
                remedy,
                "quota does not hold in sum"
            );
        }
    }

    /// Says that the quota holds again, now that no caller's part of Redis fails.
    pub(super) fn over(&self) {
        if self.has_warned.swap(false, Ordering::Relaxed) {
            tracing::info!(quota = self.kind, "quota holds in sum again");
        }
    }
}
