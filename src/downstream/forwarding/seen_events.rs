//! `SeenEvents`: where an event stream stands that another replica answers, for the case that the replica is lost.

use bytes::Bytes;
use memchr::memmem;

use crate::protocol::{IdScan, Message, RequestId, ScannedMessage, json};
use crate::session::EventId;

/// Bytes of one event that are kept at most. A longer one is read for the id of its reply alone.
const MOST: usize = 4096;
/// The end of an event.
const END: &[u8] = b"\n\n";
/// What stands before the message of an event.
const DATA: &[u8] = b"data: ";

/// What has passed of an event stream: its newest message and id.
#[derive(Debug, Default)]
pub(super) struct SeenEvents {
    /// The beginning of an event whose end has not come yet.
    begun: Vec<u8>,
    /// Bytes of that event so far.
    begun_bytes: usize,
    /// Reads the message of that event once it is longer than what is kept.
    scan: Option<Box<IdScan>>,
    /// Whether the bytes so far end with the end of a line inside an event.
    ends_line: bool,
    /// Whether the bytes so far end within a comment between two events.
    in_comment: bool,
    /// The newest id, empty before the first one.
    id: String,
    newest: SeenMessage,
    /// Whether the newest message has an id.
    has_id: bool,
}

/// A message that has passed.
#[derive(Debug)]
enum SeenMessage {
    /// Its bytes, to be read where that is needed.
    Short(Vec<u8>),
    Long(ScannedMessage),
}

impl Default for SeenMessage {
    fn default() -> Self {
        Self::Short(Vec::new())
    }
}

/// The newest message of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NewestMessage {
    /// None has come, or it is no reply.
    NoReply,
    /// The reply to this request.
    Reply(RequestId),
    /// Long, and maybe a reply, as its id could not be read. The log knows it, if it has an id.
    Unclear { has_id: bool },
}

