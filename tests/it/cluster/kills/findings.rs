//! What the clients have seen: how long things took after a kill, and what must not be.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::acknowledged::Acknowledgements;

/// What breaks off within this time after a kill breaks off because of it.
const AFTERMATH: Duration = Duration::from_secs(12);
/// Wrong things that are printed.
const SHOWN: usize = 20;

/// Durations of one kind.
#[derive(Default)]
struct Times(Mutex<Vec<Duration>>);

impl Times {
    fn add(&self, time: Duration) {
        self.0.lock().unwrap().push(time);
    }

    fn worst(&self) -> Duration {
        self.0
            .lock()
            .unwrap()
            .iter()
            .max()
            .copied()
            .unwrap_or_default()
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = self.0.lock().unwrap().clone();
        all.sort_unstable();
        let median = all.get(all.len() / 2).copied().unwrap_or_default();
        let worst = all.last().copied().unwrap_or_default();
        write!(
            f,
            "{} times, median {median:.1?}, worst {worst:.1?}",
            all.len()
        )
    }
}

/// All that is known after the test.
#[derive(Default)]
pub(super) struct Findings {
    /// When which replica was killed.
    kills: Mutex<Vec<(Instant, String)>>,
    wrong: Mutex<Vec<String>>,
    pub(super) acknowledgements: Acknowledgements,
    /// Calls that ended with their result, and events that came before.
    calls: AtomicUsize,
    events: AtomicUsize,
    /// Finished streams that were read a second time.
    replays: AtomicUsize,
    /// From the break of a stream to the error that says that the outcome of its call is unknown.
    told: Times,
    /// The same of a call that a living replica had passed on: from the kill to the end of its answer.
    noticed: Times,
    /// From the first call that broke off to the next one that succeeded.
    resumed: Times,
}

impl Findings {
    /// A replica is killed now.
    pub(super) fn killed(&self, replica: &str) {
        self.kills
            .lock()
            .unwrap()
            .push((Instant::now(), replica.to_owned()));
    }

    pub(super) fn wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    pub(super) fn called(&self, events: usize) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.events.fetch_add(events, Ordering::Relaxed);
    }

    pub(super) fn replayed(&self) {
        self.replays.fetch_add(1, Ordering::Relaxed);
    }

    /// What was sent at `since` through the replica `entry` breaks off now.
    pub(super) fn broken(&self, entry: &str, since: Instant) {
        let now = Instant::now();
        let kills = self.kills.lock().unwrap();
        let Some((killed, replica)) = kills.last() else {
            drop(kills);
            return self.wrong("a call broke off before any kill".to_owned());
        };
        if entry.is_empty() || entry == replica {
            // Its connection went to the replica that was killed.
            return;
        }
        let waited = now - since.max(*killed);
        let is_explained = now - *killed < AFTERMATH;
        drop(kills);
        if is_explained {
            self.noticed.add(waited);
        } else {
            self.wrong(format!("a call broke off at {entry} without a kill"));
        }
    }

    pub(super) fn told(&self, after: Duration) {
        self.told.add(after);
    }

    pub(super) fn resumed(&self, after: Duration) {
        self.resumed.add(after);
    }

    /// Fails unless all is as it must be.
    pub(super) fn assert_bounds(&self, told: Duration, goes_on: Duration, soon: Duration) {
        let wrong = self.wrong.lock().unwrap();
        let shown = &wrong[..wrong.len().min(SHOWN)];
        assert!(wrong.is_empty(), "{} wrong: {shown:#?}", wrong.len());
        for (times, bound, what) in [
            (
                &self.told,
                told,
                "a call was told late that its replica was lost",
            ),
            (&self.resumed, goes_on, "a session went on late"),
            (&self.noticed, soon, "a living replica noticed late"),
        ] {
            assert!(!times.0.lock().unwrap().is_empty(), "not seen: {what}");
            let worst = times.worst();
            assert!(worst < bound, "{what}: after {worst:?}");
        }
        for (count, least) in [(&self.calls, 1000), (&self.replays, 50)] {
            let count = count.load(Ordering::Relaxed);
            assert!(count >= least, "{count}\n{self}");
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        writeln!(
            f,
            "calls: {} with {} events; streams read again: {}",
            count(&self.calls),
            count(&self.events),
            count(&self.replays)
        )?;
        writeln!(
            f,
            "told that the outcome is unknown, after the break: {}",
            self.told
        )?;
        writeln!(
            f,
            "noticed by a living replica, after the kill: {}",
            self.noticed
        )?;
        write!(
            f,
            "session goes on, after a call broke off: {}",
            self.resumed
        )
    }
}
