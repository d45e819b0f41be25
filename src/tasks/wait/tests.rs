use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use rstest::rstest;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::call::{
    Call, ClientCapabilities, DownstreamLink, InputOutcome, InputRequests, InputResponse,
    Principal, ServerDeclaration, UpstreamLink,
};
use crate::endpoint::Endpoint;
use crate::lock::lock;
use crate::outbound::InternalCall;
use crate::protocol::Revision;
use crate::runtime::lifecycle::TaskSpawner;
use crate::tasks::cancel_on_drop::CancelOnDrop;
use crate::telemetry::trace::TraceContext;

const LOST: Look = Err(FaultKind::UpstreamLost);
const WORKING: Look = Ok(r#"{"taskId":"t","status":"working"}"#);
const ASKING: Look = Ok(
    r#"{"taskId":"t","status":"input_required","inputRequests":{"q":{"method":"elicitation/create"}}}"#,
);
const REFUSED: Look = Ok(r#"{"code":-32602,"message":"no such field"}"#);
const ACKNOWLEDGED: Look = Ok("{}");
const DONE: Look = Ok(r#"{"taskId":"t","status":"completed","result":{"content":[]}}"#);

/// Scripted reply to `tasks/get`: JSON text of a result or an error, or the kind of fault.
type Look = Result<&'static str, FaultKind>;

/// An upstream that answers each request with the next of these.
#[derive(Debug)]
struct Script(Arc<str>, Mutex<VecDeque<Look>>);

impl UpstreamLink for Script {
    fn upstream(&self) -> &Arc<str> {
        &self.0
    }

    fn call<'a>(&'a self, _: &'a Message, _: &'a Call) -> BoxFuture<'a, Result<Reply, Fault>> {
        let next = lock(&self.1).pop_front().expect("one look more");
        let reply = next
            .map(|result| {
                let is_error = result.starts_with(r#"{"code""#);
                let name = if is_error { "error" } else { "result" };
                let text = format!(r#"{{"jsonrpc":"2.0","id":0,"{name}":{result}}}"#);
                Reply::Relayed(Message::parse(text.into(), 128).unwrap())
            })
            .map_err(|kind| Fault::upstream(kind, "scripted"));
        Box::pin(std::future::ready(reply))
    }

    fn notify(&self, _message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<ServerDeclaration>, Fault>> {
        Box::pin(std::future::ready(Err(Fault::internal("scripted"))))
    }

    fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        None
    }

    fn listen(&self, _wanted: bool) {}

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A client that agrees to everything.
#[derive(Debug)]
struct Willing(ClientCapabilities);

impl DownstreamLink for Willing {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.0
    }

    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        let agreed = InputResponse::Result(Bytes::from_static(br#"{"action":"accept"}"#));
        let entries = round.entries.into_iter();
        let answers = entries.map(|(key, _)| (key, agreed.clone())).collect();
        Box::pin(std::future::ready(InputOutcome::Answered(answers)))
    }
}

/// A client that leaves its first round unanswered, and agrees to every other one.
#[derive(Debug)]
struct Hesitant {
    agrees: Willing,
    rounds: Arc<AtomicUsize>,
}

impl DownstreamLink for Hesitant {
    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        if self.rounds.fetch_add(1, Ordering::Relaxed) == 0 {
            return Box::pin(std::future::pending());
        }
        self.agrees.ask(round)
    }

    fn behind(&self) -> Option<&dyn DownstreamLink> {
        Some(&self.agrees)
    }
}

/// A tool call of a client that declares nothing.
pub(in crate::tasks) fn call() -> Call {
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;
    Call {
        principal: Arc::new(Principal::anonymous()),
        endpoint: Arc::new(Endpoint::unreachable(&"up".into())),
        revision: Revision::V2026_07_28,
        message: Message::parse(text.into(), 128).unwrap(),
        link: InternalCall::declaring(ClientCapabilities::none()),
        trace: TraceContext::default(),
        cancel: CancellationToken::new(),
        resumption: None,
        param_headers: None,
    }
}

// SPEC K-12.
#[rstest]
#[case::now_and_then(&[LOST, LOST, LOST, WORKING, LOST, LOST, LOST, DONE], None)]
#[case::for_good(&[LOST, LOST, LOST, LOST], Some(FaultKind::UpstreamLost))]
#[case::as_it_says(&[Err(FaultKind::UpstreamInvalid)], Some(FaultKind::UpstreamInvalid))]
#[tokio::test(start_paused = true)]
async fn a_task_that_is_out_of_reach_is_given_up_when_it_stays_so(
    #[case] looks: &[Look],
    #[case] given_up: Option<FaultKind>,
) {
    let script = Mutex::new(looks.iter().copied().collect());
    let script = Arc::new(Script("up".into(), script));
    let link: Arc<dyn UpstreamLink> = Arc::clone(&script) as _;
    let (call, tasks) = (call(), TaskSpawner::new());
    let state = UpstreamTask::read(WORKING.unwrap()).unwrap();
    let mut pace = PollPace::new(&call, &state);
    let watched = CancelOnDrop::new(&link, call, "t", TaskTracker::new().token(), &tasks);
    let wait = TaskWait {
        task: watched.remote(),
        upstream: link.upstream(),
        ask_timeout: Duration::from_secs(1),
    };
    let ended = wait.for_end(TaskDialect::Extension, &mut pace).await;
    match (ended, given_up) {
        (Ok(WaitEnd::Reply(reply)), None) => assert_eq!(reply.error(), None),
        (Err(fault), Some(kind)) => assert_eq!(fault.kind, kind),
        _ => panic!("it ended in another way"),
    }
    assert!(lock(&script.1).is_empty(), "every look was taken");
    watched.over();
}

// The client is asked only once (SPEC K-14), so a further wait would be useless while the task needs the answers.
#[rstest]
#[case::still_asked(&[ASKING, REFUSED, ASKING], true)]
#[case::out_of_reach(&[ASKING, REFUSED, LOST], true)]
#[case::gone_on(&[ASKING, REFUSED, WORKING, DONE], false)]
#[tokio::test(start_paused = true)]
async fn answers_that_the_upstream_refuses_end_the_wait_unless_the_task_goes_on(
    #[case] looks: &[Look],
    #[case] ends: bool,
) {
    let script = Mutex::new(looks.iter().copied().collect());
    let link: Arc<dyn UpstreamLink> = Arc::new(Script("up".into(), script));
    let offered = ClientCapabilities::read(Bytes::from_static(br#"{"elicitation":{}}"#));
    let call = Call {
        link: Arc::new(Willing(offered)),
        ..call()
    };
    let state = UpstreamTask::read(WORKING.unwrap()).unwrap();
    let mut pace = PollPace::new(&call, &state);
    let watched = CancelOnDrop::new(
        &link,
        call,
        "t",
        TaskTracker::new().token(),
        &TaskSpawner::new(),
    );
    let wait = TaskWait {
        task: watched.remote(),
        upstream: link.upstream(),
        ask_timeout: Duration::from_secs(1),
    };
    let ended = wait.for_end(TaskDialect::Extension, &mut pace).await;
    match ended {
        Ok(WaitEnd::Unanswered(why)) => assert!(ends && why.contains("no such field"), "{why}"),
        Ok(WaitEnd::Reply(reply)) => assert!(!ends && reply.error().is_none()),
        _ => panic!("it ended in another way"),
    }
    watched.over();
}

// SPEC K-14: an upstream may end its own wait for an answer. A question that it shows again later is put again.
#[rstest]
#[case::it_ends(&[ASKING, LOST, ASKING, DONE, DONE], 1)]
#[case::it_asks_again(&[ASKING, WORKING, ASKING, ACKNOWLEDGED, DONE], 2)]
#[tokio::test(start_paused = true)]
async fn question_is_withdrawn_when_the_task_goes_on_without_an_answer(
    #[case] looks: &[Look],
    #[case] rounds: usize,
) {
    let script = Arc::new(Script(
        "up".into(),
        Mutex::new(looks.iter().copied().collect()),
    ));
    let link: Arc<dyn UpstreamLink> = Arc::clone(&script) as _;
    let offered = ClientCapabilities::read(Bytes::from_static(br#"{"elicitation":{}}"#));
    let asked = Arc::new(AtomicUsize::new(0));
    let client = Hesitant {
        agrees: Willing(offered),
        rounds: Arc::clone(&asked),
    };
    let call = Call {
        link: Arc::new(client),
        ..call()
    };
    let state = UpstreamTask::read(WORKING.unwrap()).unwrap();
    let mut pace = PollPace::new(&call, &state);
    let (last_word, tasks) = (TaskTracker::new().token(), TaskSpawner::new());
    let watched = CancelOnDrop::new(&link, call, "t", last_word, &tasks);
    let wait = TaskWait {
        task: watched.remote(),
        upstream: link.upstream(),
        ask_timeout: Duration::from_mins(10),
    };
    let ending = wait.for_end(TaskDialect::Extension, &mut pace);
    let ended = tokio::time::timeout(Duration::from_mins(1), ending).await;
    let ended = ended.expect("the result waits for no answer");
    assert!(matches!(ended, Ok(WaitEnd::Reply(reply)) if reply.error().is_none()));
    assert_eq!(asked.load(Ordering::Relaxed), rounds);
    assert!(lock(&script.1).is_empty(), "every look was taken");
    watched.over();
}

// SPEC K-03, K-15.
#[test]
fn a_result_loses_the_mark_of_its_task_and_nothing_else() {
    let of = |meta: &str| {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[]{meta}}}}}"#);
        let reply = Reply::Relayed(Message::parse(text.into(), 128).unwrap());
        unmarked(reply).result().unwrap().to_owned()
    };
    let mark = format!(r#""{}":{{"taskId":"t"}}"#, meta::RELATED_TASK);
    assert_eq!(of(&format!(r#","_meta":{{{mark}}}"#)), r#"{"content":[]}"#);
    assert_eq!(
        of(&format!(r#","_meta":{{{mark},"a":1}}"#)),
        r#"{"content":[],"_meta":{"a":1}}"#
    );
    assert_eq!(of(""), r#"{"content":[]}"#);
}
