//! `SharedPages`: the pages that sessions share, and when upstreams last said that they changed.
//! Spec: DESIGN §5 ("Lists are kept…"); SPEC M-80…M-86.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;

use crate::catalog::page_key::{ListPageKey, SharedPageKey};
use crate::config;
use crate::lock::lock;
use crate::store::lists::{CachedPage, ListCache};
use crate::upstream::account::Account;
use crate::upstream::declaration_cache::DeclarationKey;

/// Capacity of each cache of pages shared between sessions.
const OTHERS: u64 = 16_384;
/// Longest lifetime of a page shared between sessions: the longest `ttlMs` an upstream may promise.
const LONGEST: Duration = Duration::from_hours(24);

/// When an upstream last said that its lists of a kind changed.
type NoticeTimes = BTreeMap<(Arc<str>, &'static str), Instant>;

/// The pages of all sessions. Clones share one cache.
#[derive(Debug, Clone)]
pub(crate) struct SharedPages {
    pub(crate) lists: ListCache,
    pub(super) others: Cache<SharedPageKey, CachedPage>,
    /// Pages received by sessions before their first tool call or change notice: stale substitutes that
    /// answer while an upstream is late.
    pub(super) untouched: Cache<SharedPageKey, CachedPage>,
    /// Time of the latest change notice per owner (`DeclarationKey`) and kind of list.
    changes: Cache<(DeclarationKey, &'static str), Instant>,
    /// Time of the latest change notice to any session; bounded by upstreams × kinds of lists.
    heard: Arc<Mutex<NoticeTimes>>,
    /// `lists.fresh`.
    pub(super) fresh: Duration,
}

impl SharedPages {
    pub(crate) fn new(settings: &config::ListsConfig) -> Self {
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
            fresh: settings.fresh,
        }
    }

    /// Records a change notice for `what` that an upstream sent to the sessions behind `key`.
    pub(crate) fn changed(&self, key: &DeclarationKey, what: &'static str) {
        self.changed_at(key, what, Instant::now());
    }

    /// Records a change found by comparing with a list requested after `at`: that newer list stays valid.
    pub(crate) fn changed_at(&self, key: &DeclarationKey, what: &'static str, at: Instant) {
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
    pub(crate) fn other(&self, key: DeclarationKey, place: ListPageKey<'_>) -> Option<CachedPage> {
        let changed = self.changes.get(&(key.clone(), place.kind.capability()));
        let other = self.others.get(&SharedPageKey::new(key, place))?;
        let calm = changed.is_none_or(|changed| other.asked > changed);
        (calm && other.asked.elapsed() < other.fresh).then_some(other)
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
        if !held.outlives_calls {
            return true;
        }
        let about = (Arc::clone(place.upstream), place.kind.capability());
        let heard = lock(&self.heard).get(&about).copied();
        heard.is_none_or(|heard| held.asked > heard)
    }
}
