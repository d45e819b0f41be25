//! Progress notifications in the form that most servers write, read without building a `MessageLayout`.
//!
//! They arrive in bursts and are relayed unchanged except for the token, so that a `MessageLayout` for each
//! would cost more than all other work on it.

use std::ops::Range;

/// A progress notification in the usual form. Spec: SPEC C-01, C-02.
#[derive(Debug, Clone)]
pub struct ProgressNotice<'a> {
    text: &'a [u8],
    token: Range<usize>,
}

impl<'a> ProgressNotice<'a> {
    /// Reads a notification whose members are all known and appear once, without escapes. `None` for any
    /// other text, which may still be a progress notification, or no message at all:
    /// [`Message::parse`](super::Message::parse) tells.
    #[must_use]
    pub fn read(text: &'a [u8]) -> Option<Self> {
        let token = ProgressCursor { text, at: 0 }.message()?;
        is_plain(text).then_some(Self { text, token })
    }

    /// Whether the notification has this progress token, a number minted by the gateway (JSON text).
    #[must_use]
    pub fn is_of(&self, token: &str) -> bool {
        self.text.get(self.token.clone()) == Some(token.as_bytes())
    }

    /// Appends the notification under another token (JSON text) to `out`.
    pub fn write_with_token(&self, json: &str, out: &mut Vec<u8>) {
        let before = self.text.get(..self.token.start).unwrap_or_default();
        let after = self.text.get(self.token.end..).unwrap_or_default();
        out.reserve(self.text.len() + json.len());
        out.extend_from_slice(before);
        out.extend_from_slice(json.as_bytes());
        out.extend_from_slice(after);
    }
}

/// Whether a text is UTF-8 without control characters.
fn is_plain(text: &[u8]) -> bool {
    // One signed comparison finds control characters and bytes above 0x7f; without a branch, the compiler
    // vectorises it.
    let odd = |byte: &u8| u8::from(byte.cast_signed() < 0x20);
    let is_ascii = text.iter().fold(0, |any, byte| any | odd(byte)) == 0;
    is_ascii || !text.iter().any(|byte| *byte < 0x20) && std::str::from_utf8(text).is_ok()
}

