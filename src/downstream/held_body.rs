//! Answers that count as open exchanges of their principal until they are over.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use http_body::{Body as _, Frame, SizeHint};

use super::listener::OpenExchange;

/// A body whose exchange counts until it is dropped.
struct HeldBody {
    body: Body,
    _open: OpenExchange,
}

/// Counts the exchange as open until its response body ends. A body of known size ends at once: hyper has all of its
/// bytes, and the connection shows whether they are written.
pub(super) fn hold(response: Response<Body>, open: Option<OpenExchange>) -> Response<Body> {
    match open {
        Some(open) if response.body().size_hint().exact().is_none() => {
            response.map(|body| Body::new(HeldBody { body, _open: open }))
        }
        _ => response,
    }
}

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
