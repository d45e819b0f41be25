use proptest::prelude::*;
use rstest::rstest;

use super::*;

const JWT: &str = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl";

#[rstest]
#[case(
    "Authorization: Bearer abcdef123456",
    "Authorization: Bearer [redacted]"
)]
#[case(
    "authorization=bearer  abcdef123456, x",
    "authorization=bearer  [redacted], x"
)]
#[case("got Basic dXNlcjpwYXNzd29yZA==", "got Basic [redacted]")]
#[case("password=hunter2 next", "password=[redacted] next")]
#[case("db_password: hunter22", "db_password: [redacted]")]
#[case(
    r#"{"client_secret":"a b c","x":1}"#,
    r#"{"client_secret":"[redacted]","x":1}"#
)]
#[case(
    r#"{\"access_token\":\"abc\"}"#,
    r#"{\"access_token\":\"[redacted]\"}"#
)]
#[case("?code=4711&state=1", "?code=[redacted]&state=1")]
#[case("?code=abc123", "?code=[redacted]")]
#[case("?code=EPIPE", "?code=[redacted]")]
#[case(r#"{"code":"abc123"}"#, r#"{"code":"[redacted]"}"#)]
#[case("code: 'SplxlOBeZQQYbYS6WxSbIA'", "code: '[redacted]'")]
#[case("code: 'EFGHIJKLMNOPQRST'", "code: '[redacted]'")]
#[case("code: 'ABCDEF'", "code: '[redacted]'")]
#[case("token: 'ECONNREFUSED'", "token: '[redacted]'")]
#[case("API_KEY=abc", "API_KEY=[redacted]")]
#[case("x-api-key: 0123456789", "x-api-key: [redacted]")]
#[case("https://bob:pass@host/x", "https://bob:[redacted]@host/x")]
#[case("token ghp_0123456789abcdef", "token [redacted]")]
#[case("päss password=geheim€", "päss password=[redacted]")]
#[case("?X-Amz-Signature=0a1b&x=1", "?X-Amz-Signature=[redacted]&x=1")]
#[case("?X-Goog-Signature=0a1b", "?X-Goog-Signature=[redacted]")]
#[case("?signature=0a1b&sig=2c", "?signature=[redacted]&sig=[redacted]")]
#[case("?key=AIzaSy&q=1", "?key=[redacted]&q=1")]
#[case("?api_key=0a1b", "?api_key=[redacted]")]
#[case("Bearer\tabcdef123456", "Bearer\t[redacted]")]
#[case("password\t=\thunter2", "password\t=\t[redacted]")]
fn secrets_are_masked(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(redact(text), expected);
}

#[test]
fn a_token_is_masked_wherever_it_stands() {
    for text in [
        JWT.to_owned(),
        format!("x={JWT}"),
        format!("[{JWT}]"),
        format!("é{JWT}é"),
    ] {
        assert!(!redact(&text).contains("eyJ"), "{}", redact(&text));
    }
}

#[rstest]
#[case("invalid token: it has expired")]
#[case("Bearer realm=\"x\", error=\"invalid_token\"")]
#[case("bearer tokens")]
#[case("upstream files: connection refused (os error 111)")]
#[case("eyJust a word")]
#[case("https://host:8080/a@b")]
#[case("tokens=17")]
#[case("Error: connect {\n  errno: -111,\n  code: 'ECONNREFUSED',\n  syscall: 'connect' }")]
#[case("{ code: 'EPIPE' }")]
#[case("  code: 'EACCES',")]
#[case("code: 'ENOENT'")]
#[case("code: 'MODULE_NOT_FOUND',")]
#[case("code: 'ERR_HTTP2_STREAM_ERROR'")]
#[case(r#"{"code":"CERT_HAS_EXPIRED"}"#)]
fn ordinary_text_stays(#[case] text: &str) {
    assert!(matches!(redact(text), Cow::Borrowed(_)), "{}", redact(text));
}

#[test]
fn a_secret_across_the_cut_is_masked() {
    let text = format!("https://bob:{}@host/{JWT}", "p".repeat(200));
    assert_eq!(shown(&text, 128), format!("https://bob:{MASK}@host/{MASK}"));
    let long = "é".repeat(10_000);
    assert_eq!(shown(&long, 127), "é".repeat(63));
}

#[rstest]
#[case("password", true)]
#[case("X-Amz-Signature", true)]
#[case("access_token", true)]
#[case("clientSecret", true)]
#[case("Authorization", true)]
#[case("tool", false)]
#[case("tokens", false)]
fn secret_field_names_are_known(#[case] name: &str, #[case] secret: bool) {
    assert_eq!(is_secret_name(name), secret);
}

/// The same without any short cut: every word is held against every list.
fn redact_slowly(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (String::new(), 0);
    while let Some(first) = text[at..].chars().next() {
        let word = run(bytes, at, is_word);
        let secret = if word.is_empty() {
            user_info(bytes, at)
        } else {
            secret_at_slowly(text, word.clone())
        };
        let from = at;
        at = match &secret {
            Some(secret) => secret.start,
            None => word.end.max(at + first.len_utf8()),
        };
        out.push_str(&text[from..at]);
        if let Some(secret) = secret {
            out.push_str(MASK);
            at = secret.end;
        }
    }
    out
}

fn secret_at_slowly(text: &str, word: Range<usize>) -> Option<Range<usize>> {
    let (name, bytes) = (&text[word.clone()], text.as_bytes());
    if name.starts_with("eyJ") {
        return secret_at(text, word);
    }
    let long = |prefix: &&str| name.len() >= prefix.len() + MIN_CREDENTIAL_BYTES;
    if PREFIXES.iter().any(|p| long(p) && name.starts_with(p)) {
        return Some(word);
    }
    if SCHEMES.iter().any(|s| name.eq_ignore_ascii_case(s)) {
        return credentials(bytes, word.end);
    }
    let bare = name.trim_matches(['_', '-']);
    let secret = SECRET_NAMES
        .iter()
        .any(|end| ends_with_ignoring_case(bare, end))
        || SECRET_WORDS.iter().any(|s| name.eq_ignore_ascii_case(s));
    let value = secret.then(|| assigned(text, word.end)).flatten()?;
    (!is_error_code(text, word, &value)).then_some(value)
}

proptest! {
    #[test]
    fn short_cuts_change_nothing(
        pieces in prop::collection::vec(
            prop::sample::select(
                [
                    &SCHEMES[..], &SECRET_NAMES, &SECRET_WORDS, &PREFIXES,
                    &[
                        " ", "\t", "  ", "=", ":", "\"", "\\\"", "'", "/", "://", "@", ".", ",", "_", "-",
                        "a", "code", "EPIPE", "ERR_X", "ghp", "12345678", "Bearer", "API_KEY", "7", "é", "abcdef0123456789", "eyJhbGciOi", "x y",
                    ],
                ]
                .concat(),
            ),
            0..12,
        ),
    ) {
        let text = pieces.concat();
        let masked = redact_slowly(&text);
        prop_assert_eq!(redact(&text), &*masked);
        prop_assert!(!is_harmless(&text) || text == masked);
    }

    #[test]
    fn no_text_breaks_it_and_what_follows_a_name_is_gone(
        before in "\\PC{0,20}", secret in "[a-z0-9]{6,20}", after in "\\PC{0,20}",
    ) {
        let text = format!("{before} password={secret} {after}");
        prop_assume!(!before.contains(&secret) && !after.contains(&secret));
        prop_assert!(!redact(&text).contains(&secret));
    }
}
