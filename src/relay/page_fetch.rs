//! Single-flight for list pages: a session that wants a page on request waits for the running request, if
//! one reply may answer both sessions. A slow failure answers the waiting sessions as well. If the client
//! cancels the running request, the next session sends its own.
//! Spec: DESIGN §5.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Relay;
use super::catalog::{ListPageKey, SharedPageKey};
use crate::call::{Call, Reply};
use crate::fault::{Fault, FaultKind};
use crate::protocol::Message;
use crate::session::Session;
use crate::store::lists::CachedPage;
use crate::sync::single_flight::{self, Leader, SingleFlight};
use crate::telemetry::metrics::COUNTERS;

/// What part of `idle_timeout` a session may have waited for another one's request and still ask for
/// itself when that fails: so none waits longer than 1.4 times.
const ASKS_AGAIN: f64 = 0.4;

/// What came of asking.
#[derive(Debug, Clone)]
pub(super) enum FetchOutcome {
    /// A page.
    Page(CachedPage, Message),
    /// A JSON-RPC error.
    Refused(Message),
    /// No reply.
    Failed(Arc<Fault>),
    /// A reply valid for the requesting session only.
    Nothing,
}

/// Single-flight table of the pages on request.
pub(super) type PageFetches = SingleFlight<SharedPageKey, FetchOutcome>;

/// Leader of a single-flight: sends the request for itself and its followers.
pub(super) type FetchLeader = Leader<SharedPageKey, FetchOutcome>;

/// How a session gets a page that is not cached.
pub(super) enum FetchRole {
    /// Another session asked.
    Page(CachedPage, Message),
    /// The leader got a slow error, so followers do not retry.
    Refused(Message),
    /// The session asks for itself, and hands the reply to the waiting sessions, if there may be any.
    Ask(Option<FetchLeader>),
}

impl FetchOutcome {
    /// The outcome of a request that brought no page.
    pub(super) fn failed(fault: &Fault) -> Self {
        Self::Failed(Arc::new(fault.shared()))
    }

    /// The outcome of a request, with its page if it brought one.
    pub(super) fn of(reply: &Result<Reply, Fault>, page: Option<(CachedPage, Message)>) -> Self {
        match (page, reply) {
            (Some((held, message)), _) => Self::Page(held, message),
            (None, Err(fault)) => Self::failed(fault),
            (None, Ok(Reply::Relayed(message))) => Self::Refused(message.clone()),
            (None, Ok(_)) => Self::Nothing,
        }
    }
}

/// Hands the outcome of a request to the waiting sessions. A request that its client cancelled is left to
/// the next session.
pub(super) fn land(lead: Option<FetchLeader>, landed: FetchOutcome) {
    let given_up =
        matches!(&landed, FetchOutcome::Failed(fault) if fault.kind == FaultKind::Cancelled);
    if let Some(lead) = lead.filter(|_| !given_up) {
        lead.complete(landed);
    }
}

impl Relay {
    /// Joins the single-flight for a page, if its reply may answer this session.
    ///
    /// # Errors
    /// The call was cancelled meanwhile, or the awaited request failed.
    ///
    /// # Cancel safety
    /// Dropping a follower affects no other session.
    pub(super) async fn join_fetch(
        &self,
        call: &Call,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
    ) -> Result<FetchRole, Fault> {
        let began = Instant::now();
        loop {
            let Some(key) = self.flight_key(session, place) else {
                return Ok(FetchRole::Ask(None));
            };
            let join = match self.catalog.flights.join(key) {
                single_flight::Joined::Lead(lead) => {
                    // One may have landed since the kept pages were looked at.
                    return Ok(match self.kept_page(session, place) {
                        Some((held, message)) => FetchRole::Page(held, message),
                        None => FetchRole::Ask(Some(lead)),
                    });
                }
                single_flight::Joined::Join(join) => join,
            };
            self.open_later(session, place.upstream);
            let landed = tokio::select! {
                landed = join.result() => landed,
                () = call.cancel.cancelled() => {
                    return Err(Fault::downstream(FaultKind::Cancelled, "the call was cancelled"));
                }
            };
            let Some(landed) = landed else { continue };
            let has_waited = began.elapsed() > self.asks_again(place.upstream);
            let landed = match landed {
                FetchOutcome::Failed(fault) if has_waited => return Err(fault.shared()),
                FetchOutcome::Refused(message) if has_waited => {
                    return Ok(FetchRole::Refused(message));
                }
                FetchOutcome::Page(held, message) => Some((held, message)),
                FetchOutcome::Failed(_) | FetchOutcome::Refused(_) | FetchOutcome::Nothing => None,
            };
            let adopted = || {
                let (held, message) = landed?;
                let may = self.may_adopt(session, place, &held);
                may.then(|| (self.adopt(session, place, held), message))
            };
            // Prefer a page of this session to an adopted one.
            let page = self.kept_page(session, place).or_else(adopted);
            return Ok(match page {
                Some((held, message)) => {
                    COUNTERS.lists_joined.add(1);
                    FetchRole::Page(held, message)
                }
                None => FetchRole::Ask(None),
            });
        }
    }

    /// How long a session may have waited for another one's request and still ask for itself.
    fn asks_again(&self, upstream: &str) -> Duration {
        let settings = self.parts.upstreams.settings(upstream);
        settings.map_or(Duration::MAX, |settings| {
            settings.idle_timeout.mul_f64(ASKS_AGAIN)
        })
    }

    /// The cached page that may answer this session now, with its bytes.
    pub(super) fn kept_page(
        &self,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
    ) -> Option<(CachedPage, Message)> {
        let held = self.held(session, place)?;
        let page = self.page(&held)?;
        Some((held, page.message.clone()))
    }
}
