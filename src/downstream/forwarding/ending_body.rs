//! The body of an event stream that another replica answers, ended while this replica drains.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use http_body::{Frame, SizeHint};
use tokio_util::sync::CancellationToken;

use crate::downstream::busy::come_back;
use crate::protocol::sse;

/// Within this after the begin of the drain the streams end, at random: their clients do not come back together.
const WITHIN: Duration = Duration::from_millis(2500);
/// The end of an event.
const END: &[u8] = b"\n\n";

type DrainEnds = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Ends between two events once it has to.
struct EndingBody {
    body: Body,
    ends: Option<DrainEnds>,
    /// Whether the last byte ended an event.
    is_between: bool,
    is_over: bool,
}

/// The same answer; an event stream ends some time after the drain has begun.
pub(super) fn end_with_drain(
    answer: Response<Body>,
    draining: &CancellationToken,
) -> Response<Body> {
    if !is_event_stream(answer.headers()) {
        return answer;
    }
    let draining = draining.clone().cancelled_owned();
    answer.map(|body| {
        Body::new(EndingBody {
            body,
            ends: Some(Box::pin(async move {
                draining.await;
                tokio::time::sleep(WITHIN.mul_f64(rand::random_range(0.0..1.0))).await;
            })),
            is_between: true,
            is_over: false,
        })
    })
}

/// Whether an answer is an event stream.
pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

impl http_body::Body for EndingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if let Some(Ok(frame)) = &frame
                && let Some(data) = frame.data_ref()
            {
                this.is_between = data.ends_with(END);
            }
            return Poll::Ready(frame);
        }
        if let Some(ends) = &mut this.ends
            && ends.as_mut().poll(cx).is_ready()
        {
            this.ends = None;
        }
        if this.ends.is_none() && this.is_between {
            this.is_over = true;
            let retry = u64::try_from(come_back().as_millis()).unwrap_or(u64::MAX);
            let mut last = BytesMut::new();
            sse::encode_retry(&mut last, retry);
            return Poll::Ready(Some(Ok(Frame::data(last.freeze()))));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::BodyExt as _;
    use tokio::sync::mpsc;

    use super::*;

    /// A stream that is answered elsewhere, and what sends its chunks.
    fn forwarded(draining: &CancellationToken, kind: &str) -> (mpsc::Sender<Bytes>, Body) {
        let (sender, receiver) = mpsc::channel(8);
        let chunks = stream::unfold(receiver, async |mut receiver: mpsc::Receiver<Bytes>| {
            let chunk = receiver.recv().await?;
            Some((Ok::<_, axum::Error>(chunk), receiver))
        });
        let answer = Response::builder().header(CONTENT_TYPE, kind);
        let answer = answer.body(Body::from_stream(chunks)).unwrap();
        (sender, end_with_drain(answer, draining).into_body())
    }

    async fn next(body: &mut Body) -> Option<Bytes> {
        let frame = body.frame().await?;
        frame.unwrap().into_data().ok()
    }

    #[tokio::test(start_paused = true)]
    async fn stream_ends_with_the_drain_between_two_events() {
        let draining = CancellationToken::new();
        let (sender, mut body) = forwarded(&draining, "text/event-stream");
        let send = async |text: &'static str| sender.send(text.into()).await.unwrap();
        send("data: 1\n\n").await;
        assert_eq!(next(&mut body).await.unwrap(), "data: 1\n\n");
        send("data: 2").await;
        assert_eq!(next(&mut body).await.unwrap(), "data: 2");
        draining.cancel();
        let waiting = tokio::time::timeout(2 * WITHIN, next(&mut body));
        assert!(waiting.await.is_err(), "an event is half sent");
        send("2\n\n").await;
        assert_eq!(next(&mut body).await.unwrap(), "2\n\n");
        let retry = next(&mut body).await.unwrap();
        assert!(retry.starts_with(b"retry: "), "{retry:?}");
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn answer_that_is_no_stream_stays_whole() {
        let draining = CancellationToken::new();
        draining.cancel();
        let (sender, mut body) = forwarded(&draining, "application/json");
        let waiting = tokio::time::timeout(2 * WITHIN, next(&mut body));
        assert!(waiting.await.is_err());
        sender.send("{}".into()).await.unwrap();
        assert_eq!(next(&mut body).await.unwrap(), "{}");
    }
}
