//! Where requests go: to the configured URL, or where its server says so, to the same URL with or
//! without one last slash of its path. Spec: SPEC U-11.

use std::sync::atomic::{AtomicBool, Ordering};

use http::header::LOCATION;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use url::Url;

use super::client_error::ClientError;

/// A URL in the two forms of a request line.
#[derive(Debug)]
pub(super) struct RequestTarget {
    url: Url,
    /// With scheme and authority.
    pub(super) absolute: Uri,
    /// Path and query.
    pub(super) origin_form: Uri,
}

impl RequestTarget {
    fn new(url: &Url) -> Result<Self, http::uri::InvalidUri> {
        let absolute: Uri = url.as_str().parse()?;
        let path = absolute.path_and_query().map_or("/", PathAndQuery::as_str);
        // A server does not repeat credentials of the URL. Neither fails for a URL with a host.
        let mut url = url.clone();
        let (_, _) = (url.set_username(""), url.set_password(None));
        Ok(Self {
            url,
            origin_form: path.parse()?,
            absolute,
        })
    }
}

/// The configured URL, the other one, and the choice of the server.
#[derive(Debug)]
pub(super) struct RequestTargets {
    configured: RequestTarget,
    other: RequestTarget,
    /// Whether the server has redirected away from the configured URL.
    moved: AtomicBool,
}

/// How a request went out.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentRoute {
    /// To the URL that the upstream led to.
    pub(super) moved: bool,
    pub(super) is_post: bool,
}

/// Whether an answer stands or redirects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RedirectVerdict {
    /// The answer stands.
    Stands,
    /// The request is to be retried at the other URL.
    Moved,
}

impl RequestTargets {
    pub(super) fn new(url: &Url) -> Result<Self, http::uri::InvalidUri> {
        let mut url = url.clone();
        url.set_fragment(None);
        Ok(Self {
            configured: RequestTarget::new(&url)?,
            other: RequestTarget::new(&slashed(&url))?,
            moved: AtomicBool::new(false),
        })
    }

    pub(super) fn configured(&self) -> &RequestTarget {
        &self.configured
    }

    /// The URL that requests go to now, and whether the upstream led to it.
    pub(super) fn current(&self) -> (bool, &RequestTarget) {
        let moved = self.moved.load(Ordering::Relaxed);
        (moved, self.of(moved))
    }

    fn of(&self, moved: bool) -> &RequestTarget {
        if moved { &self.other } else { &self.configured }
    }

    /// Reads the answer to a request, which went to the configured URL or, `moved`, to the other one. A redirect to the
    /// other URL is remembered, until that URL turns out not to be served. GET and DELETE do not count for that:
    /// servers without streams refuse GET, and some refuse DELETE.
    pub(super) fn judge(
        &self,
        sent: SentRoute,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> RedirectVerdict {
        let SentRoute { moved, is_post } = sent;
        match status {
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => {
                let leads_to = self.of(!moved);
                let location = headers.get(LOCATION).and_then(|it| it.to_str().ok());
                let target = location.and_then(|it| self.of(moved).url.join(it).ok());
                if target.as_ref() != Some(&leads_to.url) {
                    return RedirectVerdict::Stands;
                }
                self.moved.store(!moved, Ordering::Relaxed);
                RedirectVerdict::Moved
            }
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED if moved && is_post => {
                self.moved.store(false, Ordering::Relaxed);
                RedirectVerdict::Stands
            }
            _ => RedirectVerdict::Stands,
        }
    }
}

/// `Host` of requests to `uri`, as hyper's client spells it: without user information. The scheme's own port was left
/// out by [`Url`].
///
/// # Errors
/// The URL names no host.
pub(super) fn host(uri: &Uri) -> Result<HeaderValue, ClientError> {
    let authority = uri.authority().ok_or(ClientError::Host)?;
    let host = match authority.port_u16() {
        None => authority.host().to_owned(),
        Some(port) => format!("{}:{port}", authority.host()),
    };
    HeaderValue::from_str(&host).map_err(|_| ClientError::Host)
}

/// The same URL with one last slash of its path more, or less.
fn slashed(url: &Url) -> Url {
    let mut other = url.clone();
    match url.path().strip_suffix('/') {
        Some(shorter) if !shorter.is_empty() => other.set_path(shorter),
        _ => other.set_path(&format!("{}/", url.path())),
    }
    other
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const REDIRECT: StatusCode = StatusCode::TEMPORARY_REDIRECT;

    fn judge(targets: &RequestTargets, status: StatusCode, location: &str) -> RedirectVerdict {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, location.parse().unwrap());
        let (moved, is_post) = (targets.current().0, true);
        targets.judge(SentRoute { moved, is_post }, status, &headers)
    }

