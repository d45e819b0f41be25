//! Requests of sessions that another replica owns: passed on to it as they are, streams and disconnects included.
//!
//! The entry replica has checked Host, Origin, path, token and handle, and counts nothing: the owner verifies the token
//! again, and limits, audit record and access line are its own. A request whose body names the owner is out of the
//! caller's rate by then, and says so. A request that was forwarded is never forwarded again; the entry replica sends a
//! call of a tool of `retry_safe` once more where its owner is lost.
//! Spec: DESIGN §8.

mod call_stream;
mod ending_body;
mod passed_call;
mod repeatable_body;
mod seen_events;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Extensions, HeaderMap, HeaderName, Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use moka::sync::Cache;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::ending_body::{end_with_drain, is_event_stream};
use self::passed_call::{OwnedSession, PassedCall, requests_in};
use self::repeatable_body::{KeptBytes, RepeatableBody};
use super::access_log::AccessRecord;
use super::adoption::{NamedSession, SessionAdopter, SessionPlace};
use crate::call::Principal;
use crate::cause::chain;
use crate::cluster::{self, Cluster, ForwardFailure, ForwardedBody, REPLICA_PATH, Unforwarded};
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::protocol::{Message, RequestId, json};
use crate::session::{RequestedSession, SessionRegistry};
use crate::store::events::SessionKey;
use crate::telemetry::request_tag;

/// The client's address, for the owner.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Says that a forwarded request was taken out of the rate of its caller.
const PAID: HeaderName = HeaderName::from_static("drawbridge-paid");
/// After a lost owner: for its lease to end, and for another replica to take over.
const COME_BACK: HeaderValue = HeaderValue::from_static("2");

/// Sessions whose owner is remembered at most.
const OWNERS: u64 = 64 * 1024;
/// How long an owner is remembered.
const REMEMBERED: Duration = Duration::from_hours(1);
/// How long a replica believes another one that an upstream is modern. Its own calls tell it sooner.
const BELIEVED: Duration = Duration::from_mins(1);
/// Between two looks for a session that is not to be found now.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Marks a request that another replica has passed on, which has authenticated itself.
#[derive(Debug, Clone, Copy)]
struct ForwardedRequest {
    /// Whether the entry replica has taken it out of the rate of its caller.
    is_paid: bool,
}

/// Says that the request needed no owner: the upstreams that it reached are modern.
pub(super) const OWNERLESS: HeaderName = HeaderName::from_static("drawbridge-ownerless");

/// Marks an answer of another replica: its headers are complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForwardedResponse;

/// Passes requests on that another replica has to answer.
#[derive(Debug)]
pub(super) struct RequestForwarder {
    pub(super) cluster: Arc<Cluster>,
    sessions: Arc<SessionRegistry>,
    pub(super) adopter: Arc<SessionAdopter>,
    /// Owners of adopted sessions and of implicit ones, as they have answered: ids of sessions name the first owner.
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

    /// The part that goes on with sessions of other replicas, and gives up those of this one.
    pub(super) fn adopter(&self) -> &Arc<SessionAdopter> {
        &self.adopter
    }

    /// Where the session of the request `id` is served. A handle that is forged, foreign or over age is refused here, as
    /// any other unknown handle. Behind a closed fence a session that lives here may not live here any more.
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

    /// Passes a request that may open a session on to another replica, while this one drains. To be served here where no
    /// other one takes it.
    ///
    /// # Cancel safety
    /// The other replica sees its client leave.
    pub(super) async fn pass_new(
        &self,
        (request, client): (Request, Option<IpAddr>),
        record: &AccessRecord,
    ) -> PassedOn {
        if is_forwarded(request.extensions()) {
            // The replica that has sent it drains too, and asks another one.
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
                    let is_refused = matches!(failure, ForwardFailure::AnotherReplica);
                    let again = unsent.or_else(|| {
                        let sent = kept.again().filter(|_| is_refused)?;
                        Some(repeatable_body::whole(sent))
                    });
                    let Some(again) = again else {
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

    /// Whether another replica keeps something, and is not lost.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub(super) async fn is_kept_elsewhere(&self, keeper: Ownership) -> bool {
        keeper.node != self.cluster.node() && !self.cluster.is_lost(keeper.node).await
    }

    /// Passes a request of `client` on to the owner of its session, whose answer is the answer. Where the owner is lost,
    /// the session is adopted meanwhile; a request waits for that as long as for its owner.
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
        // Where the request may run, or may have run.
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
                // Its owner lives, and may still be running it.
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
                            let at = (named, owner);
                            return PassedOn::Answered(self.watch(answer, at, &kept, record));
                        }
                        Err(Unforwarded { failure, unsent }) => {
                            self.owners.invalidate(&key);
                            let is_refused = matches!(failure, ForwardFailure::AnotherReplica);
                            let may_repeat = |sent: &Bytes| {
                                is_refused
                                    || broken.is_none()
                                        && failure.is_uncertain()
                                        && self.adopter.relay.may_repeat(&named.endpoint, sent)
                            };
                            let again = unsent.or_else(|| {
                                let sent = kept.again().filter(may_repeat)?;
                                Some(repeatable_body::whole(sent))
                            });
                            let Some(again) = again else {
                                // Its client sends it again, and the owner is known then.
                                if is_refused
                                    && let SessionPlace::At(by) = self.adopter.find(named).await
                                {
                                    self.owners.insert(key, by);
                                }
                                return PassedOn::Answered(refused(&failure, owner, record));
                            };
                            if failure.is_uncertain() {
                                // It may have taken long: its owner is waited for as from the beginning.
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
                let failure = if broken.is_some() {
                    ForwardFailure::Gone
                } else {
                    failure
                };
                return PassedOn::Answered(refused(&failure, named.handle.owner, record));
            }
            let before = place;
            place = self.adopter.find(named).await;
            if place == before || self.adopter.is_draining() {
                sleep(PAUSE).await;
            }
        }
    }

