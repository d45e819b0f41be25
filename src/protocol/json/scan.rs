//! A strict JSON scanner over borrowed text: one pass, no tree, no allocation.
//!
//! It checks the whole grammar of RFC 8259 (duplicates are the caller's business: only the caller
//! knows which objects are read), bounds the depth, and says where values lie.

use std::borrow::Cow;
use std::ops::Range;

use super::duplicates::SeenNames;
use super::raw::{JsonFlaw, RawString, WalkStop};
use super::skip;

/// A cursor over one JSON text.
#[derive(Debug, Clone)]
pub(crate) struct JsonScanner<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    max_depth: usize,
    /// How many more values may come that are moved over unread.
    values_left: usize,
}

/// From this many words of eight bytes on, a string is looked through in blocks.
const WORDS_OF_A_LONG_STRING: usize = 6;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES << 7;

impl<'a> JsonScanner<'a> {
    /// A cursor at the start of `text`; containers nest at most `max_depth` deep.
    pub(crate) fn new(text: &'a str, max_depth: usize) -> Self {
        Self {
            text,
            at: 0,
            depth: 0,
            max_depth,
            values_left: usize::MAX,
        }
    }

    /// The same, but at most `values` values are moved over unread, those within others included.
    pub(crate) fn with_values(self, values: usize) -> Self {
        Self {
            values_left: values,
            ..self
        }
    }

    /// Where the cursor stands, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// The text that is scanned.
    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    /// How many more containers may nest here.
    pub(crate) fn depth_left(&self) -> usize {
        self.max_depth - self.depth
    }

    /// Moves over a value that is known to end at `end`.
    pub(crate) fn skip_to(&mut self, end: usize) {
        self.at = end;
    }

    /// Skips white space and shows the next byte; `None` at the end.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        loop {
            match bytes.get(self.at).copied() {
                Some(byte) if byte > b' ' => return Some(byte),
                Some(b' ' | b'\n' | b'\t' | b'\r') => self.at += 1,
                other => return other,
            }
        }
    }

    /// Only white space may be left.
    pub(crate) fn finish(&mut self) -> Result<(), JsonFlaw> {
        if self.peek().is_none() {
            Ok(())
        } else {
            Err(JsonFlaw::Syntax)
        }
    }

    /// Moves over one value and says where it lay.
    pub(crate) fn value(&mut self) -> Result<Range<usize>, JsonFlaw> {
        let first = self.peek();
        let start = self.at;
        self.skip(first)?;
        Ok(start..self.at)
    }

    /// Moves over a value that begins with `first`, which the cursor stands on.
    pub(crate) fn skip(&mut self, first: Option<u8>) -> Result<(), JsonFlaw> {
        self.values_left = self.values_left.checked_sub(1).ok_or(JsonFlaw::TooMany)?;
        match first {
            Some(b'"') => self.skip_string().map(drop),
            Some(first) => {
                let bytes = self.text.as_bytes();
                let room = self.depth_left();
                let (at, how) = skip::value(bytes, self.at, first, room, &mut self.values_left);
                self.at = at;
                how
            }
            None => Err(JsonFlaw::Syntax),
        }
    }

    /// Moves over an object; `each` stands before a member's value and must move over it.
    #[inline]
    pub(crate) fn object<E: From<JsonFlaw>>(
        &mut self,
        mut each: impl FnMut(&mut Self, RawString<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open(b'{')?;
        if self.close(b'}') {
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(JsonFlaw::Syntax.into());
            }
            let key = self.string()?;
            self.expect(b':')?;
            each(self, key)?;
            if !self.more(b'}')? {
                return Ok(());
            }
        }
    }

    /// Moves over an object that is read: no member may be repeated. `each` gets the decoded name
    /// and moves over the value, or says `false` and leaves it.
    #[inline]
    pub(crate) fn members(
        &mut self,
        mut each: impl FnMut(&mut Self, &Cow<'a, str>) -> Result<bool, WalkStop>,
    ) -> Result<(), WalkStop> {
        let mut seen = SeenNames::default();
        self.object(|scanner, key| {
            let name = key.decode()?;
            if !seen.is_new(name.clone()) {
                return Err(WalkStop::Ambiguous(name.into_owned()));
            }
            if !each(scanner, &name)? {
                scanner.value()?;
            }
            Ok(())
        })
    }

    /// Moves over one value; returns a string value raw, `None` for other types.
    pub(crate) fn string_value(&mut self) -> Result<Option<RawString<'a>>, JsonFlaw> {
        if self.peek() == Some(b'"') {
            return self.string().map(Some);
        }
        self.value()?;
        Ok(None)
    }

    /// Moves over an array; `each` stands before an element and must move over it.
    #[inline]
    pub(crate) fn array<E: From<JsonFlaw>>(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open(b'[')?;
        if self.close(b']') {
            return Ok(());
        }
        loop {
            each(self)?;
            if !self.more(b']')? {
                return Ok(());
            }
        }
    }

    fn open(&mut self, bracket: u8) -> Result<(), JsonFlaw> {
        self.expect(bracket)?;
        if self.depth >= self.max_depth {
            return Err(JsonFlaw::TooDeep);
        }
        self.depth += 1;
        Ok(())
    }

    /// Moves over `bracket` if it comes next, which ends the container.
    fn close(&mut self, bracket: u8) -> bool {
        let closes = self.peek() == Some(bracket);
        if closes {
            self.at += 1;
            self.depth -= 1;
        }
        closes
    }

    /// After an item: true at a comma, false at the closing `bracket`.
    fn more(&mut self, bracket: u8) -> Result<bool, JsonFlaw> {
        if self.peek() == Some(b',') {
            self.at += 1;
            return Ok(true);
        }
        if self.close(bracket) {
            Ok(false)
        } else {
            Err(JsonFlaw::Syntax)
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), JsonFlaw> {
        if self.peek() != Some(byte) {
            return Err(JsonFlaw::Syntax);
        }
        self.at += 1;
        Ok(())
    }

    /// Moves over a string; the cursor stands on its opening quote.
    #[inline]
    pub(crate) fn string(&mut self) -> Result<RawString<'a>, JsonFlaw> {
        let start = self.at;
        let escapes = self.skip_string()?;
        Ok(RawString {
            text: self.text,
            start,
            end: self.at,
            escapes,
        })
    }

    /// Moves over a string; how many escapes it holds.
    #[inline]
    fn skip_string(&mut self) -> Result<usize, JsonFlaw> {
        let bytes = self.text.as_bytes();
        self.at = plain_end(bytes, self.at + 1);
        if bytes.get(self.at) == Some(&b'"') {
            self.at += 1;
            return Ok(0);
        }
        let (end, escapes) = skip::escaped(bytes, self.at).ok_or(JsonFlaw::Syntax)?;
        self.at = end;
        Ok(escapes)
    }
}

