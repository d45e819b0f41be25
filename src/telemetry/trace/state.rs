//! `tracestate`: kept as it came when it is well formed, dropped otherwise.

use std::sync::Arc;

/// W3C asks to propagate at least this much; we propagate no more.
const MAX_BYTES: usize = 512;
const MAX_MEMBERS: usize = 32;
const MAX_KEY_BYTES: usize = 256;
const MAX_VALUE_BYTES: usize = 256;

/// The list, if it is one and not empty. Spec: W3C Trace Context §3.3.
pub(super) fn read(text: &str) -> Option<Arc<str>> {
    let text = text.trim_matches([' ', '\t', ',']);
    let members = || {
        text.split(',')
            .map(|member| member.trim_matches([' ', '\t']))
    };
    let usable = !text.is_empty()
        && text.len() <= MAX_BYTES
        && members().count() <= MAX_MEMBERS
        && members().all(|member| member.is_empty() || is_member(member));
    usable.then(|| text.into())
}

fn is_member(text: &str) -> bool {
    let Some((key, value)) = text.split_once('=') else {
        return false;
    };
    let first = key.bytes().next();
    let key_ok = key.len() <= MAX_KEY_BYTES
        && first.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        && key
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-*/@".contains(&b));
    let value_ok = !value.is_empty()
        && value.len() <= MAX_VALUE_BYTES
        && value
            .bytes()
            .all(|b| (0x20..0x7f).contains(&b) && b != b'=');
    key_ok && value_ok
}
