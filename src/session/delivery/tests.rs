use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::*;
use crate::call::{InputOutcome, InputRequest, InputResponse};
use crate::protocol::{Message, RequestId};
use crate::session::registry::tests::fixture;
use crate::session::{ReaderStep, ResponseStream, StreamReader, UnattributedQuestion};

fn session() -> Arc<Session> {
    let session = fixture(9, 9).open("alice").unwrap();
    session.set_initialized();
    session
}

fn up() -> Arc<str> {
    "up".into()
}

fn of_up() -> NoticeSource {
    NoticeSource::of(&up())
}

/// A call that went to `upstream`.
fn call_at(session: &Arc<Session>, id: &str, upstream: &str) -> Arc<LegacyClientLink> {
    let id = RequestId::parse(id).unwrap();
    let call = session.begin_call(id, Arc::<ResponseStream>::default());
    let call = call.unwrap();
    call.routed(&upstream.into());
    call
}

/// The messages that are there now.
fn read(reader: &mut StreamReader) -> Vec<Value> {
    let mut messages = Vec::new();
    while let Some(ReaderStep::Events(events)) = poll_fn(|cx| reader.poll_next(cx)).now_or_never() {
        let texts = events.iter().filter(|event| !event.payload.is_empty());
        messages
            .extend(texts.map(|event| serde_json::from_slice::<Value>(&event.payload).unwrap()));
    }
    messages
}

fn methods(messages: &[Value]) -> Vec<&str> {
    let methods = messages.iter().map(|message| &message["method"]);
    methods.map(|method| method.as_str().unwrap()).collect()
}

/// The messages on the stream of a call; none without a stream.
fn on(call: &LegacyClientLink) -> Vec<Value> {
    call.opened()
        .map_or_else(Vec::new, |stream| read(&mut stream.attach()))
}

fn log() -> Notice {
    Notice {
        kind: NoticeKind::Log,
        bytes: r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#.into(),
    }
}

async fn pass(ms: u64) {
    // In steps, so that tasks run between the timers.
    for _ in 0..ms.div_ceil(100) {
        tokio::time::advance(Duration::from_millis(100)).await;
        tokio::task::yield_now().await;
    }
}

// Spec: SPEC T-21, T-22.
#[tokio::test(start_paused = true)]
async fn open_get_stream_goes_before_running_calls() {
    let session = session();
    let mut get = session.standalone().attach();
    let call = call_at(&session, "1", "up");
    session.tell(log(), of_up());
    assert_eq!(methods(&read(&mut get)), ["notifications/message"]);
    assert!(call.opened().is_none());
    drop(get);
    session.tell(log(), of_up());
    assert_eq!(methods(&on(&call)), ["notifications/message"]);
}

