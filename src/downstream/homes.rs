//! Requests of modern clients whose implicit session another replica owns.
//!
//! Only the body says which implicit session that is. So it has been read here, and can be sent more than once.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Request, Response};
use tokio::time::{Instant, sleep};

use super::access_log::AccessRecord;
use super::adoption::{NamedSession, SessionPlace};
use super::forwarding::{PAUSE, RequestForwarder, describe, is_forwarded, refused, whole};
use super::modern;
use crate::cluster::{self, ForwardFailure, ForwardedBody, Unforwarded};
use crate::ownership::Ownership;
use crate::protocol::Message;
use crate::session::{ImplicitHome, LiveHome, SessionUse};

/// What became of a request that needs an implicit session.
pub(super) enum HomePlace {
    /// The owner has answered, or cannot be reached now.
    Answered(Response<Body>),
    /// This replica owns the session. If the session is open already, it stays open while the `SessionUse` is kept.
    Here(ImplicitHome, Option<SessionUse>),
    /// The session has ended with its owner.
    Ended,
}

impl RequestForwarder {
    /// Finds the owner of an implicit session within a lease and two seconds. If another replica owns it, passes the request
    /// on. A request that may have reached a replica is not sent again. `client` is the address of the client; `is_paid`:
    /// the request was counted against the caller's rate already.
    ///
    /// # Cancel safety
    /// The owner sees its client leave. An adoption that has begun is finished.
    pub(super) async fn find_home(
        &self,
        named: &NamedSession,
        (parts, message): (&Parts, &Message),
        (client, is_paid): (Option<IpAddr>, bool),
        record: &AccessRecord,
    ) -> HomePlace {
        let until = Instant::now() + self.cluster.patience();
        let key = named.handle.key;
        let is_forwarded = is_forwarded(&parts.extensions);
        let listens = message.method() == Some(modern::LISTEN);
        let mut owner = named.handle.owner;
        let known = self.owners.get(&key).filter(|_| !is_forwarded);
        let mut place = match known {
            Some(owner) => SessionPlace::At(owner),
            None => self.adopter.find(named).await,
        };
        loop {
            let failure = match place {
                SessionPlace::Own(by) => match self.enter_home(named, by, listens) {
                    Some(here) => return here,
                    None => ForwardFailure::NoReplica,
                },
                SessionPlace::Ended => return HomePlace::Ended,
                // This replica stops before the session is found: the sending replica has to look again.
                SessionPlace::Unknown if is_forwarded && self.adopter.is_stopping() => {
                    return HomePlace::Answered(cluster::misdirected());
                }
                SessionPlace::Here | SessionPlace::Unknown => ForwardFailure::NoReplica,
                SessionPlace::At(_) if is_forwarded => {
                    return HomePlace::Answered(cluster::misdirected());
                }
                SessionPlace::At(by) => {
                    owner = by;
                    let request = copied(parts, message, (client, is_paid));
                    match self.send(by.node, request, until, record).await {
                        Ok(mut answer) => {
                            self.owners.insert(key, by);
                            if listens {
                                answer = self.end_with_drain(answer);
                            }
                            return HomePlace::Answered(answer);
                        }
                        Err(Unforwarded { failure, .. }) => {
                            self.owners.invalidate(&key);
                            if failure.is_uncertain() {
                                return HomePlace::Answered(refused(&failure, by, record));
                            }
                            failure
                        }
                    }
                }
            };
            if Instant::now() >= until {
                return HomePlace::Answered(refused(&failure, owner, record));
            }
            let before = place;
            place = self.adopter.find(named).await;
            if place == before || self.adopter.is_draining() {
                sleep(PAUSE).await;
            }
        }
    }

    /// A request enters the implicit session that this replica owns as `by`; `None` while the session is handed over.
    fn enter_home(&self, named: &NamedSession, by: Ownership, listens: bool) -> Option<HomePlace> {
        let (sessions, record) = (&self.adopter.sessions, named.handle.key);
        if let Some((home, used)) = sessions.enter_home(named.implicit.as_ref()?, listens) {
            return Some(HomePlace::Here(home, Some(used)));
        }
        // The session may have been handed over since it was found.
        let is_absent = sessions.live_home(record) == LiveHome::Absent;
        let is_free = is_absent && self.adopter.next_owner().is_none();
        is_free.then_some(HomePlace::Here(ImplicitHome { record, by }, None))
    }

    /// Whether another replica has said that an upstream is modern.
    pub(super) fn is_known_modern(&self, upstream: &Arc<str>) -> bool {
        self.modern.contains_key(upstream)
    }
}

/// A copy of the request, for the owner.
fn copied(
    parts: &Parts,
    message: &Message,
    (client, is_paid): (Option<IpAddr>, bool),
) -> Request<ForwardedBody> {
    let mut parts = parts.clone();
    // The body may have had a byte order mark, which the message lacks.
    parts.headers.remove(CONTENT_LENGTH);
    describe(&mut parts.headers, client, is_paid);
    Request::from_parts(parts, whole(message.bytes().clone()))
}
