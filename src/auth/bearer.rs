//! The bearer token of a request: found in the one place where it may stand.

use http::HeaderMap;
use http::header::AUTHORIZATION;

/// What a request presents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PresentedToken<'a> {
    /// No credentials, or some of a scheme that is not ours.
    Nothing,
    /// One token; its characters are not checked yet.
    Token(&'a [u8]),
}

/// Why the credentials cannot be read; the request is answered with 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MalformedCredentials {
    /// More than one `Authorization` header.
    Repeated,
    /// `Bearer` without a token, or a header that is no credentials at all.
    Syntax,
    /// A token in the query: it would end up in logs.
    InQuery,
}

impl MalformedCredentials {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Repeated => "authorization_repeated",
            Self::Syntax => "authorization_malformed",
            Self::InQuery => "token_in_query",
        }
    }

    pub(super) fn description(self) -> &'static str {
        match self {
            Self::Repeated => "more than one Authorization header",
            Self::Syntax => "the Authorization header is malformed",
            Self::InQuery => "a token in the URL is not accepted",
        }
    }
}

/// Finds the token of a request.
///
/// # Errors
/// The request has to be refused as malformed, whatever token it carries.
pub(super) fn find<'a>(
    headers: &'a HeaderMap,
    query: Option<&str>,
) -> Result<PresentedToken<'a>, MalformedCredentials> {
    // Spec: MCP 2025-11-25, Authorization, "Token requirements"; RFC 6750 §2; SPEC A-12
    if query.is_some_and(carries_token) {
        return Err(MalformedCredentials::InQuery);
    }
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(header) = all.next() else {
        return Ok(PresentedToken::Nothing);
    };
    if all.next().is_some() {
        return Err(MalformedCredentials::Repeated);
    }
    let text = header.as_bytes().trim_ascii();
    let end = text.iter().position(|b| *b == b' ').unwrap_or(text.len());
    let (scheme, rest) = text
        .split_at_checked(end)
        .ok_or(MalformedCredentials::Syntax)?;
    if !scheme.eq_ignore_ascii_case(b"Bearer") {
        return if is_scheme(scheme) {
            Ok(PresentedToken::Nothing)
        } else {
            Err(MalformedCredentials::Syntax)
        };
    }
    let token = rest.trim_ascii_start();
    if token.is_empty() {
        return Err(MalformedCredentials::Syntax);
    }
    Ok(PresentedToken::Token(token))
}

/// The token as text, if it has the characters of one. Spec: RFC 6750 §2.1, `b64token`
pub(super) fn b64token(token: &[u8]) -> Option<&str> {
    let token = std::str::from_utf8(token).ok()?;
    let body = token.trim_end_matches('=').as_bytes();
    let fits = |b: &u8| b.is_ascii_alphanumeric() || b"-._~+/".contains(b);
    (!body.is_empty() && body.iter().all(fits)).then_some(token)
}

/// Whether `scheme` can be an authentication scheme. Spec: RFC 9110 §5.6.2
fn is_scheme(scheme: &[u8]) -> bool {
    let fits = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    !scheme.is_empty() && scheme.iter().all(fits)
}

fn carries_token(query: &str) -> bool {
    url::form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == "access_token")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rstest::rstest;

    use super::*;

    fn found(header: &'static str) -> Result<Option<String>, MalformedCredentials> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static(header));
        Ok(match find(&headers, None)? {
            PresentedToken::Nothing => None,
            PresentedToken::Token(token) => Some(String::from_utf8_lossy(token).into_owned()),
        })
    }

    #[rstest]
    #[case::plain("Bearer abc", "abc")]
    #[case::lower_case("bearer abc", "abc")]
    #[case::many_spaces("BEARER   abc ", "abc")]
    fn a_bearer_token_is_found(#[case] header: &'static str, #[case] token: &str) {
        assert_eq!(found(header), Ok(Some(token.to_owned())));
    }

    #[rstest]
    #[case::basic("Basic dXNlcjpwYXNz")]
    #[case::dpop("DPoP abc")]
    #[case::bare_scheme("Negotiate")]
    fn another_scheme_presents_no_token(#[case] header: &'static str) {
        assert_eq!(found(header), Ok(None));
    }

    // SPEC A-12
    #[rstest]
    #[case::empty("")]
    #[case::no_token("Bearer")]
    #[case::only_spaces("Bearer   ")]
    #[case::no_scheme("=abc")]
    fn malformed_credentials_are_refused(#[case] header: &'static str) {
        assert_eq!(found(header), Err(MalformedCredentials::Syntax));
    }

    #[test]
    fn two_authorization_headers_are_refused() {
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
        assert_eq!(find(&headers, None), Err(MalformedCredentials::Repeated));
    }

    // SPEC A-12
    #[rstest]
    #[case::alone("access_token=abc")]
    #[case::among_others("a=b&access_token=abc")]
    #[case::encoded("access%5Ftoken=abc")]
    #[case::without_value("access_token")]
    fn a_token_in_the_query_is_refused(#[case] query: &str) {
        let mut headers = HeaderMap::new();
        assert_eq!(
            find(&headers, Some(query)),
            Err(MalformedCredentials::InQuery)
        );
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
        assert_eq!(
            find(&headers, Some(query)),
            Err(MalformedCredentials::InQuery)
        );
    }

    #[test]
    fn other_parameters_of_the_query_do_not_matter() {
        assert_eq!(
            find(&HeaderMap::new(), Some("q=access_token")),
            Ok(PresentedToken::Nothing)
        );
    }

    #[rstest]
    #[case::jwt("aA0-._~+/", true)]
    #[case::padded("abc==", true)]
    #[case::only_padding("==", false)]
    #[case::inner_padding("a=b", false)]
    #[case::comma("a,b", false)]
    #[case::quote("a\"b", false)]
    fn a_token_has_its_own_alphabet(#[case] token: &str, #[case] valid: bool) {
        assert_eq!(b64token(token.as_bytes()).is_some(), valid);
    }
}
