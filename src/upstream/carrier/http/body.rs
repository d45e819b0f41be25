//! The body of an upstream's response, whichever client brings it.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;

use super::h2_clients::H2StreamPermit;
use super::pool::PooledBody;

/// Time for the end of a body that is read no further.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Frames read while waiting for that end.
const FRAMES_BEFORE_END: usize = 4;

/// A body that is read from its connection as it is polled.
#[derive(Debug)]
pub enum UpstreamBody {
    /// Over a connection of our own pool.
    Plain(PooledBody),
    /// Over a connection of hyper's, which stays busy until the end.
    Hyper(Incoming, H2StreamPermit),
}

impl UpstreamBody {
    /// Finishes a body that is read no further, such as a stream after its reply. The connection is reused if the end
    /// comes soon, which is awaited in the background. Dropping the body instead closes the connection.
    pub(crate) fn finish(mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut frame = Pin::new(&mut self).poll_frame(&mut cx);
        if let Poll::Ready(Some(Ok(_))) = frame {
            frame = Pin::new(&mut self).poll_frame(&mut cx);
        }
        if frame.is_pending() {
            // Not a task of the gateway: no shutdown has to wait for this.
            TokioExecutor::new().execute(self.read_to_end());
        }
    }

    async fn read_to_end(mut self) {
        let end = async {
            for _ in 0..FRAMES_BEFORE_END {
                if !matches!(self.frame().await, Some(Ok(_))) {
                    return;
                }
            }
        };
        // In time or not, the body is dropped next.
        drop(tokio::time::timeout(END_WITHIN, end).await);
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Plain(body) => Pin::new(body).poll_frame(cx),
            Self::Hyper(body, _) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain(body) => body.is_end_stream(),
            Self::Hyper(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain(body) => body.size_hint(),
            Self::Hyper(body, _) => body.size_hint(),
        }
    }
}
