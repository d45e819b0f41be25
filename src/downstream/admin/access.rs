//! Access to the admin port beyond probes and metrics: who may read `/status` and change settings.

use std::net::IpAddr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, FORWARDED, ORIGIN, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};

use super::no_store::NO_STORE;
use crate::downstream::guard;
use crate::downstream::listener::ConnectionPermit;
use crate::secret::Secret;

/// `X-Forwarded-For`, set by a proxy: the peer address is then not the caller's.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// `Sec-Fetch-Site`, set by a browser for the page that sends the request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The access rule: local callers, or callers with the token.
#[derive(Debug)]
pub struct AccessRule {
    token: Option<Secret>,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessRefusal {
    /// The request has no token and is not from this machine.
    NoToken,
    /// The `Authorization` header has a different token.
    WrongToken,
    /// The request is not from this machine, and no admin token is configured.
    NotLocal,
}

impl AccessRule {
    /// With `token`, callers that present the token may connect from other machines.
    #[must_use]
    pub fn new(token: Option<Secret>) -> Self {
        Self { token }
    }

    /// Whether a request may proceed. A presented token is checked before the peer address: a wrong token is refused
    /// even on loopback, so that an operator who tests the token sees the error.
    pub(super) fn check(&self, request: &Request) -> Result<(), AccessRefusal> {
        let presented = request.headers().get(AUTHORIZATION);
        if let (Some(token), Some(presented)) = (&self.token, presented) {
            let is_ours = bearer(presented).is_some_and(|text| is_same(text, token));
            return is_ours.then_some(()).ok_or(AccessRefusal::WrongToken);
        }
        let peer = request
            .extensions()
            .get()
            .and_then(ConnectionPermit::client);
        if peer.is_some_and(is_loopback) && is_of_this_machine(request.uri(), request.headers()) {
            return Ok(());
        }
        Err(match self.token {
            Some(_) => AccessRefusal::NoToken,
            None => AccessRefusal::NotLocal,
        })
    }
}

impl IntoResponse for AccessRefusal {
    fn into_response(self) -> Response {
        const CHALLENGE: (HeaderName, HeaderValue) =
            (WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        let text = match self {
            Self::NoToken => {
                "this page needs the token of [admin] token: Authorization: Bearer <token>\n"
            }
            Self::WrongToken => "this is not the token of [admin] token\n",
            Self::NotLocal => {
                let text = "this page is for this machine only: ask a loopback address with a loopback Host, \
                            through no proxy; or set [admin] token\n";
                return (StatusCode::FORBIDDEN, [NO_STORE], text).into_response();
            }
        };
        (StatusCode::UNAUTHORIZED, [CHALLENGE, NO_STORE], text).into_response()
    }
}

/// The bearer token of an `Authorization` header, if present. Spec: RFC 6750 §2.1
fn bearer(header: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = header.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// Compares digests, so that the time tells neither the length nor a first difference.
fn is_same(text: &[u8], token: &Secret) -> bool {
    let [one, other] = [text, token.expose().as_bytes()].map(|text| digest(&SHA256, text));
    verify_slices_are_equal(one.as_ref(), other.as_ref()).is_ok()
}

fn is_loopback(peer: IpAddr) -> bool {
    peer.to_canonical().is_loopback()
}

/// A loopback peer may be a proxy, and its caller a page of a foreign name.
fn is_of_this_machine(uri: &Uri, headers: &HeaderMap) -> bool {
    let is_passed_on = headers.contains_key(FORWARDED) || headers.contains_key(FORWARDED_FOR);
    let is_foreign_page = headers.get(FETCH_SITE).is_some_and(|site| {
        let own = [&b"same-origin"[..], b"none"];
        !own.contains(&site.as_bytes())
    });
    let has_origin = headers.contains_key(ORIGIN);
    !is_passed_on && !is_foreign_page && !has_origin && guard::is_loopback_host(uri, headers)
}
