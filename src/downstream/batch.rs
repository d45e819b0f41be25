//! JSON-RPC arrays of 2025-03-26 sessions: each element is a call, and all share one response.
//! Spec: SPEC T-08, T-09, T-30…T-33; DESIGN §5.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use futures_util::future::join_all;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};

use super::access_log::AccessRecord;
use super::admission::{MessageDue, OwedAdmission};
use super::detachable_call::{CallFuture, CallOutcome, ExchangeLinks};
use super::legacy_calls::BegunCall;
use super::over_budget::{is_dropped, over_budget};
use super::streamable::{bind, check_version, note_message, session_id};
use super::{McpService, modern, reply};
use crate::budget::BudgetExhausted;
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::protocol::{DecodeError, Message, MessageKind, RequestId, json, meta};
use crate::session::{LegacyClientLink, ResponseStream, Session};
use crate::telemetry::names::error_type;
use crate::telemetry::request_tag;

/// Elements of an array, each with its charge still due to the rate limit.
type BatchElements = Vec<(Result<Message, DecodeError>, MessageDue)>;

/// POST of an array.
pub(super) async fn post(
    service: &Arc<McpService>,
    endpoint: &Arc<Endpoint>,
    principal: Arc<Principal>,
    parts: &Parts,
    (bytes, due, over): (Bytes, MessageDue, Option<BudgetExhausted>),
    record: &AccessRecord,
) -> Response<Body> {
    // Spec: SPEC T-60…T-63: as for a single message.
    let bound = check_named(&parts.headers)
        .and_then(|()| bind(service, session_id(&parts.headers), &principal, endpoint));
    let session = match bound {
        Ok(session) => session,
        Err(fault) => return reply::fault_response(&fault, None),
    };
    if !session.revision.supports_batches() {
        return reply::fault_response(&no_arrays(), None);
    }
    match elements(service, &principal, bytes, &due) {
        Ok(elements) => {
            record.session(session.tag());
            elements
                .iter()
                .flat_map(|(element, _)| element)
                .for_each(|message| note_message(record, message));
            run(
                service,
                &session,
                principal,
                parts,
                (elements, over),
                record,
            )
            .await
        }
        Err((status, fault)) => {
            record.outcome(error_type::BAD_REQUEST);
            reply::json_response(status, reply::error_response(&fault, None))
        }
    }
}

/// Reads the elements of an array. Each request and notification is charged like a single one; the POST has paid
/// for one of them unless a charge is `due`. If the allowance does not cover the rest, each element waits for its
/// own charge; an array with more messages than can ever be served in time is refused whole, without a retry. Spec:
/// SPEC O-01, T-17, T-33.
///
/// # Errors
/// The [`Fault`] that refuses the whole array, and its HTTP status.
pub(super) fn elements(
    service: &McpService,
    principal: &Principal,
    bytes: Bytes,
    due: &MessageDue,
) -> Result<BatchElements, (StatusCode, Fault)> {
    let limits = &service.settings.limits;
    let elements = Message::parse_batch(bytes, limits.of_messages(), limits.batch)
        .map_err(|error| reply::decode_fault(&error))
        .and_then(|elements| check_elements(&elements).map(|()| elements))
        .map_err(|fault| (StatusCode::BAD_REQUEST, fault))?;
    let costs = |element: &Result<Message, DecodeError>| {
        let message = element.as_ref().ok();
        message.is_some_and(|message| message.kind() != MessageKind::Response)
    };
    let owner = principal.owner();
    let cost = elements.iter().filter(|element| costs(element)).count();
    let most = service.admission.rate.most_within(limits.call_wait);
    if cost > most {
        return Err((StatusCode::PAYLOAD_TOO_LARGE, too_many(most)));
    }
    let further = u32::try_from(cost.saturating_sub(1)).unwrap_or(u32::MAX);
    let mut paid = match due {
        Some(_) => 0,
        None if service.admission.rate.check_further(owner, further) => cost,
        None => 1,
    };
    let owed = || {
        let rate = OwedAdmission::Rate(service.admission.rate.claim(owner));
        match due {
            Some(OwedAdmission::Exchange(_)) => OwedAdmission::exchange(Some(rate)),
            Some(OwedAdmission::Rate(_)) | None => rate,
        }
    };
    let each = elements.into_iter().map(|element| {
        let mut due = None;
        if costs(&element) {
            due = (paid == 0).then(owed);
            paid = paid.saturating_sub(1);
        }
        (element, due)
    });
    Ok(each.collect())
}

