//! One event stream: its events, and the reader that writes events to a connection.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::Stream as FutureStream;
use http_body::Frame;
use tokio::sync::Notify;

use crate::world::locked;

/// Events kept for a reader or for a resumption; older ones are dropped.
const MAX_EVENTS: usize = 20_000;
/// Long enough for the kernel to send the bytes written so far on their own.
const PAUSE: Duration = Duration::from_millis(1);

/// A server-to-client stream. A new reader continues after the events taken by the reader before.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Named in event ids; `None` gives events without ids.
    tag: Option<String>,
    inner: Mutex<Inner>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    events: VecDeque<Event>,
    /// Sequence number of the first of `events`.
    first: u64,
    /// Sequence number of the next event to be written.
    taken: u64,
    /// The reader that may write; earlier ones end.
    reader: u64,
    ended: bool,
}

/// An item to be written.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A JSON-RPC message.
    Message(Bytes),
    /// Bytes as they are.
    Raw(Bytes),
    /// Flush the events before, so that the client reads no later event with them.
    Pause,
    /// End this connection politely; a reader may come back.
    Close,
    /// Break this connection.
    Cut,
}

impl Stream {
    pub(crate) fn new(tag: Option<String>) -> Arc<Self> {
        Arc::new(Self {
            tag,
            inner: Mutex::default(),
            wake: Notify::new(),
        })
    }

    pub(crate) fn push(&self, event: Event) {
        let mut inner = locked(&self.inner);
        if inner.events.len() >= MAX_EVENTS {
            inner.events.pop_front();
            inner.first += 1;
        }
        inner.events.push_back(event);
        drop(inner);
        self.wake.notify_waiters();
    }

    /// No further events.
    pub(crate) fn end(&self) {
        locked(&self.inner).ended = true;
        self.wake.notify_waiters();
    }

    /// Waits for the first event; true when the stream holds exactly one message and has ended.
    pub(crate) async fn is_one_message(&self) -> bool {
        self.when(|inner| {
            if inner.events.is_empty() && !inner.ended {
                return None;
            }
            let only = inner.events.len() == 1 && inner.ended;
            Some(only && matches!(inner.events.front(), Some(Event::Message(_))))
        })
        .await
    }

    /// Waits for the end; all messages in order.
    pub(crate) async fn collect(&self) -> Vec<Bytes> {
        self.when(|inner| inner.ended.then_some(())).await;
        let inner = locked(&self.inner);
        let messages = inner.events.iter().filter_map(|event| match event {
            Event::Message(json) => Some(json.clone()),
            _ => None,
        });
        messages.collect()
    }

    /// Waits for the next event and takes it; `None` at the end.
    pub(crate) async fn next(&self) -> Option<Event> {
        self.when(|inner| {
            let index = usize::try_from(inner.taken.max(inner.first) - inner.first).ok()?;
            if let Some(event) = inner.events.get(index).cloned() {
                inner.taken = inner.taken.max(inner.first) + 1;
                return Some(Some(event));
            }
            inner.ended.then_some(None)
        })
        .await
    }

    /// Goes back to where `seen` events had been received.
    pub(crate) fn rewind(&self, seen: u64) {
        let mut inner = locked(&self.inner);
        let end = inner.first + inner.events.len() as u64;
        inner.taken = seen.clamp(inner.first, end);
    }

    /// Drops all unread events.
    pub(crate) fn forget(&self) {
        let mut inner = locked(&self.inner);
        inner.taken = inner.first + inner.events.len() as u64;
    }

    async fn when<T>(&self, mut check: impl FnMut(&mut Inner) -> Option<T>) -> T {
        loop {
            let mut woken = pin!(self.wake.notified());
            woken.as_mut().enable();
            if let Some(value) = check(&mut locked(&self.inner)) {
                return value;
            }
            woken.await;
        }
    }

