//! `StickyCookies`: the cookies of one upstream session, by which a balancer finds the instance of the session again.
//! Spec: RFC 6265 §5.2, §5.4.

use std::sync::{Mutex, OnceLock};

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue};

use crate::lock::lock;
use crate::secret::Secret;

/// Cookies of one session, at most.
const MOST: usize = 8;
/// Their names and values together, bytes.
const MOST_BYTES: usize = 4096;

/// The cookies of one upstream session. Only requests of the session carry them, and all of these go to the origin that has
/// set the cookies. The cookies end with the session, so neither `Domain` nor an expiry in the future matters.
#[derive(Debug, Default)]
pub(in crate::upstream) struct StickyCookies(OnceLock<Mutex<CookieList>>);

/// Cookies in the order in which they were set.
#[derive(Debug)]
struct CookieList {
    /// The path of the requests.
    path: String,
    /// Cookies of the response that began the session, also those that the upstream has withdrawn since.
    cookies: Vec<SessionCookie>,
    /// The header that sends them; `None` without any.
    header: Option<HeaderValue>,
}

/// One cookie.
#[derive(Debug)]
struct SessionCookie {
    name: String,
    /// Name and value, as they are sent; `None` once withdrawn.
    pair: Option<Secret>,
}

impl StickyCookies {
    /// Takes the cookies in `headers` of the response that began the session, whose requests go to `path`.
    pub(in crate::upstream) fn begin(&self, headers: &HeaderMap, path: &str) {
        if headers.contains_key(SET_COOKIE) {
            let list = self.0.get_or_init(|| Mutex::new(CookieList::new(path)));
            lock(list).take(headers, true);
        }
    }

    /// Takes newer values of the session's cookies from a later response, and no other cookies: these may be about the caller
    /// of that one call, and several may share the session. Costs nothing where the session began without cookies.
    pub(in crate::upstream) fn renew(&self, headers: &HeaderMap) {
        if let Some(list) = self.0.get()
            && headers.contains_key(SET_COOKIE)
        {
            lock(list).take(headers, false);
        }
    }

    /// The value of `Cookie`, if there are any.
    pub(in crate::upstream) fn header(&self) -> Option<HeaderValue> {
        lock(self.0.get()?).header.clone()
    }
}

impl CookieList {
    fn new(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            cookies: Vec::new(),
            header: None,
        }
    }

    fn take(&mut self, headers: &HeaderMap, may_add: bool) {
        for set in headers.get_all(SET_COOKIE) {
            if let Ok(text) = set.to_str() {
                self.set(text, may_add);
            }
        }
        let pairs = self.pairs().collect::<Vec<_>>().join("; ");
        let header = HeaderValue::from_str(&pairs).ok();
        self.header = header.filter(|header| !header.is_empty());
        if let Some(header) = &mut self.header {
            header.set_sensitive(true);
        }
    }

    /// Names and values of the cookies that are not withdrawn.
    fn pairs(&self) -> impl Iterator<Item = &str> {
        let pairs = self.cookies.iter().filter_map(|it| it.pair.as_ref());
        pairs.map(Secret::expose)
    }

    /// Takes one `Set-Cookie`. A cookie of a new name is taken only if `may_add`; one for other paths, or over the bounds, never.
    fn set(&mut self, text: &str, may_add: bool) {
        let (pair, attributes) = text.split_once(';').unwrap_or((text, ""));
        let Some((name, value)) = pair.split_once('=') else {
            return;
        };
        let (name, value) = (name.trim(), value.trim());
        // Servers withdraw a cookie by an empty value and an end in the past.
        let mut has_ended = value.is_empty();
        for attribute in attributes.split(';') {
            let (key, value) = attribute.split_once('=').unwrap_or((attribute, ""));
            let (key, value) = (key.trim(), value.trim());
            if key.eq_ignore_ascii_case("max-age") {
                has_ended |= value.parse::<i64>().is_ok_and(|seconds| seconds <= 0);
            } else if key.eq_ignore_ascii_case("path") && !covers(value, &self.path) {
                return;
            }
        }
        let known = self.cookies.iter().position(|it| it.name == name);
        if name.is_empty() || known.is_none() && (has_ended || !may_add) {
            return;
        }
        if let Some(at) = known {
            self.cookies.remove(at);
        }
        let pair = (!has_ended).then(|| format!("{name}={value}"));
        let held: usize = self.pairs().map(str::len).sum();
        let length = pair.as_deref().map_or(0, str::len);
        if self.cookies.len() >= MOST || held + length > MOST_BYTES {
            tracing::debug!("a cookie of an upstream session is over the bounds and is not kept");
            return;
        }
        self.cookies.push(SessionCookie {
            name: name.to_owned(),
            pair: pair.map(Secret::new),
        });
    }
}

