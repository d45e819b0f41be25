//! Requests that go on with what a replica keeps: a parked call, or the session of a task.

use axum::body::Body;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Request, Response};

use super::envelope;
use super::link::ParkedModernCalls;
use super::request_state::RequestBinding;
use super::retry;
use crate::call::Principal;
use crate::downstream::access_log::AccessRecord;
use crate::downstream::forwarding::{PassedOn, RequestForwarder};
use crate::downstream::listener::ConnectionPermit;
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::protocol::{Message, methods};
use crate::relay::Relay;

/// The replica that keeps what a request goes on with.
pub(super) fn keeper_of(
    (relay, parking): (&Relay, &ParkedModernCalls),
    principal: &Principal,
    endpoint: &Endpoint,
    message: &Message,
) -> Option<Ownership> {
    let method = message.method()?;
    if envelope::is_task(method) {
        let task = message.param_str("taskId")?;
        return relay.owner_of_task(principal, endpoint, &task);
    }
    let binding = || RequestBinding::new(principal, endpoint, message);
    let may_ask = methods::may_ask(method);
    may_ask.then(|| retry::owner_of(parking, binding, message))?
}

/// Passes a request on to the replica that keeps what it goes on with; `None` where that replica is lost. What has been
/// paid to the rate of its caller is not taken again.
pub(super) async fn forward(
    (forwarder, keeper): (&RequestForwarder, Ownership),
    parts: &Parts,
    (message, is_paid): (&Message, bool),
    record: &AccessRecord,
) -> Option<Response<Body>> {
    let client = parts.extensions.get().and_then(ConnectionPermit::client);
    let mut parts = parts.clone();
    // A byte order mark was left out.
    parts.headers.remove(CONTENT_LENGTH);
    let request = Request::from_parts(parts, Body::from(message.bytes().clone()));
    let passed = forwarder.pass_to_keeper(keeper, (request, client), is_paid, record);
    match passed.await {
        PassedOn::Answered(response) => Some(response),
        PassedOn::Here(_) => None,
    }
}
