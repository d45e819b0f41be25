//! A response body of server-sent events without ids, for streams that cannot be resumed.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::Stream;
use http_body::{Body, Frame};

use super::keep_alive::KeepAlive;
use crate::budget::{EXEMPT_BYTES, held_with};
use crate::protocol::sse;

/// Ready messages are written as one frame, up to about this size.
const FRAME_BYTES: usize = 64 * 1024;

/// Messages as events, each as soon as it is there, and comments while it is quiet
/// (SPEC T-14, T-15). Ends with the messages.
pub(super) struct PlainEvents<S> {
    /// Events that go before all messages.
    first: Bytes,
    messages: S,
    keep_alive: KeepAlive,
    done: bool,
}

impl<S: Stream<Item = Vec<Bytes>> + Unpin> PlainEvents<S> {
    /// The events `first`, as they are on the wire, then `messages`, with a sign of life whenever
    /// it has been quiet for `every`.
    pub(super) fn new(first: Bytes, messages: S, every: Duration) -> Self {
        Self {
            first,
            messages,
            keep_alive: KeepAlive::new(every),
            done: false,
        }
    }
}

impl<S: Stream<Item = Vec<Bytes>> + Unpin> Body for PlainEvents<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if !this.first.is_empty() {
            let first = std::mem::take(&mut this.first);
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let mut out = BytesMut::new();
        let mut large = Vec::new();
        while !this.done && out.len() < FRAME_BYTES {
            match Pin::new(&mut this.messages).poll_next(cx) {
                Poll::Ready(Some(messages)) => {
                    encode(&mut out, &messages);
                    let is_large = |message: &Bytes| message.len() > EXEMPT_BYTES;
                    large.extend(messages.into_iter().filter(is_large));
                }
                Poll::Ready(None) => this.done = true,
                Poll::Pending => break,
            }
        }
        if out.is_empty() {
            if this.done {
                return Poll::Ready(None);
            }
            ready!(this.keep_alive.poll_quiet(cx));
            sse::encode_comment(&mut out, "");
        }
        this.keep_alive.written();
        Poll::Ready(Some(Ok(Frame::data(held_with(out.freeze(), large)))))
    }
}

/// Appends `messages` as events without ids.
pub(super) fn encode(out: &mut BytesMut, messages: &[Bytes]) {
    for message in messages {
        sse::encode_event(out, message);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::BodyExt;

    use super::*;

    const EVERY: Duration = Duration::from_secs(15);

    fn messages(each: &[&'static str]) -> Vec<Bytes> {
        each.iter()
            .map(|text| Bytes::from_static(text.as_bytes()))
            .collect()
    }

    #[tokio::test]
    async fn what_is_ready_goes_out_in_one_frame_after_the_first_events() {
        let ready = stream::iter([messages(&["1", "2"]), messages(&["3"])]);
        let mut body = PlainEvents::new(Bytes::from_static(b"event: x\n\n"), ready, EVERY);
        let mut frames = Vec::new();
        while let Some(frame) = body.frame().await {
            let bytes = frame.unwrap().into_data().unwrap();
            frames.push(String::from_utf8(bytes.to_vec()).unwrap());
        }
        assert_eq!(frames.len(), 2, "{frames:?}");
        assert_eq!(frames[0], "event: x\n\n");
        let at = |text: &str| frames[1].find(text).unwrap();
        assert!(at("data: 1") < at("data: 2") && at("data: 2") < at("data: 3"));
    }

    // SPEC T-15.
    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_carries_comments_without_an_end() {
        let mut body = PlainEvents::new(Bytes::new(), stream::pending(), EVERY);
        for _ in 0..2 {
            let frame = body.frame().await.unwrap().unwrap();
            assert!(frame.into_data().unwrap().starts_with(b":"));
        }
    }
}
