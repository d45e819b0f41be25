//! Running calls of a session, their streams, and when the session is at rest and may be handed over to another replica.
//! Spec: SPEC T-25, T-26; DESIGN §5.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::leaving::{SessionUse, SessionUses};
use super::lost_calls::LostCall;
use super::{EventStream, LegacyClientLink, ResponseStream, Session, lock};
use crate::ownership::Ownership;
use crate::protocol::{RequestId, Revision};
use crate::store::events::{SessionKey, StreamKey};
use crate::sync::wait_until::wait_until;
use crate::telemetry::metrics::{GAUGES, GaugeGuard};

/// Finished streams a session remembers at most, for resumption.
const FINISHED_STREAMS: usize = 1024;

/// Why a call cannot start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// The id is that of a running call.
    #[error("a request with this id is still running")]
    IdInUse,
    /// The principal's cap on running calls is reached.
    #[error("too many calls are running")]
    TooManyCalls,
    /// The session's cap on open streams is reached.
    #[error("too many streams are open")]
    TooManyStreams,
}

/// A permit for one open stream of a session; released when dropped.
#[derive(Debug)]
pub struct StreamPermit {
    session: Arc<Session>,
    /// Whether the stream is for messages outside calls.
    is_standalone: bool,
    _open: GaugeGuard,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.session
            .open_streams(self.is_standalone)
            .fetch_sub(1, Ordering::Relaxed);
        self.session.touch();
        self.session.changed.notify_waiters();
        self.session.note_rest();
    }
}

/// Drops finished streams, oldest first, that have no events left or exceed [`FINISHED_STREAMS`].
/// Unfinished streams are skipped.
fn forget_finished(streams: &mut BTreeMap<u32, Arc<EventStream>>) {
    let mut excess = (streams.len() + 1).saturating_sub(FINISHED_STREAMS);
    let mut forgotten = Vec::new();
    for (number, stream) in &*streams {
        if !stream.is_finished() {
            continue;
        }
        if excess == 0 && stream.is_kept() {
            break;
        }
        excess = excess.saturating_sub(1);
        forgotten.push(*number);
    }
    for number in forgotten {
        streams.remove(&number);
    }
}

impl Session {
    /// A stream by its number, while it can be resumed.
    #[must_use]
    pub fn stream(&self, number: u32) -> Option<Arc<EventStream>> {
        if number == self.standalone.number() {
            return Some(Arc::clone(&self.standalone));
        }
        lock(&self.streams).get(&number).map(Arc::clone)
    }

    /// A permit for an open stream of a call.
    ///
    /// # Errors
    /// [`NoRoom::TooManyStreams`] when `max` of them are open.
    pub fn open_stream(self: &Arc<Self>, max: usize) -> Result<StreamPermit, NoRoom> {
        self.permit(false, max)
    }

    /// A permit for an open stream for messages outside calls. Streams of calls are counted separately.
    ///
    /// # Errors
    /// [`NoRoom::TooManyStreams`] when `max` of them are open.
    pub fn open_standalone(self: &Arc<Self>, max: usize) -> Result<StreamPermit, NoRoom> {
        self.permit(true, max)
    }

    fn open_streams(&self, standalone: bool) -> &AtomicUsize {
        if standalone {
            &self.open_standalones
        } else {
            &self.open_streams
        }
    }

    fn permit(self: &Arc<Self>, is_standalone: bool, max: usize) -> Result<StreamPermit, NoRoom> {
        let open = self.open_streams(is_standalone);
        let before = open.fetch_add(1, Ordering::Relaxed);
        let permit = StreamPermit {
            session: Arc::clone(self),
            is_standalone,
            _open: GAUGES.streams_open.enter(),
        };
        if before >= max {
            return Err(NoRoom::TooManyStreams);
        }
        self.changed.notify_waiters();
        Ok(permit)
    }

    /// Registers a call under the client's request id, with its messages going to `response_stream`. The call's
    /// place is taken separately ([`CallEntry`](super::CallEntry)).
    ///
    /// # Errors
    /// [`NoRoom::IdInUse`] when another call runs or waits under this id.
    pub fn begin_call(
        self: &Arc<Self>,
        id: RequestId,
        response_stream: Arc<ResponseStream>,
    ) -> Result<Arc<LegacyClientLink>, NoRoom> {
        let link = LegacyClientLink::new(Arc::clone(self), id.clone(), response_stream);
        let mut calls = lock(&self.calls);
        if calls.contains_key(&id) {
            return Err(NoRoom::IdInUse);
        }
        calls.insert(id, Arc::clone(&link));
        Ok(link)
    }

    /// The running call with this id.
    #[must_use]
    pub fn running(&self, id: &RequestId) -> Option<Arc<LegacyClientLink>> {
        lock(&self.calls).get(id).map(Arc::clone)
    }

    /// Whether a call has no reply yet.
    pub(super) fn is_running(&self, call: &LegacyClientLink) -> bool {
        let calls = lock(&self.calls);
        calls.values().any(|known| known.order() == call.order())
    }

    /// Removes a call that has its reply, or will have none.
    pub(super) fn end_call(&self, id: &RequestId, order: u64) {
        {
            let mut calls = lock(&self.calls);
            // The client may have used the id again since.
            if calls.get(id).is_some_and(|link| link.order() == order) {
                calls.remove(id);
            }
        }
        self.touch();
        self.note_rest();
    }

