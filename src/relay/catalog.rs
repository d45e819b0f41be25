//! `ListCatalog` caches the list pages of upstreams and decides which cached page may answer which session.
//! A session gets its own pages; a page of another session only if its own would be identical: same
//! principal, a legacy upstream with `isolation = "shared"`, or a page declared public.
//! Spec: DESIGN §5 ("Lists are kept…"); SPEC M-80…M-86; BRIDGING §5.4…§5.6.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;

use super::Relay;
use super::page_fetch::PageFetches;
use super::param_headers::warn_of_invalid;
use crate::call::{ClientCapabilities, ServerDeclaration, UpstreamLink};
use crate::config::{self, Isolation};
use crate::fault::Fault;
use crate::lock::lock;
use crate::protocol::methods::ListKind;
use crate::protocol::{Era, Message, Revision};
use crate::session::Session;
use crate::store::lists::{CachedPage, ListCache, ListPage};
use crate::telemetry::metrics::COUNTERS;
use crate::translate::project::{CacheHints, CacheScope};
use crate::upstream::account::Account;
use crate::upstream::declaration_cache::DeclarationKey;

/// Capacity of each cache of pages shared between sessions.
const OTHERS: u64 = 16_384;
/// Factor by which the lifetime of a list is extended while the upstream announces its changes.
const LENGTHENED: u32 = 3;
/// Longest lifetime of a page shared between sessions: the longest `ttlMs` an upstream may promise.
const LONGEST: Duration = Duration::from_hours(24);

/// When an upstream last said that its lists of a kind changed.
type NoticeTimes = BTreeMap<(Arc<str>, &'static str), Instant>;

/// The cached pages. Clones share one cache.
#[derive(Debug, Clone)]
pub(super) struct ListCatalog {
    pub(super) lists: ListCache,
    others: Cache<SharedPageKey, CachedPage>,
    /// Pages received by sessions before their first tool call or change notice: stale substitutes that
    /// answer while an upstream is late.
    untouched: Cache<SharedPageKey, CachedPage>,
    /// Time of the latest change notice per owner (`DeclarationKey`) and kind of list.
    changes: Cache<(DeclarationKey, &'static str), Instant>,
    /// Time of the latest change notice to any session; bounded by upstreams × kinds of lists.
    heard: Arc<Mutex<NoticeTimes>>,
    /// Single-flight for pages on request.
    pub(super) flights: PageFetches,
    fresh: Duration,
}

/// Cache key of a page that every session with the same `key` may use.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SharedPageKey {
    key: DeclarationKey,
    kind: ListKind,
    cursor: Option<Box<str>>,
}

impl SharedPageKey {
    fn new(key: DeclarationKey, place: ListPageKey<'_>) -> Self {
        Self {
            key,
            kind: place.kind,
            cursor: place.cursor.map(Into::into),
        }
    }
}

/// A page on request: when the request began, and the state of change notices at that time.
#[derive(Debug)]
pub(super) struct PageFetch {
    pub(super) asked: Instant,
    epoch: Option<u64>,
    declared: Arc<ServerDeclaration>,
}

/// Identifies one page: upstream, kind of list and cursor.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListPageKey<'a> {
    pub(super) upstream: &'a Arc<str>,
    pub(super) kind: ListKind,
    /// JSON text of the upstream's cursor.
    pub(super) cursor: Option<&'a str>,
}

impl ListCatalog {
    pub(super) fn new(settings: &config::ListsConfig) -> Self {
        Self {
            lists: ListCache::new(settings.total),
            others: Cache::builder()
                .max_capacity(OTHERS)
                .time_to_live(LONGEST)
                .build(),
            untouched: Cache::builder()
                .max_capacity(OTHERS)
                .time_to_live(LONGEST)
                .build(),
            changes: Cache::builder()
                .max_capacity(OTHERS)
                .time_to_live(LONGEST)
                .build(),
            heard: Arc::default(),
            flights: PageFetches::default(),
            fresh: settings.fresh,
        }
    }

    /// Records a change notice for `what` that an upstream sent to the sessions behind `key`.
    pub(super) fn changed(&self, key: &DeclarationKey, what: &'static str) {
        self.changed_at(key, what, Instant::now());
    }

    /// Records a change found by comparing with a list requested after `at`: that newer list stays valid.
    pub(super) fn changed_at(&self, key: &DeclarationKey, what: &'static str, at: Instant) {
        let heard = (Arc::clone(&key.upstream), what);
        lock(&self.heard)
            .entry(heard)
            .and_modify(|known| *known = at.max(*known))
            .or_insert(at);
        // Also under `Account::Common`: `catalog_key` drops the owner of a shared legacy upstream only once its
        // era is known, which is after the first session opened it.
        let shared = DeclarationKey {
            account: Account::Common,
            ..key.clone()
        };
        for key in [shared, key.clone()] {
            let about = (key, what);
            let known = self.changes.get(&about);
            self.changes
                .insert(about, known.max(Some(at)).unwrap_or(at));
        }
    }

