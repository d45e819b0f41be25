use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, poll};
use serde_json::{Value, json};

use super::*;
use crate::call::{
    ClientCapabilities, DownstreamLink, InputOutcome, InputRequest, InputRequests, InputResponse,
    Notice,
};
use crate::clock::TestClock;
use crate::session::tasks::SessionTasks;

const MINUTE: Duration = Duration::from_mins(1);

fn begin() -> Arc<GatewayTask> {
    GatewayTask::begin(TestClock::at(0), MINUTE)
}

fn result(text: &'static str) -> TaskOutcome {
    let kept = ResultQuota::default()
        .take((text.len(), None), 999, 999)
        .unwrap();
    TaskOutcome::Result(Bytes::from_static(text.as_bytes()), kept)
}

fn round(limit: Option<Duration>) -> InputRequests {
    let question = InputRequest {
        method: "roots/list".to_owned(),
        params: None,
    };
    InputRequests {
        entries: vec![("q".to_owned(), question)],
        limit,
        carry: None,
    }
}

/// Answers everything, or nothing.
#[derive(Debug)]
struct Client {
    answers: bool,
    asked: AtomicUsize,
    capabilities: ClientCapabilities,
}

impl Client {
    fn new(answers: bool) -> Self {
        Self {
            answers,
            asked: AtomicUsize::new(0),
            capabilities: ClientCapabilities::none(),
        }
    }

    /// How often.
    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl DownstreamLink for Client {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    fn notify(&self, _notice: Notice) {}

    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if !self.answers {
            return std::future::pending().boxed();
        }
        let answer = || InputResponse::Result(Bytes::from_static(b"{}"));
        let answers = round.entries.into_iter().map(|(key, _)| (key, answer()));
        std::future::ready(InputOutcome::Answered(answers.collect())).boxed()
    }
}

// SPEC K-02.
#[test]
fn a_task_is_shown_as_2025_11_25_has_it() {
    let clock = TestClock::at(1_764_000_000);
    let task = GatewayTask::begin(clock.clone(), MINUTE);
    clock.advance(Duration::from_millis(1500));
    task.note("half");
    let shown: Value = serde_json::from_str(&task.shown("h")).unwrap();
    let expected = json!({
        "taskId": "h", "status": "working", "statusMessage": "half", "ttl": 60_000,
        "pollInterval": 1000, "createdAt": "2025-11-24T16:00:00.000Z",
        "lastUpdatedAt": "2025-11-24T16:00:01.500Z",
    });
    assert_eq!(shown, expected);
}

