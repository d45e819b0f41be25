//! Requests of sessions that another replica owns: passed on to it as they are, streams and disconnects included.
//!
//! The entry replica checks Host, Origin, path, token and handle, notes the good token on the connection, and counts
//! nothing. The owner verifies the token again, applies the limits, and writes audit record and access line. Only a
//! request whose body names the owner has been counted against the caller's rate before; a mark says so. A forwarded
//! request is never forwarded again. If the owner of a call is lost, the entry replica sends the call once more where
//! its tool is in `retry_safe`.
//! Spec: DESIGN §8.1.

mod call_stream;
mod ending_body;
mod marks;
mod passed_call;
mod refusal;
mod repeatable_body;
mod seen_events;
mod watched;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::{Extensions, Method, Response};
use http_body_util::BodyExt as _;
use moka::sync::Cache;
use tokio::time::{Instant, sleep};

use self::ending_body::end_with_drain;
use self::marks::take_ownerless;
pub(super) use self::marks::{describe, is_forwarded, is_paid, say_begun, say_ownerless, take_in};
use self::refusal::refusal;
pub(super) use self::refusal::refused;
use self::repeatable_body::RepeatableBody;
pub(super) use self::repeatable_body::whole;
use self::watched::watch;
pub(super) use self::watched::watch_modern;
use super::access_log::AccessRecord;
use super::adoption::{NamedSession, SessionAdopter, SessionPlace};
use crate::call::Principal;
use crate::cluster::{self, Cluster, ForwardFailure, ForwardedBody, Unforwarded};
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::session::{RequestedSession, SessionRegistry};
use crate::store::events::SessionKey;

/// Sessions whose owner is remembered at most.
const OWNERS: u64 = 64 * 1024;
/// How long an owner is remembered.
const REMEMBERED: Duration = Duration::from_hours(1);
/// How long a replica believes another one that an upstream is modern. Its own calls tell it sooner.
const BELIEVED: Duration = Duration::from_mins(1);
/// Between two looks for a session that is not to be found now.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Marks an answer of another replica: its headers are complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForwardedResponse {
    /// Whether the request needed no owner, as all upstreams that it reached are modern.
    is_ownerless: bool,
}

/// Passes requests on that another replica has to answer.
#[derive(Debug)]
pub(super) struct RequestForwarder {
    pub(super) cluster: Arc<Cluster>,
    sessions: Arc<SessionRegistry>,
    pub(super) adopter: Arc<SessionAdopter>,
    /// Owners of adopted and of implicit sessions, learnt from their answers. An id names only the first owner.
    pub(super) owners: Cache<SessionKey, Ownership>,
    /// Upstreams that are modern, as other replicas have said.
    pub(super) modern: Cache<Arc<str>, ()>,
}

/// What became of a request that may be for another replica.
pub(super) enum PassedOn {
    /// The other replica has answered, or cannot be reached now.
    Answered(Response<Body>),
    /// The request is to be served here: its session lives here by now, or is over.
    Here(Request),
}

impl RequestForwarder {
    pub(super) fn new(adopter: SessionAdopter) -> Self {
        let adopter = Arc::new(adopter);
        adopter.note_first_run();
        Self {
            cluster: Arc::clone(&adopter.cluster),
            sessions: Arc::clone(&adopter.sessions),
            adopter,
            owners: Cache::builder()
                .max_capacity(OWNERS)
                .time_to_live(REMEMBERED)
                .build(),
            modern: Cache::builder().time_to_live(BELIEVED).build(),
        }
    }

    /// Whether sessions that live here may be another replica's by now.
    pub(super) fn is_fenced(&self) -> bool {
        !self.adopter.stores.fence.is_open()
    }

    /// The part that adopts sessions of lost replicas, and gives up the sessions of this replica.
    pub(super) fn adopter(&self) -> &Arc<SessionAdopter> {
        &self.adopter
    }

