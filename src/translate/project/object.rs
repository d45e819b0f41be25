//! JSON objects and arrays with some members changed; what is not named keeps its bytes.

use std::borrow::Cow;

use crate::protocol::json::{self, JsonError, ObjectWriter};

/// What becomes of a member or an element.
#[derive(Debug)]
pub(super) enum MemberFate<'t> {
    /// It stays.
    Keep,
    /// It is left out.
    Drop,
    /// This JSON text stands in its place.
    Put(Cow<'t, str>),
}

impl<'t> From<Cow<'t, str>> for MemberFate<'t> {
    /// What was borrowed was not changed.
    fn from(text: Cow<'t, str>) -> Self {
        match text {
            Cow::Borrowed(_) => Self::Keep,
            Cow::Owned(_) => Self::Put(text),
        }
    }
}

/// The object `text` with each member as `fate` says; anything else unread.
///
/// # Errors
/// When the object repeats a member, or is no JSON.
pub(super) fn object<'t>(
    text: &'t str,
    mut fate: impl FnMut(&str, &'t str) -> Result<MemberFate<'t>, JsonError>,
) -> Result<Cow<'t, str>, JsonError> {
    if !text.starts_with('{') {
        return Ok(Cow::Borrowed(text));
    }
    let mut changed = false;
    let mut out = ObjectWriter::default();
    for (name, value) in json::members(text)? {
        let value = match fate(&name, value)? {
            MemberFate::Keep => Cow::Borrowed(value),
            MemberFate::Drop => {
                changed = true;
                continue;
            }
            MemberFate::Put(text) => {
                changed = true;
                text
            }
        };
        out.member(&name, &value);
    }
    if !changed {
        return Ok(Cow::Borrowed(text));
    }
    Ok(Cow::Owned(out.finish()))
}

/// The array `text` with each element as `fate` says; anything else unread.
///
/// # Errors
/// When the text is no JSON.
pub(super) fn array<'t>(
    text: &'t str,
    mut fate: impl FnMut(&'t str) -> Result<MemberFate<'t>, JsonError>,
) -> Result<Cow<'t, str>, JsonError> {
    if !text.starts_with('[') {
        return Ok(Cow::Borrowed(text));
    }
    let mut changed = false;
    let mut kept: Vec<Cow<'t, str>> = Vec::new();
    for element in json::elements(text)? {
        match fate(element)? {
            MemberFate::Keep => kept.push(Cow::Borrowed(element)),
            MemberFate::Drop => changed = true,
            MemberFate::Put(text) => {
                changed = true;
                kept.push(text);
            }
        }
    }
    if !changed {
        return Ok(Cow::Borrowed(text));
    }
    Ok(Cow::Owned(json::array(kept)))
}

/// One string member of the object `text`, decoded.
pub(super) fn string_member<'t>(text: &'t str, name: &str) -> Option<Cow<'t, str>> {
    json::string(json::member(text, name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_keeps_its_bytes() {
        let text = r#"{ "a" : [1, 2] , "b":{ } }"#;
        let kept = object(text, |_, _| Ok(MemberFate::Keep)).unwrap();
        assert!(matches!(kept, Cow::Borrowed(same) if same == text));
        let cut = object(text, |name, _| {
            Ok(if name == "b" {
                MemberFate::Drop
            } else {
                MemberFate::Keep
            })
        });
        assert_eq!(cut.unwrap(), r#"{"a":[1, 2]}"#);
    }

    #[test]
    fn an_object_that_loses_everything_is_still_an_object() {
        assert_eq!(
            object(r#"{"a":1}"#, |_, _| Ok(MemberFate::Drop)).unwrap(),
            "{}"
        );
        assert_eq!(array("[1,2]", |_| Ok(MemberFate::Drop)).unwrap(), "[]");
    }

    #[test]
    fn an_object_that_two_parsers_read_differently_is_refused() {
        assert!(object(r#"{"a":1,"a":2}"#, |_, _| Ok(MemberFate::Keep)).is_err());
    }
}
