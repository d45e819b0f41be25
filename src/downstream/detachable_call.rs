//! A running legacy call, which goes on in the background when its client closes the exchange.
//! Spec: DESIGN §3.3.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::StatusCode;
use tokio::sync::Semaphore;

use super::reply;
use crate::auth;
use crate::fault::Fault;
use crate::runtime::lifecycle::TaskSpawner;
use crate::session::LegacyClientLink;
use crate::telemetry::metrics::{COUNTERS, GAUGES};
use crate::telemetry::request_tag::TaggedWork;

/// Outcome of a call.
pub(super) enum CallOutcome {
    /// The whole JSON-RPC response, and the status it has when no stream has begun.
    Response(StatusCode, Bytes),
    /// Refused by policy before anything was sent upstream.
    Denied(auth::DeniedResponse, Bytes),
    /// The session ended before the call was sent; the whole JSON-RPC error, for a stream that has begun.
    SessionEnded(Bytes),
    /// The responses of a JSON-RPC array that are not on its stream.
    Many(Vec<Bytes>),
    /// The call was cancelled: no answer is owed.
    Cancelled,
}

/// The whole way of a call, part of its request wherever it is polled.
pub(super) type CallFuture = TaggedWork<BoxFuture<'static, CallOutcome>>;

/// A running call. Dropped before its end, it goes on in the background.
pub(super) struct DetachableCall {
    pub(super) future: Option<CallFuture>,
    /// The call, or every call of an array: they share one stream.
    pub(super) links: ExchangeLinks,
    pub(super) background: BackgroundCalls,
}

/// The calls of one exchange, never none.
pub(super) struct ExchangeLinks(
    pub(super) Arc<LegacyClientLink>,
    pub(super) Vec<Arc<LegacyClientLink>>,
);

impl ExchangeLinks {
    /// JSON texts of the ids of their requests.
    pub(super) fn ids(&self) -> Vec<String> {
        let mut ids = Vec::with_capacity(self.1.len() + 1);
        self.each(|link| ids.push(link.id().to_string()));
        ids
    }

    fn each(&self, mut act: impl FnMut(&LegacyClientLink)) {
        act(&self.0);
        self.1.iter().for_each(|link| act(link));
    }
}

/// Runs calls whose exchange was dropped.
#[derive(Debug, Clone)]
pub(super) struct BackgroundCalls {
    pub(super) tasks: TaskSpawner,
    pub(super) places: Arc<Semaphore>,
}

impl DetachableCall {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CallOutcome> {
        let Some(future) = &mut self.future else {
            return Poll::Pending;
        };
        let outcome = futures_util::ready!(future.poll_unpin(cx));
        self.future = None;
        self.links.each(LegacyClientLink::end);
        Poll::Ready(outcome)
    }

    /// Polls the call, and puts its reply on its stream when ready.
    pub(super) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let outcome = futures_util::ready!(self.poll(cx));
        finish(&self.links.0, outcome);
        Poll::Ready(())
    }

    /// Hands the call to the background, if it still runs; `false` when the background is full.
    pub(super) fn detach(&mut self) -> bool {
        if self.future.is_none() {
            return true;
        }
        let Ok(place) = Arc::clone(&self.background.places).try_acquire_owned() else {
            return false;
        };
        let Some(future) = self.future.take() else {
            return true;
        };
        self.links.each(LegacyClientLink::abandon);
        let links = self.take_links();
        COUNTERS.calls_detached.add(1);
        let counted = GAUGES.calls_detached_now.enter();
        self.background.tasks.spawn(async move {
            let outcome = future.await;
            // The session is not handed over before the reply is on the stream.
            let used = links.0.session().enter_request();
            links.each(LegacyClientLink::end);
            finish(&links.0, outcome);
            drop((place, counted, used));
        });
        true
    }

    fn take_links(&mut self) -> ExchangeLinks {
        ExchangeLinks(Arc::clone(&self.links.0), std::mem::take(&mut self.links.1))
    }
}

impl Drop for DetachableCall {
    fn drop(&mut self) {
        if self.detach() {
            return;
        }
        self.links.each(LegacyClientLink::abandon);
        let links = self.take_links();
        COUNTERS.calls_detach_refused.add(1);
        // Dropping the future cancels the call upstream.
        drop(self.future.take());
        links.each(LegacyClientLink::end);
        let outcome = if links.1.is_empty() {
            let error =
                reply::error_response(&Fault::left_alone(), Some(&links.0.id().to_string()));
            CallOutcome::Response(StatusCode::OK, error)
        } else {
            // It is not known here which calls of an array have their replies.
            CallOutcome::Cancelled
        };
        finish(&links.0, outcome);
    }
}

/// Puts the outcome of a call on its stream, if a stream was opened.
pub(super) fn finish(link: &LegacyClientLink, outcome: CallOutcome) {
    let Some(stream) = link.opened() else { return };
    match outcome {
        CallOutcome::Response(_, body)
        | CallOutcome::Denied(_, body)
        | CallOutcome::SessionEnded(body) => stream.finish(Some(body)),
        CallOutcome::Many(bodies) => {
            for body in bodies {
                stream.put(body);
            }
            stream.finish(None);
        }
        CallOutcome::Cancelled => stream.finish(None),
    }
}
