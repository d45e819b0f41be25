//! The client of the demo server: its capabilities, its running calls, and the output toward it.

use std::collections::HashMap;
use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

use super::text_at;
use crate::clock::SharedClock;
use crate::lock::lock;
use crate::protocol::Revision;

/// Calls at once; more are refused.
const MAX_RUNNING: usize = 64;

/// Severities, least first. Spec: RFC 5424 §6.2.1
const LEVELS: [&str; 8] = [
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
];

/// A JSON-RPC error to come.
#[derive(Debug)]
pub(super) struct RpcRefusal {
    code: i32,
    message: &'static str,
}

impl RpcRefusal {
    pub(super) fn new(code: i32, message: &'static str) -> Self {
        Self { code, message }
    }
}

/// What a running call hears from the client.
#[derive(Debug)]
pub(super) enum CallSignal {
    /// The client cancelled the call.
    Cancelled,
    /// The client's answer to a question of this call.
    Answer(Value),
}

struct PeerState {
    revision: Revision,
    can_elicit: bool,
    level: usize,
    asked: u64,
    /// Running calls by the JSON text of their id.
    running: HashMap<String, SyncSender<CallSignal>>,
    /// Unanswered questions of running calls by the JSON text of their id: that of the call.
    questions: HashMap<String, String>,
}

impl PeerState {
    /// Forgets a call and its questions.
    fn forget(&mut self, id: &Value) -> Option<SyncSender<CallSignal>> {
        let id = id.to_string();
        self.questions.retain(|_, call| *call != id);
        self.running.remove(&id)
    }
}

/// The client on the other end of the pipe.
pub(super) struct DemoPeer {
    out: Mutex<Box<dyn Write + Send>>,
    state: Mutex<PeerState>,
    pub(super) clock: SharedClock,
}

impl DemoPeer {
    pub(super) fn new(out: Box<dyn Write + Send>, clock: SharedClock) -> Self {
        let state = PeerState {
            revision: Revision::LATEST_LEGACY,
            can_elicit: false,
            level: 1,
            asked: 0,
            running: HashMap::new(),
            questions: HashMap::new(),
        };
        Self {
            out: Mutex::new(out),
            state: Mutex::new(state),
            clock,
        }
    }

    /// Remembers what was agreed in the handshake.
    pub(super) fn begin(&self, revision: Revision, capabilities: &Value) {
        let elicitation = capabilities.get("elicitation");
        // An empty object means forms only. Spec: SPEC C-80
        let forms = elicitation.is_some_and(|e| e.get("form").is_some() || e.get("url").is_none());
        let mut state = self.state();
        state.revision = revision;
        state.can_elicit = forms && revision >= Revision::V2025_06_18;
    }

    pub(super) fn revision(&self) -> Revision {
        self.state().revision
    }

    pub(super) fn can_elicit(&self) -> bool {
        self.state().can_elicit
    }

    /// `logging/setLevel`.
    pub(super) fn set_level(&self, params: &Value) -> Result<Value, RpcRefusal> {
        let wanted = text_at(params, "/level");
        let level = LEVELS.iter().position(|level| Some(*level) == wanted);
        self.state().level = level.ok_or(RpcRefusal::new(-32602, "no such level"))?;
        Ok(json!({}))
    }

    /// Sends a log message, unless the client wants only graver ones.
    pub(super) fn log(&self, level: &str, text: &str) -> std::io::Result<()> {
        let position = LEVELS.iter().position(|known| *known == level);
        if position < Some(self.state().level) {
            return Ok(());
        }
        let params = json!({ "level": level, "logger": "demo", "data": text });
        self.notify("notifications/message", &params)
    }

