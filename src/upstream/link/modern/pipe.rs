//! `ChildPipe`: the child of a modern link. All requests share its lines; replies are matched by the gateway's ids.
//! Spec: SPEC D-06, D-10, D-11, D-12.

mod exchange;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Weak};

use futures_util::future::join_all;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::running_request::{ReplyOwner, RunningRequest};
use crate::protocol::Message;
use crate::sync::fast_maps::FastMap;
use crate::telemetry::metrics::UpstreamSession;
use crate::upstream::carrier::duplex::{DuplexSender, DuplexSource};
use crate::upstream::carrier::{LinkSettings, StartedConnection};
use crate::upstream::deadlines::{PipeClocks, StoppedClocks};
use crate::upstream::error::LinkError;
use crate::upstream::link::abandoned_calls::GivenUp;
use crate::upstream::lock;

/// The connection to a child, which is started on demand and restarted after its end.
#[derive(Debug)]
pub(super) struct ChildPipe {
    source: DuplexSource,
    /// The child that the era probe started, until the first use.
    started: Mutex<Option<StartedConnection>>,
    current: Mutex<Option<Arc<OpenPipe>>>,
    /// Replaced children that calls still run on.
    draining: Mutex<Vec<Weak<OpenPipe>>>,
    opening: tokio::sync::Mutex<()>,
    waiting: Mutex<FastMap<u64, PipeWaiter>>,
    serial: AtomicU64,
    /// Calls dropped before their reply, each with the `serial` of its child and the request that cancels its task.
    given_up: GivenUp<(u64, Message)>,
}

/// A running child.
#[derive(Debug)]
pub(super) struct OpenPipe {
    child: DuplexSender,
    serial: u64,
    /// Whether the child has answered any request.
    answered: AtomicBool,
    /// The idle clocks of its requests.
    clocks: Arc<PipeClocks>,
    /// Permits for answers that are being written to the child.
    answers: Arc<Semaphore>,
    /// Cancelled when another child takes the new calls: this child ends with its last call.
    replaced: CancellationToken,
    _counted: UpstreamSession,
}

/// A request waiting for its reply.
#[derive(Debug)]
struct PipeWaiter {
    running: Arc<RunningRequest>,
    /// The child that received the request, and its `serial`.
    child: Weak<OpenPipe>,
    serial: u64,
    reply: Option<PipeReply>,
}

/// Sends the reply to the waiting request.
pub(super) type PipeReply = oneshot::Sender<Result<Message, LinkError>>;

impl ChildPipe {
    pub(super) fn new(source: DuplexSource, started: Option<StartedConnection>) -> Self {
        Self {
            source,
            started: Mutex::new(started),
            current: Mutex::default(),
            draining: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            waiting: Mutex::default(),
            serial: AtomicU64::new(0),
            given_up: GivenUp::default(),
        }
    }

    fn open(&self) -> Option<Arc<OpenPipe>> {
        lock(&self.current)
            .as_ref()
            .filter(|open| !open.child.closed().is_cancelled())
            .map(Arc::clone)
    }

    /// The running child, if it takes new calls.
    fn usable(&self) -> Option<Arc<OpenPipe>> {
        self.open().filter(|open| open.child.takes_calls())
    }

    /// Whether a child runs that takes new calls.
    pub(super) fn runs(&self) -> bool {
        self.usable().is_some()
    }

    /// Has a child that takes no new calls end with its running calls, before another child is started: it may have the
    /// only place.
    fn retire_outdated(&self) {
        let outdated = lock(&self.current).take_if(|open| open.child.is_outdated());
        if let Some(outdated) = outdated {
            self.retire(outdated);
        }
    }

    /// Without a call on it this is the last use of `open`, and its child is stopped.
    fn retire(&self, open: Arc<OpenPipe>) {
        open.replaced.cancel();
        let mut draining = lock(&self.draining);
        draining.retain(|open| open.strong_count() > 0);
        draining.push(Arc::downgrade(&open));
        drop(draining);
        drop(open);
    }

    /// The error of a call that began at `since` and was not answered in time; `request` is the one that runs.
    pub(super) fn timed_out(
        &self,
        since: Instant,
        request: Option<&RunningRequest>,
        settings: &LinkSettings,
    ) -> LinkError {
        let asked = request.and_then(|request| self.child_of(request.id));
        let open = asked.or_else(|| self.open());
        open.map_or(LinkError::Timeout, |open| {
            open.child.timed_out(since, settings.upstream.isolation)
        })
    }

    /// The child that received the running request with this id.
    fn child_of(&self, id: u64) -> Option<Arc<OpenPipe>> {
        let waiting = lock(&self.waiting);
        waiting.get(&id)?.child.upgrade()
    }

    /// The request with this id that runs on the child `from`. Ids are those of all children of the link, and a child that
    /// was replaced cannot speak for the next one.
    pub(super) fn running(&self, id: u64, from: &OpenPipe) -> Option<Arc<RunningRequest>> {
        let waiting = lock(&self.waiting);
        let waiting = waiting.get(&id)?;
        waiting.is_of(from).then(|| Arc::clone(&waiting.running))
    }

