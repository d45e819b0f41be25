//! `AnonymousLists`: the lists that upstreams with accounts of callers give without an account. The gateway requests them
//! in a session of its own, with the configured headers alone, and caches the answer for five minutes, also an empty one
//! or a refusal. After another failure it asks again soon, and tells the sessions that were given another list meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::{Instant, sleep_until};

use super::kept_lists::{KeptList, KeptLists};
use super::unanswered_lists::UnansweredLists;
use super::warm::OwnLister;
use crate::cause::chain;
use crate::config::CarrierConfig;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind, RetryHint};
use crate::protocol::methods::ListKind;
use crate::session::Session;
use crate::sync::single_flight::{Joined, SingleFlight};

/// For how long an answer is believed.
const BELIEVED: Duration = Duration::from_mins(5);
/// Pause after a failure that is no answer; doubled by each further one, up to [`BELIEVED`].
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// For how long a list is used after it was found, while the upstream does not answer.
const KEPT: Duration = Duration::from_hours(1);
/// For the handshake and all lists.
const LIMIT: Duration = Duration::from_secs(30);
/// Upstreams whose answers are remembered.
const MAX_UPSTREAMS: u64 = 10_000;

/// A list, and when it was found.
#[derive(Debug, Clone)]
struct FoundList {
    kind: ListKind,
    list: KeptList,
    at: Instant,
}

/// The lists of one upstream. Cloning shares them.
#[derive(Debug, Clone)]
struct FoundLists {
    lists: Arc<Vec<FoundList>>,
    /// When the upstream is asked again.
    until: Instant,
    /// Failures in a row that were no answer.
    failures: u32,
}

impl FoundLists {
    /// An answer about each list.
    fn answered(lists: Vec<(ListKind, KeptList)>) -> Self {
        Self {
            lists: Arc::new(found_now(lists)),
            until: Instant::now() + BELIEVED,
            failures: 0,
        }
    }

