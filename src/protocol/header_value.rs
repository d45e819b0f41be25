//! How any text travels in a header: as it is where that is safe, else marked and in Base64.
//! Spec: MCP 2026-07-28, Streamable HTTP, "Value Encoding"; SPEC M-11, M-12, M-32.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};

use super::headers::HeaderError;
use super::names::is_same;

const MARK: &str = "=?base64?";
const END: &str = "?=";

/// The header value that stands for `text`; [`decode`] gives it back.
#[must_use]
pub fn encode(text: &str) -> HeaderValue {
    let safe = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let edged = text.starts_with(' ') || text.ends_with(' ');
    let marked = text.starts_with(MARK) && text.ends_with(END);
    if safe
        && !edged
        && !marked
        && let Ok(plain) = HeaderValue::from_str(text)
    {
        return plain;
    }
    let encoded = [MARK, &STANDARD.encode(text), END].concat();
    // Base64 between printable marks is always a header value.
    HeaderValue::try_from(encoded).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The text that a header value stands for; `None` when it holds characters that no header may,
/// or is marked as Base64 and is not exactly that. White space around it does not count.
#[must_use]
pub fn decode(value: &HeaderValue) -> Option<Cow<'_, str>> {
    // Printable ASCII and tabs.
    let text = value.to_str().ok()?;
    let text = text.trim_ascii();
    let marked = text
        .strip_prefix(MARK)
        .and_then(|rest| rest.strip_suffix(END));
    match marked {
        None => Some(Cow::Borrowed(text)),
        Some(encoded) => {
            let decoded = STANDARD.decode(encoded).ok()?;
            String::from_utf8(decoded).ok().map(Cow::Owned)
        }
    }
}

/// Whether a header value is `text` letter by letter, and would be decoded to it: much quicker than
/// decoding it. One that is written otherwise may stand for the text all the same.
#[must_use]
pub fn is(value: &HeaderValue, text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_edge = |byte: Option<&u8>| byte.is_some_and(|byte| matches!(byte, b' ' | b'\t' | b'='));
    is_same(value.as_bytes(), bytes)
        && bytes.is_ascii()
        && !is_edge(bytes.first())
        && !is_edge(bytes.last())
}

/// The decoded value of a header that may stand among `headers` once.
///
/// # Errors
/// When it is repeated, or cannot be decoded.
pub fn single<'a>(
    headers: &'a [(HeaderName, HeaderValue)],
    name: &HeaderName,
) -> Result<Option<Cow<'a, str>>, HeaderError> {
    let mut values = headers.iter().filter(|(given, _)| given == name);
    let Some((_, value)) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(HeaderError::Repeated(name.clone()));
    }
    decode(value)
        .map(Some)
        .ok_or_else(|| HeaderError::Malformed(name.clone()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    // SPEC M-32: the table of the specification.
    #[rstest]
    #[case("us-west1", "us-west1")]
    #[case("", "")]
    #[case("us west 1", "us west 1")]
    #[case("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?=")]
    #[case(" padded ", "=?base64?IHBhZGRlZCA=?=")]
    #[case("line1\nline2", "=?base64?bGluZTEKbGluZTI=?=")]
    #[case("a\tb", "=?base64?YQli?=")]
    #[case("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=")]
    fn a_value_is_encoded_only_where_it_must_be(#[case] text: &str, #[case] header: &str) {
        assert_eq!(encode(text), header);
        assert_eq!(decode(&encode(text)).unwrap(), text);
    }

    // SPEC M-11.
    #[rstest]
    #[case("=?base64?YQ?=", None)] // no padding
    #[case("=?base64?YR==?=", None)] // bits that no encoder leaves
    #[case("=?base64?Y-==?=", None)]
    #[case("=?base64?/w==?=", None)] // not UTF-8
    #[case("=?base64??=", Some(""))]
    #[case("=?BASE64?YQ==?=", Some("=?BASE64?YQ==?="))]
    #[case("=?base64?=", Some("=?base64?="))]
    #[case("  a b\t", Some("a b"))]
    fn a_marked_value_is_exactly_base64(#[case] header: &'static str, #[case] text: Option<&str>) {
        assert_eq!(decode(&HeaderValue::from_static(header)).as_deref(), text);
    }

    #[rstest]
    #[case("tools/call", true)]
    #[case("a b", true)]
    #[case("", true)]
    #[case(" a", false)]
    #[case("a\t", false)]
    #[case("=?base64?YQ==?=", false)]
    #[case("\u{e9}", false)]
    fn most_values_are_what_they_stand_for(#[case] text: &str, #[case] expected: bool) {
        let value = HeaderValue::from_bytes(text.as_bytes()).unwrap();
        assert_eq!(is(&value, text), expected);
        assert!(!is(&value, "tools/list"));
    }

    // SPEC M-12.
    #[test]
    fn raw_bytes_beyond_ascii_are_no_value() {
        assert_eq!(decode(&HeaderValue::from_bytes(b"a\x80").unwrap()), None);
    }

    #[test]
    fn a_repeated_header_is_refused() {
        let name = HeaderName::from_static("mcp-name");
        let mut headers = Vec::new();
        assert_eq!(single(&headers, &name), Ok(None));
        headers.push((name.clone(), encode("é")));
        assert_eq!(single(&headers, &name), Ok(Some("é".into())));
        headers.push((name.clone(), encode("é")));
        assert_eq!(single(&headers, &name), Err(HeaderError::Repeated(name)));
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text in any::<String>()) {
            let encoded = encode(&text);
            prop_assert!(encoded.to_str().is_ok());
            prop_assert_eq!(decode(&encoded).unwrap(), text);
        }

        #[test]
        fn what_is_a_text_letter_by_letter_stands_for_it(bytes in "[ \t=?a-c\u{e9}]{0,6}") {
            let value = HeaderValue::from_bytes(bytes.as_bytes()).unwrap();
            if is(&value, &bytes) {
                let decoded = decode(&value).map(Cow::into_owned);
                prop_assert_eq!(decoded, Some(bytes));
            }
            prop_assert!(!is(&value, "x"));
        }

        #[test]
        fn ascii_that_looks_like_a_mark_comes_back(inner in "[ -~]{0,12}") {
            let text = format!("=?base64?{inner}?=");
            let encoded = encode(&text);
            prop_assert_eq!(decode(&encoded).unwrap(), text);
        }
    }
}
