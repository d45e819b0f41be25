//! The stream of a client for each notice of an upstream.
//!
//! A notice that came on a call's stream goes on the stream of that call. Any other notice goes on the
//! client's GET stream while one is open, else on the stream of the newest running call at its upstream
//! that has a reader. Without either, list changes and updates of subscribed resources wait for the next
//! call (one per kind and URI); log messages are dropped and counted.
//! Spec: SPEC T-21, T-22, C-02; BRIDGING §2.4, §3.4.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};

use tokio_util::sync::CancellationToken;

use super::bursts::{BurstAdmission, NoticeBursts, is_coalesced};
use super::{LegacyClientLink, Session, lock};
use crate::call::{DownstreamLink, Notice, NoticeKind};
use crate::protocol::Revision;
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::metrics::COUNTERS;

/// Notices that wait for a call, at most.
const HELD: usize = 256;
/// Their bytes.
const HELD_BYTES: usize = 256 * 1024;

/// How the messages of a session reach its client.
#[derive(Debug, Clone)]
pub enum DeliveryMode {
    /// On one stream per call and one standalone stream, which are logged and can be resumed.
    Streams,
    /// All on one connection, with which the session ends.
    Connection {
        /// Bytes that may wait to be read.
        unread: usize,
        /// The revision negotiated when the client offers an unknown one.
        fallback: Revision,
        /// Cancelled when more than `unread` bytes wait.
        overflow: CancellationToken,
    },
}

/// Where a notice came from.
#[derive(Debug, Clone, Default)]
pub struct NoticeSource {
    /// The upstream that sent it; `None` for the gateway's own, which wait on the GET stream.
    pub upstream: Option<Arc<str>>,
    /// The call that the notice belongs to, by [`DownstreamLink::number`].
    pub call: Option<u64>,
    /// Whether the client subscribed to the resource that changed.
    pub is_subscribed: bool,
}

impl NoticeSource {
    /// A notice of `upstream` that belongs to no call.
    #[must_use]
    pub fn of(upstream: &Arc<str>) -> Self {
        Self {
            upstream: Some(Arc::clone(upstream)),
            ..Self::default()
        }
    }
}

/// Notices and questions that wait for a stream of the client.
#[derive(Debug)]
pub(super) struct PendingDelivery {
    /// Whether one connection carries all messages ([`DeliveryMode::Connection`]).
    is_one_stream: bool,
    /// Runs the tasks that flush bursts and send waiting notifications of the client.
    pub(super) tasks: TaskSpawner,
    bursts: Mutex<NoticeBursts>,
    /// Notices for the next call, the oldest first; one of each kind.
    held: Mutex<Vec<Notice>>,
    /// Whether there are any; read by every call.
    is_holding: AtomicBool,
    /// Questions that wait for a stream; read by every call.
    pub(super) questions: AtomicUsize,
}

impl PendingDelivery {
    pub(super) fn new(delivery: &DeliveryMode, tasks: &TaskSpawner) -> Self {
        Self {
            is_one_stream: matches!(delivery, DeliveryMode::Connection { .. }),
            tasks: tasks.clone(),
            bursts: Mutex::default(),
            held: Mutex::default(),
            is_holding: AtomicBool::new(false),
            questions: AtomicUsize::new(0),
        }
    }

    /// Whether one connection carries all messages.
    pub(super) fn is_one_stream(&self) -> bool {
        self.is_one_stream
    }
}

impl Session {
    /// Hands a notice that belongs to no call of ours to the client, or to the subscriptions of an implicit session.
    /// Bursts of change notices are coalesced.
    pub fn tell(self: &Arc<Self>, notice: Notice, source: NoticeSource) {
        if !is_coalesced(&notice.kind) {
            return self.deliver(notice, &source);
        }
        let mut bursts = lock(&self.undelivered.bursts);
        match bursts.admit(notice, source) {
            BurstAdmission::Now(notice, source) => {
                drop(bursts);
                self.deliver(notice, &source);
            }
            BurstAdmission::Waits => {
                if !std::mem::replace(&mut bursts.is_flushing, true) {
                    let flushing = flush_bursts(Arc::downgrade(self));
                    self.undelivered.tasks.spawn_service(flushing);
                }
            }
            BurstAdmission::Replaces => COUNTERS.notices_coalesced.add(1),
        }
    }

    pub(super) fn deliver(&self, notice: Notice, source: &NoticeSource) {
        if let Some(implicit_session) = &self.implicit {
            return implicit_session.tell(&notice);
        }
        let notice = match source.call {
            Some(call) => match self.put_on_call(call, notice) {
                Ok(()) => return,
                Err(notice) => notice,
            },
            None => notice,
        };
        let Some(upstream) = &source.upstream else {
            self.standalone.notify(notice);
            return;
        };
        if self.standalone.is_attached() {
            self.standalone.notify(notice);
            return;
        }
        let mut unsent = Some(notice);
        self.put_on_newest(upstream, |call| {
            if let Some(notice) = unsent.take() {
                call.notify(notice);
            }
        });
        let Some(notice) = unsent else { return };
        match &notice.kind {
            NoticeKind::ListChanged { .. } => self.hold(notice, upstream),
            NoticeKind::ResourceUpdated { .. } if source.is_subscribed => {
                self.hold(notice, upstream);
            }
            NoticeKind::ResourceUpdated { .. } | NoticeKind::Log => COUNTERS.notices_unread.add(1),
            _ => {
                self.standalone.notify(notice);
            }
        }
    }