    /// The only call that runs on `open`; of several calls the newest, if all are of one client.
    pub(super) fn only_call(
        &self,
        open: &OpenPipe,
        exclusive: bool,
    ) -> Option<Arc<RunningRequest>> {
        let waiting = lock(&self.waiting);
        let mut calls: Vec<_> = waiting
            .values()
            .filter(|waiting| waiting.serial == open.serial)
            .map(|waiting| &waiting.running)
            .filter(|running| matches!(running.whose, ReplyOwner::Call { .. }))
            .collect();
        if calls.len() > 1 && !exclusive {
            return None;
        }
        calls.sort_unstable_by_key(|running| running.id);
        calls.last().map(|running| Arc::clone(running))
    }

    /// Delivers the reply of the child `from` to the request `id`; returns the message if no request of that child waits
    /// for it.
    pub(super) fn deliver(
        &self,
        id: u64,
        message: Result<Message, LinkError>,
        from: Option<&OpenPipe>,
    ) -> Option<Result<Message, LinkError>> {
        let mut waiting = lock(&self.waiting);
        let reply = waiting
            .get_mut(&id)
            .filter(|waiting| from.is_some_and(|from| waiting.is_of(from)))
            .and_then(|waiting| waiting.reply.take());
        drop(waiting);
        match reply {
            Some(reply) => reply.send(message).err(),
            None => Some(message),
        }
    }

    /// Cancels the task that the late reply to the call `id` begins, with a new request id, at the child `from` that sent
    /// the reply, if that child has received the call: what was noted says who called. The reply to `tasks/cancel` is
    /// ignored.
    pub(super) fn cancel_begun(
        &self,
        id: u64,
        reply: &Message,
        from: Option<&OpenPipe>,
        next_id: impl FnOnce() -> u64,
    ) {
        let Some(open) = from else { return };
        let is_its = |(serial, _): &(u64, Message)| *serial == open.serial;
        let Some((_, cancel)) = self.given_up.take_if(id, is_its) else {
            return;
        };
        let begins = reply.result_member("resultType") == Some("\"task\"");
        let task = reply.result_member("taskId").filter(|_| begins);
        if let Some(task) = task {
            let cancel = cancel
                .edit()
                .id(next_id().to_string())
                .param("taskId", task);
            // `false` means that the child is ending, and its tasks with it.
            let _ = open.child.try_send(cancel.finish());
        }
    }

    /// The requests waiting for replies.
    pub(super) fn requests(&self) -> Vec<Arc<RunningRequest>> {
        let waiting = lock(&self.waiting);
        let requests = waiting.values().map(|waiting| Arc::clone(&waiting.running));
        requests.collect()
    }

    /// Stops the idle clocks of the requests of `open` while the output of that child is not read.
    pub(super) fn stop_clocks(&self, open: &OpenPipe) -> StoppedClocks {
        open.clocks.stop(|| {
            let waiting = lock(&self.waiting);
            let own = waiting.values().filter(|one| one.serial == open.serial);
            let activities = own.map(|one| Arc::clone(&one.running.activity));
            activities.collect::<Vec<_>>()
        })
    }

    /// Takes the reply sender of the request `id` that runs on the child `from`.
    pub(super) fn take_reply(
        &self,
        id: u64,
        from: &OpenPipe,
    ) -> Option<(Arc<RunningRequest>, PipeReply)> {
        let mut waiting = lock(&self.waiting);
        let waiting = waiting.get_mut(&id).filter(|waiting| waiting.is_of(from))?;
        let reply = waiting.reply.take()?;
        Some((Arc::clone(&waiting.running), reply))
    }

    /// Puts the reply sender back, if the request still waits.
    pub(super) fn give_back(&self, id: u64, reply: PipeReply) {
        if let Some(waiting) = lock(&self.waiting).get_mut(&id) {
            waiting.reply = Some(reply);
        }
    }

    /// Fails the requests that were sent to a child that has ended.
    fn fail(&self, serial: u64) {
        for waiting in lock(&self.waiting).values_mut() {
            if waiting.serial == serial {
                drop(waiting.reply.take());
            }
        }
    }

    /// Ends the child, and the children that it has replaced.
    pub(super) async fn close(&self) {
        drop(lock(&self.started).take());
        let open = lock(&self.current).take();
        let draining = std::mem::take(&mut *lock(&self.draining));
        let draining = draining.iter().filter_map(Weak::upgrade);
        let closing = open.into_iter().chain(draining).map(|open| async move {
            open.child.close().await;
            self.fail(open.serial);
        });
        join_all(closing).await;
    }
}

impl PipeWaiter {
    /// Whether the child `from` has received the request.
    fn is_of(&self, from: &OpenPipe) -> bool {
        self.serial == from.serial
    }
}

impl OpenPipe {
    /// Keeps a line that failed to parse, for the error of a call that times out.
    pub(super) fn keep_stray(&self, line: &[u8]) {
        self.child.keep_stray(line);
    }

    /// Cancelled once the child has ended.
    pub(super) fn closed(&self) -> &CancellationToken {
        self.child.closed()
    }
}
