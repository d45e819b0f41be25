//! CORS headers, without which browsers let no page use the gateway. Spec: Fetch, "CORS protocol"; SPEC T-18.
//!
//! No cookies are involved, so credentials are never allowed: a page brings its own token.

use axum::body::Body;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use super::guard::{OriginGuard, RequestKind};

const ALLOWED_HEADERS: &str = "authorization, content-type, accept, last-event-id, \
     mcp-session-id, mcp-protocol-version, mcp-method, mcp-name, traceparent, tracestate";
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static(
    "mcp-session-id, mcp-protocol-version, www-authenticate, retry-after, x-request-id",
);
const MCP_METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
const METADATA_METHODS: HeaderValue = HeaderValue::from_static("GET, OPTIONS");
/// Two hours: the longest that any browser keeps a preflight.
const MAX_AGE_SECS: HeaderValue = HeaderValue::from_static("7200");
const PARAMETER_PREFIX: &str = "mcp-param-";
/// Parameter headers reflected in one preflight; a tool with more arguments than this is refused
/// by its page, not by us.
const MAX_REFLECTED: usize = 64;

/// Whether a browser asks for permission, rather than a client for our methods.
#[must_use]
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to a preflight: 204 without authentication. A page that is not allowed gets the
/// same answer without permission, which its browser enforces.
#[must_use]
pub fn preflight(guard: &OriginGuard, kind: RequestKind, request: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(VARY, vary_of_a_preflight());
    if let Some(origin) = allowed_origin(guard, kind, request.get(ORIGIN)) {
        let metadata = kind == RequestKind::Metadata;
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let methods = if metadata {
            METADATA_METHODS
        } else {
            MCP_METHODS
        };
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(request));
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_SECS);
    }
    response
}

/// Adds the headers that let a page read this response, refusals included, so that a page can read the reason. `origin`
/// is the request's. Metadata has the same headers for everybody: a cache may give a page what another client asked for.
/// Spec: Fetch, "CORS protocol and HTTP caches".
pub fn decorate(
    guard: &OriginGuard,
    kind: RequestKind,
    origin: Option<&HeaderValue>,
    response: &mut HeaderMap,
) {
    if kind != RequestKind::Metadata {
        if origin.is_none() {
            return;
        }
        response.append(VARY, HeaderValue::from(ORIGIN));
    }
    if let Some(allowed) = allowed_origin(guard, kind, origin) {
        response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        response.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    }
}

/// Metadata is public; other responses name the requesting page's origin.
fn allowed_origin(
    guard: &OriginGuard,
    kind: RequestKind,
    origin: Option<&HeaderValue>,
) -> Option<HeaderValue> {
    match kind {
        RequestKind::Metadata => Some(HeaderValue::from_static("*")),
        // No page of another origin may read it.
        RequestKind::Page => None,
        RequestKind::Mcp | RequestKind::Preflight => {
            origin.filter(|origin| guard.allows_origin(origin)).cloned()
        }
    }
}

