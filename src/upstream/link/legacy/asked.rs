//! The calls whose clients an upstream asks. A question that names no call moves to another call when the reply
//! to the first comes before its answer. Spec: BRIDGING §2.3, §3.1; DESIGN §6; `docs/adr/0009`.

use std::sync::Arc;

use tokio::time::Instant;

use super::connection::LegacyConnection;
use super::pending_reply::PendingReply;
use super::related::RelatedQuestion;
use crate::call::{DownstreamLink, InputOutcome, InputRequest, InputRequests};
use crate::telemetry::metrics::COUNTERS;
use crate::upstream::carrier::AskedClient;
use crate::upstream::lock;

/// A call with the link to its client.
pub(super) type AskedCall = (Arc<dyn DownstreamLink>, Arc<PendingReply>);

impl LegacyConnection {
    /// Asks the client of a call; `None` when the call is over first. A question that `names_none` was not of a
    /// call whose reply is there: it moves to another call of the same client, for as long as it may take.
    pub(super) async fn ask_in(
        &self,
        call: AskedCall,
        question: &InputRequest,
        names_none: bool,
    ) -> Option<InputOutcome> {
        let end = Instant::now() + self.settings.upstream.ask_timeout;
        let _parked = names_none.then(|| self.turn.park());
        let (mut link, mut pending) = call;
        loop {
            let paused = pending.activity.pause();
            let round = InputRequests {
                entries: vec![(String::new(), question.clone())],
                limit: None,
                carry: None,
            };
            tokio::select! {
                biased;
                () = pending.over.cancelled() => {}
                asked = self.in_time(&*link, round) => return Some(asked),
            }
            drop(paused);
            // A call that was cancelled may have asked; others of a shared connection are other conversations.
            let moves = names_none && self.settings.exclusive && pending.has_landed();
            if !moves || Instant::now() >= end {
                return None;
            }
            (link, pending) = self.asked_call(None, None)?;
            COUNTERS.questions_moved.add(1);
        }
    }

    /// Asks the client of a call, within the time limit of a question. A link that repeats questions restarts the limit
    /// with each repetition, so it keeps time itself (BRIDGING §3.1, 7 and 10).
    async fn in_time(&self, link: &dyn DownstreamLink, round: InputRequests) -> InputOutcome {
        if link.keeps_time() {
            return link.ask(round).await;
        }
        let limit = self.settings.upstream.ask_timeout;
        let asked = tokio::time::timeout(limit, link.ask(round)).await;
        asked.unwrap_or(InputOutcome::Unanswered)
    }

    /// The call that a question belongs to: the one that waits for its task, the one on whose stream
    /// it came, or, where calls take turns, the only one that runs whose client may be asked, or the
    /// oldest one where all are one client's and the upstream asks for the first time (ADR 9). Over
    /// HTTP there are no turns, as a question has the stream of its call: on the GET stream it is
    /// refused where several run.
    pub(super) fn asked_call(
        &self,
        origin: Option<u64>,
        related: Option<&RelatedQuestion>,
    ) -> Option<AskedCall> {
        let pending = lock(&self.pending);
        let waits = related.and_then(|related| {
            let mut waiting = pending.values();
            waiting.find(|call| call.task.as_ref() == Some(&related.task))
        });
        let call = match origin {
            _ if waits.is_some() => waits,
            Some(id) => pending.get(&id),
            None if self.settings.unattributed == AskedClient::Call => {
                let mut askable = pending.values().filter(|call| call.may_be_asked);
                if self.settings.exclusive {
                    // All of them are one client's; one that is asked already waits for its answer.
                    askable.min_by_key(|call| (call.activity.is_paused(), call.id))
                } else {
                    let only = askable.next();
                    only.filter(|_| askable.next().is_none())
                }
            }
            None => None,
        }?;
        Some((call.link.clone()?, Arc::clone(call)))
    }
}
