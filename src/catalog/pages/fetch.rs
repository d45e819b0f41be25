//! Single-flight for list pages: a session that wants a page on request waits for the running request, if
//! one reply may answer both sessions. If a change came during that request, the session waits for the next one: so the
//! sessions that are told of a change cost two requests at most, however many they are. A slow failure, or a second
//! one, answers the waiting sessions as well. If the client cancels the running request, the next session sends its own.
//! Spec: DESIGN §5.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ListPages;
use crate::call::{Call, Reply, ServerDeclaration, UpstreamLink};
use crate::catalog::page_key::{ListPageKey, SharedPageKey};
use crate::catalog::tool_headers::warn_of_invalid;
use crate::catalog::{connect_tool, icons};
use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};
use crate::outbound::UpstreamTarget;
use crate::policy::Permit;
use crate::protocol::methods::ListKind;
use crate::protocol::{Era, Message};
use crate::session::Session;
use crate::store::lists::CachedPage;
use crate::sync::event_number::EventNumber;
use crate::sync::single_flight::{self, Leader, SingleFlight};
use crate::telemetry::metrics::COUNTERS;
use crate::translate::project::{CacheHints, CacheScope};
use crate::upstream::account::Account;
use crate::upstream::declaration_cache::DeclarationKey;

/// Factor by which the lifetime of a list is extended while the upstream announces its changes.
const LENGTHENED: u32 = 3;
/// What part of `idle_timeout` a session may have waited for another one's request and still ask for
/// itself when that fails: so none waits longer than 1.4 times, and a session that waits for two requests twice.
const ASKS_AGAIN: f64 = 0.4;

/// Outcome of a request for a list.
#[derive(Debug, Clone)]
pub(crate) enum FetchOutcome {
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
pub(crate) type PageFetches = SingleFlight<SharedPageKey, FetchOutcome>;

/// Leader of a single-flight: sends the request for itself and its followers.
pub(crate) type FetchLeader = Leader<SharedPageKey, FetchOutcome>;

/// How a session gets a page that is not cached.
pub(crate) enum FetchRole {
    /// Another session asked.
    Page(CachedPage, Message),
    /// The leader got a slow error, so followers do not retry.
    Refused(Message),
    /// The session asks for itself, and hands the reply to the waiting sessions, if there may be any.
    Ask(Option<FetchLeader>),
}

impl FetchOutcome {
    /// The outcome of a request that brought no page.
    pub(crate) fn failed(fault: &Fault) -> Self {
        Self::Failed(Arc::new(fault.shared()))
    }

    /// The outcome of a request, with its page if it brought one.
    pub(crate) fn of(reply: &Result<Reply, Fault>, page: Option<(CachedPage, Message)>) -> Self {
        match (page, reply) {
            (Some((held, message)), _) => Self::Page(held, message),
            (None, Err(fault)) => Self::failed(fault),
            (None, Ok(Reply::Relayed(message))) => Self::Refused(message.clone()),
            (None, Ok(_)) => Self::Nothing,
        }
    }
}

/// Hands the outcome of a request to the waiting sessions. A request that its client cancelled, or that failed by a fault of
/// that client, is left to the next session.
pub(crate) fn land(lead: Option<FetchLeader>, landed: FetchOutcome) {
    let is_of_client =
        |fault: &Fault| fault.kind == FaultKind::Cancelled || fault.side == FaultSide::Downstream;
    let given_up = matches!(&landed, FetchOutcome::Failed(fault) if is_of_client(fault));
    if let Some(lead) = lead.filter(|_| !given_up) {
        lead.complete(landed);
    }
}

/// A page on request: when the request began, and the state of change notices at that time.
#[derive(Debug)]
pub(crate) struct PageFetch {
    pub(super) number: EventNumber,
    asked: Instant,
    epoch: Option<u64>,
    declared: Arc<ServerDeclaration>,
    /// Whose page it will be.
    account: Account,
}

impl ListPages {
    /// Single-flight key of a page, if one request may answer several sessions: the conditions are those of
    /// [`may_adopt`](Self::may_adopt) for a cached page. With `lists.fresh = 0` each session sends its own
    /// request to a legacy upstream.
    pub(crate) fn flight_key(
        &self,
        session: &Session,
        place: ListPageKey<'_>,
    ) -> Option<SharedPageKey> {
        let key = self.links.knowledge_key(session, place.upstream);
        let modern = self.known_era(&key) == Some(Era::Modern);
        let lists = session.list_validity();
        let may = modern
            || !self.shared.fresh.is_zero()
                && (self.is_shared(session, place.upstream)
                    || place.cursor.is_some()
                    || lists.is_untouched(place.upstream, place.kind));
        may.then(|| SharedPageKey::new(self.catalog_key(session, place.upstream), place))
    }