/// Whether a cookie for `at` goes with requests to `path`. Another value than a path means every path. A last slash makes
/// no difference, as the upstream may have led to the path with or without one. Spec: RFC 6265 §5.1.4.
fn covers(at: &str, path: &str) -> bool {
    !at.starts_with('/')
        || path
            .strip_prefix(at.trim_end_matches('/'))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn headers(set: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for text in set {
            headers.append(SET_COOKIE, HeaderValue::from_str(text).unwrap());
        }
        headers
    }

    fn kept(set: &[&str]) -> Option<String> {
        let cookies = StickyCookies::default();
        cookies.begin(&headers(set), "/mcp");
        let header = cookies.header()?;
        assert!(header.is_sensitive());
        Some(header.to_str().unwrap().to_owned())
    }

    // As AWS, nginx, HAProxy and Azure set them.
    #[rstest]
    #[case::aws(
        &["AWSALB=a/b+c==; Expires=Sat, 05 Dec 2026 10:00:00 GMT; Path=/", "AWSALBCORS=d; SameSite=None; Secure"],
        Some("AWSALB=a/b+c==; AWSALBCORS=d")
    )]
    #[case::nginx(&["route=1f2; expires=Thu; domain=.up.test; path=/mcp/"], Some("route=1f2"))]
    #[case::haproxy(&["SERVERID=s1; path=/"], Some("SERVERID=s1"))]
    #[case::lifetime(&["a=1; Max-Age=3600"], Some("a=1"))]
    #[case::set_twice(&["a=1", "b=2", "a=3"], Some("b=2; a=3"))]
    #[case::withdrawn(&["a=1", "a=; Path=/"], None)]
    #[case::ended(&["a=1", "b=2", "a=1; max-age=0"], Some("b=2"))]
    #[case::other_path(&["a=1; Path=/admin", "b=2; Path=/mc"], None)]
    #[case::nothing(&["", "a", "=b", ";a=1"], None)]
    fn cookies_are_sent_as_they_were_set(#[case] set: &[&str], #[case] sent: Option<&str>) {
        assert_eq!(kept(set).as_deref(), sent);
    }

    #[test]
    fn cookies_are_bounded() {
        let many: Vec<_> = (0..20).map(|number| format!("c{number}=x")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let sent = kept(&many).unwrap();
        assert_eq!(sent.split("; ").count(), MOST, "{sent}");
        let large = format!("a={}", "x".repeat(MOST_BYTES));
        assert_eq!(kept(&[large.as_str(), "b=1"]).as_deref(), Some("b=1"));
    }

    #[test]
    fn later_cookie_replaces_the_one_of_the_session() {
        let cookies = StickyCookies::default();
        cookies.renew(&headers(&["a=1"]));
        assert_eq!(cookies.header(), None, "the session has no balancer");
        cookies.begin(&headers(&["a=2"]), "/mcp");
        cookies.renew(&headers(&["a=3"]));
        assert_eq!(cookies.header().unwrap(), "a=3");
        cookies.renew(&headers(&[]));
        assert_eq!(cookies.header().unwrap(), "a=3");
        assert!(!format!("{cookies:?}").contains("a=3"));
        // The instance is gone: the balancer withdraws its cookie, and names another one then or later.
        cookies.renew(&headers(&["a=; Max-Age=0"]));
        assert_eq!(cookies.header(), None);
        cookies.renew(&headers(&["a=4"]));
        assert_eq!(cookies.header().unwrap(), "a=4");
    }

    // It may be the login of one of several callers that share the session.
    #[test]
    fn later_cookie_of_another_name_is_not_kept() {
        let cookies = StickyCookies::default();
        cookies.begin(&headers(&["route=1"]), "/mcp");
        cookies.renew(&headers(&["login=alice", "route=2"]));
        assert_eq!(cookies.header().unwrap(), "route=2");
    }
}
