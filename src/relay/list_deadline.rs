//! How long answers of a merged endpoint wait for one upstream: little for one that failed or was late before, more
//! while its first start since that of the gateway runs, and longest while no upstream has answered at all.
//! Spec: SPEC G-03; BRIDGING §5.6, §5.7; DESIGN §6.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Relay;
use super::missing_upstreams::is_open;
use crate::fault::Fault;
use crate::protocol::methods::ListKind;
use crate::session::Session;
use crate::translate::merge::MissingReason;
use crate::upstream::FirstStart;

/// Longest wait of `initialize` and `server/discover` of a merged endpoint: both must end within a second, and
/// the first list waits for late upstreams.
const HELLO_WAIT: Duration = Duration::from_millis(900);
/// Longest wait of `initialize` and `server/discover` for an upstream whose last attempt failed.
const DOUBTFUL_HELLO_WAIT: Duration = Duration::from_millis(250);
/// Longest wait of a list for an upstream whose last request failed or overran, or which is not open yet and
/// whose list is known from other sessions.
const DOUBTFUL_WAIT: Duration = Duration::from_secs(1);
/// Longest wait of a list for an upstream that overran, if a stale list can be returned instead.
const STAND_IN_WAIT: Duration = Duration::from_millis(250);
/// How long after the beginning of a first start a list waits that no upstream has answered: clients give up
/// after 10 to 60 s.
const FIRST_WAIT_OF_ALL: Duration = Duration::from_secs(25);
/// How much longer a list waits after the first answer: upstreams that were started together answer together.
const TOGETHER: Duration = Duration::from_millis(250);

/// When the first upstream answered that is asked for the same list; nothing before.
#[derive(Debug, Default)]
pub(super) struct FirstAnswer(watch::Sender<Option<Instant>>);

impl FirstAnswer {
    /// An upstream has answered.
    pub(super) fn note(&self) {
        self.0.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert_with(Instant::now);
            is_first
        });
    }
}

/// Deadline of a list request to an upstream.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListDeadline {
    least: Instant,
    /// While no upstream has answered.
    longest: Instant,
}

impl ListDeadline {
    /// Waits `wait` from now on. Where the upstream's first start began at `started`, it waits until `first_wait`
    /// after that, and while no upstream has answered up to 25 s after it.
    fn new(wait: Duration, started: Option<Instant>, first_wait: Duration) -> Self {
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
    pub(super) async fn over(self, first_answer: &FirstAnswer) {
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

impl Relay {
    /// How long `initialize` and `server/discover` of a merged endpoint wait for one upstream.
    pub(super) fn hello_wait(&self, session: &Session, upstream: &str) -> Duration {
        let wait = if self.is_doubtful(session, upstream) {
            DOUBTFUL_HELLO_WAIT
        } else {
            HELLO_WAIT
        };
        wait.min(self.parts.settings.mcp.connect_wait)
    }

    /// How long a list waits for one upstream: less where waiting was in vain the last time. Only a client's
    /// list has more patience with a first start.
    pub(super) fn list_patience(
        &self,
        session: &Session,
        upstream: &Arc<str>,
        kind: ListKind,
        of_client: bool,
    ) -> ListDeadline {
        let settings = &self.parts.settings.mcp;
        let wait = settings.connect_wait;
        let overran = session.absences().is_absent(upstream, kind);
        let start = self.parts.upstreams.first_start(upstream, &session.owner());
        let stands_in = || self.stand_in(session, upstream, kind).is_some();
        let wait = if overran && stands_in() {
            wait.min(STAND_IN_WAIT)
        } else if overran
            || self.is_doubtful(session, upstream)
            || start == FirstStart::Over && !is_open(session, upstream) && stands_in()
        {
            wait.min(DOUBTFUL_WAIT)
        } else {
            wait
        };
        let started = match start {
            FirstStart::Pending => Some(Instant::now()),
            FirstStart::Running(since) => Some(since),
            FirstStart::Over => None,
        };
        let started = started.filter(|_| of_client && !overran);
        ListDeadline::new(wait, started, settings.first_wait)
    }

    /// Whether an upstream failed or was late when it was last tried, and this session has nothing open
    /// with it.
    fn is_doubtful(&self, session: &Session, upstream: &str) -> bool {
        self.parts.upstreams.is_failing(upstream) && !is_open(session, upstream)
    }

    /// Why an upstream is missing that was not there in time, or failed with `fault`.
    pub(super) fn why_missing(
        &self,
        session: &Session,
        upstream: &str,
        fault: Option<&Fault>,
    ) -> MissingReason {
        match fault.map_or(MissingReason::Late, MissingReason::from) {
            MissingReason::Late if self.is_starting(session, upstream) => MissingReason::Starting,
            other => other,
        }
    }

    /// Why an upstream whose declaration is cached may be missing now; `None` where the last attempt to reach it
    /// did not fail.
    pub(super) fn why_doubtful(&self, session: &Session, upstream: &str) -> Option<MissingReason> {
        if !self.is_doubtful(session, upstream) {
            return None;
        }
        Some(if self.is_starting(session, upstream) {
            MissingReason::Starting
        } else {
            MissingReason::Unreachable
        })
    }

    fn is_starting(&self, session: &Session, upstream: &str) -> bool {
        let start = self.parts.upstreams.first_start(upstream, &session.owner());
        matches!(start, FirstStart::Running(_))
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
