//! Masks what looks like a secret in text that leaves for a log.
//!
//! The last line of defence, behind `secret::Secret` and inclusion lists: it knows shapes, not
//! meanings, and rather masks too much.

use std::borrow::Cow;
use std::ops::Range;

/// Stands where a secret stood.
pub const MASK: &str = "[redacted]";

/// Authentication schemes whose credentials follow after a space.
const SCHEMES: [&str; 4] = ["bearer", "basic", "dpop", "negotiate"];
/// Names whose value is secret, as whole words or as the end of one.
const SECRET_NAMES: [&str; 13] = [
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "apikey",
    "api-key",
    "authorization",
    "cookie",
    "assertion",
    "signature",
];
/// Further names, as whole words only.
const SECRET_WORDS: [&str; 9] = [
    "code",
    "code_verifier",
    "private_key",
    "access_key",
    "sig",
    "key",
    "secret_key",
    "account_key",
    "subscription-key",
];
/// How the tokens of well-known services begin.
const PREFIXES: [&str; 12] = [
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "sk-",
    "AKIA",
    "npm_",
    "pypi-",
];
/// Bytes that [`shown`] scans before cutting: a secret cut in the middle might not be recognised.
const MAX_LOOKED_AT: usize = 4096;
/// From this length on, what follows a scheme or a prefix is a credential rather than a word.
const MIN_CREDENTIAL_BYTES: usize = 8;

/// The longest names of error numbers, such as `EPROTONOSUPPORT`.
const MAX_ERRNO_BYTES: usize = 15;

/// Whether the value of a field called `name` must not be shown at all.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let bare = name.trim_matches(['_', '-']);
    let Some(end) = bare.as_bytes().last_chunk::<3>() else {
        return false;
    };
    // Asked of every field of every line: most names end otherwise.
    let may_be = matches!(
        &end.map(|byte| byte.to_ascii_lowercase()),
        b"ord" | b"swd" | b"pwd" | b"ase" | b"ret" | b"ken" | b"key" | b"ion" | b"kie" | b"ure"
    );
    may_be
        && SECRET_NAMES
            .iter()
            .any(|secret| ends_with_ignoring_case(bare, secret))
}

/// Fast path: whether `text` lacks the characters that every secret pattern needs, and those that a log
/// escapes, so that no scan is needed. True for most values.
#[must_use]
pub fn is_harmless(text: &str) -> bool {
    // `eyJ` and `AKIA` need their capitals, the other prefixes `_` or `-`; a scheme needs the gap
    // after it, a name its sign, a user its colon. Bit by bit, for the capitals and small letters
    // from 64 on and for what stands below.
    const BELOW: u64 = mark(b"./+,0123456789");
    const ABOVE: u64 = mark(b"{}@ABCDEFGHILMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
    let harmless = |byte: u8| match byte {
        0..64 => (BELOW >> byte) & 1 == 1,
        64..128 => (ABOVE >> (byte - 64)) & 1 == 1,
        _ => false,
    };
    text.bytes().all(harmless)
}

/// A bit for each of these bytes, which all lie in one half of ASCII.
const fn mark(mut bytes: &[u8]) -> u64 {
    let mut marks = 0;
    while let [first, rest @ ..] = bytes {
        marks |= 1 << (*first & 63);
        bytes = rest;
    }
    marks
}

/// `text` with everything masked that has the shape of a secret; borrowed when there is nothing.
#[must_use]
pub fn redact(text: &str) -> Cow<'_, str> {
    let mut masked = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(secret) = next_secret(text, at) {
        masked.push_str(text.get(copied..secret.start).unwrap_or_default());
        masked.push_str(MASK);
        copied = secret.end;
        at = secret.end;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    masked.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(masked)
}

/// The first `max` bytes of `text` at most, whole characters only.
#[must_use]
pub fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max))
        .unwrap_or_default()
}

/// What may be shown of a text that a peer chose: masked, then cut to `max` bytes. Of a long text only the
/// first 4 KiB are looked at, so that its length costs nothing.
#[must_use]
pub fn shown(text: &str, max: usize) -> Cow<'_, str> {
    match redact(cut(text, max.max(MAX_LOOKED_AT))) {
        Cow::Borrowed(text) => Cow::Borrowed(cut(text, max)),
        Cow::Owned(text) => Cow::Owned(cut(&text, max).to_owned()),
    }
}

/// The next secret at or after `from`. Positions are always at ASCII characters.
fn next_secret(text: &str, from: usize) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        let word = run(bytes, at, is_word);
        if word.is_empty() {
            if let Some(secret) = user_info(bytes, at) {
                return Some(secret);
            }
            at += 1;
            continue;
        }
        let end = word.end;
        if let Some(secret) = secret_at(text, word) {
            return Some(secret);
        }
        at = end;
    }
    None
}

