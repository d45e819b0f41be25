//! `SeenEvents`: where an event stream stands that another replica answers, for the case that the replica is lost.

use bytes::Bytes;
use memchr::memmem;

use crate::protocol::{Message, RequestId, json};
use crate::session::EventId;

/// Bytes of one event that are kept at most.
const MOST: usize = 4096;
/// The end of an event.
const END: &[u8] = b"\n\n";

/// What has passed of an event stream: its newest message and id.
#[derive(Debug, Default)]
pub(super) struct SeenEvents {
    /// The beginning of an event whose end has not come yet.
    begun: Vec<u8>,
    /// How long that event is so far.
    begun_bytes: usize,
    /// Whether what has come so far ends with the end of a line inside an event.
    ends_line: bool,
    /// The newest id, empty before the first one.
    id: String,
    /// The newest message, where it is short.
    message: Vec<u8>,
    is_long: bool,
    /// Whether the newest message has an id.
    has_id: bool,
}

/// The newest message of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NewestMessage {
    /// None has come, or it is no reply.
    NoReply,
    /// The reply to this request.
    Reply(RequestId),
    /// Too long to be kept. The log knows it, if it has an id.
    Long { has_id: bool },
}

impl SeenEvents {
    /// Takes the next bytes of the stream.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let end = if self.ends_line && bytes.first() == Some(&b'\n') {
                Some(1)
            } else {
                memmem::find(bytes, END).map(|at| at + END.len())
            };
            let Some((event, rest)) = end.and_then(|end| bytes.split_at_checked(end)) else {
                self.keep(bytes);
                self.ends_line = bytes.ends_with(b"\n");
                return;
            };
            if self.begun_bytes == 0 {
                self.finish(event, event.len());
            } else {
                self.keep(event);
                let begun = std::mem::take(&mut self.begun);
                self.finish(&begun, self.begun_bytes);
                self.begun_bytes = 0;
            }
            self.ends_line = false;
            bytes = rest;
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = MOST.saturating_sub(self.begun.len());
        let kept = bytes.get(..room).unwrap_or(bytes);
        self.begun.extend_from_slice(kept);
        self.begun_bytes += bytes.len();
    }

    /// An event of `length` bytes has come, which begins with `event`.
    fn finish(&mut self, event: &[u8], length: usize) {
        let mut has_id = false;
        for line in event.split(|byte| *byte == b'\n') {
            if let Some(id) = line.strip_prefix(b"id: ") {
                has_id = true;
                self.id.clear();
                self.id
                    .push_str(std::str::from_utf8(id).unwrap_or_default());
            } else if let Some(data) = line.strip_prefix(b"data: ") {
                if !data.is_empty() {
                    self.has_id = has_id;
                    self.is_long = length > MOST;
                    self.message.clear();
                    if !self.is_long {
                        self.message.extend_from_slice(data);
                    }
                }
                return;
            }
        }
    }

    /// Whether the stream stands between two events.
    pub(super) fn is_between(&self) -> bool {
        self.begun_bytes == 0
    }

    /// The newest id, after which a client resumes.
    pub(super) fn id(&self) -> Option<EventId> {
        EventId::parse(&self.id)
    }

    /// The newest message.
    pub(super) fn newest(&self) -> NewestMessage {
        if self.is_long {
            let has_id = self.has_id;
            return NewestMessage::Long { has_id };
        }
        let message = Bytes::copy_from_slice(&self.message);
        answered(message).map_or(NewestMessage::NoReply, NewestMessage::Reply)
    }
}

/// The request that a message answers.
pub(super) fn answered(message: Bytes) -> Option<RequestId> {
    let message = Message::parse(message, json::MAX_DEPTH).ok()?;
    let reply = message.method().is_none().then_some(message)?;
    reply.id().and_then(RequestId::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "id: 00000000000000aa.3.1\ndata: \n\n: \n\n\
        event: message\nid: 00000000000000aa.3.2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\n\
        event: message\nid: 00000000000000aa.3.4\ndata: {\"result\":{},\"jsonrpc\":\"2.0\",\"id\":\"a\"}\n\n: \n\n";

    #[test]
    fn newest_message_is_known_wherever_the_bytes_are_split() {
        for size in 1..STREAM.len() {
            let mut seen = SeenEvents::default();
            for part in STREAM.as_bytes().chunks(size) {
                seen.read(part);
            }
            assert!(seen.is_between());
            assert_eq!(seen.id().unwrap().seq, 4, "in parts of {size}");
            let reply = NewestMessage::Reply(RequestId::parse("\"a\"").unwrap());
            assert_eq!(seen.newest(), reply, "in parts of {size}");
        }
    }

    #[test]
    fn half_an_event_does_not_count() {
        let mut seen = SeenEvents::default();
        let (whole, half) = STREAM.split_at(STREAM.find("{\"result").unwrap());
        seen.read(whole.as_bytes());
        assert!(!seen.is_between());
        assert_eq!(seen.id().unwrap().seq, 2);
        assert_eq!(seen.newest(), NewestMessage::NoReply);
        seen.read(half.as_bytes());
        assert!(seen.is_between());
        assert_eq!(seen.id().unwrap().seq, 4);
    }

    #[test]
    fn long_message_takes_no_memory() {
        let mut seen = SeenEvents::default();
        let long = format!("data: {}\n\n", "x".repeat(1 << 20));
        for part in long.as_bytes().chunks(1000) {
            seen.read(part);
            assert!(seen.begun.capacity() <= 2 * MOST);
        }
        assert!(seen.is_between());
        assert_eq!(seen.newest(), NewestMessage::Long { has_id: false });
        assert_eq!(seen.id(), None);
    }
}
