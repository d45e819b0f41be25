//! Answers that count as open exchanges of their principal until they are over.

use axum::body::Body;
use http::Response;
use http_body::Body as _;
use http_body_util::BodyExt;

use super::listener::OpenExchange;

/// Counts the exchange as open until its response body ends. A body of known size ends at once: hyper has all of its
/// bytes, and the connection shows whether they are written.
pub(super) fn hold(response: Response<Body>, open: Option<OpenExchange>) -> Response<Body> {
    match open {
        Some(open) if response.body().size_hint().exact().is_none() => response.map(|body| {
            // The exchange is dropped with the body.
            Body::new(body.map_frame(move |frame| {
                let _open = &open;
                frame
            }))
        }),
        _ => response,
    }
}
