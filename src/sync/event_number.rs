//! `EventNumber`: the order of events in this process, without a clock.

use std::sync::atomic::{AtomicU64, Ordering};

/// The place of an event in the order of all numbered events. No two events have the same number.
///
/// If one event happens before another, also on another thread, its number is lower: all numbers come from one counter, and
/// threads see its values in one order. So numbers from different tables and sessions can be compared. Two readings of a
/// clock may be equal, and all that one poll does may share a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventNumber(u64);

impl EventNumber {
    /// The number of an event that happens now.
    #[must_use]
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Arc, Barrier};
    use std::thread;

    use super::*;

    #[test]
    fn later_event_has_a_higher_number_on_any_thread() {
        let before = EventNumber::next();
        let other = thread::spawn(EventNumber::next).join().unwrap();
        assert!(before < other && other < EventNumber::next());
    }

    #[test]
    fn events_at_once_have_numbers_of_their_own() {
        // So many that the threads run at the same time.
        const EVENTS: usize = 100_000;
        let both_run = Arc::new(Barrier::new(2));
        let count = || {
            let both_run = Arc::clone(&both_run);
            thread::spawn(move || {
                both_run.wait();
                (0..EVENTS)
                    .map(|_| EventNumber::next().0)
                    .collect::<Vec<_>>()
            })
        };
        let both = [count(), count()].map(|counting| counting.join().unwrap());
        for numbers in &both {
            assert!(numbers.is_sorted());
        }
        assert_eq!(
            both.concat().into_iter().collect::<BTreeSet<_>>().len(),
            2 * EVENTS
        );
    }
}
