//! Whether a session should wait for an upstream.
//! Spec: SPEC G-03; BRIDGING §5.6, §5.7; DESIGN §6.

use std::time::Duration;

use super::links::SessionLinks;
use super::missing::is_open;
use crate::fault::Fault;
use crate::session::Session;
use crate::translate::merge::MissingReason;
use crate::upstream::FirstStart;

/// Longest wait of `initialize` and `server/discover` of a merged endpoint: both must end within a second, and
/// the first list waits for late upstreams.
const HELLO_WAIT: Duration = Duration::from_millis(900);
/// Longest wait of `initialize` and `server/discover` for an upstream whose last attempt failed.
const DOUBTFUL_HELLO_WAIT: Duration = Duration::from_millis(250);

impl SessionLinks {
    /// How long `initialize` and `server/discover` of a merged endpoint wait for one upstream.
    pub(crate) fn hello_wait(&self, session: &Session, upstream: &str) -> Duration {
        let wait = if self.is_doubtful(session, upstream) {
            DOUBTFUL_HELLO_WAIT
        } else {
            HELLO_WAIT
        };
        wait.min(self.connect_wait)
    }

    /// Whether an upstream failed or was late when it was last tried, and this session has nothing open
    /// with it.
    pub(crate) fn is_doubtful(&self, session: &Session, upstream: &str) -> bool {
        self.upstreams.is_failing(upstream) && !is_open(session, upstream)
    }

    /// Whether waiting for an upstream is useless: the upstream hung lately, and this session has no open link
    /// to it.
    pub(crate) fn is_in_vain(&self, session: &Session, upstream: &str) -> bool {
        self.upstreams.is_stuck(upstream) && !is_open(session, upstream)
    }

    /// Why an upstream is missing that was not there in time, or failed with `fault`.
    pub(crate) fn why_missing(
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
    pub(crate) fn why_doubtful(&self, session: &Session, upstream: &str) -> Option<MissingReason> {
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
        let start = self.upstreams.first_start(upstream, &session.owner());
        matches!(start, FirstStart::Running(_))
    }
}
