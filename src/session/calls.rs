//! Running calls of a session, and their streams.
//! Spec: SPEC T-25, T-26; DESIGN §5.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{EventStream, LegacyClientLink, ResponseStream, Session, lock};
use crate::protocol::{RequestId, Revision};
use crate::store::events::StreamKey;
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
    /// place is taken separately ([`Session::enter`]).
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

    /// A new stream for the messages of the call `id`.
    pub(super) fn new_stream(&self, id: &RequestId) -> Arc<EventStream> {
        let number = self.next_stream.fetch_add(1, Ordering::Relaxed);
        let key = StreamKey {
            session: self.key,
            stream: number,
        };
        self.events.note_call(key, id);
        let stream = EventStream::awaited(key, Arc::clone(&self.events));
        let mut streams = lock(&self.streams);
        forget_finished(&mut streams);
        streams.insert(number, Arc::clone(&stream));
        drop(streams);
        if self.closed.is_cancelled() {
            stream.close();
        }
        // A priming event: an id to resume from before the first message. Spec: SPEC T-26.
        if self.revision >= Revision::V2025_11_25 {
            stream.prime();
        }
        stream
    }
}
