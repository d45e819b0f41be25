//! Writing events.

use bytes::{BufMut, BytesMut};

/// Appends one `message` event with a JSON text as data.
///
/// Line breaks can stand in JSON only as white space: they become spaces, so that the data is one
/// line for every reader. An `id` with control characters is left out.
pub fn encode_event(out: &mut BytesMut, id: Option<&str>, data: &[u8]) {
    out.reserve(data.len() + id.map_or(0, str::len) + 32);
    out.put_slice(b"event: message\n");
    if let Some(id) = id {
        put_id(out, id);
    }
    out.put_slice(b"data: ");
    let mut rest = data;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', rest) {
        let (line, tail) = rest.split_at(at);
        out.put_slice(line);
        out.put_u8(b' ');
        rest = tail.get(1..).unwrap_or_default();
    }
    out.put_slice(rest);
    out.put_slice(b"\n\n");
}

/// Appends the event that opens a resumable stream: an id, a reconnection time, empty data.
/// Spec: SPEC T-26; only for sessions of 2025-11-25, older clients parse the empty data.
pub fn encode_priming(out: &mut BytesMut, id: &str, retry_ms: u64) {
    put_id(out, id);
    put_retry(out, retry_ms);
    out.put_slice(b"data: \n\n");
}

/// Appends the event that tells where to post. Spec: MCP 2024-11-05; SPEC H-01.
pub fn encode_endpoint(out: &mut BytesMut, uri: &str) {
    out.put_slice(b"event: endpoint\ndata: ");
    out.extend(uri.bytes().filter(|b| !b.is_ascii_control()));
    out.put_slice(b"\n\n");
}

/// Appends a comment, which keeps a quiet stream alive. Spec: SPEC T-15.
pub fn encode_comment(out: &mut BytesMut, text: &str) {
    out.put_slice(b": ");
    out.extend(text.bytes().filter(|b| !b.is_ascii_control()));
    out.put_slice(b"\n\n");
}

/// Appends a reconnection time alone. Spec: SPEC T-27.
pub fn encode_retry(out: &mut BytesMut, retry_ms: u64) {
    put_retry(out, retry_ms);
    out.put_u8(b'\n');
}

fn put_id(out: &mut BytesMut, id: &str) {
    if id.bytes().any(|b| b.is_ascii_control()) {
        return;
    }
    out.put_slice(b"id: ");
    out.put_slice(id.as_bytes());
    out.put_u8(b'\n');
}

fn put_retry(out: &mut BytesMut, retry_ms: u64) {
    out.put_slice(b"retry: ");
    out.put_slice(retry_ms.to_string().as_bytes());
    out.put_u8(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        write(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    // SPEC T-16.
    #[test]
    fn data_is_one_line_whatever_the_white_space() {
        let text = written(|out| encode_event(out, Some("t.1.2"), b"{\r\n\"a\":\n1}"));
        assert_eq!(text, "event: message\nid: t.1.2\ndata: {  \"a\": 1}\n\n");
        assert_eq!(
            written(|out| encode_event(out, None, b"{}")),
            "event: message\ndata: {}\n\n"
        );
    }

    #[test]
    fn an_id_cannot_forge_lines() {
        let text = written(|out| encode_event(out, Some("a\ndata: x"), b"1"));
        assert_eq!(text, "event: message\ndata: 1\n\n");
        assert_eq!(written(|out| encode_comment(out, "a\nb")), ": ab\n\n");
    }

    // SPEC H-01.
    #[test]
    fn the_endpoint_event_is_one_line() {
        let text = written(|out| encode_endpoint(out, "/messages?sessionId=a\nb"));
        assert_eq!(text, "event: endpoint\ndata: /messages?sessionId=ab\n\n");
    }

    #[test]
    fn priming_has_id_retry_and_empty_data() {
        let text = written(|out| encode_priming(out, "t.1.0", 1500));
        assert_eq!(text, "id: t.1.0\nretry: 1500\ndata: \n\n");
        assert_eq!(written(|out| encode_retry(out, 20)), "retry: 20\n\n");
    }
}
