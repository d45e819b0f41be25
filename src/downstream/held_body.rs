//! Answers that keep a guard until their end: their exchange counts as open, or a drain waits.

use axum::body::Body;
use http::Response;
use http_body::Body as _;
use http_body_util::BodyExt;

/// Keeps `open` until the response body ends. A body of known size ends at once: hyper has all of its
/// bytes, and the connection shows whether they are written.
pub(super) fn hold<T: Send + 'static>(response: Response<Body>, open: Option<T>) -> Response<Body> {
    match open {
        Some(open) if response.body().size_hint().exact().is_none() => response.map(|body| {
            // It is dropped with the body.
            Body::new(body.map_frame(move |frame| {
                let _open = &open;
                frame
            }))
        }),
        _ => response,
    }
}
