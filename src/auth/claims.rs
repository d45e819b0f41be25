//! The header and the claims of a JWT, read so that no two parsers can disagree: duplicate members
//! and members of a wrong type are refused.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of one JSON object, by name, unread.
#[derive(Debug)]
pub(super) struct ClaimSet<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

/// A member of the wrong JSON type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WrongType;

impl<'a> ClaimSet<'a> {
    /// Parses `json` as exactly one object; `None` if malformed, not UTF-8, or with a repeated name.
    pub(super) fn read(json: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// A member that is a string; `Ok(None)` when it is not there.
    pub(super) fn text(&self, name: &str) -> Result<Option<Cow<'a, str>>, WrongType> {
        self.typed::<ClaimText<'a>>(name)
            .map(|text| text.map(|ClaimText(text)| text))
    }

    /// A member that is a string, or an array of different strings; empty when it is not there.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<Cow<'a, str>>, WrongType> {
        if let Ok(text) = self.text(name) {
            return Ok(text.into_iter().collect());
        }
        let all = self.typed::<Vec<ClaimText<'a>>>(name)?.unwrap_or_default();
        Ok(all.into_iter().map(|ClaimText(text)| text).collect())
    }

    /// A member that is `true` or `false`; `Ok(None)` when it is not there.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, WrongType> {
        self.typed(name)
    }

    /// A member that is a time, in seconds since the Unix epoch; fractions are allowed.
    /// Spec: RFC 7519 §2, `NumericDate`
    pub(super) fn time(&self, name: &str) -> Result<Option<f64>, WrongType> {
        let time = self.typed::<f64>(name)?;
        if time.is_some_and(|time| !time.is_finite()) {
            return Err(WrongType);
        }
        Ok(time)
    }

    fn typed<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, WrongType> {
        self.0
            .get(name)
            .map(|raw| serde_json::from_str(raw.get()).map_err(|_| WrongType))
            .transpose()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ClaimSet<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = ClaimSet<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((ClaimText(name), value)) =
            map.next_entry::<ClaimText<'de>, &'de RawValue>()?
        {
            // Spec: RFC 7519 §4, which lets us refuse duplicates
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom("duplicate member"));
            }
        }
        Ok(ClaimSet(members))
    }
}

/// A string that is borrowed unless it has escapes.
#[derive(Debug, Deserialize)]
struct ClaimText<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn members(json: &str) -> ClaimSet<'_> {
        ClaimSet::read(json.as_bytes()).expect("an object")
    }

    #[rstest]
    #[case::array("[]")]
    #[case::string("\"x\"")]
    #[case::trailing("{} {}")]
    #[case::cut("{\"a\":1")]
    #[case::empty("")]
    #[case::duplicate(r#"{"aud":"a","aud":"b"}"#)]
    #[case::escaped_duplicate(r#"{"aud":"a","\u0061ud":"b"}"#)]
    #[case::duplicate_of_a_stranger(r#"{"x":1,"x":1}"#)]
    fn what_is_ambiguous_is_not_read(#[case] json: &str) {
        assert!(ClaimSet::read(json.as_bytes()).is_none());
    }

    #[test]
    fn invalid_utf8_is_not_read() {
        assert!(ClaimSet::read(b"{\"sub\":\"\xff\"}").is_none());
    }

    #[test]
    fn a_string_and_a_list_of_strings_read_alike() {
        let all = members(r#"{"one":"a","more":["a","b\n"],"none":[]}"#);
        assert_eq!(all.texts("one"), Ok(vec!["a".into()]));
        assert_eq!(all.texts("more"), Ok(vec!["a".into(), "b\n".into()]));
        assert_eq!(all.texts("none"), Ok(vec![]));
        assert_eq!(all.texts("absent"), Ok(vec![]));
    }

    #[rstest]
    #[case("1")]
    #[case("null")]
    #[case("{}")]
    #[case("[1]")]
    #[case("[\"a\",null]")]
    #[case("[[\"a\"]]")]
    fn a_member_of_a_wrong_type_is_not_taken_for_an_absent_one(#[case] value: &str) {
        let json = format!("{{\"aud\":{value}}}");
        assert_eq!(members(&json).texts("aud"), Err(WrongType));
    }

    #[rstest]
    #[case("1", Ok(Some(1.0)))]
    #[case("1.5", Ok(Some(1.5)))]
    #[case("\"1\"", Err(WrongType))]
    #[case("null", Err(WrongType))]
    #[case("true", Err(WrongType))]
    #[case("1e999", Err(WrongType))]
    fn a_time_is_a_number(#[case] value: &str, #[case] time: Result<Option<f64>, WrongType>) {
        let json = format!("{{\"exp\":{value}}}");
        assert_eq!(members(&json).time("exp"), time);
    }

    proptest! {
        #[test]
        fn reading_never_panics(json: Vec<u8>) {
            drop(ClaimSet::read(&json));
        }
    }
}
