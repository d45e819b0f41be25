//! Requests that go on with what a replica keeps: a parked call, or the session of a task.

use axum::body::Body;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Request, Response};

use super::envelope;
use super::request_state::RequestBinding;
use super::{refusal, retry};
use crate::call::Principal;
use crate::downstream::McpService;
use crate::downstream::access_log::AccessRecord;
use crate::downstream::admission::{MessageDue, claim};
use crate::downstream::call_telemetry::error_word;
use crate::downstream::forwarding::RequestForwarder;
use crate::downstream::listener::ConnectionPermit;
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::protocol::{Message, methods};

impl McpService {
    /// The replica that keeps what a request goes on with.
    pub(super) fn keeper(
        &self,
        principal: &Principal,
        endpoint: &Endpoint,
        message: &Message,
    ) -> Option<Ownership> {
        let method = message.method()?;
        if envelope::is_task(method) {
            let task = message.param_str("taskId")?;
            return self.relay.owner_of_task(principal, endpoint, &task);
        }
        let binding = || RequestBinding::new(principal, endpoint, message);
        let may_ask = methods::may_ask(method);
        may_ask.then(|| retry::owner_of(&self.parking, binding, message))?
    }
}

/// Passes a request on to the replica that keeps what it goes on with. What the request still owes to the rate of its
/// caller is left for that replica to take, and what it has paid is not taken again.
pub(super) async fn forward(
    (forwarder, keeper): (&RequestForwarder, Ownership),
    parts: &Parts,
    (message, due): (&Message, MessageDue),
    record: &AccessRecord,
) -> Response<Body> {
    let is_paid = match claim(due) {
        Ok(claim) => claim.is_none(),
        Err(fault) => {
            record.outcome(error_word(fault.kind));
            return refusal::fault_response(&fault, message.id());
        }
    };
    let client = parts.extensions.get().and_then(ConnectionPermit::client);
    let mut parts = parts.clone();
    // A byte order mark was left out.
    parts.headers.remove(CONTENT_LENGTH);
    let request = Request::from_parts(parts, Body::from(message.bytes().clone()));
    forwarder
        .forward((keeper, None), (request, client), is_paid, record)
        .await
}
