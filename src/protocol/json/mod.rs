//! Small readers and writers of JSON text: what lies where, without a tree.
//!
//! Every function takes one JSON text and hands out slices of it. Objects that are read here must
//! not repeat a member: two parsers could read them differently (DESIGN §3.4).

mod duplicates;
mod raw;
mod scan;
mod skip;
mod write;

use std::borrow::Cow;
use std::ops::Range;

pub(crate) use duplicates::{NameFolding, first_duplicate};
pub(crate) use raw::{JsonFlaw, RawString, WalkStop};
pub(crate) use scan::JsonScanner;
use scan::is_plain;
pub use write::{
    ObjectWriter, array, object, object_replacing, object_with, quote, quote_into, strings,
};

use super::number::DecimalNumber;

/// How deep containers may nest at most, whatever the configuration says: the scanner recurses.
pub const MAX_DEPTH: usize = 1024;

/// Why a JSON text was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Not JSON, or not the kind of value that was asked for.
    #[error("not the expected JSON at byte {offset}")]
    NotJson {
        /// Where, in bytes from the start of the text.
        offset: usize,
    },
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("JSON nested too deeply")]
    TooDeep,
    /// An object repeats a member, or names one in a way that two parsers read differently.
    #[error("ambiguous member {:?}", shown(.member))]
    Ambiguous {
        /// The member.
        member: String,
    },
}

/// How much of a member's name an error quotes, bytes.
const QUOTED: usize = 64;

/// The beginning of a member's name, for an error: the whole may be as long as a message.
pub(super) fn shown(member: &str) -> &str {
    slice(member, 0..member.floor_char_boundary(QUOTED))
}

/// Members of an object, in order: decoded name and JSON text of the value.
pub type ObjectMembers<'a> = Vec<(Cow<'a, str>, &'a str)>;

/// The members of the one object that `text` holds.
///
/// # Errors
/// When `text` is not exactly one object, or repeats a member.
pub fn members(text: &str) -> Result<ObjectMembers<'_>, JsonError> {
    let mut found = ObjectMembers::new();
    let mut scanner = JsonScanner::new(text, MAX_DEPTH);
    let walked = scanner.members(|scanner, name| {
        let span = scanner.value()?;
        found.push((name.clone(), slice(text, span)));
        Ok(true)
    });
    let whole = walked.and_then(|()| Ok(scanner.finish()?));
    whole.map_err(|stop| stop.at(scanner.offset()))?;
    Ok(found)
}

/// Whether `text` is exactly one object that repeats no member.
#[must_use]
pub fn is_object(text: &str) -> bool {
    // What many clients can do.
    if text == "{}" {
        return true;
    }
    let mut scanner = JsonScanner::new(text, MAX_DEPTH);
    scanner.members(|_, _| Ok(false)).is_ok() && scanner.finish().is_ok()
}

/// JSON text of the member `name` of the one object that `text` holds; `None` when it has none, or
/// is no such object.
#[must_use]
pub fn member<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    // What many clients can do.
    if text == "{}" {
        return None;
    }
    let mut found = None;
    let mut scanner = JsonScanner::new(text, MAX_DEPTH);
    let walked = scanner.members(|scanner, known| {
        let span = scanner.value()?;
        if known == name {
            found = Some(slice(text, span));
        }
        Ok(true)
    });
    walked.ok()?;
    scanner.finish().ok()?;
    found
}

/// JSON texts of the elements of the one array that `text` holds.
///
/// # Errors
/// When `text` is not exactly one array.
pub fn elements(text: &str) -> Result<Vec<&str>, JsonError> {
    let mut found = Vec::new();
    let mut scanner = JsonScanner::new(text, MAX_DEPTH);
    let walked = scanner.array(|scanner| {
        let span = scanner.value()?;
        found.push(slice(text, span));
        Ok(())
    });
    let whole = walked.and_then(|()| Ok(scanner.finish()?));
    whole.map_err(|stop: WalkStop| stop.at(scanner.offset()))?;
    Ok(found)
}

/// The string that `text` holds, decoded; `None` when it holds anything else, a lone surrogate
/// included.
#[must_use]
pub fn string(text: &str) -> Option<Cow<'_, str>> {
    // Fast path: no escapes and no surrounding space, as in most strings.
    if let Some(inner) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'))
        && is_plain(inner.as_bytes())
    {
        return Some(Cow::Borrowed(inner));
    }
    let mut scanner = JsonScanner::new(text, 0);
    if scanner.peek() != Some(b'"') {
        return None;
    }
    let raw = scanner.string().ok()?;
    scanner.finish().ok()?;
    raw.decode().ok()
}

/// The string that `text` holds, one whole value as a scanner gave it out: only its escapes are
/// looked at. `None` as for [`string`].
pub(crate) fn scanned_string(text: &str) -> Option<Cow<'_, str>> {
    let inner = text.strip_prefix('"')?;
    if memchr::memchr(b'\\', text.as_bytes()).is_some() {
        return string(text);
    }
    inner.strip_suffix('"').map(Cow::Borrowed)
}

/// What some writers put before a text in UTF-8. Readers may ignore it. Spec: RFC 8259 §8.1.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Longer spellings of a number are not looked at.
const LONGEST_NUMBER: usize = 32;

/// The number in `text`, plain, quoted or as `7.0`: some servers return a number, such as an id, as a string, and those
/// that keep every number as a float write it with a point.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    let spelled = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    whole_number(spelled.unwrap_or(text))
}

/// The number in `text`, plain or as `7.0`, if it is whole and at least zero.
#[must_use]
pub fn whole_number(text: &str) -> Option<u64> {
    let as_float = || float_digits(text)?.parse().ok();
    text.parse().ok().or_else(as_float)
}

/// The number in `text`, plain or as `-7.0`, if it is an integer of at most 64 bits.
#[must_use]
pub fn integer(text: &str) -> Option<i64> {
    let as_float = || float_digits(text)?.parse().ok();
    text.parse().ok().or_else(as_float)
}

/// The plain digits of an integer that may be spelled as a float.
fn float_digits(text: &str) -> Option<String> {
    let short = Some(text).filter(|text| text.len() <= LONGEST_NUMBER);
    DecimalNumber::parse(short?)?.integer()
}

/// Byte range of `part` inside `whole`; `None` unless `part` is a slice of `whole`.
#[must_use]
pub fn span_of(whole: &str, part: &str) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (end <= whole.len()).then_some(start..end)
}

/// The slice at `span`, which a scanner of `text` gave out.
pub(crate) fn slice(text: &str, span: Range<usize>) -> &str {
    text.get(span).unwrap_or_default()
}

#[cfg(test)]
mod tests;
