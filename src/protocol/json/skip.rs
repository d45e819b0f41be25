//! Skips values that are not read: the whole grammar is checked and nothing is kept.
//!
//! A caller chooses what stands below `arguments`, so a byte must cost about the same whatever it is part of.
//! Hence one loop over all levels, with the kinds of the open containers as bits, instead of a call for each value.

use super::raw::JsonFlaw;
use super::scan::{plain_end, short_plain_end};

/// How many levels are walked in one loop: so many bits hold the kinds of the containers around the innermost one.
const LEVELS: usize = 63;

/// Where a scan stands, and whether it may go on.
pub(super) type Moved = (usize, Result<(), JsonFlaw>);

/// Moves over one value, which begins at `at` with `first`; containers may nest `room` deep in it, and hold as many
/// values in all as are `left`.
pub(super) fn value(bytes: &[u8], at: usize, first: u8, room: usize, left: &mut usize) -> Moved {
    match first {
        b'{' | b'[' => {
            let Some(room) = room.checked_sub(1) else {
                return (at + 1, Err(JsonFlaw::TooDeep));
            };
            let (at, inner) = solid(bytes, at + 1);
            if inner == closing(first) {
                return (at + 1, Ok(()));
            }
            items(bytes, at, closing(first), room, left)
        }
        _ => match scalar(bytes, at, first) {
            Some(end) => (end, Ok(())),
            None => (at, Err(JsonFlaw::Syntax)),
        },
    }
}

/// Moves over the items of a container and its bracket `close`. An item must come.
#[inline(never)]
fn items(
    bytes: &[u8],
    mut at: usize,
    mut close: u8,
    room: usize,
    values_left: &mut usize,
) -> Moved {
    let mut left = *values_left;
    // One bit per enclosing container, the innermost lowest, set for objects; the bit above the outermost is set.
    let mut around = 1_u64;
    let full = 1 << room.min(LEVELS);
    let mut first;
    (at, first) = solid(bytes, at);
    loop {
        let Some(fewer) = left.checked_sub(1) else {
            return (at, Err(JsonFlaw::TooMany));
        };
        left = fewer;
        if close == b'}' {
            let Some(value) = member(bytes, at, first) else {
                return (at, Err(JsonFlaw::Syntax));
            };
            (at, first) = solid(bytes, value);
        }
        if !is_opening(first) {
            match scalar(bytes, at, first) {
                Some(end) => at = end,
                None => return (at, Err(JsonFlaw::Syntax)),
            }
        } else if around < full {
            let inner = closing(first);
            (at, first) = solid(bytes, at + 1);
            if first != inner {
                around = around << 1 | u64::from(close == b'}');
                close = inner;
                continue;
            }
            at += 1;
        } else {
            let (end, how) = value(bytes, at, first, room.saturating_sub(LEVELS), &mut left);
            if how.is_err() {
                return (end, how);
            }
            at = end;
        }
        (at, first) = solid(bytes, at);
        while first != b',' {
            if first != close {
                return (at, Err(JsonFlaw::Syntax));
            }
            at += 1;
            if around == 1 {
                *values_left = left;
                return (at, Ok(()));
            }
            close = if around & 1 == 0 { b']' } else { b'}' };
            around >>= 1;
            (at, first) = solid(bytes, at);
        }
        (at, first) = solid(bytes, at + 1);
        if close == b']' && first.is_ascii_digit() {
            (at, first) = solid(bytes, numbers(bytes, at, &mut left));
        }
    }
}

/// Moves over numbers that are followed by a comma, as many as there are and as are `left`; they begin with a digit or a
/// minus.
#[inline(never)]
fn numbers(bytes: &[u8], mut at: usize, left: &mut usize) -> usize {
    while *left > 0 {
        let mut end = at;
        let mut found = byte(bytes, end);
        if found == b'-' {
            end += 1;
            found = byte(bytes, end);
        }
        if !found.is_ascii_digit() {
            return at;
        }
        let is_zero = found == b'0';
        end += 1;
        found = byte(bytes, end);
        if !is_zero {
            while found.is_ascii_digit() {
                end += 1;
                found = byte(bytes, end);
            }
        }
        if found == b'.' {
            end += 1;
            found = byte(bytes, end);
            if !found.is_ascii_digit() {
                return at;
            }
            while found.is_ascii_digit() {
                end += 1;
                found = byte(bytes, end);
            }
        }
        if found != b',' {
            return at;
        }
        at = end + 1;
        *left -= 1;
    }
    at
}

#[inline]
fn is_opening(bracket: u8) -> bool {
    bracket == b'{' || bracket == b'['
}

