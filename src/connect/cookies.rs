//! Cookies of the connect pages. Browsers accept the prefix `__Host-` only over TLS or from loopback, and for this host
//! alone. Spec: RFC 6265bis §4.1.3.2

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

/// The value of the cookie `name`, which is a handle; `None` where the cookie is missing or occurs twice. Cookies beside
/// it may hold any bytes: other programs of the domain set them.
pub(super) fn find<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    let mut found = pairs.filter_map(|pair| {
        let value = pair.trim_ascii().strip_prefix(name.as_bytes())?;
        value.strip_prefix(b"=")
    });
    let (Some(value), None) = (found.next(), found.next()) else {
        return None;
    };
    let is_handle = BASE64_URL_SAFE_NO_PAD.decode(value).is_ok();
    std::str::from_utf8(value).ok().filter(|_| is_handle)
}

/// Sets the cookie `name` for `lasts`. `Lax`: sent when another site navigates the whole page here, as an issuer does
/// after a login.
pub(super) fn set(name: &str, value: &str, lasts: Duration) -> Option<HeaderValue> {
    let seconds = lasts.as_secs();
    let text = format!("{name}={value}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age={seconds}");
    HeaderValue::try_from(text).ok()
}

/// Removes the cookie `name`.
pub(super) fn removed(name: &str) -> Option<HeaderValue> {
    set(name, "", Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_that_stands_there_twice_is_none() {
        let headers = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(COOKIE, line.parse().unwrap());
            }
            headers
        };
        assert_eq!(find(&headers(&["x=1; a=AAAA"]), "a"), Some("AAAA"));
        assert_eq!(find(&headers(&["aa=AAAA"]), "a"), None);
        assert_eq!(find(&headers(&["a=AAAA; a=BBBB"]), "a"), None);
        assert_eq!(find(&headers(&["a=<b>"]), "a"), None);
    }

    #[test]
    fn cookie_is_found_beside_one_that_is_not_ascii() {
        let line = HeaderValue::from_bytes("city=Köln; a=AAAA".as_bytes()).unwrap();
        let headers = HeaderMap::from_iter([(COOKIE, line)]);
        assert_eq!(find(&headers, "a"), Some("AAAA"));
        assert_eq!(find(&headers, "city"), None);
    }
}
