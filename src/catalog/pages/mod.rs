//! `ListPages` caches the list pages of upstreams and decides which cached page may answer which session.
//! A session gets its own pages; a page of another session only if its own would be identical: same
//! principal, a legacy upstream with `isolation = "shared"`, or a page declared public.
//! Spec: DESIGN §5 ("Lists are kept…"); SPEC M-80…M-86; BRIDGING §5.4…§5.6.

mod fetch;
mod revalidate;
mod shared;

use std::sync::Arc;

use self::fetch::PageFetches;
pub(crate) use self::fetch::{FetchLeader, FetchOutcome, FetchRole, land};
pub(crate) use self::shared::SharedPages;
use super::kept_lists::KeptLists;
use super::page_key::{ListPageKey, SharedPageKey};
use crate::call::{ClientCapabilities, OwnerKey};
use crate::config::{self, Isolation};
use crate::outbound::{EditDepth, SessionLinks};
use crate::protocol::{Era, Revision};
use crate::session::Session;
use crate::store::lists::{CachedPage, ListPage};
use crate::sync::event_number::EventNumber;
use crate::sync::fair_permits::FairPermits;
use crate::translate::project::{CacheHints, CacheScope};
use crate::upstream::account::Account;
use crate::upstream::declaration_cache::DeclarationKey;

/// List pages of upstreams, and which of them may answer a session.
#[derive(Debug)]
pub(crate) struct ListPages {
    pub(super) links: Arc<SessionLinks>,
    pub(super) edits: EditDepth,
    pub(crate) shared: SharedPages,
    /// Single-flight for pages on request.
    flights: PageFetches,
    /// For lists that are looked at again.
    rechecks: Arc<FairPermits<OwnerKey>>,
    kept: Arc<KeptLists>,
}

impl ListPages {
    pub(super) fn new(
        links: Arc<SessionLinks>,
        edits: EditDepth,
        settings: &config::ListsConfig,
        kept: Arc<KeptLists>,
    ) -> Self {
        Self {
            links,
            edits,
            shared: SharedPages::new(settings),
            flights: PageFetches::default(),
            rechecks: FairPermits::new(revalidate::AT_ONCE),
            kept,
        }
    }

    /// The cached page that may answer this session now.
    pub(crate) fn held(
        self: &Arc<Self>,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
    ) -> Option<CachedPage> {
        let own = session
            .list_validity()
            .current(place.upstream, place.kind, place.cursor, || {
                session.links().get(place.upstream)?.notice_feed()
            });
        let Some(current) = own.filter(|own| self.shared.is_calm(place, &own.held)) else {
            return self.adopted(session, place);
        };
        if current.is_due {
            self.recheck_aged(session, place, &current.held);
        }
        Some(current.held)
    }

    /// Adopts a cached page of another session: on a shared upstream always, on a modern one within the
    /// page's lifetime, otherwise only as the first list of this session.
    fn adopted(
        self: &Arc<Self>,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
    ) -> Option<CachedPage> {
        let may = |held: &CachedPage| self.may_adopt(session, place, held);
        let private = self.catalog_key(session, place.upstream);
        let public = DeclarationKey {
            account: Account::Common,
            ..private.clone()
        };
        let found = [private, public]
            .into_iter()
            .find_map(|key| self.shared.other(key, place).filter(&may))?;
        Some(self.adopt(session, place, found))
    }

    /// A page of another session that the upstream called public, and that is still good.
    pub(super) fn public_page(
        &self,
        session: &Session,
        place: ListPageKey<'_>,
    ) -> Option<CachedPage> {
        let key = DeclarationKey {
            account: Account::Common,
            ..self.links.knowledge_key(session, place.upstream)
        };
        self.shared.other(key, place)
    }