// SPEC K-04.
#[test]
fn a_tools_error_is_a_failure_and_what_is_over_stays_so() {
    for (outcome, status) in [
        (result(r#"{"content":[]}"#), "completed"),
        (result(r#"{"isError":true}"#), "failed"),
        (TaskOutcome::Cancelled, "cancelled"),
    ] {
        let task = begin();
        assert!(task.end(outcome));
        assert_eq!(task.status(), status);
        assert!(!task.end(TaskOutcome::Cancelled));
        assert_eq!(task.status(), status);
        assert!(task.stopped().is_cancelled());
    }
    let task = begin();
    let error = br#"{"code":-1,"message":"why"}"#;
    task.end(TaskOutcome::Error(Bytes::from_static(error), None));
    let shown: Value = serde_json::from_str(&task.shown("h")).unwrap();
    assert_eq!(
        (&shown["status"], &shown["statusMessage"]),
        (&json!("failed"), &json!("why"))
    );
}

// SPEC K-04.
#[test]
fn a_tools_error_says_why_in_its_first_text() {
    for (text, why) in [
        (
            r#"{"isError":true,"content":[{"type":"image"},{"type":"text","text":"no disk"}]}"#,
            json!("no disk"),
        ),
        (r#"{"isError":true,"content":[]}"#, Value::Null),
        (
            r#"{"content":[{"type":"text","text":"fine"}]}"#,
            json!("half"),
        ),
    ] {
        let task = begin();
        task.note("half");
        task.end(result(text));
        let shown: Value = serde_json::from_str(&task.shown("h")).unwrap();
        assert_eq!(shown["statusMessage"], why, "{text}");
    }
}

// SPEC K-04.
#[test]
fn a_task_that_is_forgotten_stays_what_it_had_come_to() {
    let task = begin();
    task.end(result("{}"));
    task.forget();
    assert_eq!(task.status(), "completed");
}

#[test]
fn a_long_message_that_is_said_twice_is_no_change() {
    let clock = TestClock::at(1_764_000_000);
    let task = GatewayTask::begin(clock.clone(), MINUTE);
    let long = "é".repeat(LONGEST_MESSAGE + 1);
    task.note(&long);
    let shown = task.shown("h");
    clock.advance(Duration::from_secs(1));
    task.note(&long);
    assert_eq!(task.shown("h"), shown);
}

// SPEC K-04.
#[tokio::test]
async fn a_question_waits_for_who_asks_for_the_result() {
    let task = begin();
    let asking = async {
        let mut asked = Box::pin(task.ask(round(None)));
        assert!(poll!(&mut asked).is_pending());
        assert_eq!(task.status(), "input_required");
        asked.await
    };
    let client = Client::new(true);
    let work = async {
        let asked = asking.await;
        assert_eq!(task.status(), "working");
        task.end(result("{}"));
        asked
    };
    let (asked, outcome) = tokio::join!(work, task.outcome(&client));
    assert!(matches!(asked, InputOutcome::Answered(answers) if answers.len() == 1));
    assert!(matches!(&*outcome, TaskOutcome::Result(..)));
}

#[tokio::test]
async fn a_question_is_before_the_newest_that_waits() {
    let task = begin();
    let mut asked = Box::pin(task.ask(round(None)));
    assert!(poll!(&mut asked).is_pending());
    let (older, newer) = (Client::new(false), Client::new(false));
    let mut first = Box::pin(task.outcome(&older));
    assert!(poll!(&mut first).is_pending());
    let mut second = Box::pin(task.outcome(&newer));
    assert!(poll!(&mut second).is_pending());
    assert!(poll!(&mut first).is_pending());
    assert_eq!(
        (older.asked(), newer.asked()),
        (1, 1),
        "nor is it taken back"
    );
    drop(second);
    assert!(poll!(&mut first).is_pending());
    assert_eq!(older.asked(), 2, "the newest that is left");
    let last = Client::new(true);
    let mut third = Box::pin(task.outcome(&last));
    assert!(poll!(&mut third).is_pending());
    assert!(matches!(asked.await, InputOutcome::Answered(_)));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_fetches_has_no_answers_in_the_end() {
    let task = begin();
    let asked = task.ask(round(Some(MINUTE))).await;
    assert_eq!(asked, InputOutcome::Answered(Vec::new()));
    assert_eq!(task.status(), "working");
}

/// Answers the first question of a round within its limit, and no other.
#[derive(Debug)]
struct Hesitant(ClientCapabilities);

impl DownstreamLink for Hesitant {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.0
    }

    fn notify(&self, _notice: Notice) {}

    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        async move {
            tokio::time::sleep(round.limit.unwrap()).await;
            let (first, _) = round.entries.into_iter().next().unwrap();
            let answer = InputResponse::Result(Bytes::from_static(b"{}"));
            InputOutcome::Answered(vec![(first, answer)])
        }
        .boxed()
    }
}

// Spec: BRIDGING §3.2.
#[tokio::test(start_paused = true)]
async fn answer_counts_though_another_question_of_its_round_has_none() {
    let task = begin();
    let mut both = round(Some(MINUTE));
    let second = ("r".to_owned(), both.entries[0].1.clone());
    both.entries.push(second);
    let asked = task.ask(both);
    let client = Hesitant(ClientCapabilities::none());
    let fetching = async {
        tokio::time::sleep(MINUTE / 2).await;
        task.outcome(&client).await
    };
    let asked = tokio::select! {
        asked = asked => asked,
        _ = fetching => unreachable!("the task goes on"),
    };
    let answer = InputResponse::Result(Bytes::from_static(b"{}"));
    assert_eq!(
        asked,
        InputOutcome::Answered(vec![("q".to_owned(), answer)])
    );
}

#[tokio::test]
async fn a_question_that_is_withdrawn_leaves_its_client_alone() {
    let task = begin();
    let mut asked = Box::pin(task.ask(round(None)));
    assert!(poll!(&mut asked).is_pending());
    let silent = Client::new(false);
    let mut waiting = Box::pin(task.outcome(&silent));
    assert!(poll!(&mut waiting).is_pending());
    drop(asked);
    assert!(poll!(&mut waiting).is_pending());
    assert_eq!(task.status(), "working");
    task.forget();
    assert!(matches!(&*waiting.await, TaskOutcome::Cancelled));
}

#[tokio::test]
async fn results_that_have_been_fetched_are_given_up_first_and_none_in_vain() {
    let (tasks, up): (_, Arc<str>) = (SessionTasks::default(), "up".into());
    let over = || {
        let task = begin();
        task.end(result("{}"));
        (tasks.host(&up, &task, 9).handle, task)
    };
    let ((older, _), (newer, fetched), (newest, _)) = (over(), over(), over());
    drop(fetched.outcome(&Client::new(false)).await);
    assert!(tasks.give_up(7).is_none());
    assert_eq!(tasks.all().len(), 3);
    assert!(tasks.give_up(1).unwrap().is_empty(), "it has been fetched");
    assert!(tasks.find(&newer).is_none());
    assert_eq!(tasks.give_up(2).unwrap()[0].handle, older);
    assert_eq!(tasks.all()[0].handle, newest);
}
