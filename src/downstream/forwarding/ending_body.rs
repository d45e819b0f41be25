//! The body of an event stream that another replica answers, ended while this replica drains.

use std::future::pending;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures_util::future::{BoxFuture, Shared};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use tokio_util::sync::CancellationToken;

use crate::downstream::busy::reconnect_delay;
use crate::protocol::sse;

/// Within this after the begin of the drain the streams end, at random: their clients do not come back together.
const WITHIN: Duration = Duration::from_millis(2500);
/// The end of an event.
const END: &[u8] = b"\n\n";

/// A stream that ends between two events once it has to.
struct EndingStream {
    chunks: BodyDataStream,
    ends: Shared<BoxFuture<'static, ()>>,
    /// Whether the last byte ended an event.
    is_between: bool,
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
    let ends = async move {
        draining.await;
        tokio::time::sleep(WITHIN.mul_f64(rand::random_range(0.0..1.0))).await;
    };
    answer.map(|body| {
        let open = EndingStream {
            chunks: body.into_data_stream(),
            ends: ends.boxed().shared(),
            is_between: true,
        };
        let next = async |open: Option<EndingStream>| open?.next().await;
        Body::from_stream(stream::unfold(Some(open), next).fuse())
    })
}

impl EndingStream {
    /// The next bytes, and the rest of the stream. The last bytes say when to come back.
    async fn next(mut self) -> Option<(Result<Bytes, axum::Error>, Option<Self>)> {
        let (ends, is_between) = (self.ends.clone(), self.is_between);
        let ended = async {
            ends.await;
            if !is_between {
                pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            chunk = self.chunks.next() => {
                let chunk = chunk?;
                if let Ok(data) = &chunk {
                    self.is_between = data.ends_with(END);
                }
                Some((chunk, Some(self)))
            }
            () = ended => {
                let retry = u64::try_from(reconnect_delay().as_millis()).unwrap_or(u64::MAX);
                let mut last = BytesMut::new();
                sse::encode_retry(&mut last, retry);
                Some((Ok(last.freeze()), None))
            }
        }
    }
}

/// Whether an answer is an event stream.
pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

#[cfg(test)]
mod tests {
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
