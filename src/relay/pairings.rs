//! Every pairing works through the two link traits without knowing about pairs (DESIGN §3): a
//! scripted modern client and a scripted modern upstream, beside the legacy ones.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::call::{
    Answer, Asked, CarriedState, ClientCapabilities, Declared, DownstreamLink, Notice, Principal,
    Question, Round,
};
use crate::clock::SystemClock;
use crate::protocol::{Message, RequestId, Revision};
use crate::session::{CallLink, NewSession, SessionIds, Settings};
use crate::store::events::{Bounds, MemoryEvents};
use crate::telemetry::trace::TraceContext;

const INPUT_REQUIRED: &str = r#"{"resultType":"input_required","requestState":"sealed"}"#;

/// An upstream that plays a part.
#[derive(Debug)]
struct Scripted {
    name: Arc<str>,
    part: Part,
    /// Calls that came.
    calls: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
enum Part {
    /// Of the modern era: answers a first call with a question and its state, and a call that
    /// brings answers with a result. It keeps nothing in between.
    Modern,
    /// Of the legacy era: asks in mid-call and waits for the answer.
    Asking,
    /// Of the legacy era: wants a URL visited before it answers.
    Visited,
}

impl Scripted {
    fn new(part: Part) -> Arc<Self> {
        Arc::new(Self {
            name: "up".into(),
            part,
            calls: AtomicUsize::new(0),
        })
    }

    fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }

    async fn modern(&self, call: &Call) -> Reply {
        let carry = CarriedState {
            upstream: Arc::clone(&self.name),
            state: Some(Bytes::from_static(b"\"theirs\"")),
            digest: [0; 32],
        };
        let round = Round {
            entries: vec![("name".to_owned(), question())],
            carry: Some(carry),
        };
        match call.link.ask(round).await {
            Asked::Answered(answers) => {
                let (key, result) = only(answers);
                Reply::Result(format!(r#"{{"{key}":{}}}"#, String::from_utf8_lossy(&result)).into())
            }
            Asked::Suspended(state) => Reply::Result(state),
            Asked::CannotAsk(missing) => Reply::Error(missing.into()),
        }
    }

    async fn asking(&self, call: &Call) -> Reply {
        let round = Round {
            entries: vec![(String::new(), question())],
            carry: None,
        };
        match call.link.ask(round).await {
            Asked::Answered(answers) => Reply::Result(only(answers).1),
            other => panic!("a legacy upstream cannot be suspended: {other:?}"),
        }
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

impl UpstreamLink for Scripted {
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
                Part::Modern => self.modern(call).await,
                Part::Asking => self.asking(call).await,
                Part::Visited => Self::visited(earlier),
            })
        })
    }

    fn notify(&self, _message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<Declared>, Fault>> {
        Box::pin(std::future::ready(Err(Fault::internal("scripted"))))
    }

    fn declared(&self) -> Option<Arc<Declared>> {
        matches!(self.part, Part::Visited).then(|| {
            Arc::new(Declared {
                revision: Revision::V2025_11_25,
                capabilities: Bytes::from_static(b"{}"),
                server_info: Bytes::from_static(b"{}"),
                instructions: None,
            })
        })
    }

    fn listen(&self, _wanted: bool) {}

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// The one answer of a round, a result.
fn only(answers: Vec<(String, Answer)>) -> (String, Bytes) {
    match answers.into_iter().next() {
        Some((key, Answer::Result(result))) => (key, result),
        other => panic!("{other:?}"),
    }
}

/// A client of the modern era: cannot be asked while a call runs. What carries state is suspended,
/// what does not is parked until a retry brings the answer.
#[derive(Debug)]
struct ModernClient {
    capabilities: ClientCapabilities,
    parked: Mutex<Option<tokio::sync::oneshot::Sender<Answer>>>,
    told: tokio::sync::Notify,
}

impl ModernClient {
    fn new() -> Arc<Self> {
        Self::declaring(r#"{"elicitation":{}}"#)
    }

    fn declaring(capabilities: &'static str) -> Arc<Self> {
        let declared = Bytes::from_static(capabilities.as_bytes());
        Arc::new(Self {
            capabilities: ClientCapabilities::read(declared),
            parked: Mutex::default(),
            told: tokio::sync::Notify::new(),
        })
    }

    /// The client has seen `input_required` and comes back with an answer.
    async fn retry(&self, answer: &'static str) {
        self.told.notified().await;
        let parked = self.parked.lock().unwrap().take().unwrap();
        parked
            .send(Answer::Result(Bytes::from_static(answer.as_bytes())))
            .unwrap();
    }
}

impl DownstreamLink for ModernClient {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    fn notify(&self, _notice: Notice) {}

    fn ask(&self, round: Round) -> BoxFuture<'_, Asked> {
        Box::pin(async move {
            if round.carry.is_some() {
                return Asked::Suspended(Bytes::from_static(INPUT_REQUIRED.as_bytes()));
            }
            let (sender, receiver) = tokio::sync::oneshot::channel();
            *self.parked.lock().unwrap() = Some(sender);
            self.told.notify_one();
            let answer = receiver.await.unwrap();
            let (key, _) = round.entries.into_iter().next().unwrap();
            Asked::Answered(vec![(key, answer)])
        })
    }
}

fn question() -> Question {
    Question {
        method: "elicitation/create".to_owned(),
        params: Some(Bytes::from_static(br#"{"message":"name?"}"#)),
    }
}

struct Fixture {
    relay: Arc<Relay>,
    session: Arc<Session>,
}

fn fixture(upstream: Arc<dyn UpstreamLink>) -> Fixture {
    let text = "[auth]\nmode = \"none\"\n[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\n";
    let config = crate::config::parse(text, "test.toml", &|_| None).unwrap();
    let config = Arc::new(config);
    let tasks = Tasks::new();
    let sealer = Arc::new(Sealer::new(&[]).unwrap());
    let bounds = Bounds {
        max_age: Duration::from_mins(5),
        per_session: 1 << 20,
        total: 1 << 20,
    };
    let sessions = Sessions::new(
        SessionIds::new(Arc::clone(&sealer), [0; 8]),
        Settings {
            idle: Duration::from_mins(1),
            absolute: Duration::from_mins(10),
            max_per_principal: 9,
            max_total: 9,
            hold_question: Duration::from_secs(10),
        },
        Arc::new(MemoryEvents::new(bounds)),
        Arc::new(SystemClock),
        tasks.clone(),
    );
    let endpoint = crate::endpoint::endpoints(&config)
        .into_iter()
        .find(|endpoint| &*endpoint.name == "up")
        .unwrap();
    let session = sessions
        .open(NewSession {
            delivery: crate::session::Delivery::Streams,
            principal: Arc::new(Principal::anonymous()),
            endpoint: Arc::new(endpoint),
            revision: Revision::V2025_11_25,
            capabilities: ClientCapabilities::read(Bytes::from_static(br#"{"elicitation":{}}"#)),
            client_info: Bytes::from_static(b"{}"),
        })
        .unwrap();
    session.set_initialized();
    session.link_or(&"up".into(), || upstream).unwrap();
    let host = crate::upstream::stdio::Host::current();
    let relay = Relay::new(Parts {
        upstreams: Arc::new(Upstreams::new(&config, host, tasks.clone()).unwrap()),
        policy: Arc::new(Policy::new(&config.auth)),
        audit: audit::Sink::start(Arc::new(SystemClock), &tasks),
        settings: config,
        sealer,
        sessions,
        tasks,
    });
    Fixture { relay, session }
}

impl Fixture {
    fn call(&self, link: Arc<dyn DownstreamLink>, cancel: CancellationToken) -> Call {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;
        Call {
            principal: Arc::clone(&self.session.principal),
            endpoint: Arc::clone(&self.session.endpoint),
            revision: self.session.revision,
            message: Message::parse(text.into(), 128).unwrap(),
            link,
            trace: TraceContext::default(),
            cancel,
            resumption: None,
            param_headers: None,
        }
    }

    fn legacy_link(&self) -> Arc<CallLink> {
        let id = RequestId::parse("1").unwrap();
        self.session.begin_call(id, Arc::default(), 9, 9).unwrap()
    }

    async fn handle(&self, call: &Call) -> String {
        match self.relay.handle(call, &self.session).await.unwrap() {
            Reply::Result(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// The legacy client answers the question that it finds on the call's stream.
    async fn answer(&self, link: &CallLink, answer: &str) {
        let stream = link.stream();
        let mut reader = stream.attach();
        let asked = loop {
            let next = std::future::poll_fn(|cx| reader.poll_next(cx)).await;
            let crate::session::Next::Events(events) = next else {
                panic!("{next:?}")
            };
            if let Some(asked) = events.into_iter().find(|event| !event.payload.is_empty()) {
                break Message::parse(asked.payload, 128).unwrap();
            }
        };
        let id = asked.id().unwrap();
        let response = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{answer}}}"#);
        assert!(
            self.session
                .questions()
                .answer(&Message::parse(response.into(), 128).unwrap())
        );
    }
}

#[tokio::test]
async fn legacy_client_and_modern_upstream_the_round_is_asked_and_answered_in_the_call() {
    let f = fixture(Scripted::new(Part::Modern));
    let link = f.legacy_link();
    let call = f.call(Arc::clone(&link) as _, link.cancelled().clone());
    let (result, ()) = tokio::join!(f.handle(&call), f.answer(&link, r#""alice""#));
    assert_eq!(result, r#"{"name":"alice"}"#);
}

#[tokio::test]
async fn legacy_client_and_legacy_upstream_the_question_is_a_request_of_its_own() {
    let f = fixture(Scripted::new(Part::Asking));
    let link = f.legacy_link();
    let call = f.call(Arc::clone(&link) as _, link.cancelled().clone());
    let (result, ()) = tokio::join!(f.handle(&call), f.answer(&link, r#"{"action":"accept"}"#));
    assert_eq!(result, r#"{"action":"accept"}"#);
}

#[tokio::test]
async fn modern_client_and_modern_upstream_nothing_is_kept_between_rounds() {
    let f = fixture(Scripted::new(Part::Modern));
    let call = f.call(ModernClient::new(), CancellationToken::new());
    assert_eq!(f.handle(&call).await, INPUT_REQUIRED);
}

#[tokio::test]
async fn modern_client_and_legacy_upstream_the_call_waits_for_the_retry() {
    let f = fixture(Scripted::new(Part::Asking));
    let client = ModernClient::new();
    let call = f.call(Arc::clone(&client) as _, CancellationToken::new());
    let (result, ()) = tokio::join!(f.handle(&call), client.retry(r#"{"action":"decline"}"#));
    assert_eq!(result, r#"{"action":"decline"}"#);
}

async fn visited(capabilities: &'static str, answer: Option<&'static str>) -> (usize, Reply) {
    let upstream = Scripted::new(Part::Visited);
    let f = fixture(Arc::clone(&upstream) as _);
    let client = ModernClient::declaring(capabilities);
    let call = Call {
        revision: Revision::V2026_07_28,
        ..f.call(Arc::clone(&client) as _, CancellationToken::new())
    };
    f.session.completions().add("up", "e1");
    let handled = f.relay.handle(&call, &f.session);
    let reply = match answer {
        None => handled.await,
        Some(answer) => tokio::join!(handled, client.retry(answer)).0,
    };
    (upstream.calls(), reply.unwrap())
}

// SPEC C-83, E-03; BRIDGING §3.6.
#[tokio::test]
async fn a_modern_client_is_asked_to_visit_and_the_call_runs_again() {
    let url = r#"{"elicitation":{"url":{}}}"#;
    let (calls, reply) = visited(url, Some(r#"{"action":"accept"}"#)).await;
    assert_eq!((calls, reply.error()), (2, None));
    let (calls, reply) = visited(url, Some(r#"{"action":"decline"}"#)).await;
    assert_eq!(calls, 1);
    assert!(reply.result().unwrap().contains(r#""isError":true"#));
    let (calls, reply) = visited(r#"{"elicitation":{}}"#, None).await;
    assert_eq!((calls, reply.error_code()), (1, Some(-32021)));
}