    fn targets(url: &str) -> RequestTargets {
        RequestTargets::new(&url.parse().unwrap()).unwrap()
    }

    // Spec: SPEC U-11.
    #[rstest]
    #[case::slash_added("http://up.test/mcp", "http://up.test/mcp/")]
    #[case::slash_taken("http://up.test/mcp/", "http://up.test/mcp")]
    #[case::query("http://up.test/mcp?a=b", "http://up.test/mcp/?a=b")]
    #[case::relative("http://up.test:8080/mcp", "/mcp/")]
    #[case::own_port("https://up.test/mcp", "https://UP.test:443/mcp/")]
    fn slash_redirect_is_followed(#[case] url: &str, #[case] location: &str) {
        for status in [REDIRECT, StatusCode::PERMANENT_REDIRECT] {
            let targets = targets(url);
            assert_eq!(judge(&targets, status, location), RedirectVerdict::Moved);
            assert_eq!(targets.current().1.url, targets.other.url);
        }
    }

    // Spec: SPEC U-11.
    #[rstest]
    #[case::scheme("https://up.test/mcp", "http://up.test/mcp/")]
    #[case::host("http://up.test/mcp", "http://other.test/mcp/")]
    #[case::port("http://up.test/mcp", "http://up.test:8080/mcp/")]
    #[case::user("http://up.test/mcp", "http://eve@up.test/mcp/")]
    #[case::query("http://up.test/mcp?a=b", "http://up.test/mcp/")]
    #[case::query_added("http://up.test/mcp", "http://up.test/mcp/?a=b")]
    #[case::two_slashes("http://up.test/mcp", "http://up.test/mcp//")]
    #[case::path("http://up.test/mcp", "http://up.test/v2/mcp/")]
    #[case::fragment("http://up.test/mcp", "http://up.test/mcp/#x")]
    #[case::itself("http://up.test/mcp", "http://up.test/mcp")]
    #[case::nothing("http://up.test/mcp", "")]
    fn other_redirects_stand(#[case] url: &str, #[case] location: &str) {
        let targets = targets(url);
        assert_eq!(judge(&targets, REDIRECT, location), RedirectVerdict::Stands);
        assert_eq!(targets.current().1.url, targets.configured.url);
        let moved_for_good = judge(&targets, StatusCode::FOUND, "/mcp/");
        assert_eq!(moved_for_good, RedirectVerdict::Stands, "302 is not 307");
    }

    #[rstest]
    #[case(StatusCode::NOT_FOUND)]
    #[case(StatusCode::METHOD_NOT_ALLOWED)]
    fn moved_path_that_is_gone_is_forgotten(#[case] status: StatusCode) {
        let targets = targets("http://up.test/mcp");
        judge(&targets, REDIRECT, "/mcp/");
        assert_eq!(judge(&targets, StatusCode::OK, ""), RedirectVerdict::Stands);
        assert_eq!(targets.current().1.origin_form, "/mcp/");
        let (moved, is_post) = (true, false);
        targets.judge(SentRoute { moved, is_post }, status, &HeaderMap::new());
        assert_eq!(targets.current().1.origin_form, "/mcp/", "it has no stream");
        assert_eq!(judge(&targets, status, ""), RedirectVerdict::Stands);
        assert_eq!(targets.current().1.origin_form, "/mcp");
    }

    #[rstest]
    #[case("http://a:b@up.test:80/mcp", "up.test")]
    #[case("https://up.test:443/mcp", "up.test")]
    #[case("https://up.test:80/mcp", "up.test:80")]
    #[case("http://[::1]:443/mcp", "[::1]:443")]
    fn host_names_every_port_but_that_of_the_scheme(#[case] url: &str, #[case] expected: &str) {
        let targets = targets(url);
        assert_eq!(host(&targets.configured.absolute).unwrap(), expected);
    }

    #[test]
    fn path_that_moved_back_is_followed_back() {
        let targets = targets("http://up.test/mcp");
        judge(&targets, REDIRECT, "/mcp/");
        assert_eq!(judge(&targets, REDIRECT, "/mcp"), RedirectVerdict::Moved);
        assert_eq!(targets.current().1.origin_form, "/mcp");
    }
}
