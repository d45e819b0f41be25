//! Holds a thread to half a core.

use std::time::{Duration, Instant};

use anyhow::Context as _;

/// The thread's own account: nanoseconds on a core come first.
const ACCOUNT: &str = "/proc/thread-self/schedstat";

/// How much of a core a thread has used.
#[derive(Debug)]
pub(super) struct Pace {
    began: Instant,
    before: Duration,
}

impl Pace {
    pub(super) fn begin() -> anyhow::Result<Self> {
        Ok(Self {
            began: Instant::now(),
            before: used()?,
        })
    }

    /// Waits until the thread has used at most half of the time since it began.
    pub(super) async fn turn(&self) -> anyhow::Result<()> {
        let due = used()?.saturating_sub(self.before) * 2;
        let early = due.saturating_sub(self.began.elapsed());
        // Not shorter than the timer's grain: several tasks wait here.
        tokio::time::sleep(early.max(Duration::from_millis(1))).await;
        Ok(())
    }
}

fn used() -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string(ACCOUNT).context("cannot read the thread's account")?;
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Ok(Duration::from_nanos(
        nanos.context("no time in the thread's account")?,
    ))
}
