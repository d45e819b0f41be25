//! The scripted peers: upstreams of either era, and a modern client.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::call::samples::declared;
use crate::call::{
    Call, CarriedState, ClientCapabilities, DownstreamLink, InputOutcome, InputRequest,
    InputRequests, InputResponse, Reply, ServerDeclaration, UpstreamLink,
};
use crate::fault::Fault;
use crate::protocol::{Message, Revision};

/// Reply to a client that cannot be asked during a call.
pub(super) const INPUT_REQUIRED: &str =
    r#"{"resultType":"input_required","requestState":"sealed"}"#;

/// Capabilities of an upstream that runs tasks.
const WITH_TASKS: &str = r#"{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

/// An upstream that plays a part.
#[derive(Debug)]
pub(super) struct ScriptedUpstream {
    name: Arc<str>,
    part: ScriptStep,
    /// Calls that came.
    calls: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ScriptStep {
    /// Of the modern era: answers a first call with a question and its state, and a call that
    /// brings answers with a result. It keeps nothing in between.
    Modern,
    /// Of the legacy era: asks in mid-call and waits for the answer.
    Asking,
    /// Of the legacy era: wants a URL visited before it answers.
    Visited,
    /// Of the legacy era: answers with an error that not every client can read.
    Odd,
    /// Of the modern era and with tasks: a call of it fails the test.
    Faulty,
}

impl ScriptedUpstream {
    pub(super) fn new(part: ScriptStep) -> Arc<Self> {
        Arc::new(Self {
            name: "up".into(),
            part,
            calls: AtomicUsize::new(0),
        })
    }

    pub(super) fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }

    async fn modern(&self, call: &Call) -> Reply {
        let carry = CarriedState {
            upstream: Arc::clone(&self.name),
            state: Some(Bytes::from_static(b"\"theirs\"")),
            digest: [0; 32],
        };
        let round = InputRequests {
            entries: vec![("name".to_owned(), question())],
            limit: None,
            carry: Some(carry),
        };
        match call.link.ask(round).await {
            InputOutcome::Answered(answers) => {
                let (key, result) = only(answers);
                Reply::Result(format!(r#"{{"{key}":{}}}"#, String::from_utf8_lossy(&result)).into())
            }
            InputOutcome::Suspended(state) => Reply::Result(state),
            InputOutcome::CannotAsk(missing) => Reply::Error(missing.into()),
            InputOutcome::Unanswered => panic!("nobody answered"),
        }
    }

    async fn asking(&self, call: &Call) -> Reply {
        let round = InputRequests {
            entries: vec![(String::new(), question())],
            limit: None,
            carry: None,
        };
        match call.link.ask(round).await {
            InputOutcome::Answered(answers) => Reply::Result(only(answers).1),
            other => panic!("a legacy upstream cannot be suspended: {other:?}"),
        }
    }

    fn odd() -> Reply {
        let reply = r#"{"jsonrpc":"2.0","id":1,"error":{"code":"E1","data":{"elicitations":[]}}}"#;
        Reply::Relayed(Message::parse(Bytes::from_static(reply.as_bytes()), 128).unwrap())
    }

    fn visited(earlier: usize) -> Reply {
        let reply = match earlier {
            0 => {
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","url":"https://e.example","elicitationId":"e1","message":"m"}]}}}"#
            }
            _ => r#"{"jsonrpc":"2.0","id":2,"result":{"content":[]}}"#,
        };
        Reply::Relayed(Message::parse(Bytes::from_static(reply.as_bytes()), 128).unwrap())
    }
}

impl UpstreamLink for ScriptedUpstream {
    fn upstream(&self) -> &Arc<str> {
        &self.name
    }

    fn call<'a>(
        &'a self,
        _request: &'a Message,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Reply, Fault>> {
        let earlier = self.calls.fetch_add(1, Relaxed);
        Box::pin(async move {
            Ok(match self.part {
                ScriptStep::Modern => self.modern(call).await,
                ScriptStep::Asking => self.asking(call).await,
                ScriptStep::Visited => Self::visited(earlier),
                ScriptStep::Odd => Self::odd(),
                ScriptStep::Faulty => panic!("a fault of ours, for a test"),
            })
        })
    }

    fn notify(&self, _message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<ServerDeclaration>, Fault>> {
        let declared = self.declared();
        let opened = declared.ok_or_else(|| Fault::internal("scripted"));
        Box::pin(std::future::ready(opened))
    }

    fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        let (revision, capabilities) = match self.part {
            ScriptStep::Modern | ScriptStep::Asking => return None,
            ScriptStep::Visited | ScriptStep::Odd => (Revision::V2025_11_25, "{}"),
            ScriptStep::Faulty => (Revision::V2026_07_28, WITH_TASKS),
        };
        Some(declared(revision, capabilities))
    }

    fn listen(&self, _wanted: bool) {}

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// The one answer of a round, a result.
fn only(answers: Vec<(String, InputResponse)>) -> (String, Bytes) {
    match answers.into_iter().next() {
        Some((key, InputResponse::Result(result))) => (key, result),
        other => panic!("{other:?}"),
    }
}

/// A client of the modern era: cannot be asked while a call runs. What carries state is suspended,
/// what does not is parked until a retry brings the answer.
#[derive(Debug)]
pub(super) struct ModernClient {
    capabilities: ClientCapabilities,
    parked: Mutex<Option<tokio::sync::oneshot::Sender<InputResponse>>>,
    told: tokio::sync::Notify,
}

impl ModernClient {
    pub(super) fn new() -> Arc<Self> {
        Self::declaring(r#"{"elicitation":{}}"#)
    }

    pub(super) fn declaring(capabilities: &'static str) -> Arc<Self> {
        let declared = Bytes::from_static(capabilities.as_bytes());
        Arc::new(Self {
            capabilities: ClientCapabilities::read(declared),
            parked: Mutex::default(),
            told: tokio::sync::Notify::new(),
        })
    }

    /// The client has seen `input_required` and comes back with an answer.
    pub(super) async fn retry(&self, answer: &'static str) {
        self.told.notified().await;
        let parked = self.parked.lock().unwrap().take().unwrap();
        parked
            .send(InputResponse::Result(Bytes::from_static(answer.as_bytes())))
            .unwrap();
    }
}

impl DownstreamLink for ModernClient {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        Box::pin(async move {
            if round.carry.is_some() {
                return InputOutcome::Suspended(Bytes::from_static(INPUT_REQUIRED.as_bytes()));
            }
            let (sender, receiver) = tokio::sync::oneshot::channel();
            *self.parked.lock().unwrap() = Some(sender);
            self.told.notify_one();
            let answer = receiver.await.unwrap();
            let (key, _) = round.entries.into_iter().next().unwrap();
            InputOutcome::Answered(vec![(key, answer)])
        })
    }
}

fn question() -> InputRequest {
    InputRequest {
        method: "elicitation/create".to_owned(),
        params: Some(Bytes::from_static(br#"{"message":"name?"}"#)),
    }
}
