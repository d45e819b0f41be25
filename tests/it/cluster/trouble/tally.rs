//! Counts the outcomes of all requests.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What requests came to.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Calls with the right reply, and what each of those without a stream took.
    pub(super) answered: AtomicUsize,
    pub(super) times: Mutex<Vec<Duration>>,
    /// 503 with `Retry-After`; such a request is sent again.
    pub(super) refused: AtomicUsize,
    /// Calls whose outcome is unknown, as the reply, 502 or a broken connection says.
    pub(super) unknown: AtomicUsize,
    /// The same by the text of the answer, with answers to GET.
    pub(super) reasons: Mutex<BTreeMap<String, usize>>,
    /// Events without an id.
    pub(super) without_id: AtomicUsize,
    /// What may not happen.
    wrong: Mutex<Vec<String>>,
}

impl Tally {
    pub(super) fn count(counter: &AtomicUsize) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn reason(&self, what: impl Into<String>) {
        *self.reasons.lock().unwrap().entry(what.into()).or_default() += 1;
    }

    pub(super) fn wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    /// Fails the test where something happened that may not happen, or too little was done.
    pub(super) fn check(&self, calls: usize) {
        let wrong = self.wrong.lock().unwrap();
        assert!(wrong.is_empty(), "{wrong:#?}");
        let answered = self.answered.load(Ordering::Relaxed);
        assert!(answered >= calls, "{answered} calls, not {calls}");
    }

    /// No request was refused, and the outcome of each call is known.
    pub(super) fn nothing_failed(&self) {
        let failed = [&self.refused, &self.unknown].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(failed, [0, 0], "refused, and of unknown outcome");
    }

    /// What half of the calls without a stream took at most.
    pub(super) fn median(&self) -> Duration {
        let mut times = self.times.lock().unwrap().clone();
        times.sort_unstable();
        times[times.len() / 2]
    }
}