/// A cursor; every step returns `None` where the text differs from the usual form.
struct ProgressCursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl ProgressCursor<'_> {
    /// Moves over the whole message; returns the span of the token.
    fn message(&mut self) -> Option<Range<usize>> {
        const ALL: u8 = 0b111;
        let mut token = None;
        let seen = self.object(|cursor, initial| match initial {
            b'j' => {
                cursor.name(b"\"jsonrpc\":")?;
                cursor.word(b"\"2.0\"").map(|()| 0b1)
            }
            b'm' => {
                cursor.name(b"\"method\":")?;
                cursor.word(b"\"notifications/progress\"").map(|()| 0b10)
            }
            _ => {
                cursor.name(b"\"params\":")?;
                token = Some(cursor.params()?);
                Some(0b100)
            }
        })?;
        (seen == ALL && self.at == self.text.len()).then_some(token?)
    }

    fn params(&mut self) -> Option<Range<usize>> {
        let mut token = None;
        self.object(|cursor, initial| match initial {
            b'p' if cursor.name(b"\"progressToken\":").is_some() => {
                let start = cursor.at;
                cursor.digits()?;
                token = Some(start..cursor.at);
                Some(0b1)
            }
            b'p' => {
                cursor.name(b"\"progress\":")?;
                cursor.number().map(|()| 0b10)
            }
            b't' => {
                cursor.name(b"\"total\":")?;
                cursor.number().map(|()| 0b100)
            }
            _ => {
                cursor.name(b"\"message\":")?;
                cursor.string().map(|()| 0b1000)
            }
        })?;
        token
    }

    /// Moves over a non-empty object; returns the union of its members' marks, one bit per name. `member` gets
    /// the first byte of the next name, moves over name and value, and returns the member's mark. A
    /// repeated mark is refused.
    #[inline]
    fn object(&mut self, mut member: impl FnMut(&mut Self, u8) -> Option<u8>) -> Option<u8> {
        self.word(b"{")?;
        let mut seen = 0;
        loop {
            let initial = *self.text.get(self.at + 1)?;
            let mark = member(self, initial)?;
            if seen & mark != 0 {
                return None;
            }
            seen |= mark;
            let after = *self.text.get(self.at)?;
            self.at += 1;
            match after {
                b',' => self.space(),
                b'}' => return Some(seen),
                _ => return None,
            }
        }
    }

    /// Moves over `name`, with its quotes and the colon after it.
    #[inline]
    fn name<const LEN: usize>(&mut self, name: &[u8; LEN]) -> Option<()> {
        self.word(name)?;
        self.space();
        Some(())
    }

    /// Moves over a string without escapes; what else must not stand in one is looked for in the
    /// whole text.
    fn string(&mut self) -> Option<()> {
        self.word(b"\"")?;
        let rest = self.text.get(self.at..)?;
        self.at += memchr::memchr2(b'"', b'\\', rest)?;
        self.word(b"\"")
    }

    /// Moves over a number without sign and exponent.
    fn number(&mut self) -> Option<()> {
        self.digits()?;
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            let rest = self.text.get(self.at..)?;
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            self.at += digits;
            return (digits > 0).then_some(());
        }
        Some(())
    }

    /// Moves over digits; a leading zero stands alone.
    fn digits(&mut self) -> Option<()> {
        let rest = self.text.get(self.at..)?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        (digits == 1 || digits > 1 && rest.first() != Some(&b'0')).then_some(())
    }

    /// Moves over the space that some writers put after a comma or colon.
    #[inline]
    fn space(&mut self) {
        self.at += usize::from(self.text.get(self.at) == Some(&b' '));
    }

    /// Moves over `word`, whose length is known when this is compiled, so that it is compared as
    /// numbers are.
    #[inline]
    fn word<const LEN: usize>(&mut self, word: &[u8; LEN]) -> Option<()> {
        let next = self.text.get(self.at..)?.first_chunk::<LEN>()?;
        (next == word).then_some(())?;
        self.at += LEN;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{Message, MessageKind};

    const USUAL: &str = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":0.5,"total":10,"message":"half ü"}}"#;

    fn read(text: &str) -> Option<ProgressNotice<'_>> {
        ProgressNotice::read(text.as_bytes())
    }

    /// `ProgressNotice::read` agrees with `Message::parse`.
    fn agrees(bytes: &Bytes) {
        let Some(progress) = ProgressNotice::read(bytes) else {
            return;
        };
        let message = Message::parse(bytes.clone(), 128).unwrap();
        assert_eq!(message.kind(), MessageKind::Notification);
        assert_eq!(message.method(), Some("notifications/progress"));
        let token = message.param("progressToken").unwrap();
        assert!(progress.is_of(token) && !progress.is_of("70"));
        assert!(token.bytes().all(|byte| byte.is_ascii_digit()), "{token}");
        let edited = message.edit().param("progressToken", "\"t\"").finish();
        let mut written = b"before".to_vec();
        progress.write_with_token("\"t\"", &mut written);
        assert_eq!(written, [b"before", &*edited].concat());
    }

    #[test]
    fn what_most_servers_write_is_read() {
        let spaced = USUAL.replace(':', ": ").replace(',', ", ");
        let turned = r#"{"method":"notifications/progress","params":{"progress":1,"progressToken":7},"jsonrpc":"2.0"}"#;
        for text in [USUAL, &spaced, turned] {
            assert!(read(text).is_some_and(|read| read.is_of("7")), "{text}");
            agrees(&Bytes::copy_from_slice(text.as_bytes()));
        }
    }

    #[test]
    fn what_takes_a_closer_look_is_left() {
        let odd = [
            (r#""total":10"#, r#""_meta":{}"#),
            (r#""total":10"#, r#""progress":10"#),
            (r#""total":10"#, r#""Progress":10"#),
            (r#""total":10"#, r#""total":-1"#),
            (r#""total":10"#, r#""total":01"#),
            (r#""total":10"#, r#""total":1."#),
            (r#""total":10"#, r#""t\u006ftal":1"#),
            ("half", r"ha\nlf"),
            ("half", "ha\tlf"),
            (r#""progressToken":7,"#, ""),
            ("\"progressToken\":7", "\"progressToken\":\"7\""),
            (r#""jsonrpc":"2.0","#, ""),
            (r#""jsonrpc":"2.0","#, r#""jsonrpc":"2.0","id":1,"#),
            ("/progress\"", "/message\""),
            ("}}", "}} "),
            ("}}", "}"),
        ];
        for (from, to) in odd {
            let text = USUAL.replacen(from, to, 1);
            assert!(text != USUAL && read(&text).is_none(), "{text}");
        }
        let mut latin = USUAL.replace("ü", "u").into_bytes();
        let at = latin.len() - 4;
        latin[at] = 0xfc;
        assert!(ProgressNotice::read(&latin).is_none());
    }

    proptest! {
        #[test]
        fn no_bytes_are_read_otherwise_than_as_a_whole(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), prop_oneof![
                any::<u8>(), prop::sample::select(&b"{}[]:,\" \\019.eE-\n"[..])
            ]), 0..4),
        ) {
            let mut bytes = USUAL.as_bytes().to_vec();
            for (index, byte) in changes {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
            agrees(&bytes.into());
        }
    }
}
