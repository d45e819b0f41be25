//! `RemoteEvents`: a store outside this process, for tests. It keeps its events here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::{
    Durability, EventStore, LogBounds, LoggedEvent, MemoryEvents, ReplayResult, SessionKey,
    StreamKey,
};
use crate::lock::lock;
use crate::protocol::RequestId;

/// Has acknowledged the events up to `durable`; what is recalled was logged elsewhere before.
#[derive(Debug)]
pub(crate) struct RemoteEvents {
    local: MemoryEvents,
    durable: AtomicU64,
    /// Whether it cannot be written to.
    pub(crate) down: AtomicBool,
    /// Whether another process owns the session.
    pub(crate) fenced: AtomicBool,
    waits: Mutex<Option<Waker>>,
    /// The calls of each stream, and whether their request was given.
    pub(crate) noted: Mutex<Vec<(Vec<RequestId>, bool)>>,
}

impl RemoteEvents {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            local: MemoryEvents::new(LogBounds::ROOMY),
            durable: AtomicU64::new(0),
            down: AtomicBool::new(false),
            fenced: AtomicBool::new(false),
            waits: Mutex::default(),
            noted: Mutex::default(),
        })
    }

    pub(crate) fn acknowledge(&self, seq: u64) {
        self.durable.store(seq, Ordering::SeqCst);
        if let Some(waker) = lock(&self.waits).take() {
            waker.wake();
        }
    }
}

impl EventStore for RemoteEvents {
    fn append(&self, at: StreamKey, events: &mut [LoggedEvent]) {
        self.local.append(at, events);
    }

    fn note_calls(&self, _at: StreamKey, ids: &[RequestId], request: Option<&Bytes>) {
        lock(&self.noted).push((ids.to_vec(), request.is_some()));
    }

    fn poll_durable(&self, _at: StreamKey, seq: u64, cx: &mut Context<'_>) -> Poll<Durability> {
        if self.durable.load(Ordering::SeqCst) >= seq {
            return Poll::Ready(Durability::Durable);
        }
        if self.fenced.load(Ordering::SeqCst) {
            return Poll::Ready(Durability::Fenced);
        }
        if self.down.load(Ordering::SeqCst) {
            return Poll::Ready(Durability::Unlogged);
        }
        *lock(&self.waits) = Some(cx.waker().clone());
        Poll::Pending
    }

    fn recall(&self, at: StreamKey, _seq: u64) -> Option<BoxFuture<'_, u64>> {
        Some(Box::pin(async move {
            tokio::task::yield_now().await;
            let mut logged = ["1", "2"].map(|text| LoggedEvent::of(text.into()));
            self.local.append(at, &mut logged);
            logged[1].seq
        }))
    }

    fn replace(&self, at: StreamKey, seq: u64, payload: Bytes) -> bool {
        self.local.replace(at, seq, payload)
    }

    fn after(&self, at: StreamKey, seq: u64, limit: usize) -> ReplayResult {
        self.local.after(at, seq, limit)
    }

    fn forget(&self, session: SessionKey) {
        self.local.forget(session);
    }

    fn sweep(&self) {}

    fn size(&self) -> (usize, usize) {
        self.local.size()
    }
}
