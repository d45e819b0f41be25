//! The body of an HTTP/1 request, read from its connection as that is polled.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::runtime::wake::defer_wakes;

/// hyper's `Incoming`, which wakes its connection only for bytes not received yet.
#[derive(Debug)]
pub(super) struct RequestBody(pub(super) Incoming);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let (frame, held) = defer_wakes(|| Pin::new(&mut self.0).poll_frame(cx));
        if !self.0.is_end_stream() {
            held.release();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
