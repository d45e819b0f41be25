//! Salvages the id of a message that cannot be read: too long to keep, or no JSON-RPC.
//!
//! The message is scanned in pieces, and only members of its outermost object are noted. If the message was a reply,
//! its caller gets an error at once instead of a timeout.

use bytes::Bytes;
use memchr::{memchr_iter, memmem};

use super::error_codes::INTERNAL_ERROR;
use super::{Message, MessageKind, json, rpc};

/// Longest id that is remembered, bytes of JSON text.
const MAX_ID: usize = 64;

/// Longest member name that matters.
const MAX_NAME: usize = 8;

/// Scans one message in pieces.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    depth: u32,
    string: InString,
    /// Between a name and the end of its value, at depth 1.
    in_value: bool,
    /// The string or scalar being read, cut at the length that matters.
    text: Vec<u8>,
    name: Vec<u8>,
    id: Option<Vec<u8>>,
    /// Whether it has the member `jsonrpc`.
    is_rpc: bool,
    kind: Kind,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum InString {
    #[default]
    No,
    Yes,
    /// Behind a backslash.
    Escaped,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Unknown,
    Reply,
    /// Or a notification.
    Request,
}

/// The number of our request that an unreadable message answers, if any. A log line may have an id and an error too,
/// or quote a reply: only a text that is an object from its first byte to its last, with the member `jsonrpc`, counts
/// (SPEC D-02).
pub(crate) fn answered(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if !text.starts_with(b"{") || !text.ends_with(b"}") {
        return None;
    }
    let mut watch = Watch::default();
    watch.see(text);
    let id = watch.is_rpc.then(|| watch.replies_to());
    json::number(&id??)
}

/// Bytes of a line in which its reply has to begin.
const MAX_PREFIX: usize = 4096;

/// Braces of a line that are tried as the beginning of its reply.
const MAX_TRIES: usize = 8;

/// Whether a line that does not begin as a message may end as one.
pub(crate) fn may_hold_reply(line: &[u8]) -> bool {
    memchr::memchr(b'{', line).is_some() && memmem::find(line, b"\"jsonrpc\"").is_some()
}

/// The reply at the end of a line, from some `{` on: text printed before it without a line break is skipped.
/// `is_awaited` tells whether our request of this number is running. Spec: SPEC D-02, U-14.
pub(crate) fn reply_behind(
    line: &Bytes,
    depth: usize,
    is_awaited: impl Fn(u64) -> bool,
) -> Option<Message> {
    if !may_hold_reply(line) {
        return None;
    }
    let prefix = line.get(..line.len().min(MAX_PREFIX))?;
    let begins = |at: &usize| {
        let behind = line.get(at + 1..).unwrap_or_default();
        *at > 0 && behind.trim_ascii_start().starts_with(b"\"")
    };
    let tries = memchr_iter(b'{', prefix).filter(begins).take(MAX_TRIES);
    let mut replies = tries.filter_map(|at| Message::parse(line.slice(at..), depth).ok());
    replies.find(|message| {
        message.kind() == MessageKind::Response && message.number().is_some_and(&is_awaited)
    })
}

impl Watch {
    /// Looks at the next piece.
    pub(crate) fn see(&mut self, piece: &[u8]) {
        for byte in piece {
            self.step(*byte);
        }
    }

    /// The reply that stands for the message; `None` if it was none, or has no id.
    pub(crate) fn stand_in(self, max_bytes: usize) -> Option<Bytes> {
        let id = self.replies_to()?;
        let text = format!("the upstream's reply is longer than {max_bytes} bytes");
        let error = rpc::error(INTERNAL_ERROR, &text, None);
        Some(rpc::response(id, "error", &error).into())
    }

    /// JSON text of the id that it replies to; `None` if it was no reply, or has no id.
    fn replies_to(self) -> Option<String> {
        if self.kind != Kind::Reply {
            return None;
        }
        String::from_utf8(self.id?).ok()
    }