    /// `lists` after a failure, with those of `before` that are missing and were found less than [`KEPT`] ago.
    fn failed(lists: Vec<(ListKind, KeptList)>, before: Option<&Self>) -> Self {
        let mut lists = found_now(lists);
        for known in before.iter().flat_map(|before| &*before.lists) {
            let is_missing = !lists.iter().any(|found| found.kind == known.kind);
            if is_missing && known.at.elapsed() < KEPT {
                lists.push(known.clone());
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

    /// Whether the upstream need not be asked again yet.
    fn is_fresh(&self) -> bool {
        Instant::now() < self.until
    }

    /// Whether the upstream has answered, and need not be asked again yet.
    fn is_answer(&self) -> bool {
        self.failures == 0 && self.is_fresh()
    }

    /// The list of this kind, if it can stand in for a caller's own.
    fn list(&self, kind: ListKind) -> Option<KeptList> {
        let found = self.lists.iter().find(|found| found.kind == kind)?;
        Some(found.list.clone()).filter(|list| list.is_of_use(kind))
    }
}

/// When the upstream whose lists are `found` is asked again: when they are no longer fresh. Lists that are missing or stale
/// are being fetched, or could not be fetched in time: then after [`AFTER_FAILURE`].
fn next_look(found: Option<&FoundLists>) -> Instant {
    let fresh = found.filter(|found| found.is_fresh());
    fresh.map_or_else(|| Instant::now() + AFTER_FAILURE, |fresh| fresh.until)
}

fn found_now(lists: Vec<(ListKind, KeptList)>) -> Vec<FoundList> {
    let at = Instant::now();
    let lists = lists.into_iter();
    lists
        .map(|(kind, list)| FoundList { kind, list, at })
        .collect()
}

/// What upstreams list without an account.
#[derive(Debug)]
pub(super) struct AnonymousLists {
    own: Arc<OwnLister>,
    found: Cache<Arc<str>, FoundLists>,
    asking: SingleFlight<Arc<str>, FoundLists>,
    unanswered: UnansweredLists,
}

impl AnonymousLists {
    pub(super) fn new(own: Arc<OwnLister>) -> Self {
        let found = Cache::builder().max_capacity(MAX_UPSTREAMS);
        Self {
            own,
            // Longer than an answer is believed: what was found before a failure goes on after it.
            found: found.time_to_live(2 * BELIEVED).build(),
            asking: SingleFlight::default(),
            unanswered: UnansweredLists::default(),
        }
    }

    /// The list of `upstream`, which is waited for as long as for any upstream (`mcp.connect_wait`); `None` where there is
    /// none, or not in time. Where the upstream does not answer, `session` is sent `list_changed` as soon as it does, if
    /// its answer is another list than the returned one.
    ///
    /// # Cancel safety
    /// Dropping the future abandons nothing: the upstream is asked to the end.
    pub(super) async fn list(
        self: &Arc<Self>,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Option<KeptList> {
        // A child would be started for it.
        let settings = self.own.links.upstreams.settings(upstream)?;
        if !matches!(settings.carrier, CarrierConfig::Http(_)) {
            return None;
        }
        let mut found = self.found.get(upstream).filter(FoundLists::is_fresh);
        if found.is_none() {
            found = self.asked(upstream).await;
            // Not in time: what was found before.
            found = found.or_else(|| self.found.get(upstream));
        }
        let list = found.as_ref().and_then(|found| found.list(kind));
        if !found.is_some_and(|found| found.is_answer()) {
            self.await_answer(session, upstream, (kind, list.as_ref()));
        }
        list
    }

    /// Has `session`, which is given `given` or another list than those here, told of the upstream's answer.
    fn await_answer(
        self: &Arc<Self>,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        (kind, given): (ListKind, Option<&KeptList>),
    ) {
        let given = given.map(KeptList::digest);
        if self.unanswered.note(session, upstream, (kind, given)) {
            let (lists, upstream) = (Arc::clone(self), Arc::clone(upstream));
            let looking = async move { lists.look_again(&upstream).await };
            self.own.links.spawner.spawn_service(looking);
        }
        // The answer may have come before the note.
        if let Some(found) = self.found.get(upstream).filter(FoundLists::is_answer) {
            self.tell(upstream, &found);
        }
    }

    /// Asks the upstream again, as long as sessions wait for its answer.
    async fn look_again(self: &Arc<Self>, upstream: &Arc<str>) {
        loop {
            sleep_until(next_look(self.found.get(upstream).as_ref())).await;
            if !self.unanswered.is_waited_for(upstream) {
                return;
            }
            let found = self.found.get(upstream);
            if !found.is_some_and(|found| found.is_fresh()) {
                drop(self.asked(upstream).await);
            }
        }
    }

    /// Tells the sessions whose lists differ from the lists found.
    fn tell(&self, upstream: &Arc<str>, found: &FoundLists) {
        let digest = |kind| found.list(kind).map(|list| list.digest());
        let is_answer = found.is_answer();
        for (session, what) in self.unanswered.asked(upstream, is_answer, digest) {
            self.own.links.tell_changed(&session, upstream, what);
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
                    lists.found.insert(Arc::clone(&upstream), found.clone());
                    lists.tell(&upstream, &found);
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
    use super::*;
    use crate::call::samples::declared;
    use crate::protocol::Revision;

    fn list(kind: ListKind) -> (ListKind, KeptList) {
        let declared = declared(Revision::LATEST_LEGACY, "{}");
        (kind, KeptLists::whole(&declared, kind, &[]).unwrap())
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

    #[tokio::test(start_paused = true)]
    async fn upstream_is_asked_again_as_soon_as_a_failure_is_over() {
        let failed = FoundLists::failed(Vec::new(), None);
        tokio::time::advance(AFTER_FAILURE / 5).await;
        assert_eq!(next_look(Some(&failed)), failed.until);
        tokio::time::advance(AFTER_FAILURE).await;
        for found in [Some(&failed), None] {
            assert_eq!(next_look(found), Instant::now() + AFTER_FAILURE);
        }
    }

    #[tokio::test]
    async fn failure_leaves_what_was_found_before() {
        let before = FoundLists::answered(vec![list(ListKind::Resources)]);
        let found = FoundLists::failed(vec![list(ListKind::Prompts)], Some(&before));
        for kind in [ListKind::Resources, ListKind::Prompts] {
            assert!(found.list(kind).is_some(), "{kind:?}");
        }
        let refused = FoundLists::answered(Vec::new());
        assert!(refused.list(ListKind::Resources).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn list_ends_after_an_hour_of_failures() {
        let mut found = FoundLists::answered(vec![list(ListKind::Resources)]);
        let begun = Instant::now();
        let minute = Duration::from_mins(1);
        while found.list(ListKind::Resources).is_some() {
            assert!(begun.elapsed() < 2 * KEPT);
            tokio::time::advance(minute).await;
            found = FoundLists::failed(Vec::new(), Some(&found));
        }
        assert_eq!(begun.elapsed(), KEPT);
    }

    #[tokio::test]
    async fn empty_list_of_tools_does_not_stand_in() {
        let lists = vec![list(ListKind::Tools), list(ListKind::Prompts)];
        let found = FoundLists::answered(lists);
        assert!(found.list(ListKind::Tools).is_none());
        assert!(found.list(ListKind::Prompts).is_some());
    }
}
