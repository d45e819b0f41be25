//! Results of a scan: raw strings, and the reason for stopping.

use std::borrow::Cow;
use std::ops::Range;

use super::JsonError;

/// Why scanning stopped; the place is the scanner's offset.
///
/// A whole word: as a byte it makes the compiler move every result of a scan in odd pieces, which
/// cost a fifth of reading a small message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum JsonFlaw {
    /// Not JSON at this place.
    Syntax,
    /// Nested deeper than allowed.
    TooDeep,
    /// More values than allowed.
    TooMany,
}

/// What ends a walk over an object that is read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WalkStop {
    /// The text is no JSON, or too deep.
    Flaw(JsonFlaw),
    /// A member is repeated, or no two parsers need read it alike.
    Ambiguous(String),
}

impl WalkStop {
    /// As an error of a walk that stands at `offset`.
    pub(crate) fn at(self, offset: usize) -> JsonError {
        match self {
            Self::Flaw(JsonFlaw::Syntax | JsonFlaw::TooMany) => JsonError::NotJson { offset },
            Self::Flaw(JsonFlaw::TooDeep) => JsonError::TooDeep,
            Self::Ambiguous(member) => JsonError::Ambiguous { member },
        }
    }
}

impl From<JsonFlaw> for WalkStop {
    fn from(flaw: JsonFlaw) -> Self {
        Self::Flaw(flaw)
    }
}

/// A string as it stands in the text: what lies between the quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawString<'a> {
    /// What it stands in. It is cut out where it is looked at, which most strings never are.
    pub(super) text: &'a str,
    /// Offset of the opening quote.
    pub(super) start: usize,
    /// Offset behind the closing quote.
    pub(super) end: usize,
    /// How many escapes it holds; a whole word for the same reason as [`JsonFlaw`].
    pub(super) escapes: usize,
}

impl<'a> RawString<'a> {
    /// The text between the quotes.
    pub(crate) fn inner(self) -> &'a str {
        self.text.get(self.inner_span()).unwrap_or_default()
    }

    /// Its bytes.
    pub(crate) fn bytes(self) -> &'a [u8] {
        let bytes = self.text.as_bytes();
        bytes.get(self.inner_span()).unwrap_or_default()
    }

    /// The decoded text.
    ///
    /// # Errors
    /// A lone surrogate means different things to different parsers.
    pub(crate) fn decode(self) -> Result<Cow<'a, str>, WalkStop> {
        if !self.is_escaped() {
            return Ok(Cow::Borrowed(self.inner()));
        }
        let quoted = self.text.get(self.span()).unwrap_or_default();
        let decoded = serde_json::from_str(quoted).map(Cow::Owned);
        decoded.map_err(|_| WalkStop::Ambiguous(self.inner().to_owned()))
    }

    /// Whether it holds a backslash.
    pub(crate) fn is_escaped(self) -> bool {
        self.escapes > 0
    }

    /// Where it stands between its quotes.
    pub(crate) fn inner_span(self) -> Range<usize> {
        self.start + 1..self.end - 1
    }

    /// Where it stands, quotes included.
    pub(crate) fn span(self) -> Range<usize> {
        self.start..self.end
    }
}
