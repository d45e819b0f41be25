//! Progress notifications in the form that most servers write, read without laying out a message.
//!
//! They come in bursts and pass unchanged but for their token, so that laying each out would cost
//! more than all else that is done with it.

use std::ops::Range;

use bytes::Bytes;

use super::super::json::plain_end;

/// A progress notification with nothing unusual about it. Spec: SPEC C-01, C-02.
#[derive(Debug, Clone)]
pub struct Progress {
    bytes: Bytes,
    token: Range<usize>,
}

impl Progress {
    /// Reads a notification whose members are all known and appear once, without escapes or
    /// other things that take a closer look. Nothing for everything else: that may well be a
    /// progress notification, or no message at all, as [`Message::parse`](super::Message::parse)
    /// will tell.
    #[must_use]
    pub fn read(bytes: &Bytes) -> Option<Self> {
        let mut cursor = Cursor { text: bytes, at: 0 };
        let token = cursor.message()?;
        Some(Self {
            bytes: bytes.clone(),
            token,
        })
    }

    /// The token, when it is a number like those that we give out.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        let digits = self.bytes.get(self.token.clone())?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// The notification under another token (JSON text).
    #[must_use]
    pub fn with_token(&self, json: &str) -> Bytes {
        let before = self.bytes.get(..self.token.start).unwrap_or_default();
        let after = self.bytes.get(self.token.end..).unwrap_or_default();
        [before, json.as_bytes(), after].concat().into()
    }
}

/// A place in a text; every step is none where the text is not as expected.
struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    /// The whole message; where its token lies.
    fn message(&mut self) -> Option<Range<usize>> {
        const ALL: u8 = 0b111;
        let mut token = None;
        let seen = self.object(|cursor, name| match name {
            b"jsonrpc" => cursor.word(b"\"2.0\"").map(|()| 0b1),
            b"method" => cursor.word(b"\"notifications/progress\"").map(|()| 0b10),
            b"params" => {
                token = Some(cursor.params()?);
                Some(0b100)
            }
            _ => None,
        })?;
        (seen == ALL && self.at == self.text.len()).then_some(token?)
    }

    fn params(&mut self) -> Option<Range<usize>> {
        let mut token = None;
        self.object(|cursor, name| match name {
            b"progressToken" => {
                let start = cursor.at;
                cursor.digits()?;
                token = Some(start..cursor.at);
                Some(0b1)
            }
            b"progress" => cursor.number().map(|()| 0b10),
            b"total" => cursor.number().map(|()| 0b100),
            b"message" => cursor.string().map(|()| 0b1000),
            _ => None,
        })?;
        token
    }

    /// Moves over an object that is not empty; the marks of its members, each of which has one of
    /// its own. `value` moves over the value of a member and says its mark.
    #[inline]
    fn object(&mut self, mut value: impl FnMut(&mut Self, &[u8]) -> Option<u8>) -> Option<u8> {
        self.byte(b'{')?;
        let mut seen = 0;
        loop {
            let name = self.name()?;
            let mark = value(self, self.text.get(name)?)?;
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

    /// Moves over a name and the colon after it.
    #[inline]
    fn name(&mut self) -> Option<Range<usize>> {
        self.byte(b'"')?;
        let start = self.at;
        self.at = plain_end(self.text, start);
        let name = start..self.at;
        self.byte(b'"')?;
        self.byte(b':')?;
        self.space();
        Some(name)
    }

    /// Moves over a string without escapes.
    fn string(&mut self) -> Option<()> {
        self.byte(b'"')?;
        let start = self.at;
        self.at = plain_end(self.text, start);
        std::str::from_utf8(self.text.get(start..self.at)?).ok()?;
        self.byte(b'"')
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
    fn space(&mut self) {
        self.at += usize::from(self.text.get(self.at) == Some(&b' '));
    }

    fn byte(&mut self, byte: u8) -> Option<()> {
        let is_next = self.text.get(self.at) == Some(&byte);
        self.at += 1;
        is_next.then_some(())
    }

    /// Moves over `word`, whose length is known when this is compiled, so that it is compared as
    /// numbers are.
    fn word<const LEN: usize>(&mut self, word: &[u8; LEN]) -> Option<()> {
        let next = self.text.get(self.at..)?.first_chunk::<LEN>()?;
        self.at += LEN;
        (next == word).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{Kind, Message};

    const USUAL: &str = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":0.5,"total":10,"message":"half ü"}}"#;

    fn read(text: &str) -> Option<Progress> {
        Progress::read(&Bytes::copy_from_slice(text.as_bytes()))
    }

    /// What is read here is what the whole reader makes of it.
    fn agrees(bytes: &Bytes) {
        let Some(progress) = Progress::read(bytes) else {
            return;
        };
        let message = Message::parse(bytes.clone(), 128).unwrap();
        assert_eq!(message.kind(), Kind::Notification);
        assert_eq!(message.method(), Some("notifications/progress"));
        let token = message.param("progressToken").unwrap();
        assert_eq!(progress.token(), token.parse().ok());
        let edited = message.edit().param("progressToken", "\"t\"").finish();
        assert_eq!(progress.with_token("\"t\""), edited);
    }

    #[test]
    fn what_most_servers_write_is_read() {
        let spaced = USUAL.replace(':', ": ").replace(',', ", ");
        let turned = r#"{"method":"notifications/progress","params":{"progress":1,"progressToken":7},"jsonrpc":"2.0"}"#;
        for text in [USUAL, &spaced, turned] {
            assert_eq!(read(text).and_then(|read| read.token()), Some(7), "{text}");
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
        assert!(Progress::read(&latin.into()).is_none());
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