    /// Opens the link and starts the clock of a page request. Change notices are set up first, so that no
    /// change between the reply and the subscription is missed.
    pub(crate) async fn begin_fetch(
        &self,
        link: &dyn UpstreamLink,
        session: &Session,
        place: ListPageKey<'_>,
    ) -> Result<PageFetch, Fault> {
        let (upstream, kind) = (place.upstream, place.kind);
        let declared = match link.declared() {
            Some(declared) => declared,
            None => link.open().await?,
        };
        if link.notice_feed().is_none() && declared.announces(kind.capability()) {
            link.prepare().await;
        }
        let epoch = link
            .notice_feed()
            .filter(|_| declared.announces(kind.capability()));
        Ok(PageFetch {
            number: EventNumber::next(),
            asked: Instant::now(),
            epoch,
            declared,
            account: self.links.upstreams.account(upstream, session.owner()),
        })
    }

    /// The answer to a request for a page, as it may be kept and shown.
    pub(crate) fn arrived(&self, reply: Reply, place: ListPageKey<'_>) -> Reply {
        connect_tool::in_page(&self.links, icons::in_page(reply, place), place)
    }

    /// Whether the account that a page was asked for with was replaced or removed meanwhile.
    fn is_of_another_account(
        &self,
        session: &Session,
        place: ListPageKey<'_>,
        fetch: &PageFetch,
    ) -> bool {
        let now = self
            .links
            .upstreams
            .account(place.upstream, session.owner());
        fetch.account != now
    }

    /// Caches a fetched page with its lifetime.
    pub(crate) fn keep(
        self: &Arc<Self>,
        session: &Arc<Session>,
        link: &dyn UpstreamLink,
        place: ListPageKey<'_>,
        fetch: PageFetch,
        message: &Message,
    ) -> Option<CachedPage> {
        COUNTERS.lists_misses.add(1);
        message.result_member(place.kind.member())?;
        if self.is_of_another_account(session, place, &fetch) {
            return None;
        }
        if place.kind == ListKind::Tools {
            warn_of_invalid(place.upstream, &fetch.declared, message);
        }
        self.kept
            .take(fetch.account, place, (&fetch.declared, message));
        let modern = fetch.declared.revision.era() == Era::Modern;
        let hints = CacheHints::read(message);
        let fresh = if modern {
            Duration::from_millis(hints.ttl_ms)
        } else {
            self.shared.freshness(fetch.asked)
        };
        let heard = fetch
            .epoch
            .filter(|_| !modern && !fresh.is_zero() && link.notice_feed() == fetch.epoch);
        let held = CachedPage {
            digest: self.shared.lists.keep(message),
            number: fetch.number,
            asked: fetch.asked,
            fresh,
            lasts: fresh.max(self.shared.fresh.saturating_mul(LENGTHENED)),
            outlives_calls: modern,
            epoch: heard,
            is_own: true,
            declared: fetch.declared,
        };
        self.remember(session, place, &held, hints);
        let cursor = place.cursor;
        session
            .list_validity()
            .hold(place.upstream, place.kind, cursor, held.clone());
        self.recheck_where_due(session, place, &held);
        if !fresh.is_zero() {
            let public = if modern {
                hints.scope == CacheScope::Public
            } else {
                self.is_shared(session, place.upstream)
            };
            let key = DeclarationKey {
                account: self.account_of(session, place.upstream, public),
                ..self.catalog_key(session, place.upstream)
            };
            let other = SharedPageKey::new(key, place);
            self.shared.insert(other, held.clone());
        }
        Some(held)
    }

