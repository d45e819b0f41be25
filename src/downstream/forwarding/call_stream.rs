//! The body of an event stream that answers a call and that another replica writes. Where that replica is lost the stream
//! ends with what is known of the call, in place of breaking off.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;
use http_body::{Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::ending_body::is_event_stream;
use super::passed_call::{PassedCall, is_given_up};
use super::seen_events::SeenEvents;

/// The stream of a call that was passed on.
struct CallStream {
    body: Body,
    state: StreamState,
    /// Ready when this replica stops before the call is over.
    cut_off: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

enum StreamState {
    /// The other replica writes.
    Open(Box<PassedCall>, SeenEvents),
    /// It was lost; the error with which the stream breaks off where nothing else can be said.
    Lost(BoxFuture<'static, Option<Bytes>>, Option<axum::Error>),
    Over,
}

/// The same answer of another replica; an event stream does not break off with that replica, nor with this one once
/// `cut_off` is cancelled. `seen` is what its client has had of the stream before.
pub(super) fn watch(
    answer: Response<Body>,
    (call, seen): (PassedCall, SeenEvents),
    cut_off: Option<&CancellationToken>,
) -> Response<Body> {
    if !is_event_stream(answer.headers()) || !call.has_requests() {
        return answer;
    }
    let cut_off = cut_off.map(|token| Box::pin(token.clone().cancelled_owned()));
    answer.map(|body| {
        Body::new(CallStream {
            body,
            state: StreamState::Open(Box::new(call), seen),
            cut_off,
        })
    })
}

impl CallStream {
    /// The last bytes, unless there is nothing to say.
    fn finish(&mut self, last: Bytes) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.state = StreamState::Over;
        Poll::Ready((!last.is_empty()).then(|| Ok(Frame::data(last))))
    }
}

impl http_body::Body for CallStream {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                StreamState::Open(call, seen) => {
                    let frame = Pin::new(&mut this.body).poll_frame(cx);
                    let error = match frame {
                        Poll::Ready(Some(Err(error))) if seen.is_between() => error,
                        Poll::Ready(frame) => {
                            if let Some(Ok(frame)) = &frame
                                && let Some(data) = frame.data_ref()
                            {
                                seen.read(data);
                            }
                            return Poll::Ready(frame);
                        }
                        Poll::Pending => {
                            let Some(cut_off) = &mut this.cut_off else {
                                return Poll::Pending;
                            };
                            ready!(cut_off.as_mut().poll(cx));
                            this.cut_off = None;
                            if !seen.is_between() {
                                return Poll::Pending;
                            }
                            let last = call.cut_off();
                            return this.finish(last);
                        }
                    };
                    let state = std::mem::replace(&mut this.state, StreamState::Over);
                    if let StreamState::Open(call, seen) = state {
                        let end = Box::pin(call.end(seen, is_given_up(&error)));
                        this.state = StreamState::Lost(end, Some(error));
                    }
                }
                StreamState::Lost(end, error) => {
                    let last = ready!(end.as_mut().poll(cx));
                    let error = error.take();
                    if let Some(last) = last {
                        return this.finish(last);
                    }
                    this.state = StreamState::Over;
                    return Poll::Ready(error.map(Err));
                }
                StreamState::Over => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self.state {
            StreamState::Open(..) => self.body.is_end_stream(),
            StreamState::Lost(..) => false,
            StreamState::Over => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http::header::CONTENT_TYPE;
    use http_body_util::BodyExt as _;
    use tokio::sync::mpsc;

    use super::super::passed_call::PassedRequests;
    use super::*;
    use crate::cluster::ForwardFailure;
    use crate::downstream::access_log::AccessRecord;
    use crate::protocol::RequestId;

    type Chunk = Result<Bytes, ForwardFailure>;

    /// Chunks that are sent at once at most.
    const CHUNKS: usize = 4;

    /// The stream of the call 5 of a modern client, and what sends its chunks.
    fn passed_on(cut_off: &CancellationToken) -> (mpsc::Sender<Chunk>, Body) {
        let (sender, receiver) = mpsc::channel(CHUNKS);
        let chunks = stream::unfold(receiver, async |mut receiver: mpsc::Receiver<Chunk>| {
            let chunk = receiver.recv().await?;
            Some((chunk, receiver))
        });
        let answer = Response::builder().header(CONTENT_TYPE, "text/event-stream");
        let answer = answer.body(Body::from_stream(chunks)).unwrap();
        let call = PassedCall {
            requests: PassedRequests::Posted {
                ids: vec![RequestId::from(5)],
                is_made_again: false,
            },
            begun: None,
            session: None,
            record: AccessRecord::default(),
        };
        let call = (call, SeenEvents::default());
        (sender, watch(answer, call, Some(cut_off)).into_body())
    }

    /// What a stream brings, and whether it ends without breaking off.
    async fn all(body: Body) -> (String, bool) {
        let mut body = body;
        let mut text = String::new();
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return (text, false);
            };
            text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
        (text, true)
    }

    #[tokio::test]
    async fn call_whose_replica_is_lost_gets_an_error() {
        let (sender, body) = passed_on(&CancellationToken::new());
        sender.try_send(Ok(": \n".into())).unwrap();
        sender.try_send(Err(ForwardFailure::Gone)).unwrap();
        let (text, is_whole) = all(body).await;
        assert!(is_whole);
        assert!(
            text.contains(r#""id":5"#) && text.contains("outcome is unknown"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn reply_is_not_followed_by_an_error() {
        let (sender, body) = passed_on(&CancellationToken::new());
        let reply = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{}}\n\n";
        sender.try_send(Ok(reply.into())).unwrap();
        sender.try_send(Err(ForwardFailure::Gone)).unwrap();
        assert_eq!(all(body).await, (reply.to_owned(), true));
    }

    #[tokio::test]
    async fn long_notice_is_followed_by_an_error_and_a_long_reply_is_not() {
        let long = "x".repeat(16 * 1024);
        let notice = format!(r#"{{"params":"{long}","method":"n"}}"#);
        let reply = format!(r#"{{"result":"{long}","id":5}}"#);
        for (message, has_error) in [(notice, true), (reply, false)] {
            let (sender, body) = passed_on(&CancellationToken::new());
            let event = format!("event: message\ndata: {message}\n\n");
            sender.try_send(Ok(event.clone().into())).unwrap();
            sender.try_send(Err(ForwardFailure::Gone)).unwrap();
            let (text, is_whole) = all(body).await;
            assert!(is_whole, "{text}");
            let after = text.strip_prefix(&event).unwrap();
            assert_eq!(after.contains("outcome is unknown"), has_error, "{after}");
            assert_eq!(after.is_empty(), !has_error, "{after}");
        }
    }

    #[tokio::test]
    async fn stream_with_half_an_event_breaks_off() {
        let (sender, body) = passed_on(&CancellationToken::new());
        sender.try_send(Ok("data: {".into())).unwrap();
        sender.try_send(Err(ForwardFailure::Gone)).unwrap();
        assert_eq!(all(body).await, ("data: {".to_owned(), false));
    }

    #[tokio::test]
    async fn call_that_outlasts_the_drain_gets_an_error() {
        let cut_off = CancellationToken::new();
        let (sender, body) = passed_on(&cut_off);
        sender.try_send(Ok(": \n".into())).unwrap();
        cut_off.cancel();
        let (text, is_whole) = all(body).await;
        assert!(is_whole);
        assert!(text.contains("the gateway stopped"), "{text}");
        drop(sender);
    }

    #[tokio::test]
    async fn stream_that_ends_by_itself_stays_as_it_is() {
        let (sender, body) = passed_on(&CancellationToken::new());
        sender.try_send(Ok("retry: 500\n\n".into())).unwrap();
        drop(sender);
        assert_eq!(all(body).await, ("retry: 500\n\n".to_owned(), true));
    }
}
