//! Every pairing works through the two link traits without knowing about pairs (DESIGN §3): a
//! scripted modern client and a scripted modern upstream, beside the legacy ones.

use std::sync::Mutex;

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

/// An upstream of the modern era: answers a first call with a question and its state, and a call
/// that brings answers with a result. It keeps nothing in between.
#[derive(Debug)]
struct ModernUpstream(Arc<str>);

impl UpstreamLink for ModernUpstream {
    fn upstream(&self) -> &Arc<str> {
        &self.0
    }

    fn call<'a>(
        &'a self,
        _request: &'a Message,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Reply, Fault>> {
        Box::pin(async move {
            let carry = CarriedState {
                upstream: Arc::clone(&self.0),
                state: Some(Bytes::from_static(b"\"theirs\"")),
                digest: [0; 32],
            };
            let entries = vec![("name".to_owned(), question())];
            let asked = call
                .link
                .ask(Round {
                    entries,
                    carry: Some(carry),
                })
                .await;
            Ok(match asked {
                Asked::Answered(answers) => match answers.into_iter().next() {
                    Some((key, Answer::Result(result))) => Reply::Result(
                        format!(r#"{{"{key}":{}}}"#, String::from_utf8_lossy(&result)).into(),
                    ),
                    other => panic!("{other:?}"),
                },
                Asked::Suspended(state) => Reply::Result(state),
                Asked::CannotAsk(missing) => Reply::Error(missing.into()),
            })
        })
    }

    fn notify(&self, _message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<Declared>, Fault>> {
        Box::pin(std::future::ready(Err(Fault::internal(
            "a modern upstream has no handshake",
        ))))
    }

    fn declared(&self) -> Option<Arc<Declared>> {
        None
    }

    fn listen(&self, _wanted: bool) {}

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A legacy upstream that asks in mid-call and waits for the answer.
#[derive(Debug)]
struct AskingUpstream(Arc<str>);

impl UpstreamLink for AskingUpstream {
    fn upstream(&self) -> &Arc<str> {
        &self.0
    }

    fn call<'a>(
        &'a self,
        _request: &'a Message,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Reply, Fault>> {
        Box::pin(async move {
            let entries = vec![(String::new(), question())];
            match call
                .link
                .ask(Round {
                    entries,
                    carry: None,
                })
                .await
            {
                Asked::Answered(answers) => match answers.into_iter().next() {
                    Some((_, Answer::Result(result))) => Ok(Reply::Result(result)),
                    other => panic!("{other:?}"),
                },
                other => panic!("a legacy upstream cannot be suspended: {other:?}"),
            }
        })
    }

    fn notify(&self, _message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<Declared>, Fault>> {
        Box::pin(std::future::ready(Err(Fault::internal("scripted"))))
    }

    fn declared(&self) -> Option<Arc<Declared>> {
        None
    }

    fn listen(&self, _wanted: bool) {}

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
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
    let f = fixture(Arc::new(ModernUpstream("up".into())));
    let link = f.legacy_link();
    let call = f.call(Arc::clone(&link) as _, link.cancelled().clone());
    let (result, ()) = tokio::join!(f.handle(&call), f.answer(&link, r#""alice""#));
    assert_eq!(result, r#"{"name":"alice"}"#);
}

#[tokio::test]
async fn legacy_client_and_legacy_upstream_the_question_is_a_request_of_its_own() {
    let f = fixture(Arc::new(AskingUpstream("up".into())));
    let link = f.legacy_link();
    let call = f.call(Arc::clone(&link) as _, link.cancelled().clone());
    let (result, ()) = tokio::join!(f.handle(&call), f.answer(&link, r#"{"action":"accept"}"#));
    assert_eq!(result, r#"{"action":"accept"}"#);
}

#[tokio::test]
async fn modern_client_and_modern_upstream_nothing_is_kept_between_rounds() {
    let f = fixture(Arc::new(ModernUpstream("up".into())));
    let call = f.call(ModernClient::new(), CancellationToken::new());
    assert_eq!(f.handle(&call).await, INPUT_REQUIRED);
}

#[tokio::test]
async fn modern_client_and_legacy_upstream_the_call_waits_for_the_retry() {
    let f = fixture(Arc::new(AskingUpstream("up".into())));
    let client = ModernClient::new();
    let call = f.call(Arc::clone(&client) as _, CancellationToken::new());
    let (result, ()) = tokio::join!(f.handle(&call), client.retry(r#"{"action":"decline"}"#));
    assert_eq!(result, r#"{"action":"decline"}"#);
}

/// A legacy upstream that wants a URL visited before it answers.
#[derive(Debug)]
struct VisitedUpstream {
    name: Arc<str>,
    calls: std::sync::atomic::AtomicUsize,
}

impl VisitedUpstream {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            name: "up".into(),
            calls: std::sync::atomic::AtomicUsize::new(0),
        })
    }

    fn calls(&self) -> usize {
        self.calls.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl UpstreamLink for VisitedUpstream {
    fn upstream(&self) -> &Arc<str> {
        &self.name
    }

    fn call<'a>(
        &'a self,
        _request: &'a Message,
        _call: &'a Call,
    ) -> BoxFuture<'a, Result<Reply, Fault>> {
        let calls = &self.calls;
        let reply = match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => {
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","url":"https://e.example","elicitationId":"e1","message":"m"}]}}}"#
            }
            _ => r#"{"jsonrpc":"2.0","id":2,"result":{"content":[]}}"#,
        };
        let message = Message::parse(Bytes::from_static(reply.as_bytes()), 128).unwrap();
        Box::pin(std::future::ready(Ok(Reply::Relayed(message))))
    }

    fn notify(&self, _message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<Declared>, Fault>> {
        Box::pin(std::future::ready(Err(Fault::internal("scripted"))))
    }

    fn declared(&self) -> Option<Arc<Declared>> {
        Some(Arc::new(Declared {
            revision: Revision::V2025_11_25,
            capabilities: Bytes::from_static(b"{}"),
            server_info: Bytes::from_static(b"{}"),
            instructions: None,
        }))
    }

    fn listen(&self, _wanted: bool) {}

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

async fn visited(capabilities: &'static str, answer: Option<&'static str>) -> (usize, Reply) {
    let upstream = VisitedUpstream::new();
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
