//! Reading events, bounded.

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};

/// Ids longer than this are ignored: they are kept, and sent back in a header.
const MAX_ID_BYTES: usize = 4096;

/// How an event begins that names its type, as it need not.
const USUAL_NAME: &[u8] = b"event: message\n";

/// One event. Data is a slice of what was fed when it lay on one line in one chunk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The event's `id` field, if present; an empty id resets the last event id.
    pub id: Option<String>,
    /// Its type, UTF-8 and not empty; absent means `message`.
    pub event: Option<Bytes>,
    /// Its `data` lines, joined by line feeds.
    pub data: Bytes,
    /// Reconnection time, in milliseconds.
    pub retry: Option<u64>,
    /// Whether the event has a `data` line, even an empty one.
    pub has_data: bool,
}

/// Why a stream can no longer be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// One event, or one line, is larger than allowed.
    #[error("an event is larger than allowed")]
    TooLarge,
}

/// What stands before the next line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BetweenLines {
    /// Nothing: a byte order mark may come.
    Start,
    /// A carriage return: a line feed may belong to it.
    CarriageReturn,
    LineFeed,
}

/// Splits a byte stream into events. Holds at most one unfinished event of `max_event_bytes`,
/// besides the chunk that was fed last.
#[derive(Debug)]
pub struct SseDecoder {
    max_event_bytes: usize,
    /// What was fed last, and how much of it is read.
    chunk: Bytes,
    at: usize,
    /// The beginning of a line whose end was not fed yet.
    partial: BytesMut,
    event: SseEvent,
    /// Data of more than one line, while it grows.
    joined: Option<BytesMut>,
    /// Bytes of the unfinished event.
    size: usize,
    before: BetweenLines,
    saw_bytes: bool,
    failed: bool,
}

/// Where an event lies in a chunk that is one as most servers write it: perhaps its type, and data on
/// one line.
struct UsualEvent {
    is_named: bool,
    data: Range<usize>,
    end: usize,
}

/// A field of an event; what belongs to no event is none.
enum EventField {
    Data,
    Event,
    Id,
    Retry,
}

