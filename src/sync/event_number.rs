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
    use std::hint::spin_loop;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn later_event_has_a_higher_number_on_any_thread() {
        let before = EventNumber::next();
        let other = thread::spawn(EventNumber::next).join().unwrap();
        assert!(before < other && other < EventNumber::next());
    }

    /// Waits until `count` threads have arrived. It does not sleep, so that all threads continue at the same moment.
    fn meet(arrived: &AtomicUsize, count: usize) {
        arrived.fetch_add(1, Ordering::AcqRel);
        let mut looks = 0_u32;
        while arrived.load(Ordering::Acquire) < count {
            looks += 1;
            // The other thread may have no core of its own.
            if looks.is_multiple_of(1000) {
                thread::yield_now();
            } else {
                spin_loop();
            }
        }
    }

    /// Has two threads number events at the same time. Returns the numbers of each, a list for each time they met.
    fn numbers_of_two() -> [Vec<Vec<EventNumber>>; 2] {
        const MEETINGS: usize = 200;
        const EVENTS: usize = 100;
        let arrived = Arc::new(AtomicUsize::new(0));
        let count = || {
            let arrived = Arc::clone(&arrived);
            thread::spawn(move || {
                let numbers = |meeting| {
                    meet(&arrived, 2 * meeting);
                    (0..EVENTS).map(|_| EventNumber::next()).collect()
                };
                (1..=MEETINGS).map(numbers).collect()
            })
        };
        [count(), count()].map(|counting| counting.join().unwrap())
    }

    /// Whether the threads ran at the same moment when they had these numbers.
    fn ran_at_once((one, other): (&Vec<EventNumber>, &Vec<EventNumber>)) -> bool {
        one.first() < other.last() && other.first() < one.last()
    }

    // On a busy machine the threads seldom run at the same moment: they number events until that has happened often enough.
    #[test]
    fn events_at_once_have_numbers_of_their_own() {
        const OFTEN: usize = 300;
        let until = Instant::now() + Duration::from_secs(20);
        let mut at_once = 0;
        while at_once < OFTEN && Instant::now() < until {
            let [one, other] = numbers_of_two();
            let pairs = one.iter().zip(&other);
            at_once += pairs.filter(|pair| ran_at_once(*pair)).count();
            let [one, other] = [one.concat(), other.concat()];
            assert!(one.is_sorted() && other.is_sorted());
            let mut all = [one, other].concat();
            all.sort_unstable();
            let count = all.len();
            all.dedup();
            assert_eq!(all.len(), count);
        }
    }
}