    /// Takes over as the stream's only reader.
    ///
    /// With `prime`, the first thing written is a priming event with that retry time.
    pub(crate) fn read(
        self: Arc<Self>,
        prime: Option<u64>,
        guard: impl Send + Sync + 'static,
    ) -> impl FutureStream<Item = Result<Frame<Bytes>, io::Error>> + Send + 'static {
        let mut inner = locked(&self.inner);
        inner.reader += 1;
        let number = inner.reader;
        drop(inner);
        let greeting = prime.map(|retry| self.priming(retry));
        self.wake.notify_waiters();
        let state = Reader {
            stream: self,
            number,
            greeting,
            last: None,
            _guard: guard,
        };
        futures_util::stream::unfold(state, Reader::next)
    }

    /// An event without data, whose id is the position after the events written so far.
    pub(crate) fn priming(&self, retry: u64) -> Bytes {
        let taken = locked(&self.inner).taken;
        let Some(tag) = &self.tag else {
            return Bytes::new();
        };
        // Event ids are the sequence number plus one, so that 0 means "before the first".
        format!("id: {tag}-{taken}\nretry: {retry}\ndata: \n\n").into()
    }

    /// Writes `event`, number `seq`, to `out`; false when the connection ends with it.
    fn render(&self, out: &mut BytesMut, seq: u64, event: &Event) -> bool {
        match event {
            Event::Message(json) => {
                if let Some(tag) = &self.tag {
                    out.put_slice(format!("id: {tag}-{}\n", seq + 1).as_bytes());
                }
                out.put_slice(b"event: message\n");
                for line in json.split(|byte| *byte == b'\n') {
                    out.put_slice(b"data: ");
                    out.put_slice(line);
                    out.put_slice(b"\n");
                }
                out.put_slice(b"\n");
            }
            Event::Raw(bytes) => out.put_slice(bytes),
            Event::Pause | Event::Close | Event::Cut => return false,
        }
        true
    }
}

/// One connection that writes a stream.
struct Reader<G> {
    stream: Arc<Stream>,
    number: u64,
    greeting: Option<Bytes>,
    /// How the connection ends, once decided.
    last: Option<Event>,
    _guard: G,
}

impl<G: Send + Sync> Reader<G> {
    async fn next(mut self) -> Option<(Result<Frame<Bytes>, io::Error>, Self)> {
        if let Some(greeting) = self.greeting.take() {
            return Some((Ok(Frame::data(greeting)), self));
        }
        match self.last.take() {
            Some(Event::Cut) => {
                self.last = Some(Event::Close);
                return Some((Err(io::ErrorKind::ConnectionReset.into()), self));
            }
            Some(Event::Close) => return None,
            Some(Event::Pause) => tokio::time::sleep(PAUSE).await,
            _ => {}
        }
        let (bytes, last) = self.batch().await?;
        self.last = last;
        Some((Ok(Frame::data(bytes)), self))
    }

    /// Everything that is ready; `None` when nothing will come any more.
    async fn batch(&self) -> Option<(Bytes, Option<Event>)> {
        let (stream, number) = (&self.stream, self.number);
        stream
            .when(|inner| {
                if inner.reader != number {
                    return Some(None);
                }
                let mut out = BytesMut::new();
                inner.taken = inner.taken.max(inner.first);
                while let Ok(index) = usize::try_from(inner.taken - inner.first)
                    && let Some(event) = inner.events.get(index)
                {
                    let goes_on = stream.render(&mut out, inner.taken, event);
                    let last = (!goes_on).then(|| event.clone());
                    if let (Some(_), Some(event)) = (&last, inner.events.get_mut(index)) {
                        // A close or cut happens once: the next reader skips this event.
                        *event = Event::Raw(Bytes::new());
                    }
                    inner.taken += 1;
                    if last.is_some() {
                        return Some(Some((out.freeze(), last)));
                    }
                }
                if !out.is_empty() {
                    return Some(Some((out.freeze(), None)));
                }
                inner.ended.then_some(None)
            })
            .await
    }
}
