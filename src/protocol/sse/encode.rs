//! Writing events.

use bytes::{BufMut, BytesMut};

/// The digits of the largest number.
const MAX_DIGITS: usize = 20;

/// Writes the `message` events of one stream, whose ids differ in a number at their end.
#[derive(Debug)]
pub struct NumberedEvents {
    /// All that stands before the number.
    head: Box<[u8]>,
}

impl NumberedEvents {
    const EVENT: &[u8] = b"event: message\n";
    const BEFORE_DATA: &[u8] = b"\ndata: ";
    const NO_DATA: &[u8] = b"\ndata: \n\n";

    /// Ids begin with `stem`; its control characters are left out.
    #[must_use]
    pub fn new(stem: &str) -> Self {
        let mut head = Vec::with_capacity(Self::EVENT.len() + b"id: ".len() + stem.len());
        head.extend_from_slice(Self::EVENT);
        head.extend_from_slice(b"id: ");
        head.extend(stem.bytes().filter(|b| !b.is_ascii_control()));
        Self { head: head.into() }
    }

    /// Bytes that an event takes at most, besides its data.
    #[must_use]
    pub fn room(&self) -> usize {
        self.head.len() + MAX_DIGITS + Self::BEFORE_DATA.len() + 2
    }

    /// Appends an event with a JSON text as data; see [`encode_event`].
    pub fn encode(&self, out: &mut BytesMut, number: u64, data: &[u8]) {
        out.reserve(self.room() + data.len());
        out.put_slice(&self.head);
        out.put_slice(itoa::Buffer::new().format(number).as_bytes());
        out.put_slice(Self::BEFORE_DATA);
        put_line(out, data);
        out.put_slice(b"\n\n");
    }

    /// Appends the event that opens a resumable stream: an id and empty data, nothing else. The Java
    /// SDK up to 2.0 fails on a `retry` line, so that one goes only before a planned close.
    /// Spec: SPEC T-26; only for sessions of 2025-11-25, older clients parse the empty data.
    pub fn encode_priming(&self, out: &mut BytesMut, number: u64) {
        out.put_slice(self.head.get(Self::EVENT.len()..).unwrap_or_default());
        out.put_slice(itoa::Buffer::new().format(number).as_bytes());
        out.put_slice(Self::NO_DATA);
    }

    /// The same where what opens the stream is no event of it but a place, after the event `number`,
    /// told apart by `mark` from that event and from the same place told before.
    pub fn encode_place(&self, out: &mut BytesMut, (number, mark): (u64, u64)) {
        out.put_slice(self.head.get(Self::EVENT.len()..).unwrap_or_default());
        out.put_slice(itoa::Buffer::new().format(number).as_bytes());
        out.put_u8(b'.');
        out.put_slice(itoa::Buffer::new().format(mark).as_bytes());
        out.put_slice(Self::NO_DATA);
    }
}

/// Appends one `message` event with a JSON text as data.
///
/// Line breaks can stand in JSON only as white space: they become spaces. U+0085, U+2028 and U+2029
/// become escapes. So the data is one line for every reader.
pub fn encode_event(out: &mut BytesMut, data: &[u8]) {
    out.reserve(data.len() + 32);
    out.put_slice(b"event: message\ndata: ");
    put_line(out, data);
    out.put_slice(b"\n\n");
}

/// Appends the event that tells where to post. Spec: MCP 2024-11-05; SPEC H-01.
pub fn encode_endpoint(out: &mut BytesMut, uri: &str) {
    out.put_slice(b"event: endpoint\ndata: ");
    out.extend(uri.bytes().filter(|b| !b.is_ascii_control()));
    out.put_slice(b"\n\n");
}

/// Appends a comment, which keeps a quiet stream alive: one line, without an empty line behind it. The SDK for Java asks
/// for one line less with each empty line that ends no event, and stops reading after 256. Spec: SPEC T-15.
pub fn encode_comment(out: &mut BytesMut, text: &str) {
    out.put_slice(b": ");
    out.extend(text.bytes().filter(|b| !b.is_ascii_control()));
    out.put_slice(b"\n");
}

/// Appends a reconnection time alone: for the end of a stream that is closed on purpose, and nowhere
/// else. Spec: SPEC T-27.
pub fn encode_retry(out: &mut BytesMut, retry_ms: u64) {
    out.put_slice(b"retry: ");
    out.put_slice(itoa::Buffer::new().format(retry_ms).as_bytes());
    out.put_slice(b"\n\n");
}

