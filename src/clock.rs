//! The only reader of the wall clock. Monotonic waits use Tokio's clock, which tests can pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Tells the time of day.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Time since the Unix epoch.
    fn now(&self) -> Duration;
}

/// A clock that parts hold and share.
pub type SharedClock = Arc<dyn Clock>;

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place that reads the clock"
        )]
        let now = SystemTime::now();
        now.duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

/// `time` in whole milliseconds, as it is kept and sent.
#[must_use]
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Time since the machine was started, suspended time included. Spec: `clock_gettime(2)`, `CLOCK_BOOTTIME`.
#[must_use]
pub fn boot_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    let now = Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default());
    #[cfg(test)]
    let now = now + SUSPENDED.get();
    now
}

#[cfg(test)]
thread_local! {
    static SUSPENDED: std::cell::Cell<Duration> = const { std::cell::Cell::new(Duration::ZERO) };
}

/// Moves [`boot_time`] on for this thread, as after a suspension: Tokio's clock has stood still.
#[cfg(test)]
pub fn suspend_for(time: Duration) {
    SUSPENDED.set(SUSPENDED.get() + time);
}

/// A moment that also comes while the machine is suspended, when Tokio's clock stands still.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    awake: Instant,
    since_boot: Duration,
}

impl Moment {
    /// The moment after `time` from now.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Self {
            awake: Instant::now() + time,
            since_boot: boot_time() + time,
        }
    }

    /// Whether it has come, by the clock that is ahead.
    #[must_use]
    pub fn has_come(self) -> bool {
        Instant::now() >= self.awake || boot_time() >= self.since_boot
    }
}

/// A clock for tests that advances only on request.
#[derive(Debug, Default)]
pub struct TestClock(AtomicU64);

impl TestClock {
    /// Starts at `unix_secs`.
    #[must_use]
    pub fn at(unix_secs: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(unix_secs * 1000)))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(millis(by), Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}
