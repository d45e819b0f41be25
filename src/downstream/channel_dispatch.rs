//! Messages that a client sends on a `Channel`: `initialize` opens the session, requests become calls.
//! Spec: SPEC H-02, L-01; BRIDGING §2.1 (the end of the stream is the end of the session).

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use super::access_log::{AccessLine, AccessRecord};
use super::admission::MessageDue;
use super::busy::draining;
use super::call_telemetry::error_word;
use super::channel::Channel;
use super::detachable_call::CallOutcome;
use super::legacy_calls::BegunCall;
use super::over_budget::{is_dropped, over_budget};
use super::streamable::note_message;
use super::{McpService, batch, initialize, modern, reply};
use crate::budget::BudgetExhausted;
use crate::call::{Principal, Reply};
use crate::fault::{Fault, FaultKind};
use crate::protocol::{DecodeError, Message, MessageKind, RequestId, Revision, json, meta};
use crate::session::{DeliveryMode, ResponseStream, Session};
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

/// Handles bytes from a client's channel: a message, or an array of messages if the session's revision has arrays.
/// Answers are sent on the channel, including refusals of readable messages.
///
/// # Errors
/// The bytes are unreadable, or not a message for this gateway.
pub(super) fn on_bytes(
    service: &Arc<McpService>,
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
        let elements = batch::elements(service, &arrival.principal, bytes, &due)
            .map_err(|(_, fault)| (fault, None))?;
        for (element, due) in elements {
            match element {
                Ok(message) => on_message(service, channel, arrival, message, due),
                Err(error) => {
                    let fault = reply::decode_fault(&error);
                    let refusal = reply::error_response(&fault, error.id());
                    channel.answer(refusal, arrival.record, arrival.line.as_ref());
                }
            }
        }
        return Ok(());
    }
    let bounds = service.settings.limits.of_messages();
    let message = match Message::parse(bytes, bounds) {
        Ok(message) => message,
        Err(error) => return refuse_unread(channel, arrival, &error),
    };
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
            modern::on_message(service, channel, calls, message, arrival.line.clone(), due);
            return Ok(());
        }
        let requested = message.meta(meta::PROTOCOL_VERSION).and_then(json::string);
        let fault = reply::unsupported_among(&Revision::LEGACY, &requested.unwrap_or_default());
        // The Go SDK asks `server/discover` first and ends on any status but 2xx.
        refuse(channel, arrival, &fault, &message);
        return Ok(());
    }
    on_message(service, channel, arrival, message, due);
    Ok(())
}

/// Refuses a request that is over a bound of ours on the channel: a client of HTTP+SSE waits there for its reply, whatever
/// the status of its POST says.
///
/// # Errors
/// The bytes are no message, or their id is not clear.
#[cold]
fn refuse_unread(
    channel: &Channel,
    arrival: &IncomingMessage<'_>,
    error: &DecodeError,
) -> Result<(), UnreadableMessage> {
    let fault = reply::decode_fault(error);
    let id = error.id();
    if id.is_none() || !error.is_over_bound() {
        return Err((fault, id.map(str::to_owned)));
    }
    arrival.record.outcome(error_word(fault.kind));
    let refusal = reply::error_response(&fault, id);
    channel.answer(refusal, arrival.record, arrival.line.as_ref());
    Ok(())
}

fn on_message(
    service: &Arc<McpService>,
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
    if is_request && service.tasks.draining().is_cancelled() {
        return refuse(&draining(), &message);
    }
    if is_request && message.method() == Some("initialize") {
        if channel.begin_opening() {
            initialize_channel(service, channel, arrival, message, due);
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
            let started = start(service, channel, &session, arrival, message.clone(), due);
            if let Err(fault) = started {
                refuse(&fault, &message);
            }
        }
        MessageKind::Notification => service.notifications.pass_on_later(session, message, due),
        MessageKind::Response => drop(session.questions().answer(&message)),
    }
}

fn initialize_channel(
    service: &Arc<McpService>,
    channel: &Arc<Channel>,
    arrival: &IncomingMessage<'_>,
    message: Message,
    due: MessageDue,
) {
    let delivery = DeliveryMode::Connection {
        unread: service.settings.limits.unread,
        fallback: arrival.fallback,
        overflow: channel.ended.clone(),
    };
    let (own, channel, owed) = (Arc::clone(service), Arc::clone(channel), channel.owe());
    let (principal, record) = (Arc::clone(&arrival.principal), arrival.record.clone());
    let line = arrival.line.clone();
    let headers = arrival.headers.clone();
    service.tasks.spawn(request_tag::keep(async move {
        let endpoint = &channel.endpoint;
        let opened = async {
            own.admission.pay(principal.owner(), due).await?;
            initialize::open_session(
                &own, endpoint, principal, &headers, &message, &record, delivery,
            )
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
                    own.sessions.close(&session);
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
    service: &Arc<McpService>,
    channel: &Arc<Channel>,
    session: &Arc<Session>,
    arrival: &IncomingMessage<'_>,
    message: Message,
    due: MessageDue,
) -> Result<(), Fault> {
    let response_stream = ResponseStream::onto(Arc::clone(session.standalone()));
    let principal = Arc::clone(&arrival.principal);
    let begun = service.calls.begin(
        session,
        principal,
        arrival.headers,
        message,
        response_stream,
        due,
    )?;
    let BegunCall { call, link, entry } = begun;
    let call = service.calls.run(call, entry, &link, arrival.record);
    let (channel, owed) = (Arc::clone(channel), channel.owe());
    let access = arrival.line.clone();
    let record = arrival.record.clone();
    service.tasks.spawn(async move {
        let outcome = call.await;
        link.end();
        match outcome {
            CallOutcome::Response(_, body)
            | CallOutcome::Denied(_, body)
            | CallOutcome::SessionEnded(body) => {
                channel.answer(body, &record, access.as_ref());
            }
            CallOutcome::Many(_) | CallOutcome::Cancelled => record.answered(),
        }
        drop((owed, access));
    });
    Ok(())
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
