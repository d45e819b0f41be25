//! The replica that answers a request: the keeper of its parked call or task, or the owner of its implicit session.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::request::Parts;
use http::{Extensions, Response};
use tokio_util::sync::CancellationToken;

use super::envelope::{self, RequestEnvelope};
use super::{LISTEN, keeper, refusal};
use crate::call::{OwnerKey, Principal};
use crate::downstream::McpService;
use crate::downstream::access_log::AccessRecord;
use crate::downstream::admission::{MessageDue, OwedAdmission, claim};
use crate::downstream::adoption::NamedSession;
use crate::downstream::call_telemetry::error_word;
use crate::downstream::forwarding::{self, RequestForwarder};
use crate::downstream::homes::HomePlace;
use crate::downstream::listener::ConnectionPermit;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::ownership::Ownership;
use crate::protocol::Message;
use crate::session::{ImplicitHome, SessionId, SessionUse};

/// The upstreams that a request of a modern client may reach.
pub(super) struct ReachedUpstreams<'a> {
    pub(super) service: &'a McpService,
    pub(super) forwarder: &'a RequestForwarder,
    pub(super) extensions: &'a Extensions,
    pub(super) owner: OwnerKey,
    pub(super) upstreams: &'a [Arc<str>],
}

impl ReachedUpstreams<'_> {
    /// Whether the request may reach a legacy upstream, where its client has a session that only one replica may have. An
    /// upstream of unknown era counts as legacy.
    fn need_home(&self) -> bool {
        let opener = &self.service.relay.opener;
        self.upstreams.iter().any(|upstream| {
            let has_sessions = opener.has_sessions(upstream, self.owner);
            has_sessions.unwrap_or_else(|| !self.forwarder.is_known_modern(upstream))
        })
    }

    /// The answer of this replica. It tells the sending replica that the request needed no owner, if that is known by now. A
    /// refusal if this replica has lost its lease meanwhile: another replica may own the session.
    pub(super) fn answered(
        &self,
        home: Option<ImplicitHome>,
        mut response: Response<Body>,
        record: &AccessRecord,
    ) -> Response<Body> {
        if home.is_some()
            && let Some(lost) = self.forwarder.lost_meanwhile(record)
        {
            return lost;
        }
        if forwarding::is_forwarded(self.extensions) && !self.need_home() {
            forwarding::say_ownerless(response.headers_mut());
        }
        response
    }
}

/// A request whose envelope was read, and that another replica may have to answer.
pub(super) struct UnplacedRequest<'a> {
    pub(super) reached: &'a ReachedUpstreams<'a>,
    pub(super) parts: &'a Parts,
    pub(super) principal: &'a Arc<Principal>,
    pub(super) endpoint: &'a Arc<Endpoint>,
    pub(super) message: &'a Message,
    pub(super) envelope: &'a RequestEnvelope,
}

/// Where a request is answered.
pub(super) enum PlacedRequest {
    /// By another replica, or not at all.
    Answered(Response<Body>),
    /// Here, in this implicit session if the request needs one. A session that is open already stays open while the
    /// `SessionUse` is kept.
    Here(Option<ImplicitHome>, MessageDue, Option<SessionUse>),
}

