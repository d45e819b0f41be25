//! The time of one poll: a clock read that all parts of a poll share.
//!
//! Reading the clock takes about 35 ns, and the parts of one call used to read it 31 times: a thirtieth of its cost. A
//! poll lasts microseconds, which is nothing to deadlines, idle times and ages. Code that measures a duration reads the
//! clock itself at its end.

use std::cell::Cell;

use tokio::time::Instant;

thread_local! {
    static SHARED: Cell<SharedTime> = const { Cell::new(SharedTime::Off) };
}

/// Whether a poll runs on this thread in [`share`], and its clock reading.
#[derive(Clone, Copy)]
enum SharedTime {
    /// No poll runs in [`share`].
    Off,
    /// The running poll has not read the clock yet.
    Unread,
    /// The time that the running poll has read.
    Read(Instant),
}

/// Ends a poll, also by unwinding.
struct PollEnd(SharedTime);

impl Drop for PollEnd {
    fn drop(&mut self) {
        SHARED.set(self.0);
    }
}

/// Runs one poll, in which [`now`] reads the clock once.
pub fn share<T>(poll: impl FnOnce() -> T) -> T {
    let _end = PollEnd(SHARED.replace(SharedTime::Unread));
    poll()
}

/// The time, to the length of the running poll; exact outside [`share`].
#[must_use]
pub fn now() -> Instant {
    match SHARED.get() {
        SharedTime::Read(at) => at,
        known => {
            let at = Instant::now();
            if matches!(known, SharedTime::Unread) {
                SHARED.set(SharedTime::Read(at));
            }
            at
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;

    const LATER: Duration = Duration::from_secs(1);

    /// Moves the paused clock without a poll in between.
    fn tick() {
        let yields = tokio::time::advance(LATER).now_or_never().is_none();
        assert!(yields, "it moves the clock first");
    }

    #[tokio::test(start_paused = true)]
    async fn one_poll_has_one_time_and_the_next_another() {
        let begun = Instant::now();
        let both = share(|| {
            let first = now();
            tick();
            (first, now())
        });
        assert_eq!(both, (begun, begun));
        assert_eq!(share(now), begun + LATER);
        tick();
        assert_eq!(now(), begun + LATER * 2, "no poll shares it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_within_another_has_its_own_time() {
        let begun = Instant::now();
        let inner = share(|| {
            assert_eq!(now(), begun);
            tick();
            let inner = share(now);
            assert_eq!(now(), begun);
            inner
        });
        assert_eq!(inner, begun + LATER);
    }
}