async fn run(
    service: &Arc<McpService>,
    session: &Arc<Session>,
    principal: Arc<Principal>,
    parts: &Parts,
    (elements, over): (BatchElements, Option<BudgetExhausted>),
    record: &AccessRecord,
) -> Response<Body> {
    let response_stream: Arc<ResponseStream> = Arc::default();
    let mut ready = Vec::new();
    let mut refused = Vec::new();
    let mut calls = Vec::new();
    for (element, due) in elements {
        let message = match element {
            Ok(message) => message,
            Err(error) => {
                let fault = reply::decode_fault(&error);
                refused.extend(error.id().and_then(RequestId::parse));
                ready.push(reply::error_response(&fault, error.id()));
                continue;
            }
        };
        match message.kind() {
            MessageKind::Notification if over.is_some() && is_dropped(&message) => {}
            // Not awaited: if the client disconnected meanwhile, the calls already begun would be left without a
            // task.
            MessageKind::Notification => {
                let session = Arc::clone(session);
                service.notifications.pass_on_later(session, message, due);
            }
            MessageKind::Response => drop(session.questions().answer(&message)),
            MessageKind::Request => {
                if let Some(exhausted) = over {
                    let fault = over_budget(exhausted);
                    refused.extend(message.id().and_then(RequestId::parse));
                    ready.push(reply::error_response(&fault, message.id()));
                    continue;
                }
                let id = message.id().map(str::to_owned);
                let principal = Arc::clone(&principal);
                let response_stream = Arc::clone(&response_stream);
                match service.calls.begin(
                    session,
                    principal,
                    &parts.headers,
                    message,
                    response_stream,
                    due,
                ) {
                    Ok(call) => calls.push(call),
                    Err(fault) => {
                        refused.extend(id.as_deref().and_then(RequestId::parse));
                        ready.push(reply::error_response(&fault, id.as_deref()));
                    }
                }
            }
        }
    }
    let mut links: Vec<Arc<LegacyClientLink>> =
        calls.iter().map(|begun| Arc::clone(&begun.link)).collect();
    // The errors of refused elements are sent behind all replies.
    if links.len() + refused.len() > 1 {
        let ids = links.iter().map(|link| link.id().clone());
        response_stream.note_array(ids.chain(refused).collect());
    }
    let Some(first) = links.pop() else {
        return if ready.is_empty() {
            reply::empty(StatusCode::ACCEPTED)
        } else {
            reply::json_response(StatusCode::OK, reply::array(&ready))
        };
    };
    let each = calls.into_iter().map(|begun| {
        let BegunCall { call, link, entry } = begun;
        let future = service.calls.run(call, entry, &link, record);
        async move {
            let outcome = future.await;
            link.end();
            settle(&link, outcome)
        }
    });
    let all = join_all(each);
    let future = async move {
        ready.extend(all.await.into_iter().flatten());
        CallOutcome::Many(ready)
    };
    let future: CallFuture = request_tag::keep(Box::pin(future));
    let running = (future, ExchangeLinks(first, links));
    service.exchanges.answer(session, parts, running).await
}

/// Whether all of them may stand in an array. Spec: SPEC T-32, T-33.
fn check_elements(elements: &[Result<Message, DecodeError>]) -> Result<(), Fault> {
    for message in elements.iter().flatten() {
        if message.method() == Some("initialize") {
            return Err(refuse("initialize must not be part of an array"));
        }
        if meta::is_modern(message) {
            return Err(refuse(
                "an array must not hold messages of a later revision",
            ));
        }
    }
    Ok(())
}

/// Puts a reply on the call's stream, if a stream is open; otherwise returns the reply for the shared response.
pub(super) fn settle(link: &LegacyClientLink, outcome: CallOutcome) -> Option<Bytes> {
    let (CallOutcome::Response(_, body)
    | CallOutcome::Denied(_, body)
    | CallOutcome::SessionEnded(body)) = outcome
    else {
        return None;
    };
    match link.opened() {
        Some(stream) => {
            stream.put(body);
            None
        }
        None => Some(body),
    }
}

/// Whether the headers name a revision that may have arrays here.
fn check_named(headers: &HeaderMap) -> Result<(), Fault> {
    check_version(headers)?;
    if modern::names_modern(headers) {
        return Err(refuse("this revision has no arrays of messages"));
    }
    Ok(())
}

/// An array is longer than the allowance can ever hold: no later moment is better for it.
fn too_many(most: usize) -> Fault {
    let text = format!("the array is too long: {most} messages may be sent at once");
    let fault = Fault::downstream(FaultKind::InvalidRequest, text);
    fault.with_data(json::object([("maxMessages", most.to_string())]))
}

/// The session is of a revision without arrays. Spec: SPEC T-08.
pub(super) fn no_arrays() -> Fault {
    refuse("an array of messages is not allowed in this session")
}

fn refuse(text: &'static str) -> Fault {
    Fault::downstream(FaultKind::InvalidRequest, text)
}
