//! How long a crashing upstream has to wait for its next start.
//!
//! Counted per principal and upstream, since one user's requests may crash a server that works
//! for everybody else. Only starts that fail for different principals in a row count against the
//! upstream as a whole. A credential of the child's own starts a series of its own: crashes with another one tell nothing.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::call::OwnerKey;
use crate::lock::lock;
use crate::secret::Secret;

/// Failed starts without a message that cause no wait.
const FREE_STARTS: u32 = 1;

/// Crashes after a good start that cause no wait.
const FREE_CRASHES: u32 = 5;

/// The first wait; it doubles with every further failure.
const FIRST: Duration = Duration::from_millis(500);

/// The longest wait.
const LONGEST: Duration = Duration::from_mins(1);

/// The longest wait that other principals' failures can cause.
const LONGEST_FOR_ALL: Duration = Duration::from_secs(5);

/// Lifetime after which a child counts as healthy: the end of such a child starts no series, and ends a running one.
const HEALTHY: Duration = Duration::from_secs(30);

/// A series ends this long after its last wait.
const FORGET: Duration = Duration::from_secs(30);

/// The unrequested end of a child.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChildCrash {
    /// Whether the child wrote a message before.
    pub(super) spoke: bool,
    /// The lifetime of the child.
    pub(super) age: Duration,
}

/// A refusal to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BackoffRefusal {
    /// Until the next start is allowed.
    pub(super) left: Duration,
    /// The last words of the last child.
    pub(super) last_words: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct CrashBackoff {
    series: Mutex<CrashSeries>,
    marks: RandomState,
}

/// Tells credentials of children apart, without giving them away; `None` for a child without one.
pub(super) type CredentialMark = Option<u64>;

type BackoffKey = (OwnerKey, Arc<str>);

#[derive(Debug, Default)]
struct CrashSeries {
    single: HashMap<BackoffKey, CrashHistory>,
    for_all: HashMap<Arc<str>, (OwnerKey, CrashHistory)>,
}

#[derive(Debug)]
struct CrashHistory {
    /// What the children had that crashed.
    credential: CredentialMark,
    starts: u32,
    crashes: u32,
    until: Instant,
    last_words: Option<String>,
}

impl CrashHistory {
    fn none(credential: CredentialMark, now: Instant) -> Self {
        Self {
            credential,
            starts: 0,
            crashes: 0,
            until: now,
            last_words: None,
        }
    }

    fn add(
        &mut self,
        crash: ChildCrash,
        last_words: Option<String>,
        longest: Duration,
        now: Instant,
    ) {
        if crash.spoke {
            self.starts = 0;
            self.crashes += 1;
        } else {
            self.starts += 1;
        }
        let excess = self
            .starts
            .saturating_sub(FREE_STARTS)
            .max(self.crashes.saturating_sub(FREE_CRASHES));
        let wait = match excess.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => FIRST.saturating_mul(1 << doublings.min(16)).min(longest),
        };
        self.until = now + wait;
        self.last_words = last_words;
    }

    fn wait(&self, now: Instant) -> Option<BackoffRefusal> {
        let left = self.until.saturating_duration_since(now);
        let last_words = self.last_words.clone();
        (!left.is_zero()).then_some(BackoffRefusal { left, last_words })
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.until) > FORGET
    }
}

impl CrashBackoff {
    /// The mark of a child's own credential, for this process.
    pub(super) fn mark(&self, credential: Option<&Secret>) -> CredentialMark {
        credential.map(|credential| self.marks.hash_one(credential.expose()))
    }

    /// Whether a start with `credential` is refused now.
    pub(super) fn check(
        &self,
        owner: OwnerKey,
        upstream: &Arc<str>,
        credential: CredentialMark,
        now: Instant,
    ) -> Option<BackoffRefusal> {
        let series = self.series();
        let own = series.single.get(&(owner, Arc::clone(upstream)));
        let own = own.filter(|failures| failures.credential == credential);
        let own = own.and_then(|failures| failures.wait(now));
        own.or_else(|| {
            let (_, failures) = series.for_all.get(upstream)?;
            // `last_words` are those of another principal's child.
            Some(BackoffRefusal {
                last_words: None,
                ..failures.wait(now)?
            })
        })
    }

    /// A child with `credential` ended by itself.
    pub(super) fn crashed(
        &self,
        (owner, upstream, credential): (OwnerKey, &Arc<str>, CredentialMark),
        crash: ChildCrash,
        last_words: Option<String>,
        now: Instant,
    ) {
        let mut series = self.series();
        let key = (owner, Arc::clone(upstream));
        if crash.spoke && crash.age >= HEALTHY {
            series.single.remove(&key);
            return;
        }
        let own = series
            .single
            .entry(key)
            .or_insert_with(|| CrashHistory::none(credential, now));
        if own.credential != credential {
            *own = CrashHistory::none(credential, now);
        }
        own.add(crash, last_words, LONGEST, now);
        if crash.spoke {
            return;
        }
        let all = series.for_all.entry(Arc::clone(upstream));
        let (last, failures) = all.or_insert_with(|| (owner, CrashHistory::none(None, now)));
        if *last != owner || failures.starts == 0 {
            *last = owner;
            failures.add(crash, None, LONGEST_FOR_ALL, now);
        }
    }