impl SeenEvents {
    /// A stream that its client has resumed after the event `id`, if any.
    pub(super) fn after(id: Option<EventId>) -> Self {
        Self {
            id: id.map(|id| id.to_string()).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Takes the next bytes of the stream.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while let Some(first) = bytes.first() {
            let begins_line = self.begun_bytes == 0 && [b':', b'\n'].contains(first);
            if self.in_comment || begins_line {
                // A comment, or an empty line, which ends no event.
                let Some(end) = memchr::memchr(b'\n', bytes) else {
                    self.in_comment = true;
                    return;
                };
                self.in_comment = false;
                bytes = bytes.get(end + 1..).unwrap_or_default();
                continue;
            }
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
            if self.begun_bytes == 0 && event.len() <= MOST {
                self.finish(event, None);
            } else {
                self.keep(event);
                let begun = std::mem::take(&mut self.begun);
                let scan = self.scan.take();
                self.finish(&begun, scan);
                self.begun_bytes = 0;
            }
            self.ends_line = false;
            bytes = rest;
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = MOST.saturating_sub(self.begun.len());
        let (kept, more) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        self.begun.extend_from_slice(kept);
        self.begun_bytes += bytes.len();
        if !more.is_empty() {
            let begun = &self.begun;
            let scan = self.scan.get_or_insert_with(|| {
                let mut scan = Box::<IdScan>::default();
                scan.feed(data_in(begun).unwrap_or_default());
                scan
            });
            scan.feed(more);
        }
    }

    /// An event has come, which begins with `event`; `scan` has read its message where there is more of it.
    fn finish(&mut self, event: &[u8], scan: Option<Box<IdScan>>) {
        let id = lines(event).find_map(|line| line.strip_prefix(b"id: "));
        if let Some(id) = id {
            self.id.clear();
            self.id
                .push_str(std::str::from_utf8(id).unwrap_or_default());
        }
        let Some(data) = data_in(event).filter(|data| !data.is_empty()) else {
            return;
        };
        self.has_id = id.is_some();
        match (scan, &mut self.newest) {
            (Some(scan), newest) => *newest = SeenMessage::Long(scan.message()),
            (None, SeenMessage::Short(message)) => {
                message.clear();
                message.extend_from_slice(data);
            }
            (None, newest) => *newest = SeenMessage::Short(data.to_vec()),
        }
    }

    /// Whether the stream stands between two events, at the beginning of a line.
    pub(super) fn is_between(&self) -> bool {
        self.begun_bytes == 0 && !self.in_comment
    }

    /// The newest id, after which a client resumes.
    pub(super) fn id(&self) -> Option<EventId> {
        EventId::parse(&self.id)
    }

    /// The newest message.
    pub(super) fn newest(&self) -> NewestMessage {
        match &self.newest {
            SeenMessage::Short(message) => {
                let message = Bytes::copy_from_slice(message);
                answered(message).map_or(NewestMessage::NoReply, NewestMessage::Reply)
            }
            SeenMessage::Long(ScannedMessage::NoReply) => NewestMessage::NoReply,
            SeenMessage::Long(ScannedMessage::Reply(id)) => NewestMessage::Reply(id.clone()),
            SeenMessage::Long(ScannedMessage::Unclear) => {
                let has_id = self.has_id;
                NewestMessage::Unclear { has_id }
            }
        }
    }
}

/// The lines of an event before its data. What follows may be long, and has no further line of interest.
fn lines(event: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = event.split(|byte| *byte == b'\n');
    lines.take_while(|line| !line.starts_with(DATA))
}

/// The message of an event. Only its beginning where `event` is cut off.
fn data_in(event: &[u8]) -> Option<&[u8]> {
    let before: usize = lines(event).map(|line| line.len() + 1).sum();
    let rest = event.get(before..)?.strip_prefix(DATA)?;
    let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
    rest.get(..end)
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

    const STREAM: &str = "id: 00000000000000aa.3.1\ndata: \n\n: \n\
        event: message\nid: 00000000000000aa.3.2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\n\
        event: message\nid: 00000000000000aa.3.4\ndata: {\"result\":{},\"jsonrpc\":\"2.0\",\"id\":\"a\"}\n\n: \n";

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
    fn half_a_comment_stands_in_the_way() {
        let mut seen = SeenEvents::default();
        seen.read(b": \n:");
        assert!(!seen.is_between());
        seen.read(b" a");
        assert!(!seen.is_between());
        // Replicas of earlier builds write an empty line behind it.
        seen.read(b"\n\n");
        assert!(seen.is_between());
        assert_eq!(seen.begun_bytes, 0, "comments are not kept");
    }

    /// What is known of a stream with this one event, in pieces of 1,000 bytes.
    fn seen(event: &str) -> SeenEvents {
        let mut seen = SeenEvents::default();
        for part in event.as_bytes().chunks(1000) {
            seen.read(part);
            assert!(seen.begun.capacity() <= 2 * MOST);
        }
        assert!(seen.is_between());
        seen
    }

    #[test]
    fn long_message_is_known_and_takes_no_memory() {
        let text = "x".repeat(1 << 20);
        let notice = format!("data: {{\"params\":\"{text}\",\"method\":\"n\"}}\n\n");
        let reply =
            format!("id: 00000000000000aa.3.2\ndata: {{\"result\":\"{text}\",\"id\":5}}\n\n");
        let unclear = format!("data: {{\"result\":{{}},\"id\":\"{text}\"}}\n\n");
        assert_eq!(seen(&notice).newest(), NewestMessage::NoReply);
        assert_eq!(seen(&notice).id(), None);
        let of_five = NewestMessage::Reply(RequestId::from(5));
        assert_eq!(seen(&reply).newest(), of_five);
        assert_eq!(seen(&reply).id().unwrap().seq, 2);
        let has_id = false;
        assert_eq!(seen(&unclear).newest(), NewestMessage::Unclear { has_id });
        // In one piece, and followed by a short one.
        let mut whole = SeenEvents::default();
        whole.read(reply.as_bytes());
        assert_eq!(whole.newest(), of_five);
        whole.read(b"data: {\"method\":\"n\"}\n\n");
        assert_eq!(whole.newest(), NewestMessage::NoReply);
        assert!(whole.is_between());
    }

    #[test]
    fn resumed_stream_stands_after_the_id_that_its_client_named() {
        let id = EventId::parse("00000000000000aa.3.2");
        let mut seen = SeenEvents::after(id);
        assert_eq!(seen.id(), id);
        seen.read(b": \n");
        assert_eq!(seen.id(), id);
        seen.read(b"id: 00000000000000aa.3.7\ndata: {\"method\":\"n\"}\n\n");
        assert_eq!(seen.id().unwrap().seq, 7);
    }
}
