//! `Challenge`: what a 401 or 403 of an upstream says about the token that it needs. Spec: RFC 6750 §3, RFC 9728 §5.1.

use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, StatusCode};

/// The longest header that is parsed, in bytes.
const MAX_HEADER: usize = 4 * 1024;

/// The Bearer challenge of a 401 or 403.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Challenge {
    /// URL of the upstream's metadata.
    pub resource_metadata: Option<String>,
    /// The scopes that the request needs.
    pub scopes: Vec<String>,
    /// The error code.
    pub error: Option<String>,
}

impl Challenge {
    /// The first Bearer challenge of an answer, empty where there is none.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(WWW_AUTHENTICATE).iter();
        let texts = values.filter_map(|value| value.to_str().ok());
        texts
            .filter(|text| text.len() <= MAX_HEADER)
            .find_map(bearer)
            .unwrap_or_default()
    }

    /// Whether an answer with this status asks for more scopes.
    #[must_use]
    pub fn asks_for_scopes(&self, status: StatusCode) -> bool {
        status == StatusCode::FORBIDDEN
            && self.error.as_deref() == Some("insufficient_scope")
            && !self.scopes.is_empty()
    }
}

/// Reads the parameters of the Bearer challenge in `text`, which may hold several challenges. Spec: RFC 9110 §11.6.1
fn bearer(text: &str) -> Option<Challenge> {
    let mut found: Option<Challenge> = None;
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if rest.is_empty() {
            return found;
        }
        let end = rest.find(|c: char| !is_token_char(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at_checked(end)?;
        let value = after.trim_start().strip_prefix('=');
        match (value, &mut found) {
            // A scheme.
            (None, Some(_)) => return found,
            (None, None) => {
                if word.is_empty() {
                    return None;
                }
                if word.eq_ignore_ascii_case("bearer") {
                    found = Some(Challenge::default());
                }
                rest = after;
            }
            (Some(value), found) => {
                let (value, after) = parameter(value.trim_start())?;
                if let Some(challenge) = found {
                    challenge.take(word, value);
                }
                rest = after;
            }
        }
    }
}

impl Challenge {
    fn take(&mut self, name: &str, value: String) {
        match name.to_ascii_lowercase().as_str() {
            "resource_metadata" => self.resource_metadata = Some(value),
            "scope" => self.scopes = value.split_ascii_whitespace().map(str::to_owned).collect(),
            "error" => self.error = Some(value),
            _ => {}
        }
    }
}

/// The value at the beginning of `text`, and what follows it.
fn parameter(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        let (value, rest) = text.split_at_checked(end)?;
        return Some((value.to_owned(), rest));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, quoted.get(at + 1..)?)),
            '\\' => value.push(chars.next()?.1),
            c => value.push(c),
        }
    }
    None
}

fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rstest::rstest;

    use super::*;

    fn read(values: &[&str]) -> Challenge {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, HeaderValue::try_from(*value).unwrap());
        }
        Challenge::of(&headers)
    }

    #[rstest]
    #[case::quoted(&["Bearer resource_metadata=\"https://up.test/meta\", scope=\"a b\""])]
    #[case::bare(&["bearer scope=\"a b\",resource_metadata=https://up.test/meta"])]
    #[case::spaced(&["Bearer scope = \"a b\" , resource_metadata = \"https://up.test/meta\""])]
    #[case::after_another(&["Basic realm=\"x, Bearer y\"", "Bearer scope=\"a b\", resource_metadata=\"https://up.test/meta\""])]
    #[case::in_one_header(&["Basic realm=\"x\", Bearer scope=\"a b\", resource_metadata=\"https://up.test/meta\", Basic scope=\"c\""])]
    #[case::escaped(&["Bearer scope=\"a b\", resource_metadata=\"https://up.test\\/meta\""])]
    fn the_bearer_challenge_is_found(#[case] values: &[&str]) {
        let challenge = read(values);
        assert_eq!(
            challenge.resource_metadata.as_deref(),
            Some("https://up.test/meta")
        );
        assert_eq!(challenge.scopes, ["a", "b"]);
    }

    #[rstest]
    #[case::none(&[])]
    #[case::another_scheme(&["Basic scope=\"a\""])]
    #[case::unclosed(&["Bearer scope=\"a"])]
    #[case::no_scheme(&["scope=\"a\""])]
    fn what_is_no_bearer_challenge_says_nothing(#[case] values: &[&str]) {
        assert_eq!(read(values), Challenge::default());
    }

    #[test]
    fn only_a_403_that_names_scopes_asks_for_them() {
        let challenge = read(&["Bearer error=\"insufficient_scope\", scope=\"w\""]);
        assert!(challenge.asks_for_scopes(StatusCode::FORBIDDEN));
        assert!(!challenge.asks_for_scopes(StatusCode::UNAUTHORIZED));
        let without = read(&["Bearer error=\"insufficient_scope\""]);
        assert!(!without.asks_for_scopes(StatusCode::FORBIDDEN));
    }
}
