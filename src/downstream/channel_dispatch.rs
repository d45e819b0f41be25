//! Messages that a client sends on a `Channel`: `initialize` opens the session, requests become calls.
//! Spec: SPEC H-02, L-01; BRIDGING §2.1 (the end of the stream is the end of the session).

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;

use super::access_log::{AccessLine, AccessRecord};
use super::admission::MessageDue;
use super::busy::draining;
use super::call_telemetry::error_word;
use super::channel::Channel;
use super::detachable_call::CallOutcome;
use super::over_budget::{is_dropped, over_budget};
use super::streamable::{BegunCall, note_message};
use super::{McpService, batch, modern, reply};
use crate::budget::BudgetExhausted;
use crate::call::{Principal, Reply};
use crate::fault::{Fault, FaultKind};
use crate::protocol::{Message, MessageKind, RequestId, Revision, json, meta};
use crate::session::{DeliveryMode, HeldNotifications, ResponseStream, Session};
use crate::telemetry::request_tag;

/// Sender, headers and access record of one incoming message.
#[derive(Debug)]
pub(super) struct IncomingMessage<'a> {
    pub(super) principal: Arc<Principal>,
    /// Headers of the HTTP request with the message; empty on a socket.
    pub(super) headers: &'a HeaderMap,
    /// Revision to negotiate when the client offers an unknown one.
    pub(super) fallback: Revision,
    pub(super) record: &'a AccessRecord,
    /// Access line of one socket message; kept until the call that the message began has ended.
    pub(super) line: Option<Arc<AccessLine>>,
    /// Modern calls of this connection; `None` where the carrier allows none.
    pub(super) modern: Option<&'a modern::SocketCalls>,
    /// Set when the byte budget had no room for the message: its requests are refused.
    pub(super) over: Option<BudgetExhausted>,
}

/// Fault of an unreadable or rejected message, and the JSON text of its id, if present.
pub(super) type UnreadableMessage = (Fault, Option<String>);

impl McpService {
    /// Handles bytes from a client's channel: a message, or an array of messages if the session's revision has arrays.
    /// Answers are sent on the channel, including refusals of readable messages.
    ///
    /// # Errors
    /// The bytes are unreadable, or not a message for this gateway.
    pub(super) fn on_bytes(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        arrival: &IncomingMessage<'_>,
        bytes: Bytes,
        due: MessageDue,
    ) -> Result<(), UnreadableMessage> {
        arrival.record.received(bytes.len());
        if Message::is_batch(&bytes) {
            let revision = channel.session().map(|session| session.revision);
            if !revision.is_some_and(Revision::supports_batches) {
                return Err((batch::no_arrays(), None));
            }
            let elements = self
                .elements(&arrival.principal, bytes, &due)
                .map_err(|(_, fault)| (fault, None))?;
            for (element, due) in elements {
                match element {
                    Ok(message) => self.on_message(channel, arrival, message, due),
                    Err(error) => {
                        let fault = reply::decode_fault(&error);
                        let refusal = reply::error_response(&fault, error.id());
                        channel.answer(refusal, arrival.record, arrival.line.as_ref());
                    }
                }
            }
            return Ok(());
        }
        let bounds = self.settings.limits.of_messages();
        let message = Message::parse(bytes, bounds).map_err(|error| {
            let id = error.id().map(str::to_owned);
            (reply::decode_fault(&error), id)
        })?;
        note_message(arrival.record, &message);
        if message.kind() != MessageKind::Request {
            arrival.record.answered();
        }
        if arrival.modern.is_some_and(|calls| calls.cancel(&message)) {
            return Ok(());
        }
        if modern::is_modern(arrival.headers, &message) {
            if let Some(calls) = arrival.modern {
                if let Some(exhausted) = arrival.over
                    && message.kind() == MessageKind::Request
                {
                    let fault = over_budget(exhausted);
                    arrival.record.outcome(error_word(fault.kind));
                    calls.refuse(channel, &message, &fault, arrival.line.as_ref());
                    return Ok(());
                }
                self.on_modern_message(channel, calls, message, arrival.line.clone(), due);
                return Ok(());
            }
            let requested = message.meta(meta::PROTOCOL_VERSION).and_then(json::string);
            let fault = reply::unsupported_among(&Revision::LEGACY, &requested.unwrap_or_default());
            // The Go SDK asks `server/discover` first and ends on any status but 2xx.
            refuse(channel, arrival, &fault, &message);
            return Ok(());
        }
        self.on_message(channel, arrival, message, due);
        Ok(())
    }

