//! `SharedPages`: the pages that sessions share, and the last change of each list. A change that one session hears of ends
//! the shared pages of all: whose lists changed is not known, and a session that was told may have ended.
//! Spec: DESIGN §5 ("Lists are kept…"); SPEC M-80…M-86.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;

use crate::catalog::page_key::{ListPageKey, SharedPageKey};
use crate::config;
use crate::lock::lock;
use crate::session::Session;
use crate::store::lists::{CachedPage, ListCache};
use crate::sync::event_number::EventNumber;
use crate::upstream::declaration_cache::DeclarationKey;

/// Capacity of each cache of pages shared between sessions.
const OTHERS: u64 = 16_384;
/// Longest lifetime of a page shared between sessions: the longest `ttlMs` an upstream may promise.
const LONGEST: Duration = Duration::from_hours(24);

/// The last change of an upstream's lists of a kind; bounded by upstreams × kinds of lists.
type LastChanges = BTreeMap<(Arc<str>, &'static str), EventNumber>;

/// The pages of all sessions. Clones share one cache.
#[derive(Debug, Clone)]
pub(crate) struct SharedPages {
    pub(crate) lists: ListCache,
    pub(super) others: Cache<SharedPageKey, CachedPage>,
    /// Pages received by sessions before their first tool call or change notice: stale substitutes that
    /// answer while an upstream is late.
    pub(super) untouched: Cache<SharedPageKey, CachedPage>,
    /// As any session heard of them.
    changes: Arc<Mutex<LastChanges>>,
    /// `lists.fresh`.
    pub(super) fresh: Duration,
}

impl SharedPages {
    pub(crate) fn new(settings: &config::ListsConfig) -> Self {
        let pages = || {
            Cache::builder()
                .max_capacity(OTHERS)
                .time_to_live(LONGEST)
                .build()
        };
        Self {
            lists: ListCache::new(settings.total),
            others: pages(),
            untouched: pages(),
            changes: Arc::default(),
            fresh: settings.fresh,
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
        self.record(upstream, what, at);
    }

    fn record(&self, upstream: &Arc<str>, what: &'static str, at: EventNumber) {
        let mut changes = lock(&self.changes);
        let last = changes.entry((Arc::clone(upstream), what)).or_insert(at);
        *last = at.max(*last);
    }

    /// A cached page of another session, if it is fresh and no change was announced since its request.
    pub(crate) fn other(&self, key: DeclarationKey, place: ListPageKey<'_>) -> Option<CachedPage> {
        let other = self.others.get(&SharedPageKey::new(key, place))?;
        let is_fresh = other.asked.elapsed() < other.fresh;
        (is_fresh && other.is_since(self.last_change(place))).then_some(other)
    }

    /// Lifetime of a legacy list requested at `asked` and received now. The request time is added, or a
    /// slow list would be expired on arrival (lifetimes count from `asked`).
    pub(super) fn freshness(&self, asked: Instant) -> Duration {
        if self.fresh.is_zero() {
            return self.fresh;
        }
        self.fresh.saturating_add(asked.elapsed())
    }

    /// Whether no change notice to any session has made a page stale. Lists of a modern upstream belong to
    /// no session, so a notice to one session counts for all (SPEC M-85).
    pub(super) fn is_calm(&self, place: ListPageKey<'_>, held: &CachedPage) -> bool {
        !held.outlives_calls || held.is_since(self.last_change(place))
    }

    fn last_change(&self, place: ListPageKey<'_>) -> Option<EventNumber> {
        let list = (Arc::clone(place.upstream), place.kind.capability());
        lock(&self.changes).get(&list).copied()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::call::ServerDeclaration;
    use crate::protocol::Revision;
    use crate::protocol::methods::ListKind;
    use crate::upstream::account::Account;

    const REVISION: Revision = Revision::LATEST_LEGACY;

    fn page(number: EventNumber) -> CachedPage {
        let text = || Bytes::from_static(b"{}");
        CachedPage {
            digest: [7; 32],
            number,
            asked: Instant::now(),
            fresh: LONGEST,
            lasts: LONGEST,
            outlives_calls: false,
            epoch: None,
            is_own: true,
            declared: Arc::new(ServerDeclaration::new(REVISION, text(), text(), None)),
        }
    }

    // The session with other capabilities that might have been told may be over.
    #[tokio::test(start_paused = true)]
    async fn change_ends_shared_pages_requested_before_it() {
        let pages = SharedPages::new(&config::ListsConfig {
            fresh: LONGEST,
            total: 1 << 20,
            ttl: LONGEST,
        });
        let up: Arc<str> = "up".into();
        let place = ListPageKey::new(&up, ListKind::Tools, None);
        let keys = [1, 2].map(|capabilities| DeclarationKey {
            upstream: Arc::clone(&up),
            offer: REVISION,
            capabilities,
            account: Account::Common,
        });
        let insert = |number| {
            for key in &keys {
                let key = SharedPageKey::new(key.clone(), place);
                pages.others.insert(key, page(number));
            }
        };
        let good = || {
            keys.iter()
                .filter(|key| pages.other((*key).clone(), place).is_some())
                .count()
        };
        let before = EventNumber::next();
        insert(before);
        pages.record(&up, "prompts", EventNumber::next());
        assert_eq!(good(), 2);
        let (first, second) = (EventNumber::next(), EventNumber::next());
        // Two threads may record two changes in the other order.
        pages.record(&up, "tools", second);
        pages.record(&up, "tools", first);
        assert_eq!(good(), 0);
        insert(first);
        assert_eq!(good(), 0, "the second change came later");
        insert(EventNumber::next());
        assert_eq!(good(), 2);
    }
}
