//! `SharedPages`: the pages that sessions share, and the last change of each list. A change that one session hears of ends
//! the pages of all sessions with its account at a legacy upstream, whatever their clients declare, and those of all
//! sessions at a modern one, whose lists belong to no session. The session that was told may have ended.
//! Spec: DESIGN §5 ("Lists are kept…"); SPEC M-80…M-86.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;

use crate::catalog::page_key::{ListPageKey, SharedPageKey};
use crate::config;
use crate::lock::lock;
use crate::store::lists::{CachedPage, ListCache};
use crate::sync::event_number::EventNumber;
use crate::upstream::account::Account;
use crate::upstream::declaration_cache::DeclarationKey;

/// Capacity of each cache of pages shared between sessions.
const OTHERS: u64 = 16_384;
/// Longest lifetime of a page shared between sessions: the longest `ttlMs` an upstream may promise.
const LONGEST: Duration = Duration::from_hours(24);

/// Slots that accounts share by their hash. Accounts that share one end each other's legacy pages: each costs a request.
const SLOTS: u64 = 64;

/// The last change of an upstream's lists of a kind: of the accounts of a slot, and of any account for `None`. Bounded by
/// upstreams × kinds of lists × (`SLOTS` + 1).
type LastChanges = BTreeMap<(Arc<str>, &'static str, Option<u64>), EventNumber>;

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

    /// Records that a session of `account` heard of a change of the upstream's `what` by the event `at`.
    pub(crate) fn record(
        &self,
        upstream: &Arc<str>,
        account: Account,
        what: &'static str,
        at: EventNumber,
    ) {
        let mut changes = lock(&self.changes);
        for slot in [None, Some(slot(account))] {
            let last = changes.entry((Arc::clone(upstream), what, slot));
            let last = last.or_insert(at);
            *last = at.max(*last);
        }
    }

    /// Keeps a page for other sessions, unless a page is there that was requested later.
    pub(super) fn insert(&self, key: SharedPageKey, page: CachedPage) {
        self.others
            .entry(key)
            .and_upsert_with(|present| match present {
                Some(present) if present.value().number > page.number => present.into_value(),
                _ => page,
            });
    }

    /// A cached page of another session, if it is fresh and no change was announced since its request.
    pub(crate) fn other(&self, key: DeclarationKey, place: ListPageKey<'_>) -> Option<CachedPage> {
        let account = key.account;
        let other = self.others.get(&SharedPageKey::new(key, place))?;
        let is_fresh = other.asked.elapsed() < other.fresh;
        (is_fresh && self.is_unchanged(place, account, &other)).then_some(other)
    }

    /// Lifetime of a legacy list requested at `asked` and received now. The request time is added, or a
    /// slow list would be expired on arrival (lifetimes count from `asked`).
    pub(super) fn freshness(&self, asked: Instant) -> Duration {
        if self.fresh.is_zero() {
            return self.fresh;
        }
        self.fresh.saturating_add(asked.elapsed())
    }

    /// Whether no change that any session heard of has made the page of a session's own stale. A legacy page ends by what
    /// its own session hears. Lists of a modern upstream belong to no session, so a notice to one counts for all (SPEC
    /// M-85).
    pub(super) fn is_calm(&self, place: ListPageKey<'_>, held: &CachedPage) -> bool {
        !held.outlives_calls || self.is_unchanged(place, Account::Common, held)
    }

    /// Whether no change was recorded since the request of a page that sessions of `account` may share.
    pub(super) fn is_unchanged(
        &self,
        place: ListPageKey<'_>,
        account: Account,
        page: &CachedPage,
    ) -> bool {
        let slot = (!page.outlives_calls).then(|| slot(account));
        let list = (Arc::clone(place.upstream), place.kind.capability(), slot);
        page.is_since(lock(&self.changes).get(&list).copied())
    }
}

fn slot(account: Account) -> u64 {
    let mut hasher = DefaultHasher::new();
    account.hash(&mut hasher);
    hasher.finish() % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::samples::{declared, owner};
    use crate::protocol::Revision;
    use crate::protocol::methods::ListKind;

    const REVISION: Revision = Revision::LATEST_LEGACY;

    fn pages() -> SharedPages {
        SharedPages::new(&config::ListsConfig {
            fresh: LONGEST,
            total: 1 << 20,
            ttl: LONGEST,
        })
    }

    fn page(number: EventNumber) -> CachedPage {
        CachedPage {
            digest: [7; 32],
            number,
            asked: Instant::now(),
            fresh: LONGEST,
            lasts: LONGEST,
            outlives_calls: false,
            epoch: None,
            is_own: true,
            declared: declared(REVISION, "{}"),
        }
    }

    // The session with other capabilities that might have been told may be over.
    #[tokio::test(start_paused = true)]
    async fn change_ends_shared_pages_requested_before_it() {
        let pages = pages();
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
                pages.insert(key, page(number));
            }
        };
        let good = || {
            keys.iter()
                .filter(|key| pages.other((*key).clone(), place).is_some())
                .count()
        };
        let before = EventNumber::next();
        insert(before);
        pages.record(&up, Account::Common, "prompts", EventNumber::next());
        assert_eq!(good(), 2);
        let (first, second) = (EventNumber::next(), EventNumber::next());
        // Two threads may record two changes in the other order.
        pages.record(&up, Account::Common, "tools", second);
        pages.record(&up, Account::Common, "tools", first);
        assert_eq!(good(), 0);
        insert(first);
        assert_eq!(good(), 0, "the second change came later");
        insert(EventNumber::next());
        assert_eq!(good(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn change_of_one_account_ends_no_legacy_pages_of_others() {
        let pages = pages();
        let up: Arc<str> = "up".into();
        let place = ListPageKey::new(&up, ListKind::Tools, None);
        let account = |id: usize| Account::Principal(owner(&id.to_string()));
        let accounts: Vec<_> = (0..32).map(account).collect();
        let (changed, other) = accounts
            .iter()
            .flat_map(|one| accounts.iter().map(move |two| (*one, *two)))
            .find(|(one, two)| slot(*one) != slot(*two))
            .unwrap();
        let legacy = page(EventNumber::next());
        let modern = CachedPage {
            outlives_calls: true,
            ..legacy.clone()
        };
        pages.record(&up, changed, "tools", EventNumber::next());
        assert!(!pages.is_unchanged(place, changed, &legacy));
        assert!(pages.is_unchanged(place, other, &legacy));
        assert!(
            !pages.is_unchanged(place, other, &modern),
            "it belongs to no session"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn slow_answer_replaces_no_later_page() {
        let pages = pages();
        let up: Arc<str> = "up".into();
        let key = |capabilities| {
            let key = DeclarationKey {
                upstream: Arc::clone(&up),
                offer: REVISION,
                capabilities,
                account: Account::Common,
            };
            SharedPageKey::new(key, ListPageKey::new(&up, ListKind::Tools, None))
        };
        let [first, second] = [(); 2].map(|()| page(EventNumber::next()));
        pages.insert(key(1), second.clone());
        pages.insert(key(1), first.clone());
        assert_eq!(pages.others.get(&key(1)).unwrap().number, second.number);
        pages.insert(key(2), first);
        pages.insert(key(2), second.clone());
        assert_eq!(pages.others.get(&key(2)).unwrap().number, second.number);
    }
}