/// Whether nothing in `bytes` ends a run of plain characters.
#[inline]
pub(super) fn is_plain(bytes: &[u8]) -> bool {
    const SHORT: usize = 16;
    if bytes.len() <= SHORT {
        // Names mostly: not worth a call.
        return !bytes
            .iter()
            .fold(false, |any, &byte| any | ends_plain(byte));
    }
    plain_end(bytes, 0) == bytes.len()
}

/// Where the next quote, backslash or control character stands from `at` on, or the end: found
/// eight bytes at a time, and more once the string has proved to be a long one.
#[inline]
pub(super) fn plain_end(bytes: &[u8], at: usize) -> usize {
    let mut rest = bytes.get(at..).unwrap_or_default();
    for _ in 0..WORDS_OF_A_LONG_STRING {
        let Some((chunk, tail)) = rest.split_first_chunk() else {
            break;
        };
        let marks = ends_in(u64::from_le_bytes(*chunk));
        if marks != 0 {
            return bytes.len() - rest.len() + marks.trailing_zeros() as usize / 8;
        }
        rest = tail;
    }
    long_plain_end(bytes, bytes.len() - rest.len())
}

/// The same, if it is within eight bytes.
#[inline]
pub(super) fn short_plain_end(bytes: &[u8], at: usize) -> Option<usize> {
    let marks = ends_in(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    (marks != 0).then(|| at + marks.trailing_zeros() as usize / 8)
}

/// The same, in blocks for as long as they are plain.
#[inline(never)]
fn long_plain_end(bytes: &[u8], at: usize) -> usize {
    const BLOCK: usize = 32;
    let rest = bytes.get(at..).unwrap_or_default();
    let (blocks, _) = rest.as_chunks::<BLOCK>();
    let is_plain = |block: &&[u8; BLOCK]| {
        let ends = block.iter().map(|&byte| u8::from(ends_plain(byte)));
        ends.fold(0, |any, ends| any | ends) == 0
    };
    let plain = blocks.iter().take_while(is_plain).count() * BLOCK;
    let rest = rest.get(plain..).unwrap_or_default();
    let (words, tail) = rest.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let marks = ends_in(u64::from_le_bytes(*word));
        if marks != 0 {
            return at + plain + index * 8 + marks.trailing_zeros() as usize / 8;
        }
    }
    let in_tail = tail.iter().position(|&byte| ends_plain(byte));
    bytes.len() - tail.len() + in_tail.unwrap_or(tail.len())
}

/// The highest bit of each byte of `word` that ends a run of plain characters. The lowest one is
/// exact; a borrow can only mark bytes above it.
#[inline]
fn ends_in(word: u64) -> u64 {
    // Changes places of the space and the quote, which then stands next to the control characters.
    let low = (word ^ (ONES * 0x02)).wrapping_sub(ONES * 0x21);
    let slash = (word ^ (ONES * u64::from(b'\\'))).wrapping_sub(ONES);
    (low | slash) & !word & HIGHS
}

/// What ends a run of plain characters in a string. Without a branch, and always in line: else the
/// compiler looks at a block byte by byte, which costs fourteen times as much. As in [`ends_in`], one comparison finds
/// the quote and the control characters.
#[inline]
fn ends_plain(byte: u8) -> bool {
    (u8::from(byte ^ 0x02 < 0x21) | u8::from(byte == b'\\')) != 0
}
