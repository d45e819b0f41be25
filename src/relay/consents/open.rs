//! `OpenConsents`: the question of each session for an account at an upstream. There is one at a time: calls that come
//! meanwhile have the same link, and wait for the same answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::sync::Cache;
use tokio::sync::watch;

use crate::call::{InputRequest, InputRequests, Notice};
use crate::protocol::json::{self, ObjectWriter};
use crate::store::events::SessionKey;
use crate::telemetry::metrics::LABELED;

/// How long a question stays the same: less than its link is good.
const LASTS: Duration = Duration::from_mins(50);
/// Questions that are remembered.
const MAX_OPEN: u64 = 50_000;

/// Whose question, and for an account where.
type ConsentOf = (SessionKey, Arc<str>);

/// The questions that are open.
#[derive(Debug)]
pub(super) struct OpenConsents(Cache<ConsentOf, Arc<ConnectQuestion>>);

/// The question that leads to the page.
#[derive(Debug)]
pub(super) struct ConnectQuestion {
    pub(super) url: String,
    pub(super) message: String,
    /// `elicitationId`, for clients of the legacy era.
    pub(super) id: Option<String>,
    /// Whether a call has put it to the client, and waits.
    is_asked: AtomicBool,
    /// The end of the last asking turn, for the calls that wait.
    turns: watch::Sender<TurnEnd>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// Without an answer: another call may ask.
    Over,
    /// The user declined.
    Declined,
    /// The account is there.
    Connected,
}

/// The right to put a question to the client, given back when this is dropped.
#[derive(Debug)]
pub(super) struct AskingTurn<'a> {
    question: &'a ConnectQuestion,
    pub(super) end: TurnEnd,
}

impl Drop for AskingTurn<'_> {
    fn drop(&mut self) {
        self.question.is_asked.store(false, Ordering::Release);
        self.question.turns.send_replace(self.end);
    }
}

impl Default for OpenConsents {
    fn default() -> Self {
        let cache = Cache::builder().max_capacity(MAX_OPEN).time_to_live(LASTS);
        Self(cache.build())
    }
}

impl OpenConsents {
    /// The open question of a session, made by `make` where there is none.
    pub(super) fn of(
        &self,
        session: SessionKey,
        upstream: &Arc<str>,
        make: impl FnOnce() -> ConnectQuestion,
    ) -> Arc<ConnectQuestion> {
        let of = (session, Arc::clone(upstream));
        self.0.get_with(of, || {
            LABELED.consents_begun.add(upstream, 1);
            Arc::new(make())
        })
    }

    /// Ends the question of a session whose account is there now; `None` where there is none, or another call has ended
    /// it. With `unless_asked`, also where a call waits for it, which ends it itself.
    pub(super) fn finish(
        &self,
        session: SessionKey,
        upstream: &Arc<str>,
        unless_asked: bool,
    ) -> Option<Arc<ConnectQuestion>> {
        let of = (session, Arc::clone(upstream));
        let is_asked = |open: &Arc<ConnectQuestion>| open.is_asked.load(Ordering::Acquire);
        if unless_asked && self.0.get(&of).as_ref().is_some_and(is_asked) {
            return None;
        }
        let finished = self.0.remove(&of)?;
        LABELED.consents_finished.add(upstream, 1);
        Some(finished)
    }
}

impl ConnectQuestion {
    pub(super) fn new(url: String, message: String, id: Option<String>) -> Self {
        Self {
            url,
            message,
            id,
            is_asked: AtomicBool::new(false),
            turns: watch::Sender::new(TurnEnd::Over),
        }
    }

    /// `None` while another call has put the question to the client.
    pub(super) fn begin(&self) -> Option<AskingTurn<'_>> {
        let was_asked = self.is_asked.swap(true, Ordering::AcqRel);
        // Lazily: a turn that is made and dropped would end the turn of the other call.
        (!was_asked).then(|| AskingTurn {
            question: self,
            end: TurnEnd::Over,
        })
    }

    /// Hears of the turns that end from now on.
    pub(super) fn turns(&self) -> watch::Receiver<TurnEnd> {
        self.turns.subscribe()
    }

    /// JSON text of its parameters.
    pub(super) fn params(&self) -> String {
        let mut out = ObjectWriter::default();
        out.member("mode", "\"url\"");
        out.member("message", &json::quote(&self.message));
        out.member("url", &json::quote(&self.url));
        if let Some(id) = &self.id {
            out.member("elicitationId", &json::quote(id));
        }
        out.finish()
    }

    pub(super) fn round(&self) -> InputRequests {
        let question = InputRequest {
            method: "elicitation/create".to_owned(),
            params: Some(self.params().into()),
        };
        InputRequests {
            entries: vec![("connect".to_owned(), question)],
            limit: None,
            carry: None,
        }
    }

    /// `notifications/elicitation/complete`; `None` without an `elicitationId`.
    pub(super) fn complete(&self) -> Option<Notice> {
        let id = json::quote(self.id.as_deref()?);
        Some(Notice::elicitation_complete(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_has_one_question_until_it_is_finished() {
        let open = OpenConsents::default();
        let (session, up) = (SessionKey::default(), Arc::from("up"));
        let ask = |url: &str| {
            open.of(session, &up, || {
                ConnectQuestion::new(url.to_owned(), String::new(), Some(url.to_owned()))
            })
        };
        let first = ask("one");
        assert_eq!(ask("two").url, "one");
        let turn = first.begin().unwrap();
        assert!(first.begin().is_none());
        assert!(open.finish(session, &up, true).is_none());
        drop(turn);
        let finished = open.finish(session, &up, true).unwrap();
        let notice = finished.complete().unwrap();
        assert!(notice.bytes.ends_with(br#"{"elicitationId":"one"}}"#));
        assert!(open.finish(session, &up, false).is_none());
        assert_eq!(ask("two").url, "two");
    }
}
