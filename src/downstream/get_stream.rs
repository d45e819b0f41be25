//! GET of the legacy era: opening and resuming event streams. Spec: SPEC §1a.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Response};

use super::access_log::AccessRecord;
use super::admission::MessageDue;
use super::call_telemetry::error_word;
use super::event_body::{EventBody, EventBodyParts};
use super::legacy_calls::no_room;
use super::media::AcceptedMedia;
use super::streamable::{bind, check_version, session_id};
use super::{McpService, reply};
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::protocol::headers;
use crate::session::{EventId, EventStream, NoRoom, Session, StreamPermit};
use crate::telemetry::metrics::COUNTERS;

/// GET: the stream of messages outside calls, or the rest of a stream that broke off. Waits for its
/// part of the allowance, where that is still due. Never 404 in a live session: several clients end the session then.
/// Spec: SPEC T-17, T-20, T-25, T-29, T-44.
///
/// # Cancel safety
/// A stream whose future is dropped has left the line.
pub(super) async fn open(
    service: &Arc<McpService>,
    endpoint: &Arc<Endpoint>,
    principal: &Arc<Principal>,
    (headers, due): (&HeaderMap, MessageDue),
    record: &AccessRecord,
) -> Response<Body> {
    if !AcceptedMedia::read(headers).events {
        return reply::no_events();
    }
    if let Err(fault) = check_version(headers) {
        return reply::fault_response(&fault, None);
    }
    let opened = async {
        let session = bind(service, session_id(headers), principal, endpoint)?;
        record.session(session.tag());
        if due.is_some() {
            let paid = service.admission.pay_for_stream(&session, due).await;
            paid.inspect_err(|fault| record.outcome(error_word(fault.kind)))?;
        }
        open_get(service, &session, principal, headers).await
    };
    let opened = opened.await;
    opened.unwrap_or_else(|fault| reply::fault_response(&fault, None))
}

async fn open_get(
    service: &Arc<McpService>,
    session: &Arc<Session>,
    principal: &Arc<Principal>,
    headers: &HeaderMap,
) -> Result<Response<Body>, Fault> {
    let polls = session.revision.has_priming_event();
    let named = headers::last_event_id(headers).map(|last| NamedEvent::read(session, last));
    let names_event = named.is_some();
    let mut has_gap = false;
    let mut running = None;
    let resumed = match named {
        None | Some(NamedEvent::Unknown) => None,
        Some(NamedEvent::OfUnknownCall) => return Ok(reply::nothing_to_resume()),
        Some(NamedEvent::Known(stream, seq)) => {
            stream.recall(seq).await;
            // SDKs that poll would resume an empty stream again and again. In older revisions it is the better answer: SDKs
            // for Go up to 1.1 resume the stream of a call that they have cancelled, and end the session for a refusal.
            if polls && stream.has_ended_at(seq) {
                return Ok(reply::nothing_to_resume());
            }
            // First, so that the dead streams of the same client leave their permits.
            let resumed = stream.resume(seq).ok().or_else(|| {
                // Where it is refused, some clients do without the stream for good, others end the session with all its
                // calls.
                has_gap = true;
                stream.resume_past_gap(seq)
            });
            if resumed.is_none() && !is_standalone(session, &stream) {
                return Ok(reply::nothing_to_resume());
            }
            resumed
        }
    };
    let reader = match resumed {
        None => {
            // A client that names an event has lost a stream, which may hold its permit still.
            let permit = permit_get(service, session, !polls || names_event).map_err(no_room)?;
            session.standalone().attach_with(Some(permit))
        }
        Some(reader) => {
            let stream = reader.stream();
            let permit = if is_standalone(session, stream) {
                permit_get(service, session, false)
            } else {
                // As many as calls could begin, which have a stream each.
                session.open_stream(service.exchanges.call_streams())
            };
            reader.hold(permit.map_err(no_room)?);
            if let Some(lost) = session.take_lost_call(stream.number()) {
                let (calls, exchanges) = (&service.calls, &service.exchanges);
                running = exchanges.make_again(calls, session, principal, lost);
            }
            COUNTERS.streams_resumed.add(1);
            reader
        }
    };
    let standalone = is_standalone(session, reader.stream());
    // Also where the stream is resumed: several clients know only the ids that this connection has brought, and could
    // not resume it a second time. A stream that has ended is not to be resumed again.
    let opens = polls && !reader.stream().is_finished();
    if standalone {
        service.relay.notices.listen(session);
        if has_gap {
            service.relay.notices.missed(session);
        }
    }
    let ends = standalone.then(|| end_of_get(service, session, principal));
    Ok(reply::event_stream(Body::new(EventBody::new(
        EventBodyParts {
            running,
            ends,
            opens,
            ..service.exchanges.stream_parts(session, reader, polls)
        },
    ))))
}

/// A permit for a stream of messages outside calls. With `replaces`, the oldest open stream is evicted if no permit
/// is free: a client without priming events cannot resume its dead streams, which hold permits until TCP notices.
fn permit_get(
    service: &McpService,
    session: &Arc<Session>,
    replaces: bool,
) -> Result<StreamPermit, NoRoom> {
    loop {
        let permit = session.open_standalone(service.settings.limits.streams_per_session);
        if permit.is_ok() || !replaces || !session.standalone().turn_out_oldest() {
            return permit;
        }
        COUNTERS.streams_replaced.add(1);
    }
}

/// Resolves when a stream without an end of its own has to end: with its session, its token, or the gateway. A session
/// that another replica goes on with ends its streams itself, but for the subscriptions of an implicit one: these keep
/// the session busy.
pub(super) fn end_of_get(
    service: &McpService,
    session: &Arc<Session>,
    principal: &Principal,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let closed = session.closed().clone();
    let ends_itself = session.is_handed_over() && session.implicit_session().is_none();
    let drain = service.drain.of(ends_itself);
    // A token that is accepted for the sake of clocks may have expired already.
    let grace = service.settings.sessions.token_grace;
    let left = principal
        .expires_at()
        .map(|at| at.saturating_add(grace).saturating_sub(service.auth.now()));
    Box::pin(async move {
        let expired = async {
            match left {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = closed.cancelled() => {}
            () = drain.refuses() => {}
            () = expired => {}
        }
    })
}

/// The event that a client names as its last one. Other sessions are not looked at: what was read of an id, and this
/// session, decide alone. Spec: SPEC T-25, T-48.
enum NamedEvent {
    /// A stream of this session, and the event's position on it. The event may never have been.
    Known(Arc<EventStream>, u64),
    /// No event of this session, and of no call.
    Unknown,
    /// An event of a call that this session does not know, or no longer.
    OfUnknownCall,
}

impl NamedEvent {
    fn read(session: &Session, last: &HeaderValue) -> Self {
        let Some(last) = last.to_str().ok().and_then(EventId::parse) else {
            return Self::Unknown;
        };
        let known = (last.tag == session.tag()).then(|| session.stream(last.stream));
        match known.flatten() {
            Some(stream) => Self::Known(stream, last.seq),
            None if last.is_of_call() => Self::OfUnknownCall,
            None => Self::Unknown,
        }
    }
}

fn is_standalone(session: &Session, stream: &EventStream) -> bool {
    stream.number() == session.standalone().number()
}
