//! A response body of server-sent events: the stream of a call, or of a GET.
//!
//! While the call of a POST runs, this body drives the call; when the socket closes, the call is handed to the
//! background and goes on (DESIGN §3.3).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};

use super::busy::reconnect_delay;
use super::detachable_call::DetachableCall;
use super::keep_alive::KeepAlive;
use crate::budget::{EXEMPT_BYTES, held_with};
use crate::protocol::sse::{self, NumberedEvents};
use crate::runtime::wake::WakeFilter;
use crate::session::{EventId, ReaderStep, StreamReader};
use crate::store::events::LoggedEvent;

/// `retry` delay sent to a client before it reconnects, unless an upstream sent one.
const RETRY: Duration = Duration::from_millis(500);

type StreamEnds = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body.
pub(super) struct EventBody {
    reader: StreamReader,
    events: NumberedEvents,
    running: Option<DetachableCall>,
    /// Wake-ups of the running call.
    wake_filter: WakeFilter,
    keep_alive: KeepAlive,
    /// Resolves when a stream without an end of its own has to end.
    ends: Option<StreamEnds>,
    /// Whether this client understands priming events and `retry` (SPEC T-26, T-27).
    polls: bool,
    beginning: StreamPrelude,
    /// Large messages of the frame that is being made.
    large: Vec<Bytes>,
    done: bool,
}

/// First bytes of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamPrelude {
    /// Whatever comes.
    Any,
    /// The place where the stream begins (SPEC T-26).
    Place,
    /// A comment, where no event is there yet (SPEC T-13).
    Comment,
}

/// Parameters of a body.
pub(super) struct EventBodyParts {
    pub(super) reader: StreamReader,
    pub(super) tag: u64,
    pub(super) running: Option<DetachableCall>,
    pub(super) keep_alive: Duration,
    pub(super) ends: Option<StreamEnds>,
    pub(super) polls: bool,
    pub(super) opens: bool,
}

impl EventBody {
    pub(super) fn new(parts: EventBodyParts) -> Self {
        let stem = EventId::stem(parts.tag, parts.reader.stream().number());
        let beginning = match (parts.opens, &parts.running) {
            (true, _) => StreamPrelude::Place,
            // `polls`: since 2025-11-25 clients get a priming event.
            (false, Some(_)) if !parts.polls => StreamPrelude::Comment,
            (false, _) => StreamPrelude::Any,
        };
        Self {
            beginning,
            reader: parts.reader,
            events: NumberedEvents::new(&stem),
            running: parts.running,
            wake_filter: WakeFilter::new(),
            keep_alive: KeepAlive::new(parts.keep_alive),
            ends: parts.ends,
            polls: parts.polls,
            large: Vec::new(),
            done: false,
        }
    }

    /// Encodes all ready events, as one write.
    fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut BytesMut) -> Poll<()> {
        loop {
            match self.reader.poll_next(cx) {
                Poll::Ready(ReaderStep::Events(events)) => {
                    let room = |event: &LoggedEvent| event.payload.len() + self.events.room();
                    out.reserve(events.iter().map(room).sum());
                    for event in events {
                        self.encode(&event, out);
                        if event.payload.len() > EXEMPT_BYTES {
                            self.large.push(event.payload);
                        }
                    }
                }
                Poll::Ready(ReaderStep::Finished) => break,
                // Its client comes back, unless a newer connection of the same client is the reason.
                Poll::Ready(ReaderStep::Superseded) => {
                    self.say_retry(out, None);
                    break;
                }
                Poll::Ready(ReaderStep::HungUp(retry)) => {
                    if self.running.as_mut().is_none_or(DetachableCall::detach) {
                        self.say_retry(out, retry);
                        break;
                    }
                    // In the background is no place for the call: the stream has to stay.
                    self.reader.stay();
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        self.done = true;
        Poll::Ready(())
    }

    /// Says when to come back, before a stream is closed on purpose. Spec: SPEC T-27.
    fn say_retry(&self, out: &mut BytesMut, wait: Option<Duration>) {
        if self.polls {
            let wait = wait.unwrap_or(RETRY).as_millis();
            sse::encode_retry(out, u64::try_from(wait).unwrap_or(u64::MAX));
        }
    }

    fn encode(&self, event: &LoggedEvent, out: &mut BytesMut) {
        match (event.seq, event.payload.is_empty()) {
            (0, true) => {}
            (0, false) => sse::encode_event(out, &event.payload),
            (seq, false) => self.events.encode(out, seq, &event.payload),
            (seq, true) if self.polls && !event.last => self.events.encode_priming(out, seq),
            (_, true) => {}
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
        // Poll the call before the reader: messages just sent then go out in the same write.
        if let Some(running) = &mut this.running {
            let reader = &this.reader;
            let polled = this.wake_filter.poll_if_woken(cx, |cx| {
                reader.rest();
                running.poll_finish(cx)
            });
            if polled.is_ready() {
                this.running = None;
            }
        }
        let mut out = BytesMut::new();
        let beginning = std::mem::replace(&mut this.beginning, StreamPrelude::Any);
        if beginning == StreamPrelude::Place {
            let place = this.reader.place();
            this.events.encode_place(&mut out, place);
        }
        let ended = this.poll_events(cx, &mut out).is_ready();
        if out.is_empty()
            && let Some(ends) = &mut this.ends
            && ends.as_mut().poll(cx).is_ready()
        {
            this.done = true;
            this.say_retry(&mut out, Some(reconnect_delay()));
        }
        if out.is_empty() {
            if ended || this.done {
                return Poll::Ready(None);
            }
            if beginning != StreamPrelude::Comment {
                ready!(this.keep_alive.poll_quiet(cx));
            }
            sse::encode_comment(&mut out, "");
        }
        this.keep_alive.written();
        let frame = held_with(out.freeze(), std::mem::take(&mut this.large));
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }
}