    /// The call of a lost owner that is to be made again now, as its stream is resumed. `None` for most streams, and once
    /// the session has ended.
    #[must_use]
    pub fn take_lost_call(&self, stream: u32) -> Option<LostCall> {
        let recorder = self.recorder.as_ref()?;
        if self.closed.is_cancelled() {
            return None;
        }
        recorder.lost_calls.take(stream)
    }

    /// A new stream for the messages of the calls `ids`. A `request` is given where another replica may make the call again.
    pub(super) fn new_stream(
        &self,
        ids: &[RequestId],
        request: Option<&Bytes>,
    ) -> Arc<EventStream> {
        let number = self.next_stream.fetch_add(1, Ordering::Relaxed);
        let key = StreamKey {
            session: self.key,
            stream: number,
        };
        let stream = EventStream::awaited(key, Arc::clone(&self.events));
        let mut streams = lock(&self.streams);
        forget_finished(&mut streams);
        streams.insert(number, Arc::clone(&stream));
        if self.closed.is_cancelled() {
            stream.close();
        } else {
            // Under the lock, which `end` takes before it forgets the log of the session: a later note would stay for ever.
            self.events.note_calls(key, ids, request);
        }
        drop(streams);
        // A priming event: an id to resume from before the first message. Spec: SPEC T-26.
        if self.revision >= Revision::V2025_11_25 {
            stream.prime();
        }
        stream
    }

    /// The key of the session's record in the shared store, and the ownership that it is written by; `None` if the record
    /// belongs to the next implicit session by now.
    #[must_use]
    pub fn record_key(&self) -> Option<(SessionKey, Ownership)> {
        let recorder = self.recorder.as_ref()?;
        (!recorder.is_left()).then(|| (recorder.record(self.key), recorder.ownership()))
    }

    /// The requests of a session that can be handed over: one with a record.
    pub(super) fn uses(&self) -> Option<&SessionUses> {
        self.recorder.as_ref().map(|recorder| recorder.uses())
    }

    /// Counts a request until the guard is dropped; `None` while the session is being handed over. Only requests of
    /// sessions that [are handed over](Self::is_handed_over) are counted.
    #[must_use]
    pub fn enter_request(self: &Arc<Self>) -> Option<SessionUse> {
        let is_admitted = self
            .uses()
            .is_none_or(|uses| !self.is_held(uses) && uses.enter());
        is_admitted.then(|| SessionUse::of(self))
    }

    /// As [`enter_request`](Self::enter_request), for a request that begins no work while the session waits until it is at
    /// rest.
    #[must_use]
    pub fn enter_held(self: &Arc<Self>) -> Option<SessionUse> {
        let is_admitted = self.uses().is_none_or(SessionUses::enter);
        is_admitted.then(|| SessionUse::of(self))
    }

    /// Whether the session admits only requests that begin no work, until it is at rest.
    pub(super) fn waits_to_rest(&self) -> bool {
        self.uses()
            .is_some_and(|uses| !uses.is_closed() && self.is_held(uses))
    }

    /// Whether requests wait until the session is at rest.
    fn is_held(&self, uses: &SessionUses) -> bool {
        uses.leaving.holds_requests() && self.questions.is_empty()
    }

    /// Whether a drain hands the session over, so that another replica goes on with it.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.uses().is_some()
    }

    /// Whether the session admits no request: it is being handed over, or will be as soon as it is at rest.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.uses()
            .is_some_and(|uses| uses.is_closed() || self.is_held(uses))
    }

    /// Whether another replica may own the session by now, as this one was giving it up.
    #[must_use]
    pub fn may_be_given_up(&self) -> bool {
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
            && uses.leaving.has_begun()
            && self.close_at_rest()
        {
            uses.leaving.add(self.key());
        }
    }

    /// Closes the session for requests if it has a record and is at rest; returns whether this call did.
    pub(super) fn close_at_rest(&self) -> bool {
        let Some(uses) = self.uses() else {
            return false;
        };
        if !self.is_at_rest() || !uses.close_unused() {
            return false;
        }
        // A request may have begun a call and left in between. From here on no call begins.
        let is_at_rest = self.is_at_rest();
        if !is_at_rest {
            uses.open();
        }
        is_at_rest
    }

    /// The same, also with running calls.
    pub(super) fn close_anyway(&self) -> bool {
        self.uses().is_some_and(SessionUses::close)
    }

    /// Whether no running work would be lost with this process.
    fn is_at_rest(&self) -> bool {
        !self.opening.load(Ordering::Acquire)
            && self.open_streams.load(Ordering::Acquire) == 0
            && !self.tasks.is_running()
            && self.questions.is_empty()
            && !self.implicit.as_ref().is_some_and(|it| it.is_busy())
            && lock(&self.calls).is_empty()
    }

    /// Ends the client's streams for messages outside calls, after what is on them; `retry` says when to come back. Waits
    /// for their readers, `within` at most.
    ///
    /// # Cancel safety
    /// The streams end in any case.
    pub async fn end_streams(&self, retry: Duration, within: Duration) {
        self.standalone.hang_up(Some(retry));
        let are_ended = || self.open_standalones.load(Ordering::Acquire) == 0;
        drop(timeout(within, wait_until(&self.changed, are_ended)).await);
    }

    /// Whether a call of the session has no reply yet.
    pub(super) fn has_calls(&self) -> bool {
        !lock(&self.calls).is_empty()
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
        let links = self.links.all();
        let mut tied = links.iter().filter(|link| link.ends_with_process());
        let found = tied.find(|link| ends(link.upstream()));
        found.map(|link| Arc::clone(link.upstream()))
    }
}
