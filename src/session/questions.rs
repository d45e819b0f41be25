//! Questions put to the client of a session and the answers it posts.
//! Spec: BRIDGING §2.3; SPEC L-03, C-10.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{EventStream, Session, lock};
use crate::call::{Answer, Asked, Notice, NoticeKind, Question, Round};
use crate::protocol::Message;
use crate::telemetry::metrics::{COUNTERS, GAUGES, Open};

/// What the session has asked and not heard of yet. Ids are our own, unique in the session.
#[derive(Debug, Default)]
pub struct Questions {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Unanswered>>,
}

/// A question without an answer.
#[derive(Debug)]
struct Unanswered {
    asker: oneshot::Sender<Answer>,
    /// The call that it belongs to, by its number in order, where the upstream said so.
    call: Option<u64>,
}

impl Questions {
    fn open(&self, call: Option<u64>) -> (u64, oneshot::Receiver<Answer>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let (asker, receiver) = oneshot::channel();
        lock(&self.open).insert(id, Unanswered { asker, call });
        (id, receiver)
    }

    /// Withdraws on `stream` what a call has asked, before that has its last message.
    pub(super) fn end_call(&self, call: u64, stream: &EventStream) {
        let is_its = |_: &u64, question: &mut Unanswered| question.call == Some(call);
        let void = lock(&self.open).extract_if(.., is_its).collect::<Vec<_>>();
        for (id, _) in void {
            COUNTERS.questions_withdrawn.add(1);
            stream.notify(withdrawal(id));
        }
    }

    /// Hands a posted JSON-RPC response to whoever asked. Late and foreign answers are ignored
    /// (SPEC C-10); `false` then.
    pub fn answer(&self, response: &Message) -> bool {
        let id = response.number();
        let Some(question) = id.and_then(|id| lock(&self.open).remove(&id)) else {
            return false;
        };
        question.asker.send(reply_of(response)).is_ok()
    }

    /// Questions without an answer.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.open).len()
    }

    /// Whether every question has its answer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn drop_all(&self) {
        lock(&self.open).clear();
    }
}

/// A response as an answer.
#[must_use]
pub fn reply_of(response: &Message) -> Answer {
    match (response.result(), response.error()) {
        (Some(result), _) => Answer::Result(Bytes::copy_from_slice(result.as_bytes())),
        (None, error) => {
            let text = error.unwrap_or(r#"{"code":-32603,"message":"no answer"}"#);
            Answer::Error(Bytes::copy_from_slice(text.as_bytes()))
        }
    }
}

/// Withdraws a question when nobody waits for it any more.
struct Withdraw<'a> {
    session: &'a Session,
    stream: &'a EventStream,
    id: u64,
    _open: Open,
}

impl Drop for Withdraw<'_> {
    fn drop(&mut self) {
        if lock(&self.session.questions.open)
            .remove(&self.id)
            .is_none()
        {
            return;
        }
        COUNTERS.questions_withdrawn.add(1);
        let notice = withdrawal(self.id);
        // One that named no call may outlive the call on whose stream it went.
        if self.stream.is_finished() {
            self.session.tell(notice);
        } else {
            self.stream.notify(notice);
        }
    }
}

/// Says that a question needs no answer any more. Spec: SPEC C-10.
fn withdrawal(id: u64) -> Notice {
    let bytes = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
    );
    Notice {
        kind: NoticeKind::Other,
        bytes: bytes.into(),
    }
}

impl Session {
    /// Asks the client on `stream` and waits for every answer, or as long as the round may take. What
    /// belongs to a call, given by its number in order, ends with it.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws what is unanswered.
    pub(super) async fn ask_on(
        &self,
        stream: &EventStream,
        call: Option<u64>,
        round: Round,
    ) -> Asked {
        if !self.wait_initialized().await {
            return Asked::CannotAsk("the client has not finished its handshake".to_owned());
        }
        let mut waiting = Vec::with_capacity(round.entries.len());
        for (key, question) in round.entries {
            let (id, receiver) = self.questions.open(call);
            COUNTERS.questions_asked.add(1);
            stream.put(request(id, &question));
            waiting.push((
                key,
                receiver,
                Withdraw {
                    session: self,
                    stream,
                    id,
                    _open: GAUGES.questions_open.enter(),
                },
            ));
        }
        let end = round.limit.map(|limit| Instant::now() + limit);
        let mut answers = Vec::with_capacity(waiting.len());
        for (key, receiver, withdraw) in waiting {
            let answer = match end {
                Some(end) => tokio::time::timeout_at(end, receiver).await,
                None => Ok(receiver.await),
            };
            match answer {
                Ok(Ok(answer)) => {
                    drop(withdraw);
                    answers.push((key, answer));
                }
                Ok(Err(_)) => return Asked::Unanswered,
                // Too late: it is withdrawn, and what others have answered counts.
                Err(_) => {}
            }
        }
        Asked::Answered(answers)
    }

    /// Asks something that names no call: on the newest call somebody waits for, else on the GET
    /// stream, else as soon as there is either, for ten seconds (DESIGN §6).
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the question.
    pub async fn ask_unattributed(self: &Arc<Self>, question: Question) -> Asked {
        let stream = tokio::time::timeout(self.hold_question, async {
            loop {
                let changed = self.changed.notified();
                if let Some(call) = self.newest_call() {
                    return call.stream();
                }
                if self.standalone.is_attached() {
                    return Arc::clone(&self.standalone);
                }
                changed.await;
            }
        });
        let closed = self.closed.clone();
        tokio::select! {
            stream = stream => if let Ok(stream) = stream {
                let entries = vec![(String::new(), question)];
                let round = Round { entries, limit: None, carry: None };
                self.ask_on(&stream, None, round).await
            } else {
                COUNTERS.questions_refused.add(1);
                Asked::CannotAsk("no stream of the client is open".to_owned())
            },
            () = closed.cancelled() => Asked::Unanswered,
        }
    }

    async fn wait_initialized(&self) -> bool {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if self.initialized.load(Ordering::Acquire) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(self.hold_question, wait).await.is_ok()
    }
}

fn request(id: u64, question: &Question) -> Bytes {
    let mut out = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"{}""#,
        question.method
    )
    .into_bytes();
    if let Some(params) = &question.params {
        out.extend_from_slice(b",\"params\":");
        out.extend_from_slice(params);
    }
    out.push(b'}');
    out.into()
}