    /// A child spoke: the upstream can be started.
    pub(super) fn spoke(&self, upstream: &Arc<str>) {
        self.series().for_all.remove(upstream);
    }

    /// Forgets series that are over.
    pub(super) fn forget_old(&self, now: Instant) {
        let mut series = self.series();
        series.single.retain(|_, failures| !failures.is_over(now));
        series
            .for_all
            .retain(|_, (_, failures)| !failures.is_over(now));
        series.single.shrink_to_fit();
    }

    /// Series under way.
    pub(super) fn len(&self) -> usize {
        self.series().single.len()
    }

    fn series(&self) -> MutexGuard<'_, CrashSeries> {
        lock(&self.series)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::samples::owner;

    const AT_START: ChildCrash = ChildCrash {
        spoke: false,
        age: Duration::from_millis(5),
    };
    const AFTER_START: ChildCrash = ChildCrash {
        spoke: true,
        age: Duration::from_millis(5),
    };

    /// The wait of `who` at `now`.
    fn told(backoff: &CrashBackoff, who: &str, now: Instant) -> Option<BackoffRefusal> {
        backoff.check(owner(who), &"up".into(), None, now)
    }

    fn crash(backoff: &CrashBackoff, now: Instant, who: &str, crash: ChildCrash, times: u32) {
        for _ in 0..times {
            backoff.crashed(
                (owner(who), &"up".into(), None),
                crash,
                Some("boom".to_owned()),
                now,
            );
        }
    }

    #[test]
    fn failed_starts_wait_longer_and_longer() {
        let (backoff, now) = (CrashBackoff::default(), Instant::now());
        crash(&backoff, now, "alice", AT_START, FREE_STARTS);
        assert_eq!(told(&backoff, "alice", now), None);
        let mut before = Duration::ZERO;
        for _ in 0..5 {
            crash(&backoff, now, "alice", AT_START, 1);
            let wait = told(&backoff, "alice", now).unwrap();
            assert!(wait.left > before);
            assert_eq!(wait.last_words.as_deref(), Some("boom"));
            before = wait.left;
        }
        crash(&backoff, now, "alice", AT_START, 100);
        assert_eq!(told(&backoff, "alice", now).unwrap().left, LONGEST);
    }

    #[test]
    fn a_few_crashes_of_a_working_server_cost_nothing() {
        let (backoff, now) = (CrashBackoff::default(), Instant::now());
        crash(&backoff, now, "alice", AFTER_START, FREE_CRASHES);
        assert_eq!(told(&backoff, "alice", now), None);
        crash(&backoff, now, "alice", AFTER_START, 1);
        assert!(told(&backoff, "alice", now).is_some());
    }

    #[test]
    fn one_principal_cannot_stop_another() {
        let (backoff, now) = (CrashBackoff::default(), Instant::now());
        crash(&backoff, now, "mallory", AFTER_START, 50);
        crash(&backoff, now, "mallory", AT_START, 50);
        assert_eq!(told(&backoff, "alice", now), None);
        assert_eq!(
            backoff.check(owner("mallory"), &"other".into(), None, now),
            None
        );
    }

    #[test]
    fn an_upstream_that_starts_for_nobody_waits_for_everybody() {
        let (backoff, now) = (CrashBackoff::default(), Instant::now());
        for who in ["alice", "bob", "carol"] {
            crash(&backoff, now, who, AT_START, 1);
        }
        let wait = told(&backoff, "dave", now).unwrap();
        assert!(wait.left <= LONGEST_FOR_ALL);
        assert_eq!(wait.last_words, None);
        backoff.spoke(&"up".into());
        assert_eq!(told(&backoff, "dave", now), None);
    }

    #[test]
    fn crashes_with_another_credential_do_not_count() {
        let (backoff, now) = (CrashBackoff::default(), Instant::now());
        let mark = |key| backoff.mark(Some(&Secret::new(key)));
        assert_eq!(mark("wrong"), mark("wrong"));
        let crash = |key| {
            let of = (owner("alice"), &"up".into(), mark(key));
            backoff.crashed(of, AT_START, None, now);
        };
        let waits = |key| {
            let check = backoff.check(owner("alice"), &"up".into(), mark(key), now);
            check.is_some()
        };
        for _ in 0..5 {
            crash("wrong");
        }
        assert_eq!((waits("wrong"), waits("right")), (true, false));
        crash("right");
        assert!(!waits("right"), "the first one of its own");
        crash("right");
        assert!(waits("right"));
    }

    #[test]
    fn a_healthy_life_ends_the_series() {
        let (backoff, now) = (CrashBackoff::default(), Instant::now());
        crash(&backoff, now, "alice", AT_START, 5);
        crash(
            &backoff,
            now,
            "alice",
            ChildCrash {
                spoke: true,
                age: HEALTHY,
            },
            1,
        );
        assert_eq!(told(&backoff, "alice", now), None);
        assert_eq!(backoff.len(), 0);
    }

    #[test]
    fn old_series_leave_no_entry() {
        let (backoff, now) = (CrashBackoff::default(), Instant::now());
        crash(&backoff, now, "alice", AT_START, 5);
        backoff.forget_old(now);
        assert_eq!(backoff.len(), 1);
        backoff.forget_old(now + LONGEST + FORGET);
        assert_eq!(backoff.len(), 0);
    }
}