fn secret_at(text: &str, word: Range<usize>) -> Option<Range<usize>> {
    let name = text.get(word.clone())?;
    let bytes = text.as_bytes();
    if name.starts_with("eyJ") {
        let token = run(bytes, word.start, |b| is_word(b) || b == b'.');
        let dots = bytes.get(token.clone())?.contains(&b'.');
        return (dots && token.len() > 2 * MIN_CREDENTIAL_BYTES).then_some(token);
    }
    if name.len() > MIN_CREDENTIAL_BYTES
        && PREFIXES
            .iter()
            .any(|p| name.len() >= p.len() + MIN_CREDENTIAL_BYTES && name.starts_with(p))
    {
        return Some(word);
    }
    // What a scheme or a name is followed by; most words are not, and are done with here.
    let next = *bytes.get(word.end)?;
    if !(is_gap(next) || is_quote(next) || is_sign(next)) {
        return None;
    }
    if SCHEMES
        .iter()
        .any(|scheme| name.eq_ignore_ascii_case(scheme))
    {
        return credentials(bytes, word.end);
    }
    let secret = is_secret_name(name)
        || SECRET_WORDS
            .iter()
            .any(|secret| name.eq_ignore_ascii_case(secret));
    if secret {
        assigned(text, word.end).filter(|value| !is_error_code(text, word, value))
    } else {
        None
    }
}

/// Whether `code: 'ECONNREFUSED'` stands there, as Node.js shows errors: capitals that begin with `E`, or several
/// words of capitals. A code of OAuth has small letters or digits, and stands behind `=` in URLs.
fn is_error_code(text: &str, name: Range<usize>, value: &Range<usize>) -> bool {
    let between = text.get(name.end..value.start).unwrap_or_default();
    let (name, value) = (text.get(name), text.get(value.clone()).unwrap_or_default());
    let words = value.trim_matches('_').contains('_');
    let may_have_digits = value.starts_with("ERR_");
    let fits = |byte: u8| match byte {
        b'A'..=b'Z' => true,
        b'_' => words,
        b'0'..=b'9' => may_have_digits,
        _ => false,
    };
    name.is_some_and(|name| name.eq_ignore_ascii_case("code"))
        && between.contains(':')
        && (words || (value.starts_with('E') && (3..=MAX_ERRNO_BYTES).contains(&value.len())))
        && value.bytes().all(fits)
}

/// `Bearer <token68>`, but not `Bearer realm="…"`.
fn credentials(bytes: &[u8], after: usize) -> Option<Range<usize>> {
    let spaces = run(bytes, after, is_gap);
    let token = run(bytes, spaces.end, |b| is_word(b) || b"._~+/=".contains(&b));
    let parameter = bytes.get(token.end) == Some(&b'"');
    let long = token.len() >= MIN_CREDENTIAL_BYTES;
    (!spaces.is_empty() && long && !parameter).then_some(token)
}

/// `name=value`, `name: value`, `"name":"value"`, also with escaped quotes.
fn assigned(text: &str, after: usize) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let quotes = run(bytes, after, is_quote);
    let spaces = run(bytes, quotes.end, is_gap);
    let sign = *bytes.get(spaces.end).filter(|b| is_sign(**b))?;
    let gap = run(bytes, spaces.end + 1, is_gap);
    let opening = run(bytes, gap.end, is_quote);
    let value = if opening.is_empty() {
        run(bytes, opening.end, |b| {
            !b.is_ascii_whitespace() && !b",;&)}]\"'".contains(&b)
        })
    } else {
        run(bytes, opening.end, |b| !is_quote(b))
    };
    // `Authorization: Bearer x` is found at its scheme.
    let scheme = text.get(value.clone()).is_some_and(|value| {
        SCHEMES
            .iter()
            .any(|scheme| value.eq_ignore_ascii_case(scheme))
    });
    if scheme {
        return credentials(bytes, value.end);
    }
    // Prose: `invalid token: it has expired`.
    let prose = sign == b':' && opening.is_empty() && !looks_random(bytes.get(value.clone())?);
    (!value.is_empty() && !prose).then_some(value)
}

/// The password in `scheme://name:password@host`.
fn user_info(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let rest = bytes.get(at..)?.strip_prefix(b"://")?;
    let start = at + 3;
    let authority = rest.iter().take_while(|b| !b"/?# \"'<>".contains(b));
    let authority = rest.get(..authority.count())?;
    let end = authority.iter().rposition(|b| *b == b'@')?;
    let colon = authority.iter().take(end).position(|b| *b == b':')?;
    (colon + 1 < end).then_some(start + colon + 1..start + end)
}

fn looks_random(value: &[u8]) -> bool {
    value.len() >= MIN_CREDENTIAL_BYTES && value.iter().any(u8::is_ascii_digit)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn is_gap(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn is_sign(byte: u8) -> bool {
    byte == b'=' || byte == b':'
}

fn is_quote(byte: u8) -> bool {
    byte == b'"' || byte == b'\'' || byte == b'\\'
}

fn run(bytes: &[u8], from: usize, belongs: impl Fn(u8) -> bool) -> Range<usize> {
    let rest = bytes.get(from..).unwrap_or_default();
    let length = rest
        .iter()
        .position(|byte| !belongs(*byte))
        .unwrap_or(rest.len());
    from..from + length
}

fn ends_with_ignoring_case(text: &str, end: &str) -> bool {
    let start = text.len().checked_sub(end.len());
    start
        .and_then(|start| text.get(start..))
        .is_some_and(|tail| tail.eq_ignore_ascii_case(end))
}

#[cfg(test)]
mod tests;
