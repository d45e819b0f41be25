//! Questions of an upstream that name no call: the stream of the client they go on, and the move to
//! another stream when the first brings no answer.
//! Spec: SPEC T-21, C-10; BRIDGING §2.3; DESIGN §6.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use futures_util::future::select_all;
use tokio::time::{Duration, Instant, sleep_until, timeout};

use super::questions::SentRequest;
use super::{LegacyClientLink, Session};
use crate::call::{InputOutcome, InputRequest};
use crate::sync::on_drop::OnDrop;
use crate::telemetry::metrics::COUNTERS;

/// How long a question waits for its answer before its stream is doubted, and again after that. Half of it
/// later, a GET stream that has shown no life is pinged: people take longer to answer, clients do not.
const DOUBT_AFTER: Duration = Duration::from_secs(5);
/// How often a question takes another stream.
const MOVES: usize = 8;

/// Where a question was put.
enum QuestionStream {
    /// The GET stream, while this reader was its newest.
    Get(u64),
    /// The stream of a running call.
    Call(Arc<LegacyClientLink>),
}

/// A question of `upstream` that names no call of the session.
#[derive(Debug)]
pub struct UnattributedQuestion<'a> {
    /// The session whose client is asked.
    pub session: &'a Session,
    /// The upstream that asks.
    pub upstream: &'a str,
    /// The question.
    pub request: &'a InputRequest,
}

impl<'a> UnattributedQuestion<'a> {
    /// Asks: on the GET stream while one is open, else on the newest call
    /// at `upstream` that has a reader, else as soon as there is either, for `hold_question`. Without an
    /// answer it is withdrawn there after a while and asked under a new id on another stream: some
    /// clients leave a GET stream unread, others forget a question with the call on whose stream it came.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the question.
    pub async fn ask(&self) -> InputOutcome {
        tokio::select! {
            asked = self.ask_somewhere() => asked,
            () = self.session.closed.cancelled() => InputOutcome::Unanswered,
        }
    }

    async fn ask_somewhere(&self) -> InputOutcome {
        let session = self.session;
        if !session.wait_initialized().await {
            return InputOutcome::CannotAsk("the client has not finished its handshake".to_owned());
        }
        let placing = timeout(session.hold_question, self.place());
        let Ok((mut place, put)) = placing.await else {
            COUNTERS.questions_refused.add(1);
            return InputOutcome::CannotAsk("no stream of the client is open".to_owned());
        };
        // Withdrawn questions stay: the client may have begun to answer before it got the withdrawal.
        let mut puts = vec![put];
        let mut pings = Vec::new();
        let mut look = Instant::now() + DOUBT_AFTER / 2;
        let mut is_half = false;
        loop {
            tokio::select! {
                biased;
                (answer, _, _) = select_all(puts.iter_mut().map(|put| &mut put.answer)) => {
                    return match answer {
                        Ok(answer) => InputOutcome::Answered(vec![(String::new(), answer)]),
                        Err(_) => InputOutcome::Unanswered,
                    };
                }
                () = sleep_until(look) => look += DOUBT_AFTER / 2,
            }
            is_half = !is_half;
            let is_settled = session.undelivered.is_one_stream() || puts.len() > MOVES;
            if is_settled || !self.is_doubtful(&place) {
                continue;
            }
            if is_half {
                if let QuestionStream::Get(reader) = place
                    && pings.is_empty()
                {
                    pings.push(SentRequest::ping(session, reader));
                }
            } else if let Some((other, put)) = self.put_elsewhere(&place) {
                COUNTERS.questions_moved.add(1);
                puts.iter_mut().for_each(SentRequest::withdraw);
                puts.push(put);
                place = other;
            }
        }
    }

    async fn place(&self) -> (QuestionStream, SentRequest<'a>) {
        let session = self.session;
        let waiting = &session.undelivered.questions;
        waiting.fetch_add(1, Ordering::Relaxed);
        let _waits = OnDrop::new(|| {
            waiting.fetch_sub(1, Ordering::Relaxed);
        });
        loop {
            let changed = session.changed.notified();
            // Pairs with `routed`: either the call that begins now is seen here, or it tells of itself.
            fence(Ordering::SeqCst);
            if let Some(put) = self.put_on_get() {
                return put;
            }
            if let Some(put) = self.put_on_call() {
                return put;
            }
            changed.await;
        }
    }

    fn put_on_get(&self) -> Option<(QuestionStream, SentRequest<'a>)> {
        let get = &self.session.standalone;
        get.is_attached().then(|| {
            let reader = get.readers();
            let put = SentRequest::put(self.session, get, self.request, None, Some(reader));
            (QuestionStream::Get(reader), put)
        })
    }

    fn put_on_call(&self) -> Option<(QuestionStream, SentRequest<'a>)> {
        let mut put = None;
        self.session.put_on_newest(self.upstream, |call| {
            let asked = SentRequest::put(self.session, &call.stream(), self.request, None, None);
            put = Some((QuestionStream::Call(Arc::clone(call)), asked));
        });
        put
    }

    /// Whether an answer is not to be expected from the stream any more: a GET stream that has neither
    /// been opened again nor carried a question that was answered, or a call that is over or unread.
    fn is_doubtful(&self, place: &QuestionStream) -> bool {
        match place {
            QuestionStream::Get(reader) => {
                let get = &self.session.standalone;
                let now = get.readers();
                let is_proven = now != *reader || self.session.questions.has_answered(now);
                !(is_proven && get.is_attached())
            }
            QuestionStream::Call(call) => !call.is_awaited() || !self.session.is_running(call),
        }
    }

    fn put_elsewhere(&self, place: &QuestionStream) -> Option<(QuestionStream, SentRequest<'a>)> {
        let on_get = match place {
            QuestionStream::Get(_) => None,
            QuestionStream::Call(_) => self.put_on_get(),
        };
        on_get.or_else(|| self.put_on_call())
    }
}
