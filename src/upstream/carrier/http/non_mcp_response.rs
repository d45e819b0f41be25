//! Headers that explain a body that is no message: the media type of a page, or an unrequested coding.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName};

/// Characters of a header that callers and the log are shown.
const SHOWN: usize = 60;

/// The label of a body that is not plain JSON, if any.
pub(super) fn foreign(headers: &HeaderMap) -> Option<String> {
    if let Some(coding) = label(headers, CONTENT_ENCODING)
        && !coding.eq_ignore_ascii_case("identity")
    {
        return Some(format!(
            "its Content-Encoding is {coding:?}, which it was not asked for"
        ));
    }
    let media = label(headers, CONTENT_TYPE)?;
    if media.eq_ignore_ascii_case("application/json") {
        return None;
    }
    let hint = if media.eq_ignore_ascii_case("text/html") {
        ": a page to log in at, say, or `url` has the wrong path"
    } else {
        ""
    };
    Some(format!("its Content-Type is {media:?}{hint}"))
}

/// A header without its parameters, cut to `SHOWN`.
fn label(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    let value = value.split(';').next().unwrap_or_default().trim();
    Some(value.chars().take(SHOWN).collect())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::page(
        "text/html; charset=utf-8",
        "",
        Some("its Content-Type is \"text/html\": a page")
    )]
    #[case::text("text/plain", "", Some("its Content-Type is \"text/plain\""))]
    #[case::coded("application/json", "gzip", Some("its Content-Encoding is \"gzip\""))]
    #[case::json("Application/JSON;charset=utf-8", "identity", None)]
    #[case::nothing("", "", None)]
    fn what_is_not_plain_json_is_named(
        #[case] media: &str,
        #[case] coding: &str,
        #[case] said: Option<&str>,
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in [(CONTENT_TYPE, media), (CONTENT_ENCODING, coding)] {
            if !value.is_empty() {
                headers.insert(name, value.parse().unwrap());
            }
        }
        let told = foreign(&headers);
        assert_eq!(told.is_some(), said.is_some(), "{told:?}");
        assert!(
            told.unwrap_or_default()
                .starts_with(said.unwrap_or_default())
        );
    }

    #[test]
    fn little_is_shown_of_a_long_label() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, "x".repeat(10_000).parse().unwrap());
        assert!(foreign(&headers).unwrap().len() < 100);
    }
}
