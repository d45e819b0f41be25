//! `SocketRequest`: one modern request of a socket, until its last message was handed out; the ids of running calls.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, Stream};
use tokio_util::sync::CancellationToken;

use crate::downstream::access_log::{AccessLine, AccessRecord};
use crate::downstream::channel::OwedReply;
use crate::lock::lock;
use crate::protocol::RequestId;

/// The messages of one request.
pub(super) type SocketMessages = BoxStream<'static, Vec<Bytes>>;

/// Calls by their id.
#[derive(Debug, Default)]
pub(super) struct RunningCalls(Mutex<HashMap<RequestId, CancellationToken>>);

/// A request, until its last message is returned.
pub(super) struct SocketRequest {
    /// `None` once all is handed out.
    pub(super) messages: Option<SocketMessages>,
    /// Ends when all is written.
    pub(super) line: Option<Arc<AccessLine>>,
    /// Whether the answer is whole.
    pub(super) complete: Arc<AtomicBool>,
    pub(super) _place: Option<IdReservation>,
    /// Makes a drain wait for the request.
    pub(super) _owed: OwedReply,
}

/// Messages that an entry returns together.
#[derive(Debug)]
pub(super) struct HandedMessages {
    pub(super) messages: Vec<Bytes>,
    pub(super) record: AccessRecord,
    pub(super) ended: Option<EndedRequest>,
}

impl HandedMessages {
    pub(super) fn bytes(&self) -> usize {
        self.messages.iter().map(Bytes::len).sum()
    }
}

/// The access line of a request whose messages were all handed out.
#[derive(Debug)]
pub(super) struct EndedRequest {
    pub(super) line: Arc<AccessLine>,
    pub(super) complete: bool,
}

/// Reserves the id of a call, until dropped.
pub(super) struct IdReservation {
    pub(super) running: Arc<RunningCalls>,
    pub(super) id: RequestId,
}

impl RunningCalls {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, CancellationToken>> {
        lock(&self.0)
    }
}

impl Stream for SocketRequest {
    type Item = HandedMessages;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<HandedMessages>> {
        let Some(all) = &mut self.messages else {
            return Poll::Ready(None);
        };
        let messages = ready!(all.poll_next_unpin(cx));
        let line = self.line.as_ref();
        let record = line.map_or_else(AccessRecord::default, |line| line.record().clone());
        if let Some(messages) = messages {
            let ended = None;
            return Poll::Ready(Some(HandedMessages {
                messages,
                record,
                ended,
            }));
        }
        // Drop the messages first: the drop may note that the call was cancelled.
        self.messages = None;
        let complete = self.complete.load(Ordering::Relaxed);
        let ended = self.line.take().map(|line| EndedRequest { line, complete });
        Poll::Ready(ended.map(|ended| HandedMessages {
            messages: Vec::new(),
            record,
            ended: Some(ended),
        }))
    }
}

impl Drop for IdReservation {
    fn drop(&mut self) {
        self.running.lock().remove(&self.id);
    }
}
