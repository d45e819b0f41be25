//! Links that an upstream asks a user to open: only what a browser opens as a page.
//! Spec: SPEC C-82; MCP 2025-11-25, "URL Mode".

use super::json::{self, member};

/// The longest id of an elicitation by URL that is remembered, bytes: upstreams choose them.
pub(crate) const LONGEST_ELICITATION_ID: usize = 1024;

/// Whether `url` is an `http` or `https` URL with a host that every parser and every reader finds at the same place: without
/// user information, invalid characters and surrounding space.
pub(crate) fn is_link(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else {
        return false;
    };
    let is_web = ["https", "http"]
        .iter()
        .any(|web| scheme.eq_ignore_ascii_case(web));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // What stands before `@` can look like the host, and may be a credential. Spec: RFC 3986 §7.6
    let is_bare = !authority.contains('@');
    is_web && is_bare && names_host(authority) && url.chars().all(is_of_url)
}

/// Whether a host stands before the port, if there is one.
fn names_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[') {
        return address.split_once(']').is_some_and(|(address, _)| {
            !address.is_empty()
                && address
                    .bytes()
                    .all(|b| b.is_ascii_hexdigit() || b":.%".contains(&b))
        });
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    let is_part = |c: char| c.is_alphanumeric() || !c.is_ascii() || "-._~%".contains(c);
    name.chars().any(char::is_alphanumeric) && name.chars().all(is_part)
}

/// Whether a URL may hold it. Letters beyond ASCII are escaped by who opens it.
fn is_of_url(c: char) -> bool {
    !c.is_whitespace()
        && !c.is_control()
        && !sets_direction(c)
        && !matches!(c, '\\' | '"' | '<' | '>' | '`' | '{' | '}' | '|' | '^')
}

/// Whether what follows a character may be shown in another order, so that the end of a path is read as the host. Spec: RFC
/// 3987 §4.1; Unicode UAX #9 §2
fn sets_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether every elicitation in `data` (JSON text, of an error -32042) is a link that may be opened. What
/// two parsers could read differently is none. Spec: SPEC C-83.
pub(crate) fn are_links(data: &str) -> bool {
    let Ok(members) = json::members(data) else {
        return !data.starts_with('{');
    };
    let mut all = members.iter().filter(|(name, _)| name == "elicitations");
    let Some((_, elicitations)) = all.next() else {
        return true;
    };
    let is_good = |elicitation: &&str| {
        let url = member(elicitation, "url").and_then(json::string);
        url.is_some_and(|url| is_link(&url))
    };
    json::elements(elicitations).is_ok_and(|all| all.iter().all(is_good))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // SPEC C-82.
    #[rstest]
    #[case("https://consent.example/start?a=b#c", true)]
    #[case("HTTP://127.0.0.1:8080", true)]
    #[case("https://[2001:db8::1]:8443/", true)]
    #[case("https://b\u{fc}cher.example/\u{fc}", true)]
    #[case("https://a_b.internal/%20", true)]
    #[case("javascript:alert(1)", false)]
    #[case("javascript://x/%0aalert(1)", false)]
    #[case("not a url at all", false)]
    #[case("", false)]
    #[case("https:", false)]
    #[case("https://", false)]
    #[case("https:///path", false)]
    #[case("https://?a", false)]
    #[case("https://:443/", false)]
    #[case("https://user@/", false)]
    #[case("https://trusted.example@evil.example/", false)]
    #[case("https://user:key@consent.example/", false)]
    #[case("https://consent.example/@user?to=a@b.example", true)]
    #[case("https://evil.example/\u{202e}elpmaxe.detsurt//:sptth", false)]
    #[case("https://evil.example/\u{2066}a", false)]
    #[case("https://[]/", false)]
    #[case("https:consent.example", false)]
    #[case(" https://consent.example/", false)]
    #[case("https://a.example/\n", false)]
    #[case("https://evil.example\\@trusted.example/", false)]
    #[case("file:///etc/passwd", false)]
    #[case("data:text/html,x", false)]
    #[case("ftp://a.example/", false)]
    fn only_pages_of_the_web_may_be_opened(#[case] url: &str, #[case] expected: bool) {
        assert_eq!(is_link(url), expected);
    }

    // SPEC C-83.
    #[rstest]
    #[case("{}", true)]
    #[case(r#"{"elicitations":[]}"#, true)]
    #[case(r#"{"elicitations":[{"url":"https://a.example/"}]}"#, true)]
    #[case(
        r#"{"elicitations":[{"url":"https://a.example/"},{"url":"javascript:x"}]}"#,
        false
    )]
    #[case(
        r#"{"elicitations":[{"url":"https://a.example/","url":"javascript:x"}]}"#,
        false
    )]
    #[case(
        r#"{"elicitations":[],"elicitations":[{"url":"javascript:x"}]}"#,
        false
    )]
    #[case(r#"{"elicitations":[{}]}"#, false)]
    #[case(r#"{"elicitations":{"url":"https://a.example/"}}"#, false)]
    fn data_of_an_error_holds_only_links(#[case] data: &str, #[case] expected: bool) {
        assert_eq!(are_links(data), expected);
    }
}