    /// Whether a cached page of another session may answer this session.
    pub(crate) fn may_adopt(
        &self,
        session: &Session,
        place: ListPageKey<'_>,
        held: &CachedPage,
    ) -> bool {
        let known = session.list_validity();
        let account = self.catalog_key(session, place.upstream).account;
        if !self.shared.is_unchanged(place, account, held) {
            false
        } else if held.outlives_calls || self.is_shared(session, place.upstream) {
            let by_calls = !held.outlives_calls;
            held.is_since(known.disturbed(place.upstream, place.kind, by_calls))
        } else {
            known.is_untouched(place.upstream, place.kind) || place.cursor.is_some()
        }
    }

    /// Records a change of the upstream's `what` that `session` heard of; see [`ListValidity::changed`].
    ///
    /// [`ListValidity::changed`]: crate::session::ListValidity::changed
    pub(crate) fn changed(
        &self,
        session: &Session,
        upstream: &Arc<str>,
        what: &'static str,
        at: EventNumber,
    ) {
        session.list_validity().changed(upstream, what, at);
        let account = self.catalog_key(session, upstream).account;
        self.shared.record(upstream, account, what, at);
    }

    /// Records a page of another session in the list validity of this session, as if this session had fetched it.
    pub(crate) fn adopt(
        self: &Arc<Self>,
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
        self.links.open_later(session, place.upstream);
        held
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
        let key = self.links.knowledge_key(session, place.upstream);
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
                account: key.account.private_to(session.owner()),
                ..key
            }
        };
        let page = SharedPageKey::new(key, place);
        self.shared.untouched.insert(page, held.clone());
    }

    /// A page [remembered](Self::remember) for sessions like this one, or for a session without capabilities:
    /// any client may use a list made for a client without capabilities.
    pub(crate) fn known_elsewhere(
        &self,
        session: &Session,
        place: ListPageKey<'_>,
    ) -> Option<CachedPage> {
        let alike = self.links.knowledge_key(session, place.upstream);
        let own = DeclarationKey {
            account: alike.account.private_to(session.owner()),
            ..alike.clone()
        };
        let plain = DeclarationKey {
            offer: Revision::LATEST_LEGACY,
            capabilities: ClientCapabilities::none().fingerprint(),
            ..alike.clone()
        };
        let mut keys = [own, alike, plain].into_iter();
        keys.find_map(|key| self.shared.untouched.get(&SharedPageKey::new(key, place)))
    }

    /// The page behind `held`, unless its bytes were evicted.
    pub(crate) fn page(&self, held: &CachedPage) -> Option<Arc<ListPage>> {
        self.shared.lists.page(&held.digest)
    }

    /// Cache key of the lists of this session: private to its principal, except on a legacy upstream with
    /// `isolation = "shared"`. A modern upstream declares by itself which lists are public (SPEC M-82).
    fn catalog_key(&self, session: &Session, upstream: &Arc<str>) -> DeclarationKey {
        let key = self.links.knowledge_key(session, upstream);
        let all = self.is_shared(session, upstream) && self.known_era(&key) == Some(Era::Legacy);
        DeclarationKey {
            account: self.account_of(session, upstream, all),
            ..key
        }
    }

    /// The account of a cached list: the principal's, unless the list is public.
    fn account_of(&self, session: &Session, upstream: &str, public: bool) -> Account {
        let owner = session.owner();
        if public {
            Account::Common
        } else {
            let account = self.links.upstreams.account(upstream, owner);
            account.private_to(owner)
        }
    }

    fn known_era(&self, key: &DeclarationKey) -> Option<Era> {
        Some(self.links.declarations.last(key)?.revision.era())
    }

    /// Whether all principals get the same of an upstream, over one session.
    fn is_shared(&self, session: &Session, upstream: &str) -> bool {
        let upstreams = &self.links.upstreams;
        let settings = upstreams.settings(upstream);
        settings.is_some_and(|settings| settings.isolation == Isolation::Shared)
            && upstreams.account(upstream, session.owner()) == Account::Common
    }
}
