//! A modern call and its HTTP exchange: JSON if the reply is the first message, else an event stream. When the client
//! disconnects, the call is cancelled. Spec: SPEC M-02, M-42, M-43, T-13 to T-15.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, Stream};
use http::{Response, StatusCode};

use super::link::{ExchangeOutcome, ModernClientLink};
use super::response_queue::{QueueItem, ResponseQueue};
use crate::call::Reply;
use crate::downstream::plain_events::{PlainEvents, encode};
use crate::downstream::reply;
use crate::telemetry::metrics::{COUNTERS, GAUGES, GaugeGuard};
use crate::telemetry::request_tag::TaggedWork;

/// After this silence a call is answered as a stream, which can be kept alive.
const SILENCE: Duration = Duration::from_secs(10);

/// The whole way of a call, part of its request wherever it is polled.
pub(super) type CallFuture = TaggedWork<BoxFuture<'static, ExchangeOutcome>>;

/// An exchange that waits for its call. Dropped before the end, it cancels the call.
pub(super) struct ModernExchange {
    /// The call's future, if this exchange drives the call.
    future: Option<CallFuture>,
    link: Arc<ModernClientLink>,
    response_queue: Arc<ResponseQueue<ExchangeOutcome>>,
    ended: bool,
    /// Counts the exchange while its response is an event stream.
    open: Option<GaugeGuard>,
}

impl ModernExchange {
    /// An exchange that drives its call by `future`; without one it took a parked call over, which runs on by itself.
    pub(super) fn new(
        future: Option<CallFuture>,
        link: Arc<ModernClientLink>,
        response_queue: Arc<ResponseQueue<ExchangeOutcome>>,
    ) -> Self {
        Self {
            future,
            link,
            response_queue,
            ended: false,
            open: None,
        }
    }

    /// The messages of the exchange as they come, as the last the reply to the request whose id is `id`
    /// (JSON text).
    pub(super) fn messages(self, id: String) -> impl Stream<Item = Vec<Bytes>> + Send {
        let mut exchange = Some(self);
        stream::poll_fn(move |cx| {
            let Some(running) = &mut exchange else {
                return Poll::Ready(None);
            };
            match ready!(running.poll_next(cx)) {
                QueueItem::Notices(notices) => Poll::Ready(Some(notices)),
                QueueItem::End(outcome) => {
                    let last = message(outcome, &id);
                    let last = last.map(|message| running.link.hold(message));
                    exchange = None;
                    Poll::Ready(last.map(|message| vec![message]))
                }
            }
        })
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<QueueItem<ExchangeOutcome>> {
        if let Some(future) = &mut self.future {
            // No wake-up for messages of this poll: `poll_next` below reads them.
            self.response_queue.rest();
            if let Poll::Ready(outcome) = future.poll_unpin(cx) {
                self.future = None;
                self.link.finish(outcome);
            }
        }
        let next = self.response_queue.poll_next(cx);
        if let Poll::Ready(QueueItem::End(_)) = next {
            self.ended = true;
            self.detach();
        }
        next
    }

    /// A call that waits for answers runs on without its exchange.
    fn detach(&mut self) {
        let Some(future) = self.future.take() else {
            return;
        };
        COUNTERS.calls_detached.add(1);
        let counted = GAUGES.calls_detached_now.enter();
        let link = Arc::clone(&self.link);
        self.link.context.parking.tasks.spawn_service(async move {
            tokio::select! {
                biased;
                outcome = future => link.finish(outcome),
                () = link.cancelled().cancelled() => {}
            }
            drop(counted);
        });
    }

    /// Answers the request whose id is `id` (JSON text): with JSON when the end comes first.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the call.
    pub(super) async fn answer(mut self, id: String, keep_alive: Duration) -> Response<Body> {
        let mut silence = pin!(tokio::time::sleep(SILENCE));
        let first = poll_fn(|cx| match self.poll_next(cx) {
            Poll::Ready(next) => Poll::Ready(Some(next)),
            Poll::Pending => silence.as_mut().poll(cx).map(|()| None),
        })
        .await;
        let head = match first {
            Some(QueueItem::End(outcome)) => return whole(&self.link, outcome, &id),
            Some(QueueItem::Notices(notices)) => notices,
            None => Vec::new(),
        };
        let mut first = BytesMut::new();
        encode(&mut first, &head);
        self.open = Some(GAUGES.streams_open.enter());
        let body = PlainEvents::new(first.freeze(), self.messages(id), keep_alive);
        reply::event_stream(Body::new(body))
    }
}

impl Drop for ModernExchange {
    fn drop(&mut self) {
        if !self.ended {
            self.link.abandon();
        }
    }
}

/// The JSON-RPC response of an outcome; `None` for a cancelled call.
fn message(outcome: ExchangeOutcome, id: &str) -> Option<Bytes> {
    match outcome {
        ExchangeOutcome::Reply(_, reply) | ExchangeOutcome::Denied(_, reply) => {
            Some(reply.into_response(id))
        }
        ExchangeOutcome::Parked(result) => Some(Reply::Result(result).into_response(id)),
        ExchangeOutcome::Cancelled => None,
    }
}

/// The answer of an exchange that has not become a stream.
fn whole(link: &ModernClientLink, outcome: ExchangeOutcome, id: &str) -> Response<Body> {
    match outcome {
        ExchangeOutcome::Reply(status, reply) => {
            let body = link.hold(reply.into_response(id));
            reply::retryable(reply::json_response(status, body))
        }
        ExchangeOutcome::Denied(denied, reply) => {
            reply::denied_call(&denied, reply.into_response(id))
        }
        ExchangeOutcome::Parked(result) => {
            reply::json_response(StatusCode::OK, Reply::Result(result).into_response(id))
        }
        ExchangeOutcome::Cancelled => reply::empty(StatusCode::NO_CONTENT),
    }
}