/// Appends a JSON text as one line for every reader.
fn put_line(out: &mut BytesMut, text: &[u8]) {
    let mut rest = text;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', rest) {
        let (line, tail) = rest.split_at(at);
        put_escaped(out, line);
        out.put_u8(b' ');
        rest = tail.get(1..).unwrap_or_default();
    }
    put_escaped(out, rest);
}

/// Appends a part of a JSON text with U+0085, U+2028 and U+2029 as escapes, which mean the same inside
/// a string, the only place in JSON where they can stand. Java's line readers end a line at each.
///
/// Both scans are vectorised; the second looks for first bytes that no ASCII text has.
fn put_escaped(out: &mut BytesMut, text: &[u8]) {
    let mut copied = 0;
    for at in memchr::memchr2_iter(0xC2, 0xE2, text) {
        let (length, escape) = match text.get(at..) {
            Some([0xC2, 0x85, ..]) => (2, br"\u0085"),
            Some([0xE2, 0x80, 0xA8, ..]) => (3, br"\u2028"),
            Some([0xE2, 0x80, 0xA9, ..]) => (3, br"\u2029"),
            _ => continue,
        };
        out.put_slice(text.get(copied..at).unwrap_or_default());
        out.put_slice(escape);
        copied = at + length;
    }
    out.put_slice(text.get(copied..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        write(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    fn numbered(stem: &str, number: u64, data: &[u8]) -> String {
        written(|out| NumberedEvents::new(stem).encode(out, number, data))
    }

    // SPEC T-16.
    #[test]
    fn data_is_one_line_whatever_the_white_space() {
        let text = numbered("t.1.", 2, b"{\r\n\"a\":\n1}");
        assert_eq!(text, "event: message\nid: t.1.2\ndata: {  \"a\": 1}\n\n");
        assert_eq!(
            written(|out| encode_event(out, b"{\n}")),
            "event: message\ndata: { }\n\n"
        );
    }

    #[test]
    fn unicode_line_separators_leave_as_escapes() {
        let raw = "{\"a\":\"x\u{2028}y\u{2029}\n\u{85}\u{2028}\"}";
        let data = "{\"a\":\"x\\u2028y\\u2029 \\u0085\\u2028\"}";
        let plain = written(|out| encode_event(out, raw.as_bytes()));
        assert_eq!(plain, format!("event: message\ndata: {data}\n\n"));
        assert!(numbered("t.", 1, raw.as_bytes()).contains(data));
        // Neighbours of the three, and a text cut in the middle of one.
        let near = "\u{84}\u{86}\u{2027}\u{202A}\u{2014}£";
        assert!(numbered("t.", 1, near.as_bytes()).contains(near));
        let mut out = BytesMut::new();
        encode_event(&mut out, b"\xE2\x80");
        assert!(out.ends_with(b"data: \xE2\x80\n\n"));
    }

    #[test]
    fn the_ids_of_a_stream_end_with_their_number() {
        for number in [0, 9, 10, 1_234_567_890, u64::MAX] {
            let expected = format!("event: message\nid: t.1.{number}\ndata: 1\n\n");
            assert_eq!(numbered("t.1.", number, b"1"), expected);
        }
    }

    #[test]
    fn an_id_cannot_forge_lines() {
        let text = numbered("a\ndata: x", 1, b"1");
        assert_eq!(text, "event: message\nid: adata: x1\ndata: 1\n\n");
    }

    // SPEC T-15.
    #[test]
    fn a_comment_is_one_line() {
        assert_eq!(written(|out| encode_comment(out, "a\nb")), ": ab\n");
        let stream = written(|out| {
            encode_comment(out, "");
            encode_event(out, b"1");
        });
        assert_eq!(stream, ": \nevent: message\ndata: 1\n\n");
    }

    // SPEC H-01.
    #[test]
    fn the_endpoint_event_is_one_line() {
        let text = written(|out| encode_endpoint(out, "/messages?sessionId=a\nb"));
        assert_eq!(text, "event: endpoint\ndata: /messages?sessionId=ab\n\n");
    }

    #[test]
    fn priming_event_has_id_and_empty_data_alone() {
        let events = NumberedEvents::new("t.1.");
        let text = written(|out| events.encode_priming(out, 0));
        assert_eq!(text, "id: t.1.0\ndata: \n\n");
        let text = written(|out| events.encode_place(out, (3, 2)));
        assert_eq!(text, "id: t.1.3.2\ndata: \n\n");
        assert_eq!(written(|out| encode_retry(out, 20)), "retry: 20\n\n");
    }
}
