//! `ChannelWriter`: what a channel sends to its client, and the end of the channel with it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http::Response;

use super::access_log::AccessRecord;
use super::busy::draining;
use super::call_telemetry::error_word;
use super::channel::{Channel, ChannelEnd, ChannelTerms, HandshakeStage};
use super::{McpService, reply};
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::session::{ReaderStep, StreamReader};

/// Messages handed out at once.
const AT_ONCE: usize = 64;

type ChannelEnds = Pin<Box<dyn Future<Output = ChannelEnd> + Send>>;

/// The way out of a channel. Dropping it ends the channel and its session.
pub(super) struct ChannelWriter {
    service: Arc<McpService>,
    pub(super) channel: Arc<Channel>,
    reader: Option<StreamReader>,
    ends: ChannelEnds,
}

impl ChannelWriter {
    pub(super) fn new(service: &Arc<McpService>, channel: Arc<Channel>) -> Self {
        let (gateway, watched) = (Arc::clone(service), Arc::clone(&channel));
        Self {
            service: Arc::clone(service),
            channel,
            reader: None,
            ends: Box::pin(async move {
                let terms = ChannelTerms {
                    auth: &gateway.auth,
                    tasks: &gateway.tasks,
                    token_grace: gateway.settings.sessions.token_grace,
                    drain_linger: gateway.settings.server.drain_linger,
                };
                watched.has_to_end(terms).await
            }),
        }
    }

    /// The next messages, never none, or why there are no more.
    ///
    /// # Cancel safety
    /// Nothing is lost between polls.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Vec<Bytes>, ChannelEnd>> {
        if let Poll::Ready(messages) = self.poll_messages(cx) {
            return Poll::Ready(messages);
        }
        let end = ready!(self.ends.as_mut().poll(cx));
        // Messages sent before the end was noticed are still written.
        match self.poll_messages(cx) {
            Poll::Ready(Ok(messages)) => {
                self.ends = Box::pin(std::future::ready(end));
                Poll::Ready(Ok(messages))
            }
            _ => Poll::Ready(Err(end)),
        }
    }

    fn poll_messages(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, ChannelEnd>> {
        let (mut messages, session) = {
            let mut state = self.channel.state();
            state.waker = Some(cx.waker().clone());
            let session = match &state.stage {
                HandshakeStage::Open(session) if self.reader.is_none() => Some(Arc::clone(session)),
                _ => None,
            };
            (std::mem::take(&mut state.early), session)
        };
        if let Some(session) = session {
            let Ok(permit) = session.open_stream(usize::MAX) else {
                return Poll::Ready(Err(ChannelEnd::Session));
            };
            self.reader = Some(session.standalone().attach_with(Some(permit)));
            self.service.relay.notices.listen(&session);
        }
        if let Some(reader) = &mut self.reader {
            while messages.len() < AT_ONCE {
                match reader.poll_next(cx) {
                    Poll::Ready(ReaderStep::Events(events)) => {
                        let payloads = events.into_iter().map(|event| event.payload);
                        messages.extend(payloads.filter(|payload| !payload.is_empty()));
                    }
                    Poll::Ready(_) if messages.is_empty() && !reader.has_missed() => {
                        return Poll::Ready(Err(ChannelEnd::Session));
                    }
                    Poll::Ready(_) | Poll::Pending => break,
                }
            }
            if reader.has_missed() {
                return Poll::Ready(Err(ChannelEnd::Slow));
            }
        }
        if messages.is_empty() {
            Poll::Pending
        } else {
            Poll::Ready(Ok(messages))
        }
    }
}

impl Drop for ChannelWriter {
    fn drop(&mut self) {
        self.reader = None;
        end_channel(&self.service, &self.channel);
    }
}

/// Opens a channel; also its sealed handle.
///
/// # Errors
/// The answer: the gateway drains, or the caller has too many channels.
pub(super) fn open_channel(
    service: &McpService,
    endpoint: &Arc<Endpoint>,
    principal: &Arc<Principal>,
    record: &AccessRecord,
) -> Result<(Arc<Channel>, String), Box<Response<Body>>> {
    if service.tasks.draining().is_cancelled() {
        return Err(Box::new(reply::fault_response(&draining(), None)));
    }
    let (key, handle) = service.sessions.mint_connection(principal, endpoint);
    match service.channels.open(key, endpoint, principal) {
        Ok(channel) => Ok((channel, handle)),
        Err(fault) => {
            record.outcome(error_word(fault.kind));
            Err(Box::new(reply::fault_response(&fault, None)))
        }
    }
}

/// Removes the channel, so that no message enters, and cancels its calls.
fn end_channel(service: &McpService, channel: &Channel) {
    service.channels.remove(channel);
    if let Some(session) = channel.finish() {
        service.sessions.close(&session);
    }
}

/// Ends a channel as soon as its client leaves too much unread. A task of its own, because the body is not polled
/// while the connection's buffers are full.
pub(super) fn watch_channel(service: &Arc<McpService>, channel: &Arc<Channel>) {
    let (own, channel) = (Arc::clone(service), Arc::clone(channel));
    service.tasks.spawn_service(async move {
        channel.ended.cancelled().await;
        end_channel(&own, &channel);
    });
}
