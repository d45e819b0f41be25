//! Responses with headers that protect the pages from other sites, whatever their content.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderValue, Response, StatusCode};
use maud::Markup;

use super::layout::STYLE;

/// The content security policy: no scripts, no frames, no external resources; the style sheet by its digest.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let digest = BASE64_STANDARD.encode(digest(&SHA256, STYLE.as_bytes()).as_ref());
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; frame-ancestors 'none'; \
         base-uri 'none'"
    );
    // Base64 and the text above are valid in a header.
    HeaderValue::try_from(policy).unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"))
});

/// A response with a page. Other sites learn no address of it. With `no-referrer` browsers would hide the page's origin from
/// the gateway as well, in the `Origin` of its forms.
pub(super) fn page(status: StatusCode, page: &Markup) -> Response<Bytes> {
    let mut response = Response::new(Bytes::copy_from_slice(page.0.as_bytes()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let fixed = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "same-origin"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    response
}

/// 405 Method Not Allowed, of a page that lists accounts or changes them.
pub(super) fn not_allowed() -> Response<Bytes> {
    allows("GET, HEAD, POST")
}

/// 405 Method Not Allowed, of a page with these methods.
pub(super) fn allows(methods: &'static str) -> Response<Bytes> {
    let mut response = page(StatusCode::METHOD_NOT_ALLOWED, &super::views::unknown());
    let methods = HeaderValue::from_static(methods);
    response.headers_mut().insert(ALLOW, methods);
    response
}