    /// Joins the single-flight for a page, if its reply may answer this session. Where a change came during that request, the
    /// session joins the next one, once: the many sessions that are told of a change at once ask together again. So they do
    /// where the request failed, if all use one session of the upstream; where that fails too, it is the answer for all.
    ///
    /// # Errors
    /// The call was cancelled meanwhile, or the awaited request failed.
    ///
    /// # Cancel safety
    /// Dropping a follower affects no other session.
    pub(crate) async fn join_fetch(
        self: &Arc<Self>,
        call: &Call,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
    ) -> Result<FetchRole, Fault> {
        let (began, wanted) = (Instant::now(), EventNumber::next());
        let mut is_second = false;
        loop {
            let Some(key) = self.flight_key(session, place) else {
                return Ok(FetchRole::Ask(None));
            };
            let join = match self.flights.join(key.clone()) {
                single_flight::Joined::Lead(lead) => {
                    // One may have landed since the kept pages were looked at.
                    return Ok(match self.kept_page(session, place) {
                        Some((held, message)) => FetchRole::Page(held, message),
                        None => FetchRole::Ask(Some(lead)),
                    });
                }
                single_flight::Joined::Join(join) => join,
            };
            self.links.open_later(session, place.upstream);
            let landed = tokio::select! {
                landed = join.result() => landed,
                () = call.cancel.cancelled() => {
                    return Err(Fault::downstream(FaultKind::Cancelled, "the call was cancelled"));
                }
            };
            let Some(landed) = landed else { continue };
            let has_waited = began.elapsed() > self.asks_again(place.upstream);
            let is_common = self.is_shared(session, place.upstream);
            let is_over = has_waited || is_common && is_second;
            let joins_again = !is_second
                && match &landed {
                    FetchOutcome::Page(..) => true,
                    FetchOutcome::Failed(_) | FetchOutcome::Refused(_) => is_common,
                    FetchOutcome::Nothing => false,
                };
            let landed = match landed {
                FetchOutcome::Failed(fault) if is_over => return Err(fault.shared()),
                FetchOutcome::Refused(message) if is_over => {
                    return Ok(FetchRole::Refused(message));
                }
                FetchOutcome::Page(held, message) => Some((held, message)),
                FetchOutcome::Failed(_) | FetchOutcome::Refused(_) | FetchOutcome::Nothing => None,
            };
            let adopted = || {
                let (held, message) = landed?;
                let may = self.may_adopt(session, place, &held)
                    || is_second && self.is_as_good_as_own(session, place, &key, wanted, &held);
                may.then(|| (self.adopt(session, place, held), message))
            };
            // Prefer a page of this session to an adopted one.
            if let Some((held, message)) = self.kept_page(session, place).or_else(adopted) {
                COUNTERS.lists_joined.add(1);
                return Ok(FetchRole::Page(held, message));
            }
            if !joins_again {
                return Ok(FetchRole::Ask(None));
            }
            is_second = true;
        }
    }

    /// Whether a page, requested by another session with the same `key`, was requested after this session wanted one. So it is
    /// what this session would get if it asked by itself, also if another change came since: its client is told of that.
    fn is_as_good_as_own(
        &self,
        session: &Session,
        place: ListPageKey<'_>,
        key: &SharedPageKey,
        wanted: EventNumber,
        page: &CachedPage,
    ) -> bool {
        page.is_since(Some(wanted)) && self.flight_key(session, place).as_ref() == Some(key)
    }

    /// How long a session may have waited for another one's request and still ask for itself.
    fn asks_again(&self, upstream: &str) -> Duration {
        let settings = self.links.upstreams.settings(upstream);
        settings.map_or(Duration::MAX, |settings| {
            settings.idle_timeout.mul_f64(ASKS_AGAIN)
        })
    }

    /// The cached page that may answer this session now, with its bytes.
    pub(crate) fn kept_page(
        self: &Arc<Self>,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
    ) -> Option<(CachedPage, Message)> {
        let held = self.held(session, place)?;
        let page = self.page(&held)?;
        Some((held, page.message.clone()))
    }

    /// Requests a list page from an upstream and caches it; returns the reply, and the page on success.
    pub(crate) async fn ask_for_page(
        self: &Arc<Self>,
        permit: &Permit,
        link: &dyn UpstreamLink,
        call: &Call,
        session: &Arc<Session>,
        target: &UpstreamTarget,
        place: ListPageKey<'_>,
    ) -> (Result<Reply, Fault>, Option<(CachedPage, Message)>) {
        let fetch = match self.begin_fetch(link, session, place).await {
            Ok(fetch) => fetch,
            Err(fault) => return (Err(fault), None),
        };
        let reply = target.send(permit, link, call, self.edits).await;
        if self.is_of_another_account(session, place, &fetch) {
            return (Err(replaced(place.upstream)), None);
        }
        let reply = reply.map(|reply| self.arrived(reply, place));
        let page = match &reply {
            Ok(Reply::Relayed(message)) => self
                .keep(session, link, place, fetch, message)
                .map(|held| (held, message.clone())),
            _ => None,
        };
        (reply, page)
    }
}

/// The fault in place of a list whose account was replaced or removed during the request: no client sees that list.
fn replaced(upstream: &str) -> Fault {
    let text = format!(
        "the caller's account at upstream \"{upstream}\" was changed meanwhile: list again"
    );
    Fault::upstream(FaultKind::UpstreamUnavailable, text)
        .retry(RetryHint::After(Duration::from_secs(1)))
}