    /// A cached page of another session, if it is fresh and no change was announced since its request.
    pub(super) fn other(&self, key: DeclarationKey, place: ListPageKey<'_>) -> Option<CachedPage> {
        let changed = self.changes.get(&(key.clone(), place.kind.capability()));
        let other = self.others.get(&SharedPageKey::new(key, place))?;
        let calm = changed.is_none_or(|changed| other.asked > changed);
        (calm && other.asked.elapsed() < other.fresh).then_some(other)
    }

    /// Lifetime of a legacy list requested at `asked` and received now. The request time is added, or a
    /// slow list would be expired on arrival (lifetimes count from `asked`).
    fn freshness(&self, asked: Instant) -> Duration {
        if self.fresh.is_zero() {
            return self.fresh;
        }
        self.fresh.saturating_add(asked.elapsed())
    }

    /// Whether no change notice to any session has made a page stale. Lists of a modern upstream belong to
    /// no session, so a notice to one session counts for all (SPEC M-85).
    fn is_calm(&self, place: ListPageKey<'_>, held: &CachedPage) -> bool {
        if !held.outlives_calls {
            return true;
        }
        let about = (Arc::clone(place.upstream), place.kind.capability());
        let heard = lock(&self.heard).get(&about).copied();
        heard.is_none_or(|heard| held.asked > heard)
    }
}

impl Relay {
    /// The cached page that may answer this session now.
    pub(super) fn held(
        &self,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
    ) -> Option<CachedPage> {
        let own = session
            .list_validity()
            .current(place.upstream, place.kind, place.cursor, || {
                session.link(place.upstream)?.notice_feed()
            });
        let Some(current) = own.filter(|own| self.catalog.is_calm(place, &own.held)) else {
            return self.adopted(session, place);
        };
        if current.is_due {
            self.recheck_aged(session, place, &current.held);
        }
        Some(current.held)
    }

    /// Adopts a cached page of another session: on a shared upstream always, on a modern one within the
    /// page's lifetime, otherwise only as the first list of this session.
    fn adopted(&self, session: &Arc<Session>, place: ListPageKey<'_>) -> Option<CachedPage> {
        let may = |held: &CachedPage| self.may_adopt(session, place, held);
        let private = self.catalog_key(session, place.upstream);
        let public = DeclarationKey {
            account: Account::Common,
            ..private.clone()
        };
        let found = [private, public]
            .into_iter()
            .find_map(|key| self.catalog.other(key, place).filter(&may))?;
        Some(self.adopt(session, place, found))
    }

    /// Whether a cached page of another session may answer this session.
    pub(super) fn may_adopt(
        &self,
        session: &Session,
        place: ListPageKey<'_>,
        held: &CachedPage,
    ) -> bool {
        let known = session.list_validity();
        if held.outlives_calls || self.is_shared(session, place.upstream) {
            let by_calls = !held.outlives_calls;
            let disturbed = known.disturbed(place.upstream, place.kind, by_calls);
            disturbed.is_none_or(|at| held.asked > at) && self.catalog.is_calm(place, held)
        } else {
            known.is_untouched(place.upstream, place.kind) || place.cursor.is_some()
        }
    }

    /// Records a page of another session in the list validity of this session, as if this session had fetched it.
    pub(super) fn adopt(
        &self,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
        found: CachedPage,
    ) -> CachedPage {
        let held = CachedPage {
            epoch: None,
            is_own: false,
            ..found
        };
        let cursor = place.cursor;
        session
            .list_validity()
            .hold(place.upstream, place.kind, cursor, held.clone());
        self.recheck_where_due(session, place, &held);
        self.open_later(session, place.upstream);
        held
    }

    /// Opens an upstream in the background for a session answered from another session's page, so that
    /// change notices reach the session as if it had sent the list request.
    pub(super) fn open_later(&self, session: &Arc<Session>, upstream: &Arc<str>) {
        if let Ok(link) = self.link(session, upstream)
            && link.declared().is_none()
        {
            self.parts.tasks.spawn_service(async move {
                drop(link.open().await);
            });
        }
    }

    /// Single-flight key of a page, if one request may answer several sessions: the conditions are those of
    /// [`may_adopt`](Self::may_adopt) for a cached page. With `lists.fresh = 0` each session sends its own
    /// request to a legacy upstream.
    pub(super) fn flight_key(
        &self,
        session: &Session,
        place: ListPageKey<'_>,
    ) -> Option<SharedPageKey> {
        let key = self.knowledge_key(session, place.upstream);
        let modern = self.known_era(&key) == Some(Era::Modern);
        let lists = session.list_validity();
        let may = modern
            || !self.catalog.fresh.is_zero()
                && (self.is_shared(session, place.upstream)
                    || place.cursor.is_some()
                    || lists.is_untouched(place.upstream, place.kind));
        may.then(|| SharedPageKey::new(self.catalog_key(session, place.upstream), place))
    }

