//! When a session may be handed over to another replica: while no request of it is served, no call or task runs, and no
//! stream of a call is read.
//!
//! The dispatch counts each request of a session before it is read, so that none finds its session gone in between.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::{Session, SessionId, lock};
use crate::store::events::SessionKey;

/// Set in a count of requests once no further one is admitted.
const LEAVING: usize = 1 << (usize::BITS - 1);

/// Sessions of this replica that are to be handed over.
#[derive(Debug, Default)]
pub(super) struct LeavingSessions {
    /// Whether a session is closed for requests as soon as it is at rest.
    has_begun: AtomicBool,
    /// Whether requests wait even before their session is at rest. Answers to its questions are admitted.
    holds_requests: AtomicBool,
    /// Sessions that are closed for requests since the last look.
    ready: Mutex<Vec<SessionKey>>,
    more: Notify,
}

impl LeavingSessions {
    /// `begins`: a session is closed for requests as soon as it is at rest. `holds_requests`: before that its requests wait
    /// as well, so that it gets to rest.
    pub(super) fn set(&self, begins: bool, holds_requests: bool) {
        self.has_begun.store(begins, Ordering::Release);
        self.holds_requests.store(holds_requests, Ordering::Release);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    pub(super) fn holds_requests(&self) -> bool {
        self.holds_requests.load(Ordering::Relaxed)
    }

    /// Adds a session that is closed for requests.
    pub(super) fn add(&self, session: SessionKey) {
        lock(&self.ready).push(session);
        self.more.notify_one();
    }

    /// Takes the sessions that were closed since the last call.
    pub(super) fn take_ready(&self) -> Vec<SessionKey> {
        std::mem::take(&mut *lock(&self.ready))
    }

    /// Waits until more sessions may be at rest.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn more(&self) {
        self.more.notified().await;
    }
}

/// Requests of one session under way.
#[derive(Debug)]
pub(super) struct SessionUses {
    count: AtomicUsize,
    pub(super) leaving: Arc<LeavingSessions>,
}

impl SessionUses {
    pub(super) fn new(leaving: &Arc<LeavingSessions>) -> Self {
        Self {
            count: AtomicUsize::new(0),
            leaving: Arc::clone(leaving),
        }
    }

    /// Counts a request; `false` if no further request is admitted.
    pub(super) fn enter(&self) -> bool {
        let next = |count: usize| (count & LEAVING == 0).then_some(count + 1);
        let entered = self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
        entered.is_ok()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.count.load(Ordering::Acquire) & LEAVING != 0
    }

    /// Closes the session for requests if none is being served; returns whether this call did.
    pub(super) fn close_unused(&self) -> bool {
        let closed = self
            .count
            .compare_exchange(0, LEAVING, Ordering::AcqRel, Ordering::Relaxed);
        closed.is_ok()
    }

    /// Closes the session for requests; returns whether this call did.
    pub(super) fn close(&self) -> bool {
        self.count.fetch_or(LEAVING, Ordering::AcqRel) & LEAVING == 0
    }

    pub(super) fn open(&self) {
        self.count.fetch_and(!LEAVING, Ordering::AcqRel);
    }
}

/// A request that is being served; its session is not handed over until this is dropped.
#[derive(Debug)]
#[must_use = "the session may be handed over once this is dropped"]
pub struct SessionUse(Arc<Session>);

impl SessionUse {
    /// A request that [`SessionUses::enter`] has admitted.
    pub(super) fn of(session: &Arc<Session>) -> Self {
        Self(Arc::clone(session))
    }

    /// The session of the request.
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.0
    }
}

impl Drop for SessionUse {
    fn drop(&mut self) {
        if let Some(uses) = self.0.uses() {
            uses.count.fetch_sub(1, Ordering::AcqRel);
            self.0.note_rest();
        }
    }
}

/// Where a request of a session is served.
#[derive(Debug)]
pub enum RequestedSession {
    /// Here. The session is not handed over while the `SessionUse` is kept.
    Here(SessionUse),
    /// The session does not live here, or is being handed over.
    Absent(SessionId),
    /// The id is forged, foreign or over age.
    Unknown,
}
