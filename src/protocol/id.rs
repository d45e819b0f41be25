//! Request ids as keys.

use super::json;

/// A request id, normalised for comparison: `1` differs from `"1"`, `"a"` equals `"\u0061"`.
///
/// For echoing, keep the JSON text ([`super::Message::id`]): this form forgets the spelling.
/// Spec: SPEC T-07.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(IdForm);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum IdForm {
    Small(i64),
    /// Digits of an integer beyond 64 bits; JSON spells each in one way only.
    Large(Box<str>),
    Text(Box<str>),
}

impl RequestId {
    /// Reads the JSON text of an id; `None` unless it is a string or an integer.
    #[must_use]
    pub fn parse(json_text: &str) -> Option<Self> {
        if json_text.starts_with('"') {
            return json::string(json_text).map(|text| Self(IdForm::Text(text.into())));
        }
        if !is_integer(json_text) {
            return None;
        }
        Some(Self(match json_text.parse() {
            Ok(number) => IdForm::Small(number),
            Err(_) => IdForm::Large(json_text.into()),
        }))
    }
}

impl From<i64> for RequestId {
    fn from(number: i64) -> Self {
        Self(IdForm::Small(number))
    }
}

impl std::fmt::Display for RequestId {
    /// Writes the id as JSON text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            IdForm::Small(number) => write!(f, "{number}"),
            IdForm::Large(digits) => f.write_str(digits),
            IdForm::Text(text) => f.write_str(&json::quote(text)),
        }
    }
}

/// Whether a JSON text is an id at all.
pub(super) fn is_id(json_text: &str) -> bool {
    is_integer(json_text) || json::string(json_text).is_some()
}

/// Whether a JSON number is spelled as an integer: `1.0` and `1e2` are not.
fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let canonical = digits == "0" || !digits.starts_with('0');
    canonical && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("1", "\"1\"")]
    #[case("1", "-1")]
    #[case("\"a\"", "\"A\"")]
    #[case("123456789012345678901", "123456789012345678902")]
    fn different_ids_stay_different(#[case] a: &str, #[case] b: &str) {
        assert_ne!(RequestId::parse(a).unwrap(), RequestId::parse(b).unwrap());
    }

    #[rstest]
    #[case("\"a\"", "\"\\u0061\"")]
    #[case("0", "-0")]
    #[case("\"a b\"", "\"a\\u0020b\"")]
    fn spellings_of_one_id_are_equal(#[case] a: &str, #[case] b: &str) {
        assert_eq!(RequestId::parse(a).unwrap(), RequestId::parse(b).unwrap());
    }

    #[rstest]
    fn what_is_neither_string_nor_integer_is_no_id(
        #[values(
            "1.5",
            "1.0",
            "1e2",
            "null",
            "true",
            "{}",
            "[]",
            "",
            "-",
            "01",
            "\"\\ud800\""
        )]
        text: &str,
    ) {
        assert_eq!(RequestId::parse(text), None);
    }

    #[test]
    fn large_integers_keep_their_digits() {
        for text in [
            "9007199254740993",
            "-123456789012345678901234567890",
            "\"x\\\"y\"",
        ] {
            assert_eq!(RequestId::parse(text).unwrap().to_string(), text);
        }
    }
}
