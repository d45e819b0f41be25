//! Event streams of other replicas that are watched, as a call may be left without its reply where that replica is lost.

use std::sync::Arc;

use axum::body::Body;
use http::request::Parts;
use http::{Method, Response};
use tokio_util::sync::CancellationToken;

use super::ForwardedResponse;
use super::call_stream;
use super::ending_body::is_event_stream;
use super::marks::take_begun;
use super::passed_call::{OwnedSession, PassedCall, PassedRequests, requests_in};
use super::repeatable_body::KeptBytes;
use super::seen_events::SeenEvents;
use crate::downstream::access_log::AccessRecord;
use crate::downstream::adoption::{NamedSession, SessionAdopter};
use crate::ownership::Ownership;
use crate::protocol::{Message, RequestId, headers};
use crate::session::EventId;

/// The same answer of the owner of a session to the request of `parts`, whose body was `sent`. Calls on an event stream end
/// there where the owner is lost, also on a stream that was resumed.
pub(super) fn watch(
    mut answer: Response<Body>,
    (adopter, named, owner): (&Arc<SessionAdopter>, &NamedSession, Ownership),
    (parts, sent): (&Parts, &KeptBytes),
    record: &AccessRecord,
) -> Response<Body> {
    if !is_event_stream(answer.headers()) {
        return answer;
    }
    let begun = take_begun(answer.headers_mut());
    let mut resumed = None;
    let requests = if parts.method == Method::GET {
        resumed = resumed_call(parts);
        if resumed.is_none() {
            return answer;
        }
        PassedRequests::Logged
    } else if let Some(sent) = sent.again() {
        PassedRequests::Posted {
            is_made_again: adopter.relay.may_repeat(&named.endpoint, &sent),
            ids: requests_in(sent),
        }
    } else {
        PassedRequests::Logged
    };
    let call = PassedCall {
        requests,
        begun,
        session: Some(OwnedSession {
            adopter: Arc::clone(adopter),
            named: named.clone(),
            owner,
        }),
        record: record.clone(),
    };
    call_stream::watch(answer, (call, SeenEvents::after(resumed)), None)
}

/// The event after which a request resumes the stream of a call.
fn resumed_call(parts: &Parts) -> Option<EventId> {
    let id = headers::last_event_id(&parts.headers)?.to_str().ok();
    id.and_then(EventId::parse).filter(EventId::is_of_call)
}

/// The same answer of another replica to a call of a modern client. An event stream ends with an error where that replica
/// is lost, and where this one stops before the call is over.
pub(in crate::downstream) fn watch_modern(
    answer: Response<Body>,
    message: &Message,
    cut_off: &CancellationToken,
    record: &AccessRecord,
) -> Response<Body> {
    if answer.extensions().get::<ForwardedResponse>().is_none() {
        return answer;
    }
    let id = message.id().and_then(RequestId::parse);
    let call = PassedCall {
        requests: PassedRequests::Posted {
            ids: id.into_iter().collect(),
            is_made_again: false,
        },
        begun: None,
        session: None,
        record: record.clone(),
    };
    call_stream::watch(answer, (call, SeenEvents::default()), Some(cut_off))
}
