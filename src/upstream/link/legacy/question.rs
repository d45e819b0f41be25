//! `UpstreamQuestion`: a question of an upstream, put to the client that it belongs to. A question that names no call
//! moves to another call when the reply to the first comes before its answer. Spec: BRIDGING §2.3, §3.1; DESIGN §6;
//! `docs/adr/0009`.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::answers::{error, its_call_is_over, out_of_reach, unanswered};
use super::connection::LegacyConnection;
use super::pending_calls::AskedCall;
use super::related::{self, RelatedQuestion};
use crate::call::{DownstreamLink, InputOutcome, InputRequest, InputRequests, InputResponse};
use crate::protocol::{Message, input_request_rules};
use crate::telemetry::metrics::COUNTERS;
use crate::upstream::carrier::AskedClient;

/// A question that is open.
#[derive(Debug)]
pub(super) struct UpstreamQuestion {
    connection: Arc<LegacyConnection>,
    question: InputRequest,
    /// The request of ours on whose own stream it came.
    origin: Option<u64>,
    /// The task that it names.
    related: Option<RelatedQuestion>,
}

impl UpstreamQuestion {
    /// The question in `message`, which came on the stream of the request `origin`, if any.
    pub(super) fn new(
        connection: &Arc<LegacyConnection>,
        method: &str,
        message: &Message,
        origin: Option<u64>,
    ) -> Self {
        let settings = &connection.settings;
        let question = InputRequest {
            method: method.to_owned(),
            params: related::unmarked(message),
        };
        let capabilities = settings
            .capabilities
            .towards(connection.declared().revision);
        Self {
            connection: Arc::clone(connection),
            question: capabilities.fitted(question),
            origin,
            related: related::of(message),
        }
    }

    /// Puts the question to the client: on the call's own stream where the upstream said which call
    /// it belongs to, else by the rules of DESIGN §6.
    pub(super) async fn ask(&self) -> Result<Bytes, Bytes> {
        let answer = self.ask_client().await;
        match &self.related {
            Some(related) => answer.map(|result| related.marked(result)),
            None => answer,
        }
    }

    async fn ask_client(&self) -> Result<Bytes, Bytes> {
        let method = &*self.question.method;
        let (settings, related) = (&self.connection.settings, self.related.as_ref());
        let asked = match self.asked_call(self.origin, related) {
            Some(call) => match self.ask_in(call).await {
                Some(asked) => asked,
                None => return its_call_is_over(),
            },
            None if settings.unattributed == AskedClient::Session => {
                let pending = &self.connection.pending;
                let (_paused, askers) = pending.may_have_asked(method, related);
                let limit = settings.upstream.ask_timeout;
                let question = self.question.clone();
                let asked = settings.intake.question(&settings.name, question);
                tokio::select! {
                    biased;
                    () = all_over(askers) => return its_call_is_over(),
                    asked = timeout(limit, asked) => asked.unwrap_or(InputOutcome::Unanswered),
                }
            }
            None => {
                COUNTERS.questions_refused.add(1);
                return out_of_reach(method, "no call is known that it belongs to");
            }
        };
        match asked {
            InputOutcome::Answered(answers) => match answers.into_iter().next() {
                // Spec: SPEC C-71.
                Some((_, InputResponse::Result(result)))
                    if method == "roots/list" && !input_request_rules::are_files(&result) =>
                {
                    Err(error(-32603, "the client's roots are no file: URIs"))
                }
                Some((_, InputResponse::Result(result))) => Ok(result),
                Some((_, InputResponse::Error(error))) => Err(error),
                None => unanswered(method),
            },
            InputOutcome::CannotAsk(why) => out_of_reach(method, &why),
            InputOutcome::Suspended(_) | InputOutcome::Unanswered => unanswered(method),
        }
    }

    fn asked_call(
        &self,
        origin: Option<u64>,
        related: Option<&RelatedQuestion>,
    ) -> Option<AskedCall> {
        let connection = &self.connection;
        connection
            .pending
            .asked_call(&connection.settings, origin, related)
    }

    /// Asks the client of a call; `None` when the call is over first. A question that names no call was not of a
    /// call whose reply is there: it moves to another call of the same client, for as long as it may take.
    async fn ask_in(&self, call: AskedCall) -> Option<InputOutcome> {
        let settings = &self.connection.settings;
        let names_none = self.origin.is_none() && self.related.is_none();
        let end = Instant::now() + settings.upstream.ask_timeout;
        let _parked = names_none.then(|| self.connection.turn.park());
        let (mut link, mut pending) = call;
        loop {
            let paused = pending.activity.pause();
            let round = InputRequests {
                entries: vec![(String::new(), self.question.clone())],
                limit: None,
                carry: None,
            };
            tokio::select! {
                biased;
                () = pending.over.cancelled() => {}
                asked = self.in_time(&*link, round) => return Some(asked),
            }
            drop(paused);
            // A cancelled call may have asked. Other calls of a shared connection belong to other conversations.
            let moves = names_none && settings.exclusive && pending.has_landed();
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
        let limit = self.connection.settings.upstream.ask_timeout;
        let asked = timeout(limit, link.ask(round)).await;
        asked.unwrap_or(InputOutcome::Unanswered)
    }
}

/// Resolves once all of these calls are over; never without any.
async fn all_over(calls: Vec<CancellationToken>) {
    if calls.is_empty() {
        return std::future::pending().await;
    }
    for call in calls {
        call.cancelled().await;
    }
}
