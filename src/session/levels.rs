//! Log levels: the one set by the client, and the last one sent to each upstream. Spec: SPEC C-21;
//! BRIDGING §3.5.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::call::LogLevel;
use crate::lock::lock;

/// The log levels of one session.
#[derive(Debug, Default)]
pub struct SessionLevels {
    /// The client's level, if set.
    wanted: Mutex<Option<LogLevel>>,
    /// The level last sent to each upstream.
    told: Mutex<BTreeMap<Arc<str>, LogLevel>>,
}

impl SessionLevels {
    /// The client's level, if set.
    #[must_use]
    pub fn wanted(&self) -> Option<LogLevel> {
        *lock(&self.wanted)
    }

    /// Sets the client's level.
    pub fn want(&self, level: LogLevel) {
        *lock(&self.wanted) = Some(level);
    }

    /// Records that `level` is being sent to an upstream.
    pub fn tell(&self, upstream: &Arc<str>, level: LogLevel) {
        lock(&self.told).insert(Arc::clone(upstream), level);
    }

    /// Lowers the upstream's threshold to `level`; `true` if `level` must be sent, because the last one
    /// sent was less verbose or none.
    #[must_use]
    pub fn raise(&self, upstream: &Arc<str>, level: LogLevel) -> bool {
        let mut told = lock(&self.told);
        if told.get(upstream).is_some_and(|known| *known <= level) {
            return false;
        }
        told.insert(Arc::clone(upstream), level);
        true
    }

    /// Clears the upstream's level, so that a level is sent before the next call: `logging/setLevel` timed
    /// out, and the upstream may or may not have applied it.
    pub fn unknown(&self, upstream: &str) {
        lock(&self.told).remove(upstream);
    }

    /// Clears `level` after sending it failed, unless another level was recorded since.
    pub fn forget(&self, upstream: &Arc<str>, level: LogLevel) {
        let mut told = lock(&self.told);
        if told.get(upstream) == Some(&level) {
            told.remove(upstream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_told_of_a_level_when_none_wanted_as_much_or_it_was_not_told() {
        let (levels, up) = (SessionLevels::default(), Arc::from("up"));
        assert!(levels.raise(&up, LogLevel::Info));
        assert!(!levels.raise(&up, LogLevel::Info));
        assert!(!levels.raise(&up, LogLevel::Error));
        assert!(levels.raise(&up, LogLevel::Debug));
        levels.forget(&up, LogLevel::Info);
        assert!(!levels.raise(&up, LogLevel::Debug), "outdone since");
        levels.forget(&up, LogLevel::Debug);
        assert!(levels.raise(&up, LogLevel::Info));
        levels.tell(&up, LogLevel::Error);
        assert!(
            levels.raise(&up, LogLevel::Info),
            "it was told of less since"
        );
    }
}
