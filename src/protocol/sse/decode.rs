//! Reading events, bounded.

use bytes::{Buf, Bytes, BytesMut};

/// Ids longer than this are ignored: they are kept, and sent back in a header.
const MAX_ID_BYTES: usize = 4096;

/// One event. Data is a slice of what was fed when it lay on one line in one chunk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The `id` of this event, if it set one; an empty id resets the last one.
    pub id: Option<String>,
    /// Its type; absent means `message`.
    pub event: Option<String>,
    /// Its `data` lines, joined by line feeds.
    pub data: Bytes,
    /// Reconnection time, in milliseconds.
    pub retry: Option<u64>,
    /// Whether there was a `data` line at all, be it empty.
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
enum Before {
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
    /// Fed and not yet read.
    chunk: Bytes,
    /// The beginning of a line whose end was not fed yet.
    partial: BytesMut,
    event: SseEvent,
    /// Data of more than one line, while it grows.
    joined: Option<BytesMut>,
    /// Bytes of the unfinished event.
    size: usize,
    before: Before,
    saw_bytes: bool,
    failed: bool,
}

impl SseDecoder {
    /// A reader at the start of a stream.
    #[must_use]
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            max_event_bytes,
            chunk: Bytes::new(),
            partial: BytesMut::new(),
            event: SseEvent::default(),
            joined: None,
            size: 0,
            before: Before::Start,
            saw_bytes: false,
            failed: false,
        }
    }

    /// Takes the next chunk. Call [`next`](Self::next) until it gives `None` before feeding more;
    /// otherwise what is left is copied together.
    pub fn feed(&mut self, chunk: Bytes) {
        self.saw_bytes |= !chunk.is_empty();
        if self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            self.chunk = [self.chunk.as_ref(), &chunk].concat().into();
        }
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
        while let Some(line) = self.line()? {
            if !line.is_empty() {
                self.field(&line)?;
            } else if let Some(event) = self.dispatch() {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// The next complete line without its end.
    fn line(&mut self) -> Result<Option<Bytes>, SseError> {
        if self.failed {
            return Err(SseError::TooLarge);
        }
        if self.before == Before::CarriageReturn && !self.chunk.is_empty() {
            self.before = Before::LineFeed;
            if self.chunk.first() == Some(&b'\n') {
                self.chunk.advance(1);
            }
        }
        let Some(end) = memchr::memchr2(b'\n', b'\r', &self.chunk) else {
            self.partial
                .extend_from_slice(&std::mem::take(&mut self.chunk));
            self.check(self.partial.len())?;
            return Ok(None);
        };
        self.check(self.partial.len() + end)?;
        let mut line = self.chunk.split_to(end);
        let ends_so = match self.chunk.first() {
            Some(b'\r') => Before::CarriageReturn,
            _ => Before::LineFeed,
        };
        let before = std::mem::replace(&mut self.before, ends_so);
        self.chunk.advance(1);
        if !self.partial.is_empty() {
            self.partial.extend_from_slice(&line);
            line = std::mem::take(&mut self.partial).freeze();
        }
        if before == Before::Start && line.starts_with(b"\xef\xbb\xbf") {
            line.advance(3);
        }
        Ok(Some(line))
    }

    fn check(&mut self, unread: usize) -> Result<(), SseError> {
        // A line spends a few bytes on its field name.
        self.failed = self.size.saturating_add(unread) > self.max_event_bytes.saturating_add(16);
        if self.failed {
            self.chunk = Bytes::new();
            self.partial = BytesMut::new();
            self.joined = None;
            return Err(SseError::TooLarge);
        }
        Ok(())
    }

    fn field(&mut self, line: &Bytes) -> Result<(), SseError> {
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        let mut value = line.slice(colon..);
        if !value.is_empty() {
            value.advance(1);
        }
        if value.first() == Some(&b' ') {
            value.advance(1);
        }
        let name = line.get(..colon).unwrap_or_default();
        match name {
            b"data" => self.data(value),
            b"event" => self.event.event = text(&value),
            b"id" if value.len() <= MAX_ID_BYTES && !value.contains(&0) => {
                self.event.id = text(&value);
            }
            b"retry" if value.iter().all(u8::is_ascii_digit) => {
                self.event.retry = text(&value).and_then(|digits| digits.parse().ok());
            }
            // Comments and unknown fields.
            _ => return Ok(()),
        }
        self.size = self.size.saturating_add(line.len());
        self.check(0)
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
        let mut event = std::mem::take(&mut self.event);
        if let Some(joined) = self.joined.take() {
            event.data = joined.freeze();
        }
        (event != SseEvent::default()).then_some(event)
    }
}

fn text(value: &[u8]) -> Option<String> {
    std::str::from_utf8(value).ok().map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests;
