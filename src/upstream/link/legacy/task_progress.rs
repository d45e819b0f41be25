//! Calls that go on as tasks of 2025-11-25: their progress token stays good until the task is over.
//! Spec: MCP 2025-11-25, progress, "Behavior Requirements" 3; SPEC K-04.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::pending_reply::PendingReply;
use crate::call::DownstreamLink;
use crate::protocol::{Message, json};
use crate::telemetry::metrics::COUNTERS;
use crate::upstream::lock;

/// Tasks of one connection whose progress is passed on; the oldest is evicted. Tasks are bounded per session too
/// (`limits.tasks_per_session`); `MOST` bounds a connection shared by sessions.
const MOST: usize = 1024;

/// The calls of a connection that have become tasks, under our progress tokens.
#[derive(Debug, Default)]
pub(super) struct TaskProgress(Mutex<BTreeMap<u64, ProgressTask>>);

#[derive(Debug)]
struct ProgressTask {
    /// The upstream's name of the task.
    id: String,
    progress: TaskProgressSink,
    /// When the upstream forgets the task, if ever.
    until: Option<Instant>,
}

/// Receiver of the progress of a task.
#[derive(Debug, Clone)]
pub(super) struct TaskProgressSink {
    pub(super) link: Arc<dyn DownstreamLink>,
    /// JSON text of the client's token.
    pub(super) token: Arc<str>,
}

impl TaskProgress {
    /// Keeps the link of a call that `reply` makes a task, if its client wants progress.
    pub(super) fn keep(&self, request: &Message, call: &PendingReply, reply: &Message) {
        let Some(token) = &call.progress else { return };
        if request.param("task").is_none() {
            return;
        }
        let begun = reply.result_member("task");
        let Some((id, task)) = begun.and_then(|task| Some((id_of(task)?, task))) else {
            return;
        };
        let link = call.link.as_ref().and_then(|link| link.afterwards());
        let Some(link) = link.filter(|_| !is_over(task)) else {
            return;
        };
        let ttl = json::member(task, "ttl").and_then(json::whole_number);
        let until = ttl.and_then(|ttl| Instant::now().checked_add(Duration::from_millis(ttl)));
        let token = Arc::clone(token);
        let mut tasks = lock(&self.0);
        tasks.retain(|_, task| task.until.is_none_or(|until| until > Instant::now()));
        if tasks.len() >= MOST && tasks.pop_first().is_some() {
            COUNTERS.tasks_unheard.add(1);
        }
        let progress = TaskProgressSink { link, token };
        tasks.insert(
            call.id,
            ProgressTask {
                id,
                progress,
                until,
            },
        );
    }

    /// The receiver of progress under one of our tokens.
    pub(super) fn progress(&self, token: u64) -> Option<TaskProgressSink> {
        let tasks = lock(&self.0);
        Some(tasks.get(&token)?.progress.clone())
    }

    /// Takes the state of a task, JSON text.
    pub(super) fn stands(&self, task: &str) {
        if let Some(id) = id_of(task).filter(|_| is_over(task)) {
            self.end(&id);
        }
    }

    /// Takes the reply to a request of `method` about a task.
    pub(super) fn replied(&self, method: &str, request: &Message, reply: &Message) {
        match (method, reply.result()) {
            ("tasks/get" | "tasks/cancel", Some(task)) => self.stands(task),
            // A task with a result is over, however it ended.
            ("tasks/result", _) => {
                if let Some(id) = request.param_str("taskId") {
                    self.end(&id);
                }
            }
            _ => {}
        }
    }

    /// Drops all tasks, as the connection is over.
    pub(super) fn clear(&self) {
        lock(&self.0).clear();
    }

    fn end(&self, id: &str) {
        lock(&self.0).retain(|_, task| task.id != id);
    }
}

fn id_of(task: &str) -> Option<String> {
    json::string(json::member(task, "taskId")?).map(std::borrow::Cow::into_owned)
}

