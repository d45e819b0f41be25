//! Media types: the type of a request body, and the types that the client accepts.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE};

/// Whether the body is JSON by its `Content-Type`, parameters aside.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
    else {
        return false;
    };
    let media = value.split(';').next().unwrap_or_default().trim();
    media.eq_ignore_ascii_case("application/json")
}

/// Content codings that change the bytes of a body (RFC 9110 §8.4.1, RFC 7932, RFC 8878). Other values pass: some
/// senders put a character set in `Content-Encoding`.
const CODINGS: [&[u8]; 7] = [
    b"br",
    b"compress",
    b"deflate",
    b"gzip",
    b"x-compress",
    b"x-gzip",
    b"zstd",
];

/// Whether the body is compressed.
pub(super) fn is_encoded(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(CONTENT_ENCODING).iter();
    let mut codings = codings.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    codings.any(|coding| {
        let coding = coding.trim_ascii();
        CODINGS
            .iter()
            .any(|known| coding.eq_ignore_ascii_case(known))
    })
}

/// The `Accept` header that the MCP SDKs send: worked out here, not for each request.
const USUAL: &str = "application/json, text/event-stream";

/// The accepted ones of the gateway's two media types. An absent header means both. Spec: SPEC T-10.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AcceptedMedia {
    /// `application/json`.
    pub(super) json: bool,
    /// `text/event-stream`.
    pub(super) events: bool,
    /// `text/event-stream` by its name, not by a wildcard.
    pub(super) names_events: bool,
}

impl AcceptedMedia {
    /// Reads the `Accept` headers; a type with `q=0` is one that the client does not take.
    pub(super) fn read(headers: &HeaderMap) -> Self {
        // Further lines can only add to it.
        if headers.get(ACCEPT).is_some_and(|line| line == USUAL) {
            return Self {
                json: true,
                events: true,
                names_events: true,
            };
        }
        Self::read_each(headers)
    }

    fn read_each(headers: &HeaderMap) -> Self {
        let mut json = TypeRanges::default();
        let mut events = TypeRanges::default();
        let mut present = false;
        for value in headers.get_all(ACCEPT) {
            present = true;
            for part in value.to_str().unwrap_or_default().split(',') {
                let mut pieces = part.split(';').map(str::trim);
                let media = pieces.next().unwrap_or_default();
                let is_taken = !pieces.any(is_quality_zero);
                json.add(["application/json", "application/*"], media, is_taken);
                events.add(["text/event-stream", "text/*"], media, is_taken);
            }
        }
        Self {
            json: json.are_taken() || !present,
            events: events.are_taken() || !present,
            names_events: events.exact == Some(true),
        }
    }
}

/// Whether the ranges that one media type is in are taken; `None` for those not listed.
#[derive(Default)]
struct TypeRanges {
    exact: Option<bool>,
    of_kind: Option<bool>,
    any: Option<bool>,
}

impl TypeRanges {
    fn add(&mut self, [name, kind]: [&str; 2], media: &str, is_taken: bool) {
        let is = |known: &str| media.eq_ignore_ascii_case(known);
        let range = if is(name) {
            &mut self.exact
        } else if is(kind) {
            &mut self.of_kind
        } else if is("*/*") {
            &mut self.any
        } else {
            return;
        };
        *range = Some(is_taken || *range == Some(true));
    }

    /// What the most specific range says. Spec: RFC 9110 §12.5.1.
    fn are_taken(&self) -> bool {
        let said = self.exact.or(self.of_kind).or(self.any);
        said.unwrap_or(false)
    }
}

/// Whether a parameter says `q=0`. Spec: RFC 9110 §12.4.2.
fn is_quality_zero(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, value)| {
        name.eq_ignore_ascii_case("q") && matches!(value, "0" | "0." | "0.0" | "0.00" | "0.000")
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn usual_header_means_what_its_parts_say() {
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT, HeaderValue::from_static(USUAL));
        let read = AcceptedMedia::read(&headers);
        assert_eq!(read, AcceptedMedia::read_each(&headers));
        headers.append(ACCEPT, HeaderValue::from_static("text/event-stream;q=0"));
        assert_eq!(read, AcceptedMedia::read_each(&headers));
    }

    #[test]
    fn type_with_quality_zero_is_not_accepted() {
        for line in [
            "application/json, text/event-stream;q=0",
            "application/json, text/event-stream; Q=0",
            "application/json, text/event-stream;q=0.",
            // The more specific range counts, wherever it stands.
            "*/*, text/event-stream;q=0",
            "text/*;q=0.000, */*;q=0.5",
        ] {
            let mut headers = HeaderMap::new();
            headers.append(ACCEPT, HeaderValue::from_static(line));
            let read = AcceptedMedia::read(&headers);
            assert!(read.json && !read.events && !read.names_events, "{line}");
        }
    }

    #[test]
    fn type_is_accepted_where_only_a_wider_range_is_not() {
        let mut headers = HeaderMap::new();
        let line = "*/*;q=0, application/*;q=0.001, Text/Event-Stream";
        headers.append(ACCEPT, HeaderValue::from_static(line));
        let read = AcceptedMedia::read(&headers);
        assert!(read.json && read.events && read.names_events);
    }
}
