//! A response body of server-sent events: the stream of a call, or of a GET.
//!
//! While the call of a POST runs, this body is what drives it; when the socket goes, the call is
//! handed to the background and goes on (DESIGN §3, "Who outlives whom").

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep};

use super::exchange::Running;
use crate::protocol::sse;
use crate::session::{EventId, Next, Reader, StreamPermit};

/// What a client is told to wait before it comes back, milliseconds.
const RETRY_MS: u64 = 500;

type Ends = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body.
pub(super) struct EventBody {
    reader: Reader,
    tag: u64,
    running: Option<Running>,
    keep_alive: Pin<Box<Sleep>>,
    keep_alive_every: Duration,
    /// Resolves when a stream without an end of its own has to end.
    ends: Option<Ends>,
    /// Whether this client understands priming events and `retry` (SPEC T-26, T-27).
    polls: bool,
    done: bool,
    _permit: StreamPermit,
}

/// What a body is made with.
pub(super) struct Parts {
    pub(super) reader: Reader,
    pub(super) tag: u64,
    pub(super) running: Option<Running>,
    pub(super) keep_alive: Duration,
    pub(super) ends: Option<Ends>,
    pub(super) polls: bool,
    pub(super) permit: StreamPermit,
}

impl EventBody {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            reader: parts.reader,
            tag: parts.tag,
            running: parts.running,
            keep_alive: Box::pin(tokio::time::sleep(parts.keep_alive)),
            keep_alive_every: parts.keep_alive,
            ends: parts.ends,
            polls: parts.polls,
            done: false,
            _permit: parts.permit,
        }
    }

    /// Everything that is ready, as one write.
    fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut BytesMut) -> Poll<()> {
        loop {
            match self.reader.poll_next(cx) {
                Poll::Ready(Next::Events(events)) => {
                    for event in events {
                        self.encode(&event, out);
                    }
                }
                Poll::Ready(Next::Finished | Next::Superseded) => {
                    self.done = true;
                    return Poll::Ready(());
                }
                Poll::Ready(Next::Quiet) | Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn encode(&self, event: &crate::store::events::Event, out: &mut BytesMut) {
        let stream = self.reader.stream().number();
        let id = EventId {
            tag: self.tag,
            stream,
            seq: event.seq,
        }
        .to_string();
        if !event.payload.is_empty() {
            sse::encode_event(out, Some(&id), &event.payload);
        } else if self.polls && !event.last {
            sse::encode_priming(out, &id, RETRY_MS);
        }
    }
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.done {
            return Poll::Ready(None);
        }
        // First the call, so that what it has just sent goes out in the same write.
        if let Some(running) = &mut this.running
            && running.poll_finish(cx).is_ready()
        {
            this.running = None;
        }
        let mut out = BytesMut::new();
        let ended = this.poll_events(cx, &mut out).is_ready();
        if out.is_empty()
            && let Some(ends) = &mut this.ends
            && ends.as_mut().poll(cx).is_ready()
        {
            this.done = true;
            if this.polls {
                sse::encode_retry(&mut out, RETRY_MS);
            }
        }
        if out.is_empty() {
            if ended || this.done {
                return Poll::Ready(None);
            }
            if this.keep_alive.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            sse::encode_comment(&mut out, "");
        }
        let next = Instant::now() + this.keep_alive_every;
        this.keep_alive.as_mut().reset(next);
        // Registers the timer for the quiet time to come.
        if this.keep_alive.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Some(Ok(Frame::data(out.freeze()))))
    }
}