    /// Where the session `id` of a request is served. A handle that is forged, foreign or over age is refused here, as any
    /// other unknown handle. While the fence is closed, another replica may own a session that is still open here.
    pub(super) fn requested_session(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> RequestedSession {
        if !self.is_fenced() {
            return self.sessions.enter_request(id, principal, endpoint);
        }
        let handle = self.sessions.read_id(id, principal, endpoint);
        handle.map_or(RequestedSession::Unknown, RequestedSession::Absent)
    }

    /// Passes a request that may open a session on to another replica, while this replica drains. If no other replica takes
    /// the request, it is to be served here.
    ///
    /// # Cancel safety
    /// The other replica sees its client leave.
    pub(super) async fn pass_new(
        &self,
        (request, client): (Request, Option<IpAddr>),
        record: &AccessRecord,
    ) -> PassedOn {
        if is_forwarded(request.extensions()) {
            // The sending replica drains too, and asks its next successor.
            return PassedOn::Answered(cluster::misdirected());
        }
        let (parts, body) = request.into_parts();
        let mut body = body.map_err(Into::into).boxed_unsync();
        for node in self.cluster.successors() {
            let (sent, kept) = RepeatableBody::new(body);
            let mut request = Request::from_parts(parts.clone(), sent.boxed_unsync());
            describe(request.headers_mut(), client, false);
            match self.send(node, request, Instant::now(), record).await {
                Ok(answer) => return PassedOn::Answered(answer),
                Err(Unforwarded { failure, unsent }) => {
                    let Some(again) = unsent.or_else(|| kept.of_unrun(&failure)) else {
                        let asked = Ownership { node, epoch: 0 };
                        return PassedOn::Answered(refused(&failure, asked, record));
                    };
                    body = again;
                }
            }
        }
        PassedOn::Here(Request::from_parts(parts, Body::new(body)))
    }

    /// The owner of the HTTP+SSE stream with this `handle`, where that is another replica.
    pub(super) fn owner_of_events(
        &self,
        request: &Request,
        handle: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<Ownership> {
        let owner = self.sessions.connection(handle, principal, endpoint)?.owner;
        self.is_foreign(owner, request.extensions())
            .then_some(owner)
    }

    /// Whether a request is for another replica. A request that was forwarded is not forwarded again.
    pub(super) fn is_foreign(&self, owner: Ownership, extensions: &Extensions) -> bool {
        owner.node != self.cluster.node() && !is_forwarded(extensions)
    }

    /// Whether `keeper` is another replica, and is not lost.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub(super) async fn is_kept_elsewhere(&self, keeper: Ownership) -> bool {
        keeper.node != self.cluster.node() && !self.cluster.is_lost(keeper.node).await
    }

    /// Passes a request of `client` on to the owner of its session, and returns the owner's answer. If the owner is lost,
    /// the session is adopted meanwhile; the request waits for that no longer than for the owner.
    ///
    /// # Cancel safety
    /// The owner sees its client leave. An adoption that has begun is finished.
    pub(super) async fn pass_on(
        &self,
        named: &NamedSession,
        (request, client): (Request, Option<IpAddr>),
        record: &AccessRecord,
    ) -> PassedOn {
        let mut until = Instant::now() + self.cluster.patience();
        if is_forwarded(request.extensions()) {
            return self.own(named, request, until).await;
        }
        // The owner that may run the request, or may have run it.
        let mut broken = None;
        let key = named.handle.key;
        let (parts, body) = request.into_parts();
        let mut body = body.map_err(Into::into).boxed_unsync();
        let owner = self.owners.get(&key).unwrap_or(named.handle.owner);
        let mut place = if owner.node == self.cluster.node() || self.sessions.is_live(named.handle)
        {
            self.adopter.find(named).await
        } else {
            SessionPlace::At(owner)
        };
        loop {
            let failure = match place {
                SessionPlace::Here | SessionPlace::Own(_) | SessionPlace::Ended => {
                    return PassedOn::Here(Request::from_parts(parts, Body::new(body)));
                }
                SessionPlace::Unknown => ForwardFailure::NoReplica,
                // The owner is alive, and may still run the request.
                SessionPlace::At(owner) if broken == Some(owner) => ForwardFailure::Gone,
                SessionPlace::At(owner) => {
                    let (sent, kept) = RepeatableBody::new(body);
                    let mut request = Request::from_parts(parts.clone(), sent.boxed_unsync());
                    describe(request.headers_mut(), client, false);
                    match self.send(owner.node, request, until, record).await {
                        Ok(answer) => {
                            if owner != named.handle.owner {
                                self.owners.insert(key, owner);
                            }
                            let at = (&self.adopter, named, owner);
                            let sent = (&parts, &kept);
                            return PassedOn::Answered(watch(answer, at, sent, record));
                        }
                        Err(Unforwarded { failure, unsent }) => {
                            self.owners.invalidate(&key);
                            let has_not_run = !failure.is_uncertain();
                            let may_repeat = |sent: &Bytes| {
                                has_not_run
                                    || broken.is_none()
                                        && self.adopter.relay.may_repeat(&named.endpoint, sent)
                            };
                            let again = unsent.or_else(|| {
                                let sent = kept.again().filter(may_repeat)?;
                                Some(whole(sent))
                            });
                            let Some(again) = again else {
                                // The client sends the request again: remember the owner for that.
                                if has_not_run
                                    && let SessionPlace::At(by) = self.adopter.find(named).await
                                {
                                    self.owners.insert(key, by);
                                }
                                return PassedOn::Answered(refused(&failure, owner, record));
                            };
                            if failure.is_uncertain() {
                                // The attempt may have taken long: the wait for the owner starts again.
                                broken = Some(owner);
                                until = Instant::now() + self.cluster.patience();
                            }
                            body = again;
                            failure
                        }
                    }
                }
            };
            if Instant::now() >= until {
                let failure = broken.map_or(failure, |_| ForwardFailure::Gone);
                return PassedOn::Answered(refused(&failure, named.handle.owner, record));
            }
            let before = place;
            place = self.adopter.find(named).await;
            if place == before || self.adopter.is_draining() {
                sleep(PAUSE).await;
            }
        }
    }

    /// Serves a forwarded request here, or refuses it: it is not forwarded once more.
    async fn own(&self, named: &NamedSession, request: Request, until: Instant) -> PassedOn {
        loop {
            match self.adopter.find(named).await {
                SessionPlace::Here | SessionPlace::Own(_) | SessionPlace::Ended => {
                    return PassedOn::Here(request);
                }
                SessionPlace::At(_) => return PassedOn::Answered(cluster::misdirected()),
                // This replica stops before the session is found: the sending replica has to look again.
                SessionPlace::Unknown if self.adopter.is_stopping() => {
                    return PassedOn::Answered(cluster::misdirected());
                }
                SessionPlace::Unknown if Instant::now() >= until => {
                    return PassedOn::Answered(refusal(&ForwardFailure::NoReplica));
                }
                SessionPlace::Unknown => sleep(PAUSE).await,
            }
        }
    }

    /// The refusal of a request of a session, if this replica has lost its lease meanwhile: another replica may own the
    /// session, and the answer may be out of date.
    pub(super) fn lost_meanwhile(&self, record: &AccessRecord) -> Option<Response<Body>> {
        self.is_fenced().then(|| {
            record.outcome("fenced");
            refusal(&ForwardFailure::Gone)
        })
    }

    /// Passes a request of `client` on to the replica that keeps its parked call, task or HTTP+SSE stream, which no other
    /// replica can adopt. `is_paid`: the request was counted against the caller's rate already.
    pub(super) async fn pass_to_keeper(
        &self,
        keeper: Ownership,
        (request, client): (Request, Option<IpAddr>),
        is_paid: bool,
        record: &AccessRecord,
    ) -> PassedOn {
        let until = Instant::now() + self.cluster.patience();
        let (parts, body) = request.into_parts();
        let (sent, kept) = RepeatableBody::new(body.map_err(Into::into).boxed_unsync());
        let mut request = Request::from_parts(parts.clone(), sent.boxed_unsync());
        describe(request.headers_mut(), client, is_paid);
        match self.send(keeper.node, request, until, record).await {
            Ok(answer) => PassedOn::Answered(answer),
            Err(Unforwarded { failure, unsent }) => {
                if let Some(body) = unsent.or_else(|| kept.of_unrun(&failure))
                    && self.cluster.is_lost(keeper.node).await
                {
                    return PassedOn::Here(Request::from_parts(parts, Body::new(body)));
                }
                PassedOn::Answered(refused(&failure, keeper, record))
            }
        }
    }

    /// Sends a request to the replica `node`.
    pub(super) async fn send(
        &self,
        node: u32,
        request: http::Request<ForwardedBody>,
        until: Instant,
        record: &AccessRecord,
    ) -> Result<Response<Body>, Unforwarded> {
        let is_get = request.method() == Method::GET;
        // The owner writes the access line of each request that reaches it, also if the client leaves.
        let on_way = |is_on_way| record.forwarded(is_on_way);
        let sent = self.cluster.forward(node, request, until, &on_way).await;
        let mut answer = sent
            .inspect_err(|_| record.forwarded(false))?
            .map(Body::new);
        cluster::remove_hop_by_hop(answer.headers_mut());
        let is_ownerless = take_ownerless(answer.headers_mut());
        let mark = ForwardedResponse { is_ownerless };
        answer.extensions_mut().insert(mark);
        if is_get {
            answer = self.end_with_drain(answer);
        }
        Ok(answer)
    }

    /// Remembers that `upstreams` are modern, where the answer of another replica says that its request reached these and
    /// needed no owner.
    pub(super) fn learn_modern(&self, upstreams: &[Arc<str>], answer: &Response<Body>) {
        let mark = answer.extensions().get::<ForwardedResponse>();
        if mark.is_some_and(|mark| mark.is_ownerless) {
            for upstream in upstreams {
                self.modern.insert(Arc::clone(upstream), ());
            }
        }
    }

    /// Ends the event stream in an answer of another replica soon after this replica begins to drain. The stream has no end
    /// of its own, and would break off with this process.
    pub(super) fn end_with_drain(&self, answer: Response<Body>) -> Response<Body> {
        end_with_drain(answer, self.adopter.tasks.draining())
    }
}