    pub(super) fn notify(&self, method: &str, params: &Value) -> std::io::Result<()> {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }))
    }

    pub(super) fn reply(&self, id: &Value, result: &Value) -> std::io::Result<()> {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }))
    }

    pub(super) fn refuse(&self, id: &Value, refusal: &RpcRefusal) -> std::io::Result<()> {
        let error = json!({ "code": refusal.code, "message": refusal.message });
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }))
    }

    /// Registers a running call. Its end must be told by [`Self::finish`].
    pub(super) fn start(&self, id: &Value) -> Result<Receiver<CallSignal>, RpcRefusal> {
        let mut state = self.state();
        if state.running.len() >= MAX_RUNNING {
            return Err(RpcRefusal::new(-32603, "too many calls at once"));
        }
        let (sender, inbox) = sync_channel(2);
        state.running.insert(id.to_string(), sender);
        Ok(inbox)
    }

    /// Forgets a call; `false` when it was cancelled and must not be answered.
    pub(super) fn finish(&self, id: &Value) -> bool {
        self.state().forget(id).is_some()
    }

    /// Asks the client on behalf of the call `id`, whose inbox gets the answer.
    pub(super) fn ask(&self, id: &Value, method: &str, params: &Value) -> std::io::Result<()> {
        let question = {
            let mut state = self.state();
            state.asked += 1;
            let question = json!(format!("demo-{}", state.asked));
            let call = id.to_string();
            if state.running.contains_key(&call) {
                state.questions.insert(question.to_string(), call);
            }
            question
        };
        let message =
            json!({ "jsonrpc": "2.0", "id": question, "method": method, "params": params });
        self.send(&message)
    }

    /// Signals the cancellation to a running call.
    pub(super) fn cancel(&self, id: &Value) {
        if let Some(inbox) = self.state().forget(id) {
            // A full inbox belongs to a call that is about to end anyway.
            drop(inbox.try_send(CallSignal::Cancelled));
        }
    }

    /// Hands an answer to the call that asked.
    pub(super) fn deliver(&self, id: &Value, answer: Value) {
        let mut state = self.state();
        let call = state.questions.remove(&id.to_string());
        if let Some(inbox) = call.and_then(|call| state.running.get(&call)) {
            drop(inbox.try_send(CallSignal::Answer(answer)));
        }
    }

    /// One message, one line.
    fn send(&self, message: &Value) -> std::io::Result<()> {
        let mut line = message.to_string();
        line.push('\n');
        let mut out = lock(&self.out);
        out.write_all(line.as_bytes())?;
        out.flush()
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        lock(&self.state)
    }
}

/// Runs `work` for the call `id` on a thread of its own and sends what it returns; `None` means
/// that it was cancelled.
pub(super) fn in_background(
    peer: &Arc<DemoPeer>,
    id: Value,
    work: impl FnOnce(&DemoPeer, &Value, &Receiver<CallSignal>) -> std::io::Result<Option<Value>>
    + Send
    + 'static,
) -> std::io::Result<()> {
    let inbox = match peer.start(&id) {
        Ok(inbox) => inbox,
        Err(refusal) => return peer.refuse(&id, &refusal),
    };
    let peer = Arc::clone(peer);
    let spawned = std::thread::Builder::new()
        .name("call".to_owned())
        .spawn(move || {
            // A broken pipe ends the reading side too, and with it the program.
            if let Ok(Some(result)) = work(&peer, &id, &inbox)
                && peer.finish(&id)
            {
                drop(peer.reply(&id, &result));
            }
        });
    spawned.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn call_that_ends_leaves_no_question_behind() {
        let peer = DemoPeer::new(Box::new(std::io::sink()), Arc::new(SystemClock));
        for number in 0..2 * MAX_RUNNING {
            let id = json!(number);
            let inbox = peer.start(&id).ok().unwrap();
            peer.ask(&id, "elicitation/create", &json!({})).unwrap();
            if number % 2 == 0 {
                peer.cancel(&id);
                assert!(matches!(inbox.try_recv(), Ok(CallSignal::Cancelled)));
            } else {
                assert!(peer.finish(&id));
            }
        }
        assert!(peer.state().questions.is_empty());
        let id = json!("last");
        let inbox = peer.start(&id).ok().unwrap();
        peer.ask(&id, "elicitation/create", &json!({})).unwrap();
        let question = json!(format!("demo-{}", 2 * MAX_RUNNING + 1));
        peer.deliver(&question, json!({"action": "decline"}));
        assert!(matches!(inbox.try_recv(), Ok(CallSignal::Answer(_))));
        assert!(peer.finish(&id));
    }
}