impl SseDecoder {
    /// A reader at the start of a stream.
    #[must_use]
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            max_event_bytes,
            chunk: Bytes::new(),
            at: 0,
            partial: BytesMut::new(),
            event: SseEvent::default(),
            joined: None,
            size: 0,
            before: BetweenLines::Start,
            saw_bytes: false,
            failed: false,
        }
    }

    /// Takes the next chunk. Call [`next`](Self::next) until it gives `None` before feeding more;
    /// otherwise what is left is copied together.
    pub fn feed(&mut self, chunk: Bytes) {
        self.saw_bytes |= !chunk.is_empty();
        self.chunk.advance(std::mem::take(&mut self.at));
        if self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            self.chunk = [self.chunk.as_ref(), &chunk].concat().into();
        }
    }

    /// How many bytes it holds of what no event was made of yet.
    #[must_use]
    pub fn held(&self) -> usize {
        (self.chunk.len() - self.at) + self.partial.len() + self.size
    }

    /// Whether anything arrived since the last time of asking; comments count.
    pub fn saw_bytes(&mut self) -> bool {
        std::mem::take(&mut self.saw_bytes)
    }

    /// The next complete event, `None` when more must be fed. An event that the stream's end cuts
    /// off is never given out.
    ///
    /// # Errors
    /// When an event is too large; from then on always.
    #[expect(
        clippy::should_implement_trait,
        reason = "not an iterator: None is no end"
    )]
    pub fn next(&mut self) -> Result<Option<SseEvent>, SseError> {
        if self.failed {
            return Err(SseError::TooLarge);
        }
        let chunk = std::mem::take(&mut self.chunk);
        let event = match self.usual(&chunk) {
            Some(usual) => {
                self.at = usual.end;
                Ok(Some(SseEvent {
                    event: usual.is_named.then(|| Bytes::from_static(b"message")),
                    data: chunk.slice(usual.data),
                    has_data: true,
                    ..SseEvent::default()
                }))
            }
            None => self.read(&chunk),
        };
        // What is read to its end is let go, with the buffer that it lies in.
        if self.at < chunk.len() && !self.failed {
            self.chunk = chunk;
        } else {
            self.at = 0;
        }
        event
    }

    /// Shows `take` the data of the next event where it is one without an id, as most servers write
    /// it, and moves past it if `take` says so; otherwise [`next`](Self::next) gives it. Whether an
    /// event was taken.
    pub fn take_usual(&mut self, take: impl FnOnce(&[u8]) -> bool) -> bool {
        let Some(usual) = self.usual(&self.chunk) else {
            return false;
        };
        let taken = self.chunk.get(usual.data).is_some_and(take);
        if taken {
            self.at = usual.end;
            if self.at == self.chunk.len() {
                self.chunk = Bytes::new();
                self.at = 0;
            }
        }
        taken
    }

    /// Fast path: the next event, if written as most servers do and complete in `chunk`. Same result as
    /// reading the lines one by one.
    fn usual(&self, chunk: &Bytes) -> Option<UsualEvent> {
        let begins = self.before == BetweenLines::LineFeed && self.partial.is_empty();
        // Bytes of an event that has begun count until its end, even if they say nothing.
        if !begins || self.failed || self.size > 0 {
            return None;
        }
        let rest = chunk.get(self.at..)?;
        let named = rest.strip_prefix(USUAL_NAME);
        let data = named.unwrap_or(rest).strip_prefix(b"data: ")?;
        let len = memchr::memchr2(b'\n', b'\r', data)?;
        let before = rest.len() - data.len();
        if !data.get(len..)?.starts_with(b"\n\n") || before + len > self.max_event_bytes {
            return None;
        }
        let start = self.at + before;
        Some(UsualEvent {
            is_named: named.is_some(),
            data: start..start + len,
            end: start + len + 2,
        })
    }

    fn read(&mut self, chunk: &Bytes) -> Result<Option<SseEvent>, SseError> {
        while let Some((start, end)) = self.line(chunk)? {
            let complete = if self.partial.is_empty() {
                self.take_line(chunk, start, end)?
            } else {
                self.partial
                    .extend_from_slice(chunk.get(start..end).unwrap_or_default());
                let line = std::mem::take(&mut self.partial).freeze();
                self.take_line(&line, 0, line.len())?
            };
            if complete.is_some() {
                return Ok(complete);
            }
        }
        Ok(None)
    }

    /// Range in `chunk` of the next complete line, without the line end. The line begins with `partial`,
    /// the rest of the previous chunks.
    fn line(&mut self, chunk: &Bytes) -> Result<Option<(usize, usize)>, SseError> {
        let mut rest = chunk.get(self.at..).unwrap_or_default();
        if self.before == BetweenLines::CarriageReturn && !rest.is_empty() {
            self.before = BetweenLines::LineFeed;
            if let Some(after) = rest.strip_prefix(b"\n") {
                self.at += 1;
                rest = after;
            }
        }
        let Some(len) = memchr::memchr2(b'\n', b'\r', rest) else {
            self.partial.extend_from_slice(rest);
            self.at = chunk.len();
            self.check(self.partial.len())?;
            return Ok(None);
        };
        self.check(self.partial.len() + len)?;
        let start = self.at;
        self.at += len + 1;
        let ends_so = match rest.get(len) {
            Some(b'\r') => BetweenLines::CarriageReturn,
            _ => BetweenLines::LineFeed,
        };
        let before = std::mem::replace(&mut self.before, ends_so);
        if before == BetweenLines::Start {
            return Ok(Some(self.unmarked(chunk, start, start + len)));
        }
        Ok(Some((start, start + len)))
    }

    /// The first line of a stream without the byte order mark that may stand before it.
    fn unmarked(&mut self, chunk: &Bytes, start: usize, end: usize) -> (usize, usize) {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        let line = chunk.get(start..end).unwrap_or_default();
        let known = self.partial.len().min(MARK.len());
        let (begun, to_come) = MARK.split_at(known);
        if self.partial.starts_with(begun) && line.starts_with(to_come) {
            self.partial.advance(known);
            return (start + to_come.len(), end);
        }
        (start, end)
    }

    fn check(&mut self, unread: usize) -> Result<(), SseError> {
        // A line spends a few bytes on its field name.
        self.failed = self.size.saturating_add(unread) > self.max_event_bytes.saturating_add(16);
        if self.failed {
            self.partial = BytesMut::new();
            self.joined = None;
            return Err(SseError::TooLarge);
        }
        Ok(())
    }

    /// Takes the line at `start..end` of `text`; an empty line dispatches the event, if any.
    fn take_line(
        &mut self,
        text: &Bytes,
        start: usize,
        end: usize,
    ) -> Result<Option<SseEvent>, SseError> {
        let line = text.get(start..end).unwrap_or_default();
        if line.is_empty() {
            return Ok(self.dispatch());
        }
        // Comments and unknown fields are passed over.
        let Some((field, skip)) = field(line) else {
            return Ok(None);
        };
        let value = line.get(skip..).unwrap_or_default();
        match field {
            EventField::Data => self.data(text.slice(start + skip..end)),
            EventField::Event => {
                // An empty type means `message`. Spec: HTML, "Server-sent events", interpreting an event stream.
                let is_type = !value.is_empty() && is_text(value);
                self.event.event = is_type.then(|| text.slice(start + skip..end));
            }
            EventField::Id if value.len() <= MAX_ID_BYTES && !value.contains(&0) => {
                self.event.id = std::str::from_utf8(value).ok().map(ToOwned::to_owned);
            }
            EventField::Retry if value.iter().all(u8::is_ascii_digit) => {
                let digits = std::str::from_utf8(value).ok();
                self.event.retry = digits.and_then(|digits| digits.parse().ok());
            }
            EventField::Id | EventField::Retry => return Ok(None),
        }
        self.size = self.size.saturating_add(line.len());
        self.check(0)?;
        Ok(None)
    }

    fn data(&mut self, value: Bytes) {
        if !self.event.has_data {
            self.event.has_data = true;
            self.event.data = value;
            return;
        }
        let first = &self.event.data;
        let joined = self
            .joined
            .get_or_insert_with(|| BytesMut::from(first.as_ref()));
        joined.extend_from_slice(b"\n");
        joined.extend_from_slice(&value);
    }

    /// Ends the event at an empty line, if there was one.
    fn dispatch(&mut self) -> Option<SseEvent> {
        self.size = 0;
        if self.event.is_empty() {
            return None;
        }
        let mut event = std::mem::take(&mut self.event);
        if let Some(joined) = self.joined.take() {
            event.data = joined.freeze();
        }
        Some(event)
    }
}

impl SseEvent {
    fn is_empty(&self) -> bool {
        !self.has_data && self.id.is_none() && self.event.is_none() && self.retry.is_none()
    }
}

/// The field of a line and where its value begins.
fn field(line: &[u8]) -> Option<(EventField, usize)> {
    let (field, name) = match line {
        [b'd', b'a', b't', b'a', ..] => (EventField::Data, 4),
        [b'e', b'v', b'e', b'n', b't', ..] => (EventField::Event, 5),
        [b'i', b'd', ..] => (EventField::Id, 2),
        [b'r', b'e', b't', b'r', b'y', ..] => (EventField::Retry, 5),
        _ => return None,
    };
    match line.get(name..) {
        Some([b':', b' ', ..]) => Some((field, name + 2)),
        Some([b':', ..]) => Some((field, name + 1)),
        Some([]) => Some((field, name)),
        _ => None,
    }
}

fn is_text(value: &[u8]) -> bool {
    std::str::from_utf8(value).is_ok()
}

#[cfg(test)]
mod tests;
