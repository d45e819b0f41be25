//! When a session may be handed over to another replica: while no request of it is served, no call or task runs, and no
//! stream of a call is read.
//!
//! The dispatch counts each request of a session before it is read, so that none finds its session gone in between.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::{Session, lock};
use crate::store::events::SessionKey;

/// Set in a count of requests once no further one is admitted.
const LEAVING: usize = 1 << (usize::BITS - 1);

/// Sessions of this replica that are to be handed over.
#[derive(Debug, Default)]
pub(super) struct LeavingSessions {
    has_begun: AtomicBool,
    /// Whether sessions that are not at rest admit no request either.
    holds_requests: AtomicBool,
    /// Sessions that are closed for requests since the last look.
    ready: Mutex<Vec<SessionKey>>,
    more: Notify,
}

impl LeavingSessions {
    /// From now on a session is closed for requests as soon as it is at rest.
    pub(super) fn begin(&self) {
        self.has_begun.store(true, Ordering::Release);
    }

    /// From now on a session admits requests only to answer its questions, so that it comes to rest.
    pub(super) fn hold_requests(&self) {
        self.holds_requests.store(true, Ordering::Release);
    }

    /// Takes the sessions that were closed since the last call.
    pub(super) fn take_ready(&self) -> Vec<SessionKey> {
        std::mem::take(&mut *lock(&self.ready))
    }

    /// Waits until there may be more of them.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn more(&self) {
        self.more.notified().await;
    }
}

/// Requests of one session that are being served.
#[derive(Debug)]
pub(super) struct SessionUses {
    count: AtomicUsize,
    leaving: Arc<LeavingSessions>,
}

impl SessionUses {
    pub(super) fn new(leaving: &Arc<LeavingSessions>) -> Self {
        Self {
            count: AtomicUsize::new(0),
            leaving: Arc::clone(leaving),
        }
    }

    fn enter(&self) -> bool {
        let next = |count: usize| (count & LEAVING == 0).then_some(count + 1);
        let entered = self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
        entered.is_ok()
    }

    fn is_closed(&self) -> bool {
        self.count.load(Ordering::Acquire) & LEAVING != 0
    }

    /// Admits no further request, unless one is being served; whether this call did.
    fn close_unused(&self) -> bool {
        let closed = self
            .count
            .compare_exchange(0, LEAVING, Ordering::AcqRel, Ordering::Relaxed);
        closed.is_ok()
    }

    fn open(&self) {
        self.count.fetch_and(!LEAVING, Ordering::AcqRel);
    }
}

/// A request that is being served; its session is not handed over until this is dropped.
#[derive(Debug)]
#[must_use = "the session may be handed over once this is dropped"]
pub struct SessionUse(Arc<Session>);

impl Drop for SessionUse {
    fn drop(&mut self) {
        if let Some(uses) = self.0.uses() {
            uses.count.fetch_sub(1, Ordering::AcqRel);
            self.0.note_rest();
        }
    }
}

impl Session {
    fn uses(&self) -> Option<&SessionUses> {
        self.recorder.as_ref().map(|recorder| recorder.uses())
    }

    /// Counts a request until the guard is dropped; `None` while the session is being handed over. Only a session with a
    /// record is.
    #[must_use]
    pub fn enter_request(self: &Arc<Self>) -> Option<SessionUse> {
        let is_admitted = self
            .uses()
            .is_none_or(|uses| !self.is_held(uses) && uses.enter());
        is_admitted.then(|| SessionUse(Arc::clone(self)))
    }

    /// Whether requests wait until the session has come to rest.
    fn is_held(&self, uses: &SessionUses) -> bool {
        uses.leaving.holds_requests.load(Ordering::Relaxed) && self.questions.is_empty()
    }

    /// Whether another replica can go on with the session: it has a record.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    /// Whether the session is being handed over, or is to be as soon as it is at rest: it admits no request.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.uses()
            .is_some_and(|uses| uses.is_closed() || self.is_held(uses))
    }

    /// Whether another replica may own the session by now, as this one was giving it up.
    pub(super) fn may_be_given_up(&self) -> bool {
        self.uses().is_some_and(SessionUses::is_closed)
    }

    /// Admits requests again: the session stays.
    pub fn stay(&self) {
        if let Some(uses) = self.uses() {
            uses.open();
        }
    }

    /// A request, a call or a stream has ended: closes the session for requests if it is to be handed over and at rest.
    pub(super) fn note_rest(&self) {
        if let Some(uses) = self.uses()
            && uses.leaving.has_begun.load(Ordering::Relaxed)
            && self.close_at_rest()
        {
            lock(&uses.leaving.ready).push(self.key());
            uses.leaving.more.notify_one();
        }
    }

    /// Admits no further request if the session has a record and is at rest; whether this call closed it.
    pub(super) fn close_at_rest(&self) -> bool {
        let Some(uses) = self.uses() else {
            return false;
        };
        if !self.is_at_rest() || !uses.close_unused() {
            return false;
        }
        // A request may have begun a call and left in between. None begins any more.
        let is_at_rest = self.is_at_rest();
        if !is_at_rest {
            uses.open();
        }
        is_at_rest
    }

    /// The same whatever still runs.
    pub(super) fn close_anyway(&self) -> bool {
        self.uses()
            .is_some_and(|uses| uses.count.fetch_or(LEAVING, Ordering::AcqRel) & LEAVING == 0)
    }

    /// Whether nothing runs that would be lost with this process.
    fn is_at_rest(&self) -> bool {
        !self.opening.load(Ordering::Acquire)
            && self.open_streams.load(Ordering::Acquire) == 0
            && !self.tasks.is_running()
            && self.questions.is_empty()
            && lock(&self.calls).is_empty()
    }

    /// Ends the client's streams for messages outside calls, after what is on them; `retry` says when to come back. Waits
    /// for their readers, `within` at most.
    ///
    /// # Cancel safety
    /// The streams end in any case.
    pub async fn end_streams(&self, retry: Duration, within: Duration) {
        self.standalone.hang_up(Some(retry));
        let ended = async {
            loop {
                let changed = self.changed.notified();
                if self.open_standalones.load(Ordering::Acquire) == 0 {
                    return;
                }
                changed.await;
            }
        };
        drop(timeout(within, ended).await);
    }

    /// Ends the calls that run, with the error that their outcome is unknown, and waits `within` at most for their streams
    /// to be read.
    ///
    /// # Cancel safety
    /// The calls end in any case.
    pub async fn cut_calls_off(&self, within: Duration) {
        let calls: Vec<_> = lock(&self.calls).values().map(Arc::clone).collect();
        for call in calls {
            call.cut_off();
        }
        let ended = async {
            while !self.is_at_rest() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        drop(timeout(within, ended).await);
    }

    /// The first upstream of the session with a connection that no other replica can continue, of those that `ends`
    /// selects.
    #[must_use]
    pub fn tied_to_replica(&self, ends: impl Fn(&str) -> bool) -> Option<Arc<str>> {
        let links = self.links();
        let mut tied = links.iter().filter(|link| link.ends_with_process());
        let found = tied.find(|link| ends(link.upstream()));
        found.map(|link| Arc::clone(link.upstream()))
    }
}
