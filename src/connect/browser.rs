//! `Browser`: the cookie that binds a form to the browser that was shown it, and the origins that a form may come from.
//! Spec: RFC 6265bis §4.1.3 (`__Host-`); Fetch §3.1 (`Origin`), Fetch Metadata (`Sec-Fetch-Site`).

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{ORIGIN, SET_COOKIE};
use http::{HeaderMap, Response};

use super::cookies;
use crate::clock::SharedClock;
use crate::seal::{SealPurpose, Sealer};

/// Browsers accept the prefix only over TLS or from loopback, and for this host alone.
const COOKIE_NAME: &str = "__Host-drawbridge";
/// How long a form can be submitted.
const FORM_LIFE: Duration = Duration::from_mins(10);
/// How long a browser keeps the cookie.
const COOKIE_LIFE: Duration = Duration::from_hours(1);
/// Time from a form to the callback: the ten minutes of an authorization, and a reserve.
const WALK: Duration = Duration::from_mins(15);
/// Random bytes in a cookie.
const ID_LEN: usize = 16;

/// Why a form is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FormRefusal {
    /// Another site's page sent the form.
    Origin,
    /// The request carries no valid cookie.
    Cookie,
    /// The token does not belong to a form that this browser was shown in the last ten minutes.
    Token,
}

impl FormRefusal {
    /// One word for the log.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Origin => "origin",
            Self::Cookie => "cookie",
            Self::Token => "token",
        }
    }
}

/// A browser, identified by its cookie. No `Debug`: it holds the cookie.
pub(super) struct Browser<'a> {
    sealer: &'a Sealer,
    clock: &'a SharedClock,
    cookie: String,
    /// What the cookie holds and keeps when it is renewed: authorizations and forms of other tabs belong to it.
    id: [u8; ID_LEN],
    /// When the cookie expires, seconds since the Unix epoch.
    ends: u64,
    /// Whether the request carried the cookie.
    is_known: bool,
}

impl<'a> Browser<'a> {
    /// The browser of a request; without a valid cookie it gets a new one.
    pub(super) fn of(headers: &HeaderMap, (sealer, clock): (&'a Sealer, &'a SharedClock)) -> Self {
        let known = || {
            let cookie = cookies::find(headers, COOKIE_NAME)?;
            let plain = sealer.open(SealPurpose::ConnectCookie, b"", cookie)?;
            let (ends, id) = plain.split_first_chunk()?;
            let ends = u64::from_be_bytes(*ends);
            (clock.now().as_secs() < ends).then_some(Self {
                sealer,
                clock,
                cookie: cookie.to_owned(),
                id: id.try_into().ok()?,
                ends,
                is_known: true,
            })
        };
        known().unwrap_or_else(|| Self::with_id((sealer, clock), rand::random()))
    }

    /// The browser `id` with a new cookie.
    fn with_id((sealer, clock): (&'a Sealer, &'a SharedClock), id: [u8; ID_LEN]) -> Self {
        let ends = (clock.now() + COOKIE_LIFE).as_secs();
        let plain = [&ends.to_be_bytes()[..], &id].concat();
        Self {
            sealer,
            clock,
            cookie: sealer.seal(SealPurpose::ConnectCookie, b"", &plain),
            id,
            ends,
            is_known: false,
        }
    }

    /// The same browser for an authorization, which ends with a callback: with a new cookie if the present one would
    /// expire before.
    pub(super) fn for_walk(&self) -> Self {
        if self.is_known && (self.clock.now() + WALK).as_secs() >= self.ends {
            return Self::with_id((self.sealer, self.clock), self.id);
        }
        Self {
            cookie: self.cookie.clone(),
            ..*self
        }
    }

    /// The response, with `Set-Cookie` where the browser does not have the cookie.
    pub(super) fn keep(&self, mut response: Response<Bytes>) -> Response<Bytes> {
        if !self.is_known
            && let Some(value) = cookies::set(COOKIE_NAME, &self.cookie, COOKIE_LIFE)
        {
            response.headers_mut().append(SET_COOKIE, value);
        }
        response
    }

    /// Whether the request carried a valid cookie.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Digest by which the browser is recognised at the callback.
    pub(super) fn digest(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, &self.id))
    }

    /// Whether the request carried a cookie of the browser with this [`digest`](Self::digest).
    pub(super) fn is(&self, digest: &str) -> bool {
        self.is_known && self.digest() == digest
    }

    /// The token of a form about `what`, valid for this browser and ten minutes.
    pub(super) fn form_token(&self, what: &str) -> String {
        let ends = (self.clock.now() + FORM_LIFE).as_secs().to_be_bytes();
        let about = self.about(what);
        self.sealer.seal(SealPurpose::ConnectForm, &about, &ends)
    }

    /// Accepts a form about `what` if a page of `origin` sent it from the browser that was shown it.
    ///
    /// # Errors
    /// The check that failed.
    pub(super) fn admit(
        &self,
        headers: &HeaderMap,
        origin: &str,
        (what, token): (&str, &str),
    ) -> Result<(), FormRefusal> {
        if !is_own(headers, origin) {
            return Err(FormRefusal::Origin);
        }
        if !self.is_known {
            return Err(FormRefusal::Cookie);
        }
        let about = self.about(what);
        let plain = self.sealer.open(SealPurpose::ConnectForm, &about, token);
        let ends = plain.and_then(|plain| <[u8; 8]>::try_from(plain).ok());
        match ends {
            Some(ends) if self.clock.now().as_secs() < u64::from_be_bytes(ends) => Ok(()),
            _ => Err(FormRefusal::Token),
        }
    }

    fn about(&self, what: &str) -> Vec<u8> {
        [what.as_bytes(), b"\0", &self.id].concat()
    }
}