/// The closing bracket for `open`: both kinds stand two places behind the opening one.
#[inline]
fn closing(open: u8) -> u8 {
    open.wrapping_add(2)
}

/// The byte at `at`; zero, which stands nowhere in JSON, at the end.
#[inline]
fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or_default()
}

/// The first byte from `at` on that is no white space, and its place.
#[inline]
fn solid(bytes: &[u8], mut at: usize) -> (usize, u8) {
    loop {
        let found = byte(bytes, at);
        if found > b' ' || !matches!(found, b' ' | b'\n' | b'\t' | b'\r') {
            return (at, found);
        }
        at += 1;
    }
}

/// The end of a member's name, which must begin at `at` with `first`, and of its colon.
#[inline]
fn member(bytes: &[u8], at: usize, first: u8) -> Option<usize> {
    if first != b'"' {
        return None;
    }
    let (at, colon) = solid(bytes, string(bytes, at)?);
    (colon == b':').then_some(at + 1)
}

/// The end of the value that begins at `at` with `first` and is no container.
#[inline]
fn scalar(bytes: &[u8], at: usize, first: u8) -> Option<usize> {
    if first == b'"' {
        return string(bytes, at);
    }
    if first.is_ascii_digit() {
        return number(bytes, at, first);
    }
    other(bytes, at, first)
}

/// The same for what is no string and does not begin with a digit.
#[inline(never)]
fn other(bytes: &[u8], at: usize, first: u8) -> Option<usize> {
    match first {
        b'-' => {
            let first = byte(bytes, at + 1);
            first
                .is_ascii_digit()
                .then(|| number(bytes, at + 1, first))?
        }
        b't' => word(bytes, at, b"true"),
        b'f' => word(bytes, at, b"false"),
        b'n' => word(bytes, at, b"null"),
        _ => None,
    }
}

#[inline]
fn word<const LEN: usize>(bytes: &[u8], at: usize, word: &[u8; LEN]) -> Option<usize> {
    let is_here = bytes.get(at..)?.first_chunk() == Some(word);
    is_here.then_some(at + LEN)
}

/// The end of the number that begins at `at` with the digit `first`.
#[inline]
fn number(bytes: &[u8], at: usize, first: u8) -> Option<usize> {
    let mut at = at + 1;
    let mut found = byte(bytes, at);
    // A leading zero stands alone.
    if first != b'0' {
        while found.is_ascii_digit() {
            at += 1;
            found = byte(bytes, at);
        }
    }
    match found {
        b'.' | b'e' | b'E' => fraction(bytes, at),
        _ => Some(at),
    }
}

/// The end of a number whose fraction or exponent may begin at `at`.
#[inline(never)]
fn fraction(bytes: &[u8], mut at: usize) -> Option<usize> {
    if byte(bytes, at) == b'.' {
        at = digits(bytes, at + 1)?;
    }
    if matches!(byte(bytes, at), b'e' | b'E') {
        at += 1;
        if matches!(byte(bytes, at), b'+' | b'-') {
            at += 1;
        }
        at = digits(bytes, at)?;
    }
    Some(at)
}

/// The end of the digits at `start`; `None` without a digit.
fn digits(bytes: &[u8], start: usize) -> Option<usize> {
    let digits = bytes.get(start..)?;
    let end = start
        + digits
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
    (end > start).then_some(end)
}

/// The end of the string that begins at `at`.
#[inline]
fn string(bytes: &[u8], at: usize) -> Option<usize> {
    if let Some(end) = short_plain_end(bytes, at + 1)
        && byte(bytes, end) == b'"'
    {
        return Some(end + 1);
    }
    long_string(bytes, at)
}

#[inline(never)]
fn long_string(bytes: &[u8], at: usize) -> Option<usize> {
    let at = plain_end(bytes, at + 1);
    if byte(bytes, at) == b'"' {
        return Some(at + 1);
    }
    escaped(bytes, at).map(|(end, _)| end)
}

/// Moves over the rest of a string from its first character on that is not plain: its end, and how many escapes
/// it holds.
#[cold]
pub(super) fn escaped(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut escapes = 0;
    loop {
        match byte(bytes, at) {
            b'"' => return Some((at + 1, escapes)),
            b'\\' => {
                escapes += 1;
                at = escape(bytes, at)?;
            }
            byte if byte < b' ' => return None,
            _ => at = plain_end(bytes, at),
        }
    }
}

/// The end of the escape at `at`.
#[inline]
fn escape(bytes: &[u8], at: usize) -> Option<usize> {
    match byte(bytes, at + 1) {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(at + 2),
        b'u' => {
            let digits = bytes.get(at + 2..at + 6)?;
            let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
            is_hex.then_some(at + 6)
        }
        _ => None,
    }
}
