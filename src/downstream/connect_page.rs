//! The connect pages over HTTP: the body of a form, read within its own small bounds, and the answer.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};

use super::{McpService, reply};
use crate::connect::PageRequest;

/// The longest form, in bytes: a key of 8 KiB, each byte in three characters, and a token.
const MAX_FORM: usize = 32 * 1024;

/// Answers a request for the page of `upstream`, or of all where it is `None`.
pub(super) async fn answer(
    service: &McpService,
    request: Request,
    upstream: Option<Arc<str>>,
) -> Response<Body> {
    let Some(pages) = &service.pages else {
        return reply::plain(StatusCode::NOT_FOUND, "there is nothing at this path");
    };
    let (parts, body) = request.into_parts();
    let read = Limited::new(body, MAX_FORM).collect();
    let form = match tokio::time::timeout(service.settings.server.body_timeout, read).await {
        Ok(Ok(form)) => form.to_bytes(),
        Ok(Err(_)) => {
            return reply::plain(StatusCode::PAYLOAD_TOO_LARGE, "the form is too large");
        }
        Err(_) => return reply::plain(StatusCode::REQUEST_TIMEOUT, "the form is slow"),
    };
    let asked = PageRequest {
        method: &parts.method,
        query: parts.uri.query(),
        headers: &parts.headers,
        form: &form,
        upstream: upstream.as_ref(),
    };
    pages.answer(&asked).await.map(Body::from)
}

/// Answers the callback of an upstream's authorization server.
pub(super) async fn callback(service: &McpService, request: Request) -> Response<Body> {
    let Some(pages) = &service.pages else {
        return reply::plain(StatusCode::NOT_FOUND, "there is nothing at this path");
    };
    let (parts, _) = request.into_parts();
    let answer = pages.callback(&parts.method, &parts.uri, &parts.headers);
    answer.await.map(Body::from)
}

/// Answers the callback of a login.
pub(super) async fn login_callback(service: &McpService, request: Request) -> Response<Body> {
    let Some(pages) = &service.pages else {
        return reply::plain(StatusCode::NOT_FOUND, "there is nothing at this path");
    };
    let (parts, _) = request.into_parts();
    let answer = pages.login_callback(&parts.method, parts.uri.query(), &parts.headers);
    answer.await.map(Body::from)
}

/// Answers a server that reads the gateway's document.
pub(super) fn client_document(service: &McpService, request: &Request) -> Response<Body> {
    let Some(pages) = &service.pages else {
        return reply::plain(StatusCode::NOT_FOUND, "there is nothing at this path");
    };
    pages.client_document(request.method()).map(Body::from)
}