/// Whether a task, JSON text, has ended.
pub(super) fn is_over(task: &str) -> bool {
    let status = json::member(task, "status");
    !matches!(status, Some("\"working\"" | "\"input_required\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::deadlines::CallActivity;

    /// A client with a link that outlives its call.
    #[derive(Debug)]
    struct Client;

    impl DownstreamLink for Client {
        fn afterwards(&self) -> Option<Arc<dyn DownstreamLink>> {
            Some(Arc::new(Self))
        }
    }

    fn message(text: String) -> Message {
        Message::parse(text.into(), 128).unwrap()
    }

    fn request(params: &str) -> Message {
        message(format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}"#
        ))
    }

    fn reply(result: &str) -> Message {
        message(format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#))
    }

    /// The call under the token `id` becomes the task `task`, which is kept for `ttl`.
    fn begin(task_progress: &TaskProgress, id: u64, task: &str, ttl: &str) {
        let call = PendingReply {
            link: Some(Arc::new(Client)),
            progress: Some("\"mine\"".into()),
            ..PendingReply::new(id, &Arc::new(CallActivity::new()))
        };
        let begun = format!(r#"{{"task":{{"taskId":"{task}","status":"working","ttl":{ttl}}}}}"#);
        task_progress.keep(&request(r#"{"task":{}}"#), &call, &reply(&begun));
    }

    fn is_kept(task_progress: &TaskProgress, id: u64) -> bool {
        task_progress
            .progress(id)
            .is_some_and(|kept| &*kept.token == "\"mine\"")
    }

    #[tokio::test]
    async fn a_token_is_good_until_its_task_is_over_whoever_says_so() {
        let task_progress = TaskProgress::default();
        let over = r#"{"taskId":"a","status":"failed"}"#;
        let about = request(r#"{"taskId":"a"}"#);
        let acts: [&dyn Fn(); 4] = [
            &|| task_progress.stands(over),
            &|| task_progress.replied("tasks/get", &about, &reply(over)),
            &|| task_progress.replied("tasks/cancel", &about, &reply(over)),
            &|| task_progress.replied("tasks/result", &about, &reply("{}")),
        ];
        for act in acts {
            begin(&task_progress, 7, "a", "60000");
            task_progress.stands(r#"{"taskId":"a","status":"input_required"}"#);
            task_progress.stands(r#"{"taskId":"b","status":"completed"}"#);
            task_progress.replied(
                "tasks/get",
                &about,
                &reply(r#"{"taskId":"a","status":"working"}"#),
            );
            assert!(is_kept(&task_progress, 7));
            act();
            assert!(!is_kept(&task_progress, 7));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_ends_with_its_lifetime_and_with_the_connection() {
        let task_progress = TaskProgress::default();
        begin(&task_progress, 0, "f", "1000.0");
        begin(&task_progress, 1, "a", "1000");
        begin(&task_progress, 2, "b", "null");
        tokio::time::advance(Duration::from_secs(2)).await;
        begin(&task_progress, 3, "c", "1000");
        assert_eq!(
            [0, 1, 2, 3].map(|id| is_kept(&task_progress, id)),
            [false, false, true, true]
        );
        task_progress.clear();
        assert!(!is_kept(&task_progress, 2));
    }

    #[tokio::test]
    async fn the_oldest_gives_way_to_one_more() {
        let task_progress = TaskProgress::default();
        let most = u64::try_from(MOST).unwrap();
        let before = COUNTERS.tasks_unheard.get();
        for id in 0..=most {
            begin(&task_progress, id, &format!("t{id}"), "null");
        }
        assert!(
            !is_kept(&task_progress, 0)
                && is_kept(&task_progress, 1)
                && is_kept(&task_progress, most)
        );
        assert_eq!(COUNTERS.tasks_unheard.get(), before + 1);
    }
}
