//! A task that a call waits for: dropping the wait cancels the task upstream.
//! Spec: SPEC C-11; BRIDGING §3.7, §3.8.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::remote_task::{RemoteTask, task_request};
use crate::call::{Call, UpstreamLink};
use crate::cause::chain;
use crate::outbound::InternalCall;
use crate::runtime::lifecycle::TaskSpawner;

/// A running task. Dropping the value before [`over`](Self::over) cancels the task upstream.
#[derive(Debug)]
pub(super) struct CancelOnDrop {
    link: Arc<dyn UpstreamLink>,
    /// The call as handed to the upstream; questions and notifications on it reach the client.
    call: Call,
    /// The upstream's id of the task.
    id: String,
    tasks: TaskSpawner,
    is_over: bool,
    /// Keeps the link open to cancel the task, also after the end of the session.
    last_word: TaskTrackerToken,
}

impl CancelOnDrop {
    /// A task that was begun in the session of `last_word`.
    pub(super) fn new(
        link: &Arc<dyn UpstreamLink>,
        call: Call,
        id: &str,
        last_word: TaskTrackerToken,
        tasks: &TaskSpawner,
    ) -> Self {
        Self {
            link: Arc::clone(link),
            call,
            id: id.to_owned(),
            tasks: tasks.clone(),
            is_over: false,
            last_word,
        }
    }

    /// The task has ended at its upstream, so that nothing is cancelled on drop.
    pub(super) fn over(mut self) {
        self.is_over = true;
    }

    /// The task at its upstream.
    pub(super) fn remote(&self) -> RemoteTask<'_> {
        RemoteTask {
            link: &*self.link,
            call: &self.call,
            id: &self.id,
        }
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let Ok(request) = task_request("tasks/cancel", &self.id, &[]) else {
            return;
        };
        let link = Arc::clone(&self.link);
        let call = Call {
            link: InternalCall::declaring(self.call.link.capabilities().clone()),
            cancel: CancellationToken::new(),
            resumption: None,
            ..self.call.clone()
        };
        let last_word = self.last_word.clone();
        self.tasks.spawn(async move {
            if let Err(fault) = link.call(&request, &call).await {
                tracing::debug!(upstream = %link.upstream(), error = chain(&fault), "a task was not cancelled");
            }
            drop(last_word);
        });
    }
}
