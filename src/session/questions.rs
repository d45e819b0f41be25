//! Questions put to the client of a session and the answers it posts.
//! Spec: BRIDGING §2.3; SPEC L-03, C-10.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{EventStream, NoticeSource, Session, lock};
use crate::call::{InputOutcome, InputRequest, InputRequests, InputResponse, Notice, NoticeKind};
use crate::ownership::Ownership;
use crate::protocol::{Message, json, rpc};
use crate::telemetry::metrics::{COUNTERS, GAUGES, GaugeGuard};

/// The questions of a session that have no answer yet. Ids are our own, unique in the session.
#[derive(Debug)]
pub struct SentRequests {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, UnansweredRequest>>,
    /// The newest reader of the GET stream through which a question was answered.
    answered_reader: AtomicU64,
}

/// A question without an answer.
#[derive(Debug)]
struct UnansweredRequest {
    asker: oneshot::Sender<InputResponse>,
    /// The number of the call that it belongs to, if the upstream named one.
    call: Option<u64>,
    /// The reader of the GET stream, if it was put there.
    reader: Option<u64>,
}

impl SentRequests {
    /// No question; ids begin where those of `owner` do.
    pub(super) fn of(owner: Ownership) -> Self {
        Self {
            next: AtomicU64::new(owner.first_number()),
            open: Mutex::default(),
            answered_reader: AtomicU64::default(),
        }
    }

    fn open(
        &self,
        call: Option<u64>,
        reader: Option<u64>,
    ) -> (u64, oneshot::Receiver<InputResponse>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let (asker, receiver) = oneshot::channel();
        let unanswered = UnansweredRequest {
            asker,
            call,
            reader,
        };
        lock(&self.open).insert(id, unanswered);
        (id, receiver)
    }

    /// Whether a question that was put on the GET stream under `reader` has its answer.
    pub(super) fn has_answered(&self, reader: u64) -> bool {
        self.answered_reader.load(Ordering::Relaxed) == reader
    }

    /// Withdraws the open questions of a call on its `stream`, before the last message of the stream.
    pub(super) fn end_call(&self, call: u64, stream: &EventStream) {
        let is_its = |_: &u64, question: &mut UnansweredRequest| question.call == Some(call);
        let void = lock(&self.open).extract_if(.., is_its).collect::<Vec<_>>();
        for (id, _) in void {
            COUNTERS.questions_withdrawn.add(1);
            stream.put(withdrawal(id).bytes);
        }
    }

    /// Routes a posted JSON-RPC response to the question with its id. Late and foreign responses are ignored
    /// (SPEC C-10); `false` then.
    pub fn answer(&self, response: &Message) -> bool {
        let id = response.number();
        let Some(question) = id.and_then(|id| lock(&self.open).remove(&id)) else {
            return false;
        };
        if let Some(reader) = question.reader {
            self.answered_reader.fetch_max(reader, Ordering::Relaxed);
        }
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
pub fn reply_of(response: &Message) -> InputResponse {
    match (response.result(), response.error()) {
        (Some(result), _) => InputResponse::Result(Bytes::copy_from_slice(result.as_bytes())),
        (None, error) => {
            let text = error.unwrap_or(r#"{"code":-32603,"message":"no answer"}"#);
            InputResponse::Error(Bytes::copy_from_slice(text.as_bytes()))
        }
    }
}

/// A question that is put to the client; withdrawn when dropped without an answer.
pub(super) struct SentRequest<'a> {
    session: &'a Session,
    stream: Arc<EventStream>,
    id: u64,
    pub(super) answer: oneshot::Receiver<InputResponse>,
    is_withdrawn: bool,
    _open: Option<GaugeGuard>,
}

impl SentRequest<'_> {
    /// Tells the client that the question needs no answer any more; an answer that comes all the same
    /// is taken until this is dropped.
    pub(super) fn withdraw(&mut self) {
        if std::mem::replace(&mut self.is_withdrawn, true) {
            return;
        }
        COUNTERS.questions_withdrawn.add(1);
        let notice = withdrawal(self.id);
        // A question that names no call may outlive the call on whose stream it was put.
        if self.stream.is_finished() {
            self.session.deliver(notice, &NoticeSource::default());
        } else {
            // Kept as the question is: unread notices do not displace it.
            self.stream.put(notice.bytes);
        }
    }
}

impl Drop for SentRequest<'_> {
    fn drop(&mut self) {
        let unanswered = lock(&self.session.questions.open).remove(&self.id);
        if unanswered.is_some() {
            self.withdraw();
        }
    }
}

/// Says that a question needs no answer any more. Spec: SPEC C-10.
fn withdrawal(id: u64) -> Notice {
    let params = json::object([("requestId", id.to_string())]);
    let bytes = rpc::notification("notifications/cancelled", &params);
    Notice {
        kind: NoticeKind::Other,
        bytes: bytes.into(),
    }
}

impl<'a> SentRequest<'a> {
    /// Asks the client of `session` on `stream` and waits for every answer, or for as long as the round may take. Questions
    /// of a call, given by its number, end with it.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws unanswered questions.
    pub(super) async fn ask_round(
        session: &'a Session,
        stream: &Arc<EventStream>,
        call: Option<u64>,
        round: InputRequests,
    ) -> InputOutcome {
        if !session.wait_initialized().await {
            return InputOutcome::CannotAsk("the client has not finished its handshake".to_owned());
        }
        let mut waiting = Vec::with_capacity(round.entries.len());
        for (key, question) in round.entries {
            waiting.push((key, Self::put(session, stream, &question, call, None)));
        }
        let end = round.limit.map(|limit| Instant::now() + limit);
        let mut answers = Vec::with_capacity(waiting.len());
        for (key, mut put) in waiting {
            let answer = match end {
                Some(end) => tokio::time::timeout_at(end, &mut put.answer).await,
                None => Ok((&mut put.answer).await),
            };
            match answer {
                Ok(Ok(answer)) => answers.push((key, answer)),
                Ok(Err(_)) => return InputOutcome::Unanswered,
                // The limit expired: `put` withdraws the question; answers so far are returned.
                Err(_) => {}
            }
        }
        InputOutcome::Answered(answers)
    }

    /// Puts a question on `stream` under an id of its own: for the call of number `call`, or on the GET
    /// stream under its `reader`.
    pub(super) fn put(
        session: &'a Session,
        stream: &Arc<EventStream>,
        question: &InputRequest,
        call: Option<u64>,
        reader: Option<u64>,
    ) -> Self {
        let (id, answer) = session.questions.open(call, reader);
        COUNTERS.questions_asked.add(1);
        stream.put(request(id, question));
        Self {
            session,
            stream: Arc::clone(stream),
            id,
            answer,
            is_withdrawn: false,
            _open: Some(GAUGES.questions_open.enter()),
        }
    }

    /// Pings the client on the GET stream under its `reader`; dropping the ping withdraws nothing.
    /// Spec: SPEC L-07.
    pub(super) fn ping(session: &'a Session, reader: u64) -> Self {
        let (id, answer) = session.questions.open(None, Some(reader));
        let ping = InputRequest {
            method: "ping".to_owned(),
            params: None,
        };
        session.standalone.put(request(id, &ping));
        Self {
            session,
            stream: Arc::clone(&session.standalone),
            id,
            answer,
            is_withdrawn: true,
            _open: None,
        }
    }
}

fn request(id: u64, question: &InputRequest) -> Bytes {
    let params = question.params.is_some();
    let params = params.then(|| question.params_text());
    rpc::request(id, &question.method, params).into()
}