/// Whether a page of the gateway sent the form. `Sec-Fetch-Site`, which pages cannot set, says so whatever the host name
/// that the browser uses for the gateway. Browsers that do not send it name the page's origin.
fn is_own(headers: &HeaderMap, own: &str) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let site = headers.get("sec-fetch-site");
    match (origins.next(), origins.next(), site) {
        (_, None, Some(site)) => site == "same-origin",
        (Some(origin), None, None) => origin == own,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::HeaderValue;
    use http::header::COOKIE;
    use rstest::rstest;

    use super::*;
    use crate::clock::TestClock;

    #[test]
    fn cookie_lasts_until_the_callback_of_what_begins_now() {
        let clock = TestClock::at(1_800_000_000);
        let shared: SharedClock = Arc::<TestClock>::clone(&clock);
        let sealer = Sealer::new(&[]).unwrap();
        let sealing = (&sealer, &shared);
        let first = Browser::of(&HeaderMap::new(), sealing);
        let headers = brings(&first);
        let sets = |browser: &Browser<'_>| {
            let response = browser.keep(Response::new(Bytes::new()));
            response.headers().contains_key(SET_COOKIE)
        };
        clock.advance(
            COOKIE_LIFE
                .checked_sub(WALK + Duration::from_secs(1))
                .unwrap(),
        );
        let walking = Browser::of(&headers, sealing).for_walk();
        assert!(walking.is(&first.digest()) && !sets(&walking));
        clock.advance(Duration::from_secs(1));
        let walking = Browser::of(&headers, sealing).for_walk();
        assert!(walking.cookie != first.cookie && sets(&walking));
    }

    // Spec: Fetch, "append a request `Origin` header"
    #[rstest]
    #[case::without_metadata(&["https://gw.test"], None, true)]
    #[case::other_name_of_the_gateway(&["https://alias.test"], Some("same-origin"), true)]
    #[case::no_origin(&[], Some("same-origin"), true)]
    #[case::neither(&[], None, false)]
    #[case::other_site(&["https://evil.test"], None, false)]
    #[case::hidden(&["null"], None, false)]
    #[case::cross_site(&["https://gw.test"], Some("cross-site"), false)]
    #[case::two_origins(&["https://gw.test", "https://evil.test"], None, false)]
    fn form_is_of_the_page_that_the_browser_names(
        #[case] origins: &[&'static str],
        #[case] site: Option<&'static str>,
        #[case] expected: bool,
    ) {
        let mut headers = HeaderMap::new();
        for origin in origins {
            headers.append(ORIGIN, HeaderValue::from_static(origin));
        }
        if let Some(site) = site {
            headers.insert("sec-fetch-site", HeaderValue::from_static(site));
        }
        assert_eq!(is_own(&headers, "https://gw.test"), expected);
    }

    fn brings(browser: &Browser<'_>) -> HeaderMap {
        let pair = format!("{COOKIE_NAME}={}", browser.cookie);
        HeaderMap::from_iter([(COOKIE, pair.parse().unwrap())])
    }

    #[test]
    fn renewed_cookie_ends_nothing_that_another_tab_has_begun() {
        let clock = TestClock::at(1_800_000_000);
        let shared: SharedClock = Arc::<TestClock>::clone(&clock);
        let sealer = Sealer::new(&[]).unwrap();
        let sealing = (&sealer, &shared);
        let first = Browser::of(&HeaderMap::new(), sealing);
        clock.advance(COOKIE_LIFE.checked_sub(WALK).unwrap());
        let token = first.form_token("up");
        let renewed = Browser::of(&brings(&first), sealing).for_walk();
        clock.advance(WALK.checked_sub(FORM_LIFE).unwrap());
        let mut headers = brings(&renewed);
        headers.insert(ORIGIN, "https://gw.test".parse().unwrap());
        let later = Browser::of(&headers, sealing);
        assert!(later.is(&first.digest()));
        let admitted = later.admit(&headers, "https://gw.test", ("up", &token));
        assert_eq!(admitted, Ok(()));
        let other = Browser::of(&HeaderMap::new(), sealing);
        assert!(!later.is(&other.digest()));
        let token = other.form_token("up");
        let refused = later.admit(&headers, "https://gw.test", ("up", &token));
        assert_eq!(refused, Err(FormRefusal::Token));
    }
}