/// Our list, and every `mcp-param-*` name asked for: a wildcard cannot express a prefix.
fn allowed_headers(request: &HeaderMap) -> HeaderValue {
    let mut list = ALLOWED_HEADERS.to_owned();
    let asked = request
        .get_all(ACCESS_CONTROL_REQUEST_HEADERS)
        .iter()
        .flat_map(|line| line.to_str().unwrap_or_default().split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .filter(|name| name.as_str().starts_with(PARAMETER_PREFIX))
        .take(MAX_REFLECTED);
    for name in asked {
        list.push_str(", ");
        list.push_str(name.as_str());
    }
    HeaderValue::try_from(list).unwrap_or(HeaderValue::from_static(ALLOWED_HEADERS))
}

fn vary_of_a_preflight() -> HeaderValue {
    HeaderValue::from_static(
        "origin, access-control-request-method, access-control-request-headers",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downstream::samples;

    fn guard() -> OriginGuard {
        let mut settings = samples::server("0.0.0.0:8080", "https://mcp.example.com");
        settings
            .allowed_origins
            .push("https://claude.ai".to_owned());
        OriginGuard::new(&settings)
    }

    fn asking(origin: &'static str, names: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ORIGIN, HeaderValue::from_static(origin));
        headers.insert(
            ACCESS_CONTROL_REQUEST_METHOD,
            HeaderValue::from_static("POST"),
        );
        headers.insert(
            ACCESS_CONTROL_REQUEST_HEADERS,
            HeaderValue::from_static(names),
        );
        headers
    }

    fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
        headers.get(name).map(|value| value.to_str().unwrap())
    }

    // SPEC T-18.
    #[test]
    fn a_preflight_allows_our_headers_and_every_parameter_asked_for() {
        let request = asking(
            "https://claude.ai",
            "Authorization, Mcp-Param-Region, x-evil, bad name",
        );
        assert!(is_preflight(&Method::OPTIONS, &request));
        let response = preflight(&guard(), RequestKind::Mcp, &request);
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        let headers = response.headers();
        assert_eq!(
            text(headers, &ACCESS_CONTROL_ALLOW_ORIGIN),
            Some("https://claude.ai")
        );
        let allowed = text(headers, &ACCESS_CONTROL_ALLOW_HEADERS).unwrap();
        assert_eq!(allowed, format!("{ALLOWED_HEADERS}, mcp-param-region"));
        for name in [
            "authorization",
            "mcp-session-id",
            "last-event-id",
            "mcp-protocol-version",
            "traceparent",
            "tracestate",
        ] {
            assert!(allowed.contains(name), "{name} is missing");
        }
    }

    #[test]
    fn reflected_parameters_are_bounded() {
        let names: Vec<String> = (0..200).map(|n| format!("mcp-param-{n}")).collect();
        let names = HeaderValue::try_from(names.join(",")).unwrap();
        let mut request = asking("https://claude.ai", "");
        request.insert(ACCESS_CONTROL_REQUEST_HEADERS, names);
        let allowed = allowed_headers(&request);
        assert_eq!(
            allowed.to_str().unwrap().matches(PARAMETER_PREFIX).count(),
            MAX_REFLECTED
        );
    }

    #[test]
    fn a_foreign_page_gets_no_permission() {
        let request = asking("https://evil.example", "authorization");
        let response = preflight(&guard(), RequestKind::Mcp, &request);
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        assert_eq!(text(response.headers(), &ACCESS_CONTROL_ALLOW_ORIGIN), None);
    }

    #[test]
    fn options_without_the_marks_of_a_preflight_is_none() {
        let mut headers = asking("https://claude.ai", "");
        headers.remove(ACCESS_CONTROL_REQUEST_METHOD);
        assert!(!is_preflight(&Method::OPTIONS, &headers));
        assert!(!is_preflight(
            &Method::POST,
            &asking("https://claude.ai", "")
        ));
    }

    #[test]
    fn a_response_names_the_page_and_exposes_the_session_and_the_challenge() {
        let mut headers = HeaderMap::new();
        let origin = HeaderValue::from_static("https://claude.ai");
        decorate(&guard(), RequestKind::Mcp, Some(&origin), &mut headers);
        assert_eq!(
            text(&headers, &ACCESS_CONTROL_ALLOW_ORIGIN),
            Some("https://claude.ai")
        );
        assert_eq!(text(&headers, &VARY), Some("origin"));
        let exposed = text(&headers, &ACCESS_CONTROL_EXPOSE_HEADERS).unwrap();
        assert!(exposed.contains("mcp-session-id") && exposed.contains("www-authenticate"));
    }

    #[test]
    fn a_response_to_a_foreign_page_only_says_that_it_varies() {
        let mut headers = HeaderMap::new();
        let origin = HeaderValue::from_static("https://evil.example");
        decorate(&guard(), RequestKind::Mcp, Some(&origin), &mut headers);
        assert_eq!(text(&headers, &ACCESS_CONTROL_ALLOW_ORIGIN), None);
        assert_eq!(text(&headers, &VARY), Some("origin"));
    }

    // SPEC A-02.
    #[test]
    fn metadata_is_readable_by_every_page_also_from_a_cache() {
        let page = HeaderValue::from_static("https://evil.example");
        for origin in [None, Some(&page)] {
            let mut headers = HeaderMap::new();
            decorate(&guard(), RequestKind::Metadata, origin, &mut headers);
            assert_eq!(text(&headers, &ACCESS_CONTROL_ALLOW_ORIGIN), Some("*"));
            assert_eq!(text(&headers, &VARY), None);
        }
    }
}
