//! Tasks followed by a subscription: each is polled when its upstream announces a change, and otherwise at the
//! poll interval of the task. Clients therefore get the status of tasks of either design, even if the
//! upstream sends no notifications.
//! Spec: io.modelcontextprotocol/tasks, "Task Status Notifications"; SPEC K-16; BRIDGING §2.4.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::polling::{PollPace, SHORTEST};
use super::remote_task::task_request;
use super::wait::is_passing;
use crate::call::{Call, Principal};
use crate::digest::digest_of;
use crate::outbound::{RelayFailure, RequestHandler, own_call};
use crate::protocol::json::{self, ObjectWriter};
use crate::protocol::rpc;
use crate::session::Session;
use crate::store::lists::ContentDigest;
use crate::translate::task::state::{TaskStatus, UpstreamTask};

/// A task that a subscription follows.
#[derive(Debug)]
pub struct FollowedTask {
    handler: Arc<dyn RequestHandler>,
    principal: Arc<Principal>,
    session: Arc<Session>,
    /// Its handle for the client.
    id: String,
    /// Counter incremented when the upstream announces a change of any of its tasks.
    changes: watch::Receiver<u64>,
    first: TaskLook,
}

/// The state of a task, as last polled.
#[derive(Debug)]
struct TaskLook {
    /// The notification, one JSON-RPC message.
    notice: Bytes,
    digest: ContentDigest,
    interval: Duration,
    is_over: bool,
}

/// Outcome of one look at the task.
enum TaskSighting {
    Task(TaskLook),
    /// Its upstream is out of reach for now.
    Nothing,
    /// The task is unknown or has been removed.
    Gone,
}

impl FollowedTask {
    /// Begins to follow the task that its client calls `id`; `changes` counts what the upstream announces. `None` if
    /// the upstream does not return its state.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub(super) async fn begin(
        handler: Arc<dyn RequestHandler>,
        principal: &Arc<Principal>,
        session: &Arc<Session>,
        id: &str,
        changes: watch::Receiver<u64>,
    ) -> Option<Self> {
        match look(&*handler, principal, session, id).await {
            TaskSighting::Task(first) => Some(Self {
                handler,
                principal: Arc::clone(principal),
                session: Arc::clone(session),
                id: id.to_owned(),
                changes,
                first,
            }),
            TaskSighting::Nothing | TaskSighting::Gone => None,
        }
    }

    /// Sends the current state of the task, then each change, until the task ends or `notices` is closed.
    /// While `notices` is full, the upstream is not polled.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn tell(mut self, notices: mpsc::Sender<Bytes>) {
        let mut last = self.first.digest;
        let mut interval = self.first.interval;
        if notices.send(self.first.notice).await.is_err() || self.first.is_over {
            return;
        }
        loop {
            tokio::select! {
                () = notices.closed() => return,
                () = self.session.closed().cancelled() => return,
                () = tokio::time::sleep(interval) => {}
                changed = self.changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
            let Ok(place) = notices.reserve().await else {
                return;
            };
            let look = look(&*self.handler, &self.principal, &self.session, &self.id);
            match look.await {
                TaskSighting::Task(look) => {
                    interval = look.interval;
                    if look.digest != last {
                        last = look.digest;
                        place.send(look.notice);
                    }
                    if look.is_over {
                        return;
                    }
                }
                TaskSighting::Nothing => {}
                TaskSighting::Gone => return,
            }
            // However often it is said to have changed.
            tokio::time::sleep(SHORTEST).await;
        }
    }
}

async fn look(
    handler: &dyn RequestHandler,
    principal: &Arc<Principal>,
    session: &Arc<Session>,
    id: &str,
) -> TaskSighting {
    let Some(call) = asking(principal, session, id) else {
        return TaskSighting::Gone;
    };
    let reply = match handler.handle(&call, session).await {
        Ok(reply) => reply,
        Err(RelayFailure::Fault(fault)) if is_passing(&fault) => return TaskSighting::Nothing,
        Err(_) => return TaskSighting::Gone,
    };
    reply
        .result()
        .and_then(read)
        .map_or(TaskSighting::Gone, TaskSighting::Task)
}

/// The gateway's own request for the state of a task.
pub(super) fn asking(principal: &Arc<Principal>, session: &Arc<Session>, id: &str) -> Option<Call> {
    let message = task_request("tasks/get", id, &[]).ok()?;
    let declared = session.capabilities.clone();
    Some(own_call(principal, session, message, declared))
}

/// Converts a result of `tasks/get` to a notification whose params are the task alone.
fn read(result: &str) -> Option<TaskLook> {
    let state = UpstreamTask::read(result)?;
    let members = json::members(result).ok()?;
    let mut params = ObjectWriter::default();
    for (name, value) in members {
        if !matches!(&*name, "resultType" | "_meta") {
            params.member(&name, value);
        }
    }
    let params = params.finish();
    let digest = digest_of([params.as_bytes()]);
    let notice = rpc::notification("notifications/tasks", &params);
    Some(TaskLook {
        notice: notice.into(),
        digest,
        interval: PollPace::asked_for(&state),
        is_over: !matches!(
            state.status,
            TaskStatus::Working | TaskStatus::InputRequired
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_holds_the_task_and_nothing_of_the_result_around_it() {
        let result = r#"{"resultType":"complete","taskId":"t","status":"completed","pollIntervalMs":2000,"result":{"content":[],"_meta":{"a":1}},"_meta":{"x":1}}"#;
        let look = read(result).unwrap();
        let notice = std::str::from_utf8(&look.notice).unwrap();
        assert_eq!(
            notice,
            r#"{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":"t","status":"completed","pollIntervalMs":2000,"result":{"content":[],"_meta":{"a":1}}}}"#
        );
        assert!(look.is_over);
        assert_eq!(look.interval, Duration::from_secs(2));
    }

    #[test]
    fn the_same_state_is_no_change() {
        let of = |message: &str| {
            let text = format!(
                r#"{{"taskId":"t","status":"working","statusMessage":"{message}","_meta":{{"n":"{message}"}}}}"#
            );
            read(&text).unwrap()
        };
        assert_eq!(of("a").digest, of("a").digest);
        assert_ne!(of("a").digest, of("b").digest);
        assert!(!of("a").is_over);
        assert!(read(r#"{"taskId":"t"}"#).is_none());
    }
}
