//! Writers of JSON text: strings, and arrays and objects from the texts of their parts.

use std::borrow::Cow;
use std::iter::once;

use super::{ObjectMembers, members};

/// The JSON text of a string.
#[must_use]
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    quote_into(&mut out, text);
    out
}

/// Appends the JSON text of a string.
pub fn quote_into(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    let is_special = |byte: u8| matches!(byte, b'"' | b'\\' | ..=0x1f);
    while let Some(at) = rest.bytes().position(is_special) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        let mut chars = special.chars();
        match chars.next() {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            Some(control) => {
                out.push_str("\\u00");
                let code = control as u32;
                out.extend(
                    [code >> 4, code & 15]
                        .iter()
                        .filter_map(|d| char::from_digit(*d, 16)),
                );
            }
            None => {}
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    out.push('"');
}

/// The JSON text of an object that is written member by member. Who writes does not name a member
/// twice.
#[derive(Debug, Default)]
pub struct ObjectWriter {
    /// Empty until the first member opens it.
    out: String,
}

impl ObjectWriter {
    /// Continues `object`, the text of an object that was written by this type, behind its last member.
    #[must_use]
    pub fn reopen(object: String) -> Self {
        let mut out = object;
        out.pop();
        if out == "{" {
            out.clear();
        }
        Self { out }
    }

    /// Appends the member `name`, whose value is the JSON text `value`.
    pub fn member(&mut self, name: &str, value: &str) {
        self.out.push(if self.out.is_empty() { '{' } else { ',' });
        quote_into(&mut self.out, name);
        self.out.push(':');
        self.out.push_str(value);
    }

    /// Whether no member was appended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// The object.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.out
            .push_str(if self.out.is_empty() { "{}" } else { "}" });
        self.out
    }

    /// The object up to the value of its last member `name`. The value and the closing brace are left to the caller.
    #[must_use]
    pub fn finish_before(mut self, name: &str) -> String {
        self.member(name, "");
        self.out
    }
}

/// The JSON text of the object with these members, in order: decoded name and JSON text of the
/// value. Who writes does not name a member twice.
#[must_use]
pub fn object<N: AsRef<str>, V: AsRef<str>>(members: impl IntoIterator<Item = (N, V)>) -> String {
    let mut out = ObjectWriter::default();
    for (name, value) in members {
        out.member(name.as_ref(), value.as_ref());
    }
    out.finish()
}

/// JSON text of an object with these `members`, with `value` (JSON text) in place of the member `name`.
#[must_use]
pub fn object_replacing(members: ObjectMembers<'_>, name: &str, value: &str) -> String {
    object(members.into_iter().map(|(known, before)| {
        let value = if known == name { value } else { before };
        (known, value)
    }))
}

/// JSON text of an object with these `members`, with `name` set to `value` (JSON text) in the nested
/// object `place`. A missing or non-object `place` is replaced by an object.
#[must_use]
pub fn object_with(members: &ObjectMembers<'_>, place: &str, name: &str, value: &str) -> String {
    let (within, others): (Vec<_>, Vec<_>) = members.iter().partition(|(known, _)| known == place);
    let within = within.first().map_or("{}", |(_, text)| *text);
    let within = self::members(within).unwrap_or_default();
    let within = within.into_iter().filter(|(known, _)| known != name);
    let within = object(once((Cow::Borrowed(name), value)).chain(within));
    let others = others.into_iter().map(|(name, value)| (&**name, *value));
    object(others.chain(once((place, within.as_str()))))
}

/// The JSON text of the array with these JSON texts as its elements.
#[must_use]
pub fn array<T: AsRef<str>>(elements: impl IntoIterator<Item = T>) -> String {
    array_of(elements, String::push_str)
}

/// The JSON text of an array of strings.
#[must_use]
pub fn strings<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> String {
    array_of(texts, quote_into)
}

fn array_of<T: AsRef<str>>(
    parts: impl IntoIterator<Item = T>,
    write: impl Fn(&mut String, &str),
) -> String {
    let mut out = String::from("[");
    for part in parts {
        if out.len() > 1 {
            out.push(',');
        }
        write(&mut out, part.as_ref());
    }
    out.push(']');
    out
}