    fn step(&mut self, byte: u8) {
        if self.string != InString::No {
            self.keep(byte);
            self.string = match (self.string, byte) {
                (InString::Yes, b'\\') => InString::Escaped,
                (InString::Yes, b'"') => InString::No,
                _ => InString::Yes,
            };
            return;
        }
        match byte {
            b'"' => {
                self.string = InString::Yes;
                self.keep(byte);
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.close_member();
                self.depth = self.depth.saturating_sub(1);
            }
            b',' => self.close_member(),
            b':' if self.depth == 1 && !self.in_value => {
                self.name = std::mem::take(&mut self.text);
                self.in_value = true;
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => self.keep(byte),
        }
    }

    fn keep(&mut self, byte: u8) {
        let bound = if self.in_value { MAX_ID } else { MAX_NAME + 2 };
        // One more than allowed is kept, so that a text that is too long is known to be.
        if self.depth == 1 && self.text.len() <= bound {
            self.text.push(byte);
        }
    }

    fn close_member(&mut self) {
        if self.depth != 1 || !self.in_value {
            return;
        }
        self.in_value = false;
        let value = std::mem::take(&mut self.text);
        match self.name.as_slice() {
            b"\"jsonrpc\"" => self.is_rpc = true,
            b"\"method\"" => self.kind = Kind::Request,
            b"\"result\"" | b"\"error\"" if self.kind == Kind::Unknown => self.kind = Kind::Reply,
            b"\"id\"" if (1..=MAX_ID).contains(&value.len()) => self.id = Some(value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand_in(text: &str, piece: usize) -> Option<String> {
        let mut watch = Watch::default();
        text.as_bytes()
            .chunks(piece)
            .for_each(|piece| watch.see(piece));
        watch
            .stand_in(9)
            .map(|reply| String::from_utf8(reply.to_vec()).unwrap())
    }

    #[test]
    fn a_reply_is_answered_wherever_its_id_stands() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"result":{"id":8,"text":"}\",\"id\":9"}}"#,
            r#"{"result":{"content":[{"id":"x"},[1,2]],"method":"m"},"jsonrpc":"2.0", "id" : 7 }"#,
            r#"{"error":{"code":1,"message":"m"},"id":7}"#,
        ] {
            for piece in [1, 3, 1000] {
                let reply = stand_in(text, piece).unwrap();
                assert!(
                    reply.starts_with(r#"{"jsonrpc":"2.0","id":7,"error":"#),
                    "{reply}"
                );
            }
        }
    }

    // Spec: SPEC D-02, U-14.
    #[test]
    fn a_reply_that_is_no_message_still_says_what_it_answers() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"result":{"share":NaN}}"#,
            r#"{"jsonrpc":"2.0","id":"7","error":"it failed"}"#,
            r#"{"jsonrpc":"2.0","id":7.0,"error":"it failed"}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{},"result":{}}"#,
            "{\n  \"jsonrpc\": \"2.0\",\r\n  \"id\": 7,\n  \"result\": NaN\n}",
        ] {
            assert_eq!(answered(text.as_bytes()), Some(7), "{text}");
        }
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"result":{"cut":"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":[]}"#,
            r#"{"level":"error","id":7,"error":"a line of a log"}"#,
            r#"DEBUG {"jsonrpc":"2.0","id":7,"result":{}} (12 ms)"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{}} was sent"#,
            "{7}",
        ] {
            assert_eq!(answered(text.as_bytes()), None, "{text}");
        }
    }

    // Spec: SPEC D-02, U-14.
    #[test]
    fn reply_behind_other_text_is_found() {
        let found = |text: &str| {
            let line = Bytes::copy_from_slice(text.as_bytes());
            let reply = reply_behind(&line, 64, |id| id == 7)?;
            Some(String::from_utf8(reply.bytes().to_vec()).unwrap())
        };
        let reply = r#"{"jsonrpc":"2.0","id":7,"result":{"a":{"b":1}}}"#;
        for before in ["Loading... ", "[INFO] ", "{debug} ", "{\"a\":1} ", "}{"] {
            assert_eq!(found(&format!("{before}{reply}")).as_deref(), Some(reply));
        }
        for text in [
            // Another request, no reply, no whole one, too far in the line.
            r#"x {"jsonrpc":"2.0","id":8,"result":{}}"#.to_owned(),
            r#"x {"jsonrpc":"2.0","id":7,"method":"ping"}"#.to_owned(),
            format!("x {reply} y"),
            format!("x {}", reply.replace("}}}", "}}")),
            format!("{}{reply}", "x".repeat(MAX_PREFIX)),
            format!("{}{reply}", "{\"x\" ".repeat(MAX_TRIES + 1)),
        ] {
            assert_eq!(found(&text), None, "{text}");
        }
    }

    #[test]
    fn string_ids_keep_their_text() {
        let reply = stand_in(r#"{"id":"a \"b","result":{}}"#, 2).unwrap();
        assert!(reply.contains(r#""id":"a \"b","#), "{reply}");
    }

    #[test]
    fn requests_notices_and_fragments_are_not_answered() {
        for text in [
            r#"{"method":"sampling/createMessage","id":7,"params":{"result":1}}"#,
            r#"{"method":"notifications/message","params":{"id":7}}"#,
            r#"{"params":{"result":{},"id":7}}"#,
            r#"{"id":7,"result":"never ends"#,
            r#"[{"id":7,"result":{}}]"#,
            r#"{"result":{}}"#,
        ] {
            assert_eq!(stand_in(text, 5), None, "{text}");
        }
        let long = format!(r#"{{"id":"{}","result":{{}}}}"#, "x".repeat(MAX_ID));
        assert_eq!(stand_in(&long, 5), None);
    }
}