    /// The same answer of the replica `owner` to what was `sent`. Calls on an event stream end there where that replica is
    /// lost, as long as their request was kept.
    fn watch(
        &self,
        answer: Response<Body>,
        (named, owner): (&NamedSession, Ownership),
        sent: &KeptBytes,
        record: &AccessRecord,
    ) -> Response<Body> {
        if !is_event_stream(answer.headers()) {
            return answer;
        }
        let sent = sent.again().unwrap_or_default();
        let call = PassedCall {
            is_made_again: self.adopter.relay.may_repeat(&named.endpoint, &sent),
            ids: requests_in(sent),
            session: Some(OwnedSession {
                adopter: Arc::clone(&self.adopter),
                named: named.clone(),
                owner,
            }),
            record: record.clone(),
        };
        call_stream::watch(answer, call, None)
    }

    /// A forwarded request is served here, or by no replica that it was not sent to.
    async fn own(&self, named: &NamedSession, request: Request, until: Instant) -> PassedOn {
        loop {
            match self.adopter.find(named).await {
                SessionPlace::Here | SessionPlace::Own(_) | SessionPlace::Ended => {
                    return PassedOn::Here(request);
                }
                SessionPlace::At(_) => return PassedOn::Answered(cluster::misdirected()),
                // The other replica looks once more: this one ends before the session is found.
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

    /// The answer to a request of a session, where this replica has lost its lease meanwhile: what was answered may not
    /// be so any more.
    pub(super) fn lost_meanwhile(&self, record: &AccessRecord) -> Option<Response<Body>> {
        self.is_fenced().then(|| {
            record.outcome("fenced");
            refusal(&ForwardFailure::Gone)
        })
    }

    /// Passes a request of `client` on to the replica that keeps what it goes on with, and what no other replica can
    /// adopt. `is_paid` says whether the request was taken out of the rate of its caller.
    pub(super) async fn pass_to_keeper(
        &self,
        keeper: Ownership,
        (request, client): (Request, Option<IpAddr>),
        is_paid: bool,
        record: &AccessRecord,
    ) -> PassedOn {
        let until = Instant::now() + self.cluster.patience();
        let (parts, body) = request.into_parts();
        let body = body.map_err(Into::into).boxed_unsync();
        let mut request = Request::from_parts(parts.clone(), body);
        describe(request.headers_mut(), client, is_paid);
        match self.send(keeper.node, request, until, record).await {
            Ok(answer) => PassedOn::Answered(answer),
            Err(Unforwarded { failure, unsent }) => {
                if let Some(body) = unsent
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
        // The owner writes the line of what it was sent, also where the client leaves.
        let on_way = |is_on_way| record.forwarded(is_on_way);
        let sent = self.cluster.forward(node, request, until, &on_way).await;
        let mut answer = sent
            .inspect_err(|_| record.forwarded(false))?
            .map(Body::new);
        cluster::remove_hop_by_hop(answer.headers_mut());
        answer.extensions_mut().insert(ForwardedResponse);
        if is_get {
            answer = self.end_with_drain(answer);
        }
        Ok(answer)
    }

    /// The same answer of another replica, an event stream without an end of its own, which would break off with this
    /// process.
    pub(super) fn end_with_drain(&self, answer: Response<Body>) -> Response<Body> {
        end_with_drain(answer, self.adopter.tasks.draining())
    }
}

/// Whether another replica has passed the request on.
pub(super) fn is_forwarded(extensions: &Extensions) -> bool {
    extensions.get::<ForwardedRequest>().is_some()
}

/// Says in the answer to a forwarded request that the request needed no owner.
pub(super) fn say_ownerless(headers: &mut HeaderMap) {
    headers.insert(OWNERLESS, HeaderValue::from_static("1"));
}

/// The same answer of another replica to a call of a modern client. An event stream ends with an error where that replica
/// is lost, and where this one stops before the call is over.
pub(super) fn watch_modern(
    answer: Response<Body>,
    message: &Message,
    cut_off: &CancellationToken,
    record: &AccessRecord,
) -> Response<Body> {
    if answer.extensions().get::<ForwardedResponse>().is_none() {
        return answer;
    }
    let call = PassedCall {
        ids: message
            .id()
            .and_then(RequestId::parse)
            .into_iter()
            .collect(),
        is_made_again: false,
        session: None,
        record: record.clone(),
    };
    call_stream::watch(answer, call, Some(cut_off))
}

/// The refusal of a request that no replica has answered.
pub(super) fn refused(
    failure: &ForwardFailure,
    owner: Ownership,
    record: &AccessRecord,
) -> Response<Body> {
    record.outcome("owner_unreachable");
    tracing::debug!(
        node = owner.node,
        error = chain(failure),
        "request not forwarded"
    );
    refusal(failure)
}

/// Takes in a request over the internal listener, marked as forwarded.
///
/// # Errors
/// The answer: the greeting of this replica, or that the request is for another one.
pub(super) fn take_in(
    cluster: &Cluster,
    mut request: Request,
) -> Result<Request, Box<Response<Body>>> {
    if request.method() == Method::GET && request.uri().path() == REPLICA_PATH {
        let greeting = serde_json::to_vec(&cluster.greeting()).unwrap_or_default();
        return Err(Box::new(Response::new(Body::from(greeting))));
    }
    if !cluster::is_for(cluster.node(), request.headers_mut()) {
        return Err(Box::new(cluster::misdirected()));
    }
    let is_paid = request.headers_mut().remove(PAID).is_some();
    request
        .extensions_mut()
        .insert(ForwardedRequest { is_paid });
    Ok(request)
}

/// Whether another replica has taken a request out of the rate of its caller.
pub(super) fn is_paid(extensions: &Extensions) -> bool {
    let forwarded = extensions.get::<ForwardedRequest>();
    forwarded.is_some_and(|forwarded| forwarded.is_paid)
}

/// Adds what the owner has to know, in place of what the client may have sent under these names.
pub(super) fn describe(headers: &mut HeaderMap, client: Option<IpAddr>, is_paid: bool) {
    // First, so that a client cannot have what follows removed by naming it in `Connection`.
    cluster::remove_hop_by_hop(headers);
    headers.remove(FORWARDED_FOR);
    if let Some(client) = client.and_then(|client| HeaderValue::try_from(client.to_string()).ok()) {
        headers.insert(FORWARDED_FOR, client);
    }
    headers.remove(PAID);
    if is_paid {
        headers.insert(PAID, HeaderValue::from_static("1"));
    }
    headers.remove(request_tag::HEADER);
    if let Some(tag) = request_tag::current().and_then(|tag| tag.header()) {
        headers.insert(request_tag::HEADER, tag);
    }
}

/// A session whose owner is gone may come back, so that its client must not be told 404. What may have run is not to be
/// sent again by a client that obeys `Retry-After`.
fn refusal(failure: &ForwardFailure) -> Response<Body> {
    let (status, text) = if failure.is_uncertain() {
        let text =
            "the connection to the replica of this session was lost: the request may have run";
        (StatusCode::BAD_GATEWAY, text)
    } else {
        let text = "the replica of this session cannot be reached now";
        (StatusCode::SERVICE_UNAVAILABLE, text)
    };
    let body = json::object([("error", json::quote(text))]);
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, COME_BACK);
    }
    response
}

#[cfg(test)]
mod tests {
    use http::header::CONNECTION;

    use super::*;

    #[test]
    fn client_cannot_have_its_address_or_the_request_id_removed() {
        let named = "x-forwarded-for, x-request-id, x-own";
        let mut request = Request::builder()
            .header(CONNECTION, named)
            .header("x-own", "1")
            .header(FORWARDED_FOR, "198.51.100.7")
            .body(Body::empty())
            .unwrap();
        describe(
            request.headers_mut(),
            Some(IpAddr::from([192, 0, 2, 1])),
            false,
        );
        // As it is done once more where the request is made for the other replica.
        cluster::remove_hop_by_hop(request.headers_mut());
        let headers = request.headers();
        assert_eq!(headers.get(FORWARDED_FOR).unwrap(), "192.0.2.1");
        assert!(!headers.contains_key(CONNECTION) && !headers.contains_key("x-own"));
    }

    #[test]
    fn client_cannot_say_that_its_request_is_paid() {
        for (is_paid, expected) in [(false, None), (true, Some("1"))] {
            let request = Request::builder().header(PAID, "yes");
            let mut request = request.body(Body::empty()).unwrap();
            describe(request.headers_mut(), None, is_paid);
            let said = request.headers().get(PAID);
            assert_eq!(said.map(|said| said.to_str().unwrap()), expected);
        }
    }
}