    /// Puts a notice on the stream of a call without a reply; returns the notice if the call is over.
    fn put_on_call(&self, number: u64, notice: Notice) -> Result<(), Notice> {
        // Under the lock of `calls`: a call that ends takes the lock too, and sees the stream afterwards.
        let calls = lock(&self.calls);
        match calls.values().find(|call| call.order() == number) {
            Some(call) => {
                call.notify(notice);
                Ok(())
            }
            None => Err(notice),
        }
    }

    /// Has `put` put a message on the stream of the newest call at `upstream` that has a reader and no
    /// reply yet; `false` when there is none.
    pub(super) fn put_on_newest(
        &self,
        upstream: &str,
        put: impl FnOnce(&Arc<LegacyClientLink>),
    ) -> bool {
        // Under the lock of `calls`: a call that ends takes the lock too, and sees the stream afterwards.
        let calls = lock(&self.calls);
        let running = calls.values();
        let here = running.filter(|call| call.is_at(upstream) && call.is_awaited());
        let newest = here.max_by_key(|call| call.order());
        newest.inspect(|call| put(call)).is_some()
    }

    /// Keeps a change notice for the next call, in place of an older one of its kind.
    fn hold(&self, notice: Notice, upstream: &str) {
        let mut held = lock(&self.undelivered.held);
        // Pairs with `send_held_on_get`, which looks after the stream was attached.
        if self.standalone.is_attached() {
            drop(held);
            self.standalone.notify(notice);
            return;
        }
        if let Some(older) = held.iter_mut().find(|older| older.kind == notice.kind) {
            *older = notice;
            COUNTERS.notices_coalesced.add(1);
        } else {
            let bytes = held.iter().map(|held| held.bytes.len()).sum::<usize>();
            if held.len() >= HELD || bytes + notice.bytes.len() > HELD_BYTES {
                return COUNTERS.notices_dropped.add(1);
            }
            held.push(notice);
        }
        self.undelivered.is_holding.store(true, Ordering::Relaxed);
        drop(held);
        // Pairs with `routed`: either the call that begins now is seen here, or it sees the notice.
        fence(Ordering::SeqCst);
        let mut newest = None;
        self.put_on_newest(upstream, |call| newest = Some(Arc::clone(call)));
        if let Some(call) = newest {
            self.send_held_on(&call);
        }
    }

    /// A call goes to its upstream: held notices go on its stream, and waiting questions look at it.
    pub(super) fn routed(&self, call: &LegacyClientLink) {
        // Pairs with `hold` and with questions that begin to wait.
        fence(Ordering::SeqCst);
        if self.undelivered.is_holding.load(Ordering::Relaxed) {
            self.send_held_on(call);
        }
        if self.undelivered.questions.load(Ordering::Relaxed) > 0 {
            self.changed.notify_waiters();
        }
    }

    fn send_held_on(&self, call: &LegacyClientLink) {
        // Under the lock of `calls`: a call that ends takes the lock too, and sees the stream afterwards.
        let calls = lock(&self.calls);
        let is_running = calls.values().any(|known| known.order() == call.order());
        if is_running && call.is_awaited() {
            for notice in self.take_held() {
                call.notify(notice);
            }
        }
    }

    /// The client opened a GET stream: held notices go there instead of on the next call.
    pub fn send_held_on_get(&self) {
        // Always under the lock of `hold`, which looks at the stream.
        for notice in self.take_held() {
            self.standalone.notify(notice);
        }
    }

    /// Whether messages outside calls have a reader: an implicit session's listener, or the GET stream.
    fn is_listened_to(&self) -> bool {
        match &self.implicit {
            Some(implicit_session) => implicit_session.is_listened_to(),
            None => self.watched.load(Ordering::Acquire),
        }
    }

    /// Calls `listen` on every link with the current `is_listened_to`. To be called whenever that may have
    /// changed, and for a new link.
    pub fn tell_links(&self) {
        let look = |wanted: &mut bool| *wanted = self.is_listened_to();
        self.listening.set_and_apply(look, |wanted| {
            for link in self.links.all() {
                link.listen(*wanted);
            }
        });
    }

    fn take_held(&self) -> Vec<Notice> {
        let mut held = lock(&self.undelivered.held);
        self.undelivered.is_holding.store(false, Ordering::Relaxed);
        std::mem::take(&mut *held)
    }
}

/// Sends the waiting notices of bursts as they are due, until none waits. Does not keep the session.
async fn flush_bursts(session: Weak<Session>) {
    loop {
        let due = {
            let Some(session) = session.upgrade() else {
                return;
            };
            let mut bursts = lock(&session.undelivered.bursts);
            let Some(due) = bursts.next_due() else {
                bursts.forget_old(tokio::time::Instant::now());
                bursts.is_flushing = false;
                return;
            };
            due
        };
        tokio::time::sleep_until(due).await;
        let Some(session) = session.upgrade() else {
            return;
        };
        let ready = lock(&session.undelivered.bursts).take_due();
        for (notice, source) in ready {
            session.deliver(notice, &source);
        }
    }
}

#[cfg(test)]
mod tests;
