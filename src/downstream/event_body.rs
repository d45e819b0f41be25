//! A response body of server-sent events: the stream of a call, or of a GET.
//!
//! While the call of a POST runs, this body is what drives it; when the socket goes, the call is
//! handed to the background and goes on (DESIGN §3, "Who outlives whom").

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};

use super::keep_alive::KeepAlive;
use super::running::Running;
use crate::protocol::sse::{self, NumberedEvents};
use crate::session::{EventId, Next, Reader, StreamPermit};
use crate::store::events::Event;
use crate::wake::Bell;

/// What a client is told to wait before it comes back, milliseconds.
const RETRY_MS: u64 = 500;

type Ends = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body.
pub(super) struct EventBody {
    reader: Reader,
    events: NumberedEvents,
    running: Option<Running>,
    /// What wakes the call that runs.
    bell: Bell,
    keep_alive: KeepAlive,
    /// Resolves when a stream without an end of its own has to end.
    ends: Option<Ends>,
    /// Whether this client understands priming events and `retry` (SPEC T-26, T-27).
    polls: bool,
    /// Whether the client is still to be told where the stream begins (SPEC T-26).
    opens: bool,
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
    pub(super) opens: bool,
    pub(super) permit: StreamPermit,
}

impl EventBody {
    pub(super) fn new(parts: Parts) -> Self {
        let stem = EventId::stem(parts.tag, parts.reader.stream().number());
        Self {
            reader: parts.reader,
            events: NumberedEvents::new(&stem),
            running: parts.running,
            bell: Bell::new(),
            keep_alive: KeepAlive::new(parts.keep_alive),
            ends: parts.ends,
            polls: parts.polls,
            opens: parts.opens,
            done: false,
            _permit: parts.permit,
        }
    }

    /// Everything that is ready, as one write.
    fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut BytesMut) -> Poll<()> {
        loop {
            match self.reader.poll_next(cx) {
                Poll::Ready(Next::Events(events)) => {
                    let room = |event: &Event| event.payload.len() + self.events.room();
                    out.reserve(events.iter().map(room).sum());
                    for event in &events {
                        self.encode(event, out);
                    }
                }
                Poll::Ready(Next::Finished | Next::Superseded) => {
                    self.done = true;
                    return Poll::Ready(());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn encode(&self, event: &Event, out: &mut BytesMut) {
        if !event.payload.is_empty() {
            self.events.encode(out, event.seq, &event.payload);
        } else if self.polls && !event.last {
            self.events.encode_priming(out, event.seq, RETRY_MS);
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
        if let Some(running) = &mut this.running {
            let reader = &this.reader;
            let polled = this.bell.poll_if_rung(cx, |cx| {
                reader.rest();
                running.poll_finish(cx)
            });
            if polled.is_ready() {
                this.running = None;
            }
        }
        let mut out = BytesMut::new();
        if std::mem::take(&mut this.opens) {
            let place = this.reader.place();
            this.events.encode_place(&mut out, place, RETRY_MS);
        }
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
            ready!(this.keep_alive.poll_quiet(cx));
            sse::encode_comment(&mut out, "");
        }
        this.keep_alive.written();
        Poll::Ready(Some(Ok(Frame::data(out.freeze()))))
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }
}
