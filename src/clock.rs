//! The only reader of the wall clock. Monotonic waits use Tokio's clock, which tests can pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// Time since the machine was started, suspended time included. Spec: `clock_gettime(2)`, `CLOCK_BOOTTIME`.
#[must_use]
pub fn boot_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
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
        self.0.fetch_add(
            u64::try_from(by.as_millis()).unwrap_or(u64::MAX),
            Ordering::SeqCst,
        );
    }
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}
