//! The connect pages over HTTP: their paths, the body of a form, read within its own small bounds, and the answer.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};

use super::reply;
use crate::address::ClientNetwork;
use crate::connect::{ConnectPages, PageRequest};
use crate::sync::keyed_permits::KeyedPermits;
use crate::telemetry::trace::{self, StepSpan};

/// Authorization servers send browsers back below it: each client of the gateway has its own redirect URI.
const CALLBACKS: &str = "/connect/callback/";
/// Issuers send browsers back here after a login.
const LOGIN_CALLBACK: &str = "/connect/callback/login";
/// Authorization servers read the gateway's client metadata here.
const CLIENT_DOCUMENT: &str = "/connect/client.json";

/// The longest form, in bytes: a key of 8 KiB, each byte in three characters, and a token.
const MAX_FORM: usize = 32 * 1024;

/// Requests of one client address that are answered at once. A person has one or two; a proxy that is not trusted has those
/// of all persons behind it.
const PER_ADDRESS: usize = 64;
/// Requests that are answered at once in all: their forms take 16 MiB at most.
const TOTAL: usize = 512;

/// Permits for requests for these pages. A visitor has brought no token yet: the bytes of a form, for up to
/// `server.body_timeout`, are in no caller's share of the byte budget, and one HTTP/2 connection can send 256 forms at once.
pub(super) fn permits() -> Arc<KeyedPermits<ClientNetwork>> {
    KeyedPermits::new(PER_ADDRESS, TOTAL)
}

/// What a path below `/connect` leads to.
#[derive(Debug, Clone)]
pub(super) enum ConnectPage {
    /// All accounts of the person, or with a name that of one upstream.
    Accounts(Option<Arc<str>>),
    /// The redirect URI of an authorization.
    Callback,
    /// The redirect URI of a login.
    LoginCallback,
    /// The client metadata document (CIMD).
    ClientDocument,
}

impl ConnectPage {
    /// Every path that is known at the start, with its page.
    pub(super) fn paths(pages: &ConnectPages) -> Vec<(String, Self)> {
        let mut paths = vec![
            ("/connect".to_owned(), Self::Accounts(None)),
            (LOGIN_CALLBACK.to_owned(), Self::LoginCallback),
            (CLIENT_DOCUMENT.to_owned(), Self::ClientDocument),
        ];
        for upstream in pages.upstreams() {
            let accounts = Self::Accounts(Some(Arc::clone(upstream)));
            paths.push((format!("/connect/{upstream}"), accounts));
            paths.push((format!("/connect/{upstream}/callback"), Self::Callback));
        }
        paths
    }

    /// The page of any other path: the redirect URI of a registration has a digest of its issuer in it.
    pub(super) fn of_path(path: &str) -> Option<Self> {
        path.starts_with(CALLBACKS).then_some(Self::Callback)
    }

    /// The pattern of the path, for the access line.
    pub(super) fn pattern(&self) -> &'static str {
        match self {
            Self::Accounts(None) => "/connect",
            Self::Accounts(Some(_)) => "/connect/{upstream}",
            Self::Callback => "/connect/callback",
            Self::LoginCallback => LOGIN_CALLBACK,
            Self::ClientDocument => CLIENT_DOCUMENT,
        }
    }
}

/// Answers a request for `page`; its form is read within `body_timeout`. Token requests are spans below that of the
/// page.
pub(super) async fn answer(
    pages: &ConnectPages,
    body_timeout: Duration,
    request: Request,
    page: ConnectPage,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let form = match &page {
        ConnectPage::Accounts(_) => match read_form(body_timeout, body).await {
            Ok(form) => form,
            Err(refusal) => return *refusal,
        },
        _ => Bytes::new(),
    };
    let span = StepSpan::page(&parts.headers, &parts.method, page.pattern());
    let parent = Some(span.context().clone());
    let answer = answered(pages, &parts, (&page, &form));
    let answer = trace::below(parent, Box::pin(answer)).await;
    span.answered(answer.status());
    answer.map(Body::from)
}

async fn answered(
    pages: &ConnectPages,
    parts: &Parts,
    (page, form): (&ConnectPage, &Bytes),
) -> Response<Bytes> {
    let (method, headers) = (&parts.method, &parts.headers);
    match page {
        ConnectPage::Accounts(upstream) => {
            let request = page_request(parts, form, upstream.as_ref());
            pages.answer(&request).await
        }
        ConnectPage::Callback => pages.callback(method, &parts.uri, headers).await,
        ConnectPage::LoginCallback => {
            let query = parts.uri.query();
            pages.login_callback(method, query, headers).await
        }
        ConnectPage::ClientDocument => pages.client_document(method),
    }
}

fn page_request<'a>(
    parts: &'a Parts,
    form: &'a Bytes,
    upstream: Option<&'a Arc<str>>,
) -> PageRequest<'a> {
    PageRequest {
        method: &parts.method,
        query: parts.uri.query(),
        headers: &parts.headers,
        form,
        upstream,
    }
}

/// # Errors
/// The answer to a form that is too large or too slow.
async fn read_form(body_timeout: Duration, body: Body) -> Result<Bytes, Box<Response<Body>>> {
    let read = Limited::new(body, MAX_FORM).collect();
    let (status, text) = match tokio::time::timeout(body_timeout, read).await {
        Ok(Ok(form)) => return Ok(form.to_bytes()),
        Ok(Err(_)) => (StatusCode::PAYLOAD_TOO_LARGE, "the form is too large"),
        Err(_) => (StatusCode::REQUEST_TIMEOUT, "the form is slow"),
    };
    Err(Box::new(reply::plain(status, text)))
}
