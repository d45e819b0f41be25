//! Log levels: what the client wants, and what each upstream was told of it. Spec: SPEC C-21;
//! BRIDGING §3.5.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::call::Level;
use crate::lock::lock;

/// The log levels of one session.
#[derive(Debug, Default)]
pub struct Levels {
    /// What the client set, if it did.
    wanted: Mutex<Option<Level>>,
    /// What each upstream was told last.
    told: Mutex<HashMap<Arc<str>, Level>>,
}

impl Levels {
    /// What the client set, if it did.
    #[must_use]
    pub fn wanted(&self) -> Option<Level> {
        *lock(&self.wanted)
    }

    /// Remembers what the client wants.
    pub fn want(&self, level: Level) {
        *lock(&self.wanted) = Some(level);
    }

    /// Notes that an upstream is told of `level`.
    pub fn tell(&self, upstream: &Arc<str>, level: Level) {
        lock(&self.told).insert(Arc::clone(upstream), level);
    }

    /// Notes that log messages of `level` are wanted of an upstream; whether it must be told, because
    /// nobody wanted as much before.
    #[must_use]
    pub fn raise(&self, upstream: &Arc<str>, level: Level) -> bool {
        let mut told = lock(&self.told);
        if told.get(upstream).is_some_and(|known| *known <= level) {
            return false;
        }
        told.insert(Arc::clone(upstream), level);
        true
    }

    /// It is not known what the upstream logs: it is told before its next call.
    pub fn unknown(&self, upstream: &str) {
        lock(&self.told).remove(upstream);
    }

    /// The upstream could not be told of `level`.
    pub fn forget(&self, upstream: &Arc<str>, level: Level) {
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
        let (levels, up) = (Levels::default(), Arc::from("up"));
        assert!(levels.raise(&up, Level::Info));
        assert!(!levels.raise(&up, Level::Info));
        assert!(!levels.raise(&up, Level::Error));
        assert!(levels.raise(&up, Level::Debug));
        levels.forget(&up, Level::Info);
        assert!(!levels.raise(&up, Level::Debug), "outdone since");
        levels.forget(&up, Level::Debug);
        assert!(levels.raise(&up, Level::Info));
        levels.tell(&up, Level::Error);
        assert!(levels.raise(&up, Level::Info), "it was told of less since");
    }
}