    fn on_message(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        arrival: &IncomingMessage<'_>,
        message: Message,
        due: MessageDue,
    ) {
        channel.renew(&arrival.principal);
        let is_request = message.kind() == MessageKind::Request;
        let refuse = |fault: &Fault, message: &Message| refuse(channel, arrival, fault, message);
        if let Some(exhausted) = arrival.over {
            if is_request {
                return refuse(&over_budget(exhausted), &message);
            }
            if is_dropped(&message) {
                return;
            }
        }
        if is_request && self.tasks.draining().is_cancelled() {
            return refuse(&draining(), &message);
        }
        if is_request && message.method() == Some("initialize") {
            if channel.begin_opening() {
                self.initialize_channel(channel, arrival, message, due);
            } else {
                // Spec: SPEC T-49.
                refuse(&invalid("the session is initialized already"), &message);
            }
            return;
        }
        let Some(session) = channel.session() else {
            let id = message.id().filter(|id| RequestId::parse(id).is_some());
            if let (Some("ping"), Some(id)) = (message.method(), id) {
                // Also while initialize runs. Spec: SPEC L-07.
                let pong = Reply::Result(Bytes::from_static(b"{}")).into_response(id);
                return channel.answer(pong, arrival.record, arrival.line.as_ref());
            }
            return refuse(&invalid("initialize first"), &message);
        };
        arrival.record.session(session.tag());
        match message.kind() {
            MessageKind::Request => {
                let started = self.start(channel, &session, arrival, message.clone(), due);
                if let Err(fault) = started {
                    refuse(&fault, &message);
                }
            }
            MessageKind::Notification => self.pass_on_later(session, message, due),
            MessageKind::Response => drop(session.questions().answer(&message)),
        }
    }

    fn initialize_channel(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        arrival: &IncomingMessage<'_>,
        message: Message,
        due: MessageDue,
    ) {
        let delivery = DeliveryMode::Connection {
            unread: self.settings.limits.unread,
            fallback: arrival.fallback,
            overflow: channel.ended.clone(),
        };
        let (service, channel, owed) = (Arc::clone(self), Arc::clone(channel), channel.owe());
        let (principal, record) = (Arc::clone(&arrival.principal), arrival.record.clone());
        let line = arrival.line.clone();
        let headers = arrival.headers.clone();
        self.tasks.spawn(request_tag::keep(async move {
            let endpoint = &channel.endpoint;
            let opened = async {
                service.pay(principal.owner(), due).await?;
                service
                    .open_session(endpoint, principal, &headers, &message, &record, delivery)
                    .await
            };
            match opened.await {
                Ok((session, hello)) => {
                    record.session(session.tag());
                    if let Some(share) = channel.reply_share() {
                        session.share_replies(share.clone());
                    }
                    channel.unwritten.expect(&hello, &record, line.as_ref());
                    if !channel.opened(&session, hello) {
                        service.sessions.close(&session);
                    }
                }
                Err(fault) => {
                    let refusal = reply::error_response(&fault, message.id());
                    record.outcome(error_word(fault.kind));
                    channel.unwritten.expect(&refusal, &record, line.as_ref());
                    channel.not_opened(refusal);
                }
            }
            drop((owed, line));
        }));
    }

    /// Runs a call in the background until its reply is on the channel, or the session ends.
    fn start(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        session: &Arc<Session>,
        arrival: &IncomingMessage<'_>,
        message: Message,
        due: MessageDue,
    ) -> Result<(), Fault> {
        let response_stream = ResponseStream::onto(Arc::clone(session.standalone()));
        let principal = Arc::clone(&arrival.principal);
        let begun = self.begin(
            session,
            principal,
            arrival.headers,
            message,
            response_stream,
            due,
        )?;
        let BegunCall { call, link, entry } = begun;
        let call = self.run(call, entry, &link, arrival.record);
        let (channel, owed) = (Arc::clone(channel), channel.owe());
        let access = arrival.line.clone();
        let record = arrival.record.clone();
        self.tasks.spawn(async move {
            let outcome = call.await;
            link.end();
            match outcome {
                CallOutcome::Response(_, body) | CallOutcome::Denied(_, body) => {
                    channel.answer(body, &record, access.as_ref());
                }
                CallOutcome::Many(_) | CallOutcome::Cancelled => record.answered(),
            }
            drop((owed, access));
        });
        Ok(())
    }

    /// Passes a notification on, at once or in the background once the rate allows it.
    pub(super) fn pass_on_later(
        self: &Arc<Self>,
        session: Arc<Session>,
        message: Message,
        due: MessageDue,
    ) {
        if due.is_none() {
            // Not waited for: answers come on the same channel.
            drop(self.pass_on(&session, &message));
            return;
        }
        let service = Arc::clone(self);
        self.tasks.spawn_service(async move {
            service.pass_on_when_due(session, message, due).await;
        });
    }

    /// Forwards a notification after the earlier ones of the session. If an upstream's queue is full, the notification
    /// is held for `limits.call_wait`, then dropped. Spec: SPEC L-06.
    pub(super) fn pass_on(&self, session: &Arc<Session>, message: &Message) -> HeldNotifications {
        let until = Instant::now() + self.settings.limits.call_wait;
        self.relay.notices.notification(session, message, until)
    }
}

/// Answers a request with a fault on the channel; other messages get no answer.
fn refuse(channel: &Channel, arrival: &IncomingMessage<'_>, fault: &Fault, message: &Message) {
    if message.kind() == MessageKind::Request {
        arrival.record.outcome(error_word(fault.kind));
        let refusal = reply::error_response(fault, message.id());
        channel.answer(refusal, arrival.record, arrival.line.as_ref());
    }
}

fn invalid(text: &'static str) -> Fault {
    Fault::downstream(FaultKind::InvalidRequest, text)
}
