//! `AnonymousLists`: the lists that upstreams with accounts of callers give without an account. The gateway requests them
//! in a session of its own, with the configured headers alone, and caches the answer for five minutes, also an empty one
//! or a refusal. After another failure it asks again soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;

use super::kept_lists::{KeptList, KeptLists};
use super::warm::OwnLister;
use crate::cause::chain;
use crate::config::CarrierConfig;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind, RetryHint};
use crate::protocol::methods::ListKind;
use crate::sync::single_flight::{Joined, SingleFlight};

/// For how long an answer is believed.
const BELIEVED: Duration = Duration::from_mins(5);
/// Pause after a failure that is no answer; doubled by each further one, up to [`BELIEVED`].
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// For the handshake and all lists.
const LIMIT: Duration = Duration::from_secs(30);
/// Upstreams whose answers are remembered.
const MAX_UPSTREAMS: u64 = 10_000;

/// The lists of one upstream. Cloning shares them.
#[derive(Debug, Clone)]
struct FoundLists {
    lists: Arc<Vec<(ListKind, KeptList)>>,
    /// When the upstream is asked again.
    until: Instant,
    /// Failures in a row that were no answer.
    failures: u32,
}

impl FoundLists {
    /// An answer about each list.
    fn answered(lists: Vec<(ListKind, KeptList)>) -> Self {
        Self {
            lists: Arc::new(lists),
            until: Instant::now() + BELIEVED,
            failures: 0,
        }
    }

    /// `lists` after a failure, with those of `before` that are missing.
    fn failed(mut lists: Vec<(ListKind, KeptList)>, before: Option<&Self>) -> Self {
        for (kind, list) in before.iter().flat_map(|before| &*before.lists) {
            if !lists.iter().any(|(found, _)| found == kind) {
                lists.push((*kind, list.clone()));
            }
        }
        let failures = before.map_or(0, |before| before.failures);
        let pause = AFTER_FAILURE.saturating_mul(1 << failures.min(10));
        Self {
            lists: Arc::new(lists),
            until: Instant::now() + pause.min(BELIEVED),
            failures: failures.saturating_add(1),
        }
    }

    fn list(&self, kind: ListKind) -> Option<KeptList> {
        let mut lists = self.lists.iter();
        lists.find_map(|(found, list)| (*found == kind).then(|| list.clone()))
    }
}

/// What upstreams list without an account.
#[derive(Debug)]
pub(super) struct AnonymousLists {
    own: Arc<OwnLister>,
    found: Cache<Arc<str>, FoundLists>,
    asking: SingleFlight<Arc<str>, FoundLists>,
}

impl AnonymousLists {
    pub(super) fn new(own: Arc<OwnLister>) -> Self {
        let found = Cache::builder().max_capacity(MAX_UPSTREAMS);
        Self {
            own,
            // Longer than an answer is believed: what was found before a failure goes on after it.
            found: found.time_to_live(2 * BELIEVED).build(),
            asking: SingleFlight::default(),
        }
    }

    /// The list of `upstream`, which is waited for as long as for any upstream (`mcp.connect_wait`); `None` where there is
    /// none, or not in time.
    ///
    /// # Cancel safety
    /// Dropping the future abandons nothing: the upstream is asked to the end.
    pub(super) async fn list(
        self: &Arc<Self>,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Option<KeptList> {
        // A child would be started for it.
        let settings = self.own.links.upstreams.settings(upstream)?;
        if !matches!(settings.carrier, CarrierConfig::Http(_)) {
            return None;
        }
        let found = self.found.get(upstream);
        let is_good = |found: &FoundLists| Instant::now() < found.until;
        match found.filter(is_good) {
            Some(found) => found.list(kind),
            None => self.asked(upstream).await?.list(kind),
        }
    }

    async fn asked(self: &Arc<Self>, upstream: &Arc<str>) -> Option<FoundLists> {
        let follower = match self.asking.join(Arc::clone(upstream)) {
            Joined::Join(follower) => follower,
            Joined::Lead(leader) => {
                let follower = leader.follow();
                let (lists, upstream) = (Arc::clone(self), Arc::clone(upstream));
                self.own.links.spawner.spawn_service(async move {
                    let before = lists.found.get(&upstream);
                    let found = match lists.ask(&upstream).await {
                        (listed, true) => FoundLists::answered(listed),
                        (listed, false) => FoundLists::failed(listed, before.as_ref()),
                    };
                    lists.found.insert(upstream, found.clone());
                    leader.complete(found);
                });
                follower
            }
        };
        let wait = self.own.links.connect_wait;
        tokio::time::timeout(wait, follower.result()).await.ok()?
    }

    /// The lists that `upstream` gives, and whether it answered about each.
    async fn ask(&self, upstream: &Arc<str>) -> (Vec<(ListKind, KeptList)>, bool) {
        let endpoint = Arc::new(Endpoint::unreachable(upstream));
        // An upstream may give some of its lists without an account, and refuse others.
        let is_whole = AtomicBool::new(true);
        let may_miss = |_, fault: &Fault| {
            if !is_answer(fault) {
                is_whole.store(false, Ordering::Relaxed);
            }
            true
        };
        let listed = self.own.lists(&endpoint, upstream, (LIMIT, &may_miss));
        match listed.await {
            Ok((declared, parts)) => {
                let whole = parts.iter().filter_map(|(kind, part)| {
                    Some((*kind, KeptLists::whole(&declared, *kind, &part.pages)?))
                });
                (whole.collect(), is_whole.into_inner())
            }
            Err(fault) => {
                tracing::debug!(%upstream, error = chain(&fault), "upstream lists nothing without an account");
                (Vec::new(), is_answer(&fault))
            }
        }
    }
}

/// Whether an upstream says by `fault` that it lists nothing without an account. Other failures pass.
fn is_answer(fault: &Fault) -> bool {
    match fault.kind {
        FaultKind::UpstreamInvalid => true,
        FaultKind::UpstreamUnavailable => fault.retry == RetryHint::Never,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::call::ServerDeclaration;
    use crate::protocol::Revision;

    fn list() -> KeptList {
        let text = || Bytes::from_static(b"{}");
        let declared = ServerDeclaration::new(Revision::LATEST_LEGACY, text(), text(), None);
        KeptLists::whole(&declared, ListKind::Tools, &[]).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_cached_for_growing_pauses() {
        let now = Instant::now();
        let mut found: Option<FoundLists> = None;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let next = FoundLists::failed(Vec::new(), found.as_ref());
            pauses.push((next.until - now).as_secs());
            found = Some(next);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
        let answered = FoundLists::answered(Vec::new());
        assert_eq!((answered.until - now, answered.failures), (BELIEVED, 0));
    }

    #[tokio::test]
    async fn failure_leaves_what_was_found_before() {
        let before = FoundLists::answered(vec![(ListKind::Tools, list())]);
        let prompts = vec![(ListKind::Prompts, list())];
        let found = FoundLists::failed(prompts, Some(&before));
        for kind in [ListKind::Tools, ListKind::Prompts] {
            assert!(found.list(kind).is_some(), "{kind:?}");
        }
        let refused = FoundLists::answered(Vec::new());
        assert!(refused.list(ListKind::Tools).is_none());
    }
}
