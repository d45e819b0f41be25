//! State that a legacy session sets once and keeps: the log level and the subscriptions. A fresh connection and a
//! link of the other era are told again. With them goes the way to report that the era may be the other one by now.
//! Spec: SPEC U-02, U-07, D-06; BRIDGING §3.4, §3.5.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use crate::call::{AdoptedLink, LogLevel};
use crate::upstream::error::LinkError;
use crate::upstream::lock;

/// The state of one logical session at an upstream. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct SessionState {
    level: Arc<Mutex<Option<LogLevel>>>,
    /// The resources that are followed.
    pub(super) followed: FollowedUris,
    /// Where links report that their upstream may have changed its era.
    pub(super) doubt: DoubtReporter,
}

impl SessionState {
    /// State of a session whose links report to `doubt`; what was told before, where another replica had the session.
    pub(super) fn with(doubt: DoubtReporter, adopted: Option<&AdoptedLink>) -> Self {
        let state = Self {
            doubt,
            ..Self::default()
        };
        if let Some(adopted) = adopted {
            *lock(&state.level) = adopted.level;
            lock(&state.followed.0).extend(adopted.followed.iter().cloned());
        }
        state
    }

    /// The log level that was set last, if one was.
    pub(super) fn level(&self) -> Option<LogLevel> {
        *lock(&self.level)
    }

    /// Keeps the log level that was set.
    pub(super) fn set_level(&self, level: LogLevel) {
        *lock(&self.level) = Some(level);
    }
}

/// URIs of the resources that are subscribed to at the upstream: of a link, through all its
/// connections. Bounded by `limits.subscriptions_per_session` of each of its sessions.
#[derive(Debug, Clone, Default)]
pub(super) struct FollowedUris(Arc<Mutex<HashSet<String>>>);

impl FollowedUris {
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    pub(super) fn contains(&self, uri: &str) -> bool {
        lock(&self.0).contains(uri)
    }

    pub(super) fn insert(&self, uri: String) {
        lock(&self.0).insert(uri);
    }

    pub(super) fn remove(&self, uri: &str) {
        lock(&self.0).remove(uri);
    }

    /// A copy of the URIs.
    pub(super) fn all(&self) -> Vec<String> {
        lock(&self.0).iter().cloned().collect()
    }
}

/// Takes the error of a link whose stream is refused, in the legacy era of one that was open before. One by default
/// ignores it.
#[derive(Clone, Default)]
pub(super) struct DoubtReporter(Option<Arc<TakeError>>);

type TakeError = dyn Fn(&LinkError) + Send + Sync;

impl DoubtReporter {
    pub(super) fn new(take: impl Fn(&LinkError) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(take)))
    }

    /// Reports the error. Does not wait.
    pub(super) fn raise(&self, error: &LinkError) {
        if let Some(take) = &self.0 {
            take(error);
        }
    }
}

impl std::fmt::Debug for DoubtReporter {
    /// Shows no receiver: it refers back to the link.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DoubtReporter")
    }
}
