//! The body of a forwarded request, which is sent once more where the replica says that it is not the owner, or has not
//! begun the request.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full};

use crate::cluster::{ForwardFailure, ForwardedBody};
use crate::lock::lock;

/// Bytes that are kept at most: a longer request is answered with 503 where its owner has changed.
const MOST: usize = 64 * 1024;

/// A body whose bytes are kept in [`KeptBytes`] as they are read.
#[derive(Debug)]
pub(super) struct RepeatableBody {
    body: ForwardedBody,
    kept: Arc<Mutex<KeptFrames>>,
}

/// What was read of a body.
#[derive(Debug)]
pub(super) struct KeptBytes(Arc<Mutex<KeptFrames>>);

#[derive(Debug, Default)]
struct KeptFrames {
    /// `None` once there were more than [`MOST`] bytes.
    data: Option<Vec<Bytes>>,
    bytes: usize,
    is_whole: bool,
}

impl RepeatableBody {
    pub(super) fn new(body: ForwardedBody) -> (Self, KeptBytes) {
        let kept = Arc::new(Mutex::new(KeptFrames {
            data: Some(Vec::new()),
            bytes: 0,
            is_whole: body.is_end_stream(),
        }));
        let bytes = KeptBytes(Arc::clone(&kept));
        (Self { body, kept }, bytes)
    }
}

impl KeptBytes {
    /// All bytes, once; `None` where there were too many, or they were not read to their end.
    pub(super) fn again(&self) -> Option<Bytes> {
        let mut kept = lock(&self.0);
        let data = kept.data.take().filter(|_| kept.is_whole)?;
        let mut whole = BytesMut::with_capacity(kept.bytes);
        for part in data {
            whole.extend_from_slice(&part);
        }
        Some(whole.freeze())
    }

    /// The body once more, of a request that has not run.
    pub(super) fn of_unrun(&self, failure: &ForwardFailure) -> Option<ForwardedBody> {
        let sent = (!failure.is_uncertain()).then(|| self.again())?;
        sent.map(whole)
    }
}

/// A body of these bytes.
pub(in crate::downstream) fn whole(bytes: Bytes) -> ForwardedBody {
    let body = Full::new(bytes).map_err(|never| match never {});
    body.boxed_unsync()
}

impl Body for RepeatableBody {
    type Data = Bytes;
    type Error = <ForwardedBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        let mut kept = lock(&this.kept);
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            kept.bytes += data.len();
            if kept.bytes > MOST {
                kept.data = None;
            } else if let Some(all) = &mut kept.data {
                all.push(data.clone());
            }
        }
        kept.is_whole = frame.is_none() || this.body.is_end_stream();
        drop(kept);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> ForwardedBody {
        whole(Bytes::copy_from_slice(text.as_bytes()))
    }

    async fn text(body: ForwardedBody) -> Bytes {
        body.collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn short_body_is_read_twice() {
        for expected in ["", "{}"] {
            let (first, kept) = RepeatableBody::new(body(expected));
            assert_eq!(text(first.boxed_unsync()).await, expected);
            assert_eq!(kept.again().unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn long_or_unread_body_is_not_kept() {
        let (first, kept) = RepeatableBody::new(body(&"x".repeat(MOST + 1)));
        drop(text(first.boxed_unsync()).await);
        assert!(kept.again().is_none());
        let (_unread, kept) = RepeatableBody::new(body("{}"));
        assert!(kept.again().is_none());
    }
}