impl UnplacedRequest<'_> {
    /// As [`place`](Self::place), but a request that opens its session here waits for its part of the rate before that.
    /// Another replica may own the session after the wait, so the request is placed once more.
    ///
    /// # Cancel safety
    /// As that of `place`.
    pub(super) async fn place_for_good(
        &self,
        due: MessageDue,
        record: &AccessRecord,
    ) -> PlacedRequest {
        match self.place(due, record).await {
            PlacedRequest::Here(Some(_), due @ Some(_), None) => {
                let admission = &self.reached.service.admission;
                match Box::pin(admission.pay(self.principal.owner(), due)).await {
                    Ok(()) => self.place(None, record).await,
                    Err(fault) => self.refused(&fault, record),
                }
            }
            placed => placed,
        }
    }

    /// Finds the replica that answers the request, and passes the request on if that is another one. The request counts once
    /// against the caller's rate; if it has to wait for that, it waits where it is answered.
    ///
    /// # Cancel safety
    /// The other replica sees its client leave.
    pub(super) async fn place(&self, due: MessageDue, record: &AccessRecord) -> PlacedRequest {
        let (service, forwarder) = (self.reached.service, self.reached.forwarder);
        let parts = (&*service.relay, &*service.modern.parking);
        let keeper = keeper::keeper_of(parts, self.principal, self.endpoint, self.message);
        if let Some(keeper) = keeper {
            if !forwarder.is_foreign(keeper, &self.parts.extensions) {
                return PlacedRequest::Here(None, due, None);
            }
            return self.pass_to_keeper(keeper, due, record).await;
        }
        let is_about_task = self.message.method().is_some_and(envelope::is_task);
        if is_about_task || !self.reached.need_home() {
            return PlacedRequest::Here(None, due, None);
        }
        let declared = &self.envelope.capabilities;
        let sessions = &service.sessions;
        let key = sessions.implicit_key(self.principal, self.endpoint, declared);
        if !forwarder.is_fenced()
            && !service.tasks.draining().is_cancelled()
            && let Some((home, used)) = sessions.enter_home(&key, false)
        {
            return PlacedRequest::Here(Some(home), due, Some(used));
        }
        let due = match claim(due) {
            Ok(claim) => claim.map(OwedAdmission::Rate),
            Err(fault) => return self.refused(&fault, record),
        };
        let named = NamedSession {
            id: String::new(),
            handle: SessionId {
                key: ImplicitHome::key(self.principal, self.endpoint, declared),
                // No owner has been found yet.
                owner: Ownership::ALONE,
                issued: Duration::ZERO,
            },
            principal: Arc::clone(self.principal),
            endpoint: Arc::clone(self.endpoint),
            holder: service
                .bodies
                .holder(self.principal, &self.parts.extensions),
            implicit: Some(key),
        };
        let asked = (self.parts, self.message);
        let client = self.parts.extensions.get();
        let from = (client.and_then(ConnectionPermit::client), due.is_none());
        let found = forwarder.find_home(&named, asked, from, record);
        let Some(found) = self.until_cut_off(Box::pin(found)).await else {
            return self.refused(&Fault::cut_off(), record);
        };
        match found {
            HomePlace::Here(home, used) => PlacedRequest::Here(Some(home), due, used),
            HomePlace::Answered(response) => self.passed_on(response, record),
            HomePlace::Ended => self.refused(&lost_with_replica(), record),
        }
    }

    /// Passes the request on to `keeper`, where it waits for its part of the rate if that is still due.
    async fn pass_to_keeper(
        &self,
        keeper: Ownership,
        due: MessageDue,
        record: &AccessRecord,
    ) -> PlacedRequest {
        let is_paid = match claim(due) {
            Ok(claim) => claim.is_none(),
            Err(fault) => return self.refused(&fault, record),
        };
        let asked = (self.message, is_paid);
        let (service, forwarder) = (self.reached.service, self.reached.forwarder);
        let answer = keeper::forward((forwarder, keeper), self.parts, asked, record);
        let Some(answer) = self.until_cut_off(Box::pin(answer)).await else {
            return self.refused(&Fault::cut_off(), record);
        };
        match answer {
            Some(response) => self.passed_on(response, record),
            None if is_paid => PlacedRequest::Here(None, None, None),
            None => PlacedRequest::Here(None, service.admission.due(self.principal.owner()), None),
        }
    }

    /// Waits for another replica; `None` if this replica stops before the answer arrives: the outcome of the call is then
    /// unknown. A request that another replica has passed on is never cut off: it has not run, and goes back there. Nor is a
    /// request that arrives after the stop began.
    async fn until_cut_off<T>(&self, answered: impl Future<Output = T>) -> Option<T> {
        if forwarding::is_forwarded(&self.parts.extensions) || self.cut_off().is_cancelled() {
            return Some(answered.await);
        }
        tokio::select! {
            biased;
            answered = answered => Some(answered),
            () = self.cut_off().cancelled() => None,
        }
    }

    fn cut_off(&self) -> &CancellationToken {
        let place = std::ptr::from_ref(self.message).addr();
        self.reached.service.modern.cut_off.of(place)
    }

    /// The answer of another replica, whose stream ends with an error where the outcome of the call is unknown. A
    /// subscription is opened again.
    fn passed_on(&self, mut answer: Response<Body>, record: &AccessRecord) -> PlacedRequest {
        let reached = self.reached;
        reached.forwarder.learn_modern(reached.upstreams, &answer);
        if self.message.method() != Some(LISTEN) {
            answer = forwarding::watch_modern(answer, self.message, self.cut_off(), record);
        }
        PlacedRequest::Answered(answer)
    }

    fn refused(&self, fault: &Fault, record: &AccessRecord) -> PlacedRequest {
        record.outcome(error_word(fault.kind));
        PlacedRequest::Answered(refusal::fault_response(fault, self.message.id()))
    }
}

/// The refusal of the requests that find out that the implicit session of their client has ended.
fn lost_with_replica() -> Fault {
    let text = "the server process of this client was lost with its replica of the gateway, and what it had in memory: \
                send the request again to begin with a new one";
    Fault::upstream(FaultKind::UpstreamLost, text)
}