#[tokio::test(start_paused = true)]
async fn newest_read_call_at_the_upstream_takes_notices() {
    let session = session();
    let older = call_at(&session, "1", "up");
    let newer = call_at(&session, "2", "up");
    let unread = call_at(&session, "3", "up");
    let elsewhere = call_at(&session, "4", "other");
    unread.abandon();
    session.tell(Notice::list_changed("tools"), of_up());
    assert_eq!(on(&newer).len(), 1);
    for call in [older, unread, elsewhere] {
        assert!(call.opened().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn notice_of_a_calls_stream_stays_there() {
    let session = session();
    let mut get = session.standalone().attach();
    let call = call_at(&session, "1", "up");
    let _newer = call_at(&session, "2", "up");
    let source = NoticeSource {
        call: call.number(),
        ..of_up()
    };
    session.tell(Notice::list_changed("tools"), source);
    assert_eq!(on(&call).len(), 1);
    assert!(read(&mut get).is_empty());
}

#[tokio::test(start_paused = true)]
async fn change_notices_wait_for_the_next_call() {
    let session = session();
    let before = COUNTERS.notices_unread.get();
    let followed = NoticeSource {
        is_subscribed: true,
        ..of_up()
    };
    for _ in 0..2 {
        session.tell(Notice::list_changed("tools"), of_up());
        session.tell(Notice::resource_updated("a:1"), followed.clone());
        session.tell(Notice::resource_updated("a:2"), of_up());
        session.tell(log(), of_up());
        pass(1000).await;
    }
    assert!(COUNTERS.notices_unread.get() >= before + 4, "counted");
    let held = lock(&session.undelivered.held).len();
    assert_eq!(held, 2, "the last of each kind");
    let call = call_at(&session, "1", "other");
    let expected = [
        "notifications/tools/list_changed",
        "notifications/resources/updated",
    ];
    assert_eq!(methods(&on(&call)), expected);
    assert!(call_at(&session, "2", "up").opened().is_none(), "once");
}

#[tokio::test(start_paused = true)]
async fn change_notices_wait_for_a_get_stream_too() {
    let session = session();
    session.tell(Notice::list_changed("tools"), of_up());
    let mut get = session.standalone().attach();
    session.send_held_on_get();
    assert_eq!(read(&mut get).len(), 1);
    assert!(call_at(&session, "1", "up").opened().is_none());
}

// Spec: SPEC M-75.
#[tokio::test(start_paused = true)]
async fn burst_of_change_notices_is_coalesced_per_session() {
    let session = session();
    let mut get = session.standalone().attach();
    let mut heard = 0;
    for _ in 0..200 {
        session.tell(Notice::list_changed("tools"), of_up());
        session.tell(log(), of_up());
        tokio::time::advance(Duration::from_micros(2500)).await;
        tokio::task::yield_now().await;
        heard += read(&mut get).len();
    }
    assert!((202..=204).contains(&heard), "{heard}");
    pass(400).await;
    assert_eq!(read(&mut get).len(), 1, "the last one");
    pass(400).await;
    assert!(read(&mut get).is_empty());
}

fn ask(session: &Arc<Session>) -> BoxFuture<'static, InputOutcome> {
    let session = Arc::clone(session);
    Box::pin(async move {
        let question = InputRequest {
            method: "elicitation/create".to_owned(),
            params: None,
        };
        UnattributedQuestion {
            session: &session,
            upstream: "up",
            request: &question,
        }
        .ask()
        .await
    })
}

fn answer(session: &Session, question: &Value) {
    let text = json!({"jsonrpc": "2.0", "id": question["id"], "result": {}}).to_string();
    let response = Message::parse(text.into(), 128).unwrap();
    assert!(session.questions().answer(&response), "{question}");
}

fn is_answered(asked: &InputOutcome) -> bool {
    matches!(asked, InputOutcome::Answered(answers) if matches!(answers[..], [(_, InputResponse::Result(_))]))
}

// Spec: SPEC T-21.
#[tokio::test(start_paused = true)]
async fn question_leaves_a_get_stream_that_brings_no_answer() {
    let session = session();
    let mut get = session.standalone().attach();
    let call = call_at(&session, "1", "up");
    let mut asking = pin!(ask(&session));
    assert!((&mut asking).now_or_never().is_none());
    let asked = read(&mut get);
    assert_eq!(methods(&asked), ["elicitation/create"]);
    assert!(call.opened().is_none());
    let moved = tokio::time::timeout(Duration::from_secs(6), &mut asking);
    assert!(moved.await.is_err());
    let after = read(&mut get);
    assert_eq!(methods(&after), ["ping", "notifications/cancelled"]);
    assert_eq!(after[1]["params"]["requestId"], asked[0]["id"]);
    let again = on(&call);
    assert_eq!(methods(&again), ["elicitation/create"]);
    assert_ne!(again[0]["id"], asked[0]["id"]);
    answer(&session, &again[0]);
    assert!(is_answered(&asking.await));
    assert!(read(&mut get).is_empty(), "withdrawn once");
}

#[tokio::test(start_paused = true)]
async fn withdrawal_of_a_question_is_kept_behind_many_unread_notices() {
    let session = session();
    let mut get = session.standalone().attach();
    let mut asking = Box::pin(ask(&session));
    assert!((&mut asking).now_or_never().is_none());
    for _ in 0..100 {
        session.standalone().notify(log());
    }
    drop(asking);
    let messages = read(&mut get);
    assert!(messages.len() < 100, "notices are dropped");
    assert_eq!(methods(&messages).last(), Some(&"notifications/cancelled"));
}

#[tokio::test(start_paused = true)]
async fn question_stays_on_a_get_stream_that_shows_life() {
    for is_reopened in [false, true] {
        let session = session();
        let mut get = session.standalone().attach();
        let call = call_at(&session, "1", "up");
        let mut asking = pin!(ask(&session));
        let wait = |ms| Duration::from_millis(ms);
        assert!(tokio::time::timeout(wait(3000), &mut asking).await.is_err());
        let asked = read(&mut get);
        assert_eq!(methods(&asked), ["elicitation/create", "ping"]);
        if is_reopened {
            get = session.standalone().attach();
        } else {
            answer(&session, &asked[1]);
        }
        assert!(
            tokio::time::timeout(wait(60_000), &mut asking)
                .await
                .is_err()
        );
        assert!(call.opened().is_none());
        assert!(read(&mut get).is_empty());
        answer(&session, &asked[0]);
        assert!(is_answered(&asking.await));
    }
}

#[tokio::test(start_paused = true)]
async fn late_answer_to_a_moved_question_counts() {
    let session = session();
    let mut get = session.standalone().attach();
    let call = call_at(&session, "1", "up");
    let mut asking = pin!(ask(&session));
    let moved = tokio::time::timeout(Duration::from_secs(6), &mut asking);
    assert!(moved.await.is_err());
    answer(&session, &read(&mut get)[0]);
    assert!(is_answered(&asking.await));
    let withdrawn = methods(&on(&call)).contains(&"notifications/cancelled");
    assert!(withdrawn, "the other one is withdrawn");
}

#[tokio::test(start_paused = true)]
async fn question_outlives_the_call_that_carried_it() {
    let session = session();
    let older = call_at(&session, "1", "up");
    let newer = call_at(&session, "2", "up");
    let mut asking = pin!(ask(&session));
    assert!((&mut asking).now_or_never().is_none());
    assert_eq!(on(&newer).len(), 1);
    newer.end();
    newer.stream().finish(None);
    let moved = tokio::time::timeout(Duration::from_secs(6), &mut asking);
    assert!(moved.await.is_err());
    let again = on(&older);
    assert_eq!(methods(&again), ["elicitation/create"]);
    answer(&session, &again[0]);
    assert!(is_answered(&asking.await));
}

#[tokio::test(start_paused = true)]
async fn held_question_sees_a_call_that_begins_later() {
    let session = session();
    let mut asking = pin!(ask(&session));
    let held = tokio::time::timeout(Duration::from_secs(5), &mut asking);
    assert!(held.await.is_err());
    let call = call_at(&session, "1", "up");
    assert!((&mut asking).now_or_never().is_none());
    let asked = on(&call);
    assert_eq!(methods(&asked), ["elicitation/create"]);
    answer(&session, &asked[0]);
    assert!(is_answered(&asking.await));
    let refused = tokio::time::timeout(Duration::from_secs(11), ask(&self::session()));
    assert!(matches!(refused.await, Ok(InputOutcome::CannotAsk(_))));
}
