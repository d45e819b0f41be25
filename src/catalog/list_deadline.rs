//! How long answers of a merged endpoint wait for one upstream: little for one that failed or was late before, more
//! while its first start since that of the gateway runs, and longest while no upstream has answered at all.
//! Spec: SPEC G-03; BRIDGING §5.6, §5.7; DESIGN §6.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How long after the beginning of a first start a list waits that no upstream has answered: clients give up
/// after 10 to 60 s.
const FIRST_WAIT_OF_ALL: Duration = Duration::from_secs(25);
/// How much longer a list waits after the first answer: upstreams that were started together answer together.
const TOGETHER: Duration = Duration::from_millis(250);

/// When the first upstream answered that is asked for the same list; nothing before.
#[derive(Debug, Default)]
pub(crate) struct FirstAnswer(watch::Sender<Option<Instant>>);

impl FirstAnswer {
    /// An upstream has answered.
    pub(crate) fn note(&self) {
        self.0.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert_with(Instant::now);
            is_first
        });
    }
}

/// Deadline of a list request to an upstream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListDeadline {
    least: Instant,
    /// While no upstream has answered.
    longest: Instant,
}

impl ListDeadline {
    /// Waits `wait` from now on. Where the upstream's first start began at `started`, it waits until `first_wait`
    /// after that, and while no upstream has answered up to 25 s after it.
    pub(super) fn new(wait: Duration, started: Option<Instant>, first_wait: Duration) -> Self {
        let now = Instant::now();
        let least = now + wait;
        match started.filter(|_| !first_wait.is_zero()) {
            Some(started) => {
                let least = least.max(started + first_wait);
                Self {
                    least,
                    longest: least.max(started + FIRST_WAIT_OF_ALL),
                }
            }
            None => Self {
                least,
                longest: least,
            },
        }
    }

    /// Resolves when the upstream is not waited for any longer. Cancel safe.
    pub(crate) async fn over(self, first_answer: &FirstAnswer) {
        if self.least == self.longest {
            return sleep_until(self.least).await;
        }
        let mut answered = first_answer.0.subscribe();
        let last = async {
            let first = answered.wait_for(Option::is_some).await;
            let first = first.ok().and_then(|first| *first);
            let together = first.unwrap_or_else(Instant::now) + TOGETHER;
            sleep_until(together.max(self.least)).await;
        };
        tokio::select! {
            () = sleep_until(self.longest) => {}
            () = last => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_WAIT: Duration = Duration::from_secs(8);
    const WAIT: Duration = Duration::from_secs(3);

    /// How long a list waits for an upstream that began to start `ago`, where another answers `after`.
    async fn waited(ago: Option<u64>, first_wait: Duration, after: Option<u64>) -> Duration {
        tokio::time::advance(Duration::from_secs(100)).await;
        let now = Instant::now();
        let started = ago.map(|ago| now - Duration::from_secs(ago));
        let answer = FirstAnswer::default();
        let patience = ListDeadline::new(WAIT, started, first_wait);
        let answering = async {
            if let Some(after) = after {
                tokio::time::sleep(Duration::from_secs(after)).await;
                answer.note();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = answering => {}
            () = patience.over(&answer) => {}
        }
        now.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn first_start_is_waited_for_from_its_beginning() {
        assert_eq!(waited(None, FIRST_WAIT, Some(0)).await, WAIT);
        assert_eq!(waited(Some(0), FIRST_WAIT, Some(0)).await, FIRST_WAIT);
        let rest = Duration::from_secs(5);
        assert_eq!(waited(Some(3), FIRST_WAIT, Some(0)).await, rest);
        assert_eq!(waited(Some(7), FIRST_WAIT, Some(0)).await, WAIT);
        assert_eq!(waited(Some(0), Duration::ZERO, None).await, WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_answering_is_waited_for_longest_and_those_who_answer_together_briefly() {
        assert_eq!(waited(Some(0), FIRST_WAIT, None).await, FIRST_WAIT_OF_ALL);
        let rest = Duration::from_secs(5);
        assert_eq!(waited(Some(20), FIRST_WAIT, None).await, rest);
        let together = Duration::from_secs(15) + TOGETHER;
        assert_eq!(waited(Some(0), FIRST_WAIT, Some(15)).await, together);
    }
}