    /// Opens the link and starts the clock of a page request. Change notices are set up first, so that no
    /// change between the reply and the subscription is missed.
    pub(super) async fn begin_fetch(
        &self,
        link: &dyn UpstreamLink,
        kind: ListKind,
    ) -> Result<PageFetch, Fault> {
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
            asked: Instant::now(),
            epoch,
            declared,
        })
    }

    /// Caches a fetched page with its lifetime.
    pub(super) fn keep(
        &self,
        session: &Arc<Session>,
        link: &dyn UpstreamLink,
        place: ListPageKey<'_>,
        fetch: PageFetch,
        message: &Message,
    ) -> Option<CachedPage> {
        COUNTERS.lists_misses.add(1);
        message.result_member(place.kind.member())?;
        if place.kind == ListKind::Tools {
            warn_of_invalid(place.upstream, &fetch.declared, message);
        }
        let modern = fetch.declared.revision.era() == Era::Modern;
        let hints = CacheHints::read(message);
        let fresh = if modern {
            Duration::from_millis(hints.ttl_ms)
        } else {
            self.catalog.freshness(fetch.asked)
        };
        let heard = fetch
            .epoch
            .filter(|_| !modern && !fresh.is_zero() && link.notice_feed() == fetch.epoch);
        let held = CachedPage {
            digest: self.catalog.lists.keep(message),
            asked: fetch.asked,
            fresh,
            lasts: fresh.max(self.catalog.fresh.saturating_mul(LENGTHENED)),
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
                account: account_of(session, public),
                ..self.catalog_key(session, place.upstream)
            };
            let other = SharedPageKey::new(key, place);
            self.catalog.others.insert(other, held.clone());
        }
        Some(held)
    }

    /// Caches a page in `untouched`, for sessions whose upstream is late. Legacy: only a page fetched before the
    /// session's first tool call or change notice, for all sessions with the same credentials and capabilities.
    /// Modern: public pages for the same sessions, private ones for the principal (SPEC M-82).
    fn remember(
        &self,
        session: &Session,
        place: ListPageKey<'_>,
        held: &CachedPage,
        hints: CacheHints,
    ) {
        let key = self.knowledge_key(session, place.upstream);
        let key = if !held.outlives_calls {
            let known = session.list_validity();
            if known.disturbed(place.upstream, place.kind, true).is_some() {
                return;
            }
            key
        } else if hints.scope == CacheScope::Public {
            key
        } else {
            DeclarationKey {
                account: Account::Principal(session.owner()),
                ..key
            }
        };
        let page = SharedPageKey::new(key, place);
        self.catalog.untouched.insert(page, held.clone());
    }

    /// A page [remembered](Self::remember) for sessions like this one, or for a session without capabilities:
    /// any client may use a list made for a client without capabilities.
    pub(super) fn known_elsewhere(
        &self,
        session: &Session,
        place: ListPageKey<'_>,
    ) -> Option<CachedPage> {
        let alike = self.knowledge_key(session, place.upstream);
        let own = DeclarationKey {
            account: Account::Principal(session.owner()),
            ..alike.clone()
        };
        let plain = DeclarationKey {
            offer: Revision::LATEST_LEGACY,
            capabilities: ClientCapabilities::none().fingerprint(),
            ..alike.clone()
        };
        let mut keys = [own, alike, plain].into_iter();
        keys.find_map(|key| self.catalog.untouched.get(&SharedPageKey::new(key, place)))
    }

    /// The page behind `held`, unless its bytes were evicted.
    pub(super) fn page(&self, held: &CachedPage) -> Option<Arc<ListPage>> {
        self.catalog.lists.page(&held.digest)
    }

    /// Cache key of the lists of this session: private to its principal, except on a legacy upstream with
    /// `isolation = "shared"`. A modern upstream declares by itself which lists are public (SPEC M-82).
    pub(super) fn catalog_key(&self, session: &Session, upstream: &Arc<str>) -> DeclarationKey {
        let key = self.knowledge_key(session, upstream);
        let all = self.is_shared(session, upstream) && self.known_era(&key) == Some(Era::Legacy);
        DeclarationKey {
            account: account_of(session, all),
            ..key
        }
    }

    fn known_era(&self, key: &DeclarationKey) -> Option<Era> {
        Some(self.declarations.last(key)?.revision.era())
    }

    /// Whether all principals get the same of an upstream, over one session.
    fn is_shared(&self, session: &Session, upstream: &str) -> bool {
        let upstreams = &self.parts.upstreams;
        let settings = upstreams.settings(upstream);
        settings.is_some_and(|settings| settings.isolation == Isolation::Shared)
            && upstreams.account(upstream, session.owner()) == Account::Common
    }
}

/// The account of a cached list: the principal's, unless the list is public.
fn account_of(session: &Session, public: bool) -> Account {
    if public {
        Account::Common
    } else {
        Account::Principal(session.owner())
    }
}
