//! `CallerQuota`: a cap on what one caller holds, which holds in sum over all replicas.
//!
//! A replica counts by itself, and tells the shared store what a caller holds here once that is a slice of the quota. The
//! store says what the other replicas hold. No call waits for the store: a replica goes a slice beyond what it has told,
//! so the sum exceeds the quota by one slice for each replica, or by one thing that is larger than a slice.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::Notify;
use tokio::time::{Instant, interval_at, sleep_until, timeout_at};

use super::calls::CallsUnderWay;
use super::retries::FailedWork;
use super::scripts::{Script, ScriptCall, ScriptResult, ScriptRunner, StoreKeys, integer};
use crate::call::OwnerKey;
use crate::cause::chain;
use crate::lock::lock;
use crate::runtime::lifecycle::TaskSpawner;

static HOLD: LazyLock<Script> =
    LazyLock::new(|| Script::new("quotas_hold", include_str!("quotas/hold.lua")));

/// Slices of a quota.
const SLICES: usize = 16;
/// Life of what a replica has told.
const LIFE: Duration = Duration::from_secs(15);
/// When it is told again.
const RENEWAL: Duration = Duration::from_secs(5);
/// How often renewals are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// How often something that waits for what others give back asks for it.
const ASKED: Duration = Duration::from_millis(250);
/// How long something waits for an answer of the store.
const CLAIM_WITHIN: Duration = Duration::from_secs(1);

/// What a quota counts.
#[derive(Debug, Clone, Copy)]
pub struct QuotaShape {
    /// Part of the names of keys; one word.
    pub kind: &'static str,
    /// What a caller may hold in all.
    pub most: usize,
}

/// A quota of each caller.
#[derive(Debug)]
pub struct CallerQuota {
    store: Arc<dyn ScriptRunner>,
    keys: StoreKeys,
    shape: QuotaShape,
    /// This replica.
    node: String,
    slice: usize,
    /// Callers that hold a slice here, or that the store knows of.
    held: DashMap<OwnerKey, HeldHere>,
    /// Callers listed for the task, each once.
    wanting: Mutex<VecDeque<OwnerKey>>,
    work: Notify,
    /// Woken by each answer, and by each claim that ends.
    answered: Notify,
    /// Whether the store was not connected when a call last failed.
    is_down: AtomicBool,
    /// Whether a line says that calls fail.
    has_warned: AtomicBool,
}

/// What one caller holds.
#[derive(Debug)]
struct HeldHere {
    /// At this replica.
    used: usize,
    /// About to be held here.
    claimed: usize,
    /// As the store was told.
    told: usize,
    /// At the other replicas, by the last answer.
    others: usize,
    /// When the last answer was there.
    answered: Option<Instant>,
    /// Whether the store is to be asked, though nothing has changed here.
    is_asked: bool,
    /// Whether it is in the list, in a call, or waits after a failed one.
    is_listed: bool,
    /// Whether its last call failed: the caller may hold the whole quota here.
    is_failing: bool,
}

/// Room for something that is about to be held; given back when dropped, unless the thing was counted.
#[derive(Debug)]
pub struct QuotaClaim {
    quota: Arc<CallerQuota>,
    owner: OwnerKey,
    count: AtomicUsize,
}

/// Whether a claim finds room.
enum ClaimState {
    Claimed,
    /// The store has still to say.
    Unknown,
    Full,
}

impl CallerQuota {
    /// A quota that replica `node` shares with the others, by a task of `tasks`.
    #[must_use]
    pub fn start(
        store: Arc<dyn ScriptRunner>,
        keys: StoreKeys,
        shape: QuotaShape,
        node: u32,
        tasks: &TaskSpawner,
    ) -> Arc<Self> {
        let quota = Arc::new(Self {
            store,
            keys,
            shape,
            node: node.to_string(),
            slice: (shape.most / SLICES).max(1),
            held: DashMap::new(),
            wanting: Mutex::default(),
            work: Notify::new(),
            answered: Notify::new(),
            is_down: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
        });
        tasks.spawn_service(Arc::clone(&quota).run());
        quota
    }

    /// What `owner` may hold at this replica now, as far as is known: always a slice, and the whole quota while the store
    /// cannot be reached.
    #[must_use]
    pub fn most(&self, owner: OwnerKey) -> usize {
        match self.held.get(&owner) {
            Some(held) => self.most_of(&held),
            None if self.is_down.load(Ordering::Relaxed) => self.shape.most,
            None => self.slice,
        }
    }

    /// The same without regard to what the store was not told yet: for a decision that nothing is counted by.
    #[must_use]
    pub fn most_known(&self, owner: OwnerKey) -> usize {
        let others = self.held.get(&owner).map_or(0, |held| held.others);
        self.shape.most.saturating_sub(others).max(self.slice)
    }

    fn most_of(&self, held: &HeldHere) -> usize {
        if held.is_failing || self.is_down.load(Ordering::Relaxed) {
            return self.shape.most;
        }
        let room = self.room(held).min(held.told + self.slice);
        room.max(self.slice).max(held.used + held.claimed)
    }

    /// What the others leave.
    fn room(&self, held: &HeldHere) -> usize {
        self.shape.most.saturating_sub(held.others)
    }

    /// Has the store told, soon, of what `owner` holds at this replica. `used` is asked under a lock: of two changes at
    /// once the later one counts.
    pub fn changed(&self, owner: OwnerKey, used: impl FnOnce() -> usize) {
        self.change(owner, 0, used);
    }

    /// The same where so much of the change was `claimed`: it is not claimed any more.
    fn change(&self, owner: OwnerKey, claimed: usize, used: impl FnOnce() -> usize) {
        let mut held = match self.held.entry(owner) {
            Entry::Occupied(entry) => {
                let mut held = entry.into_ref();
                held.used = used();
                held.claimed -= claimed;
                held
            }
            Entry::Vacant(entry) => {
                let used = used();
                if used < self.slice {
                    return;
                }
                entry.insert(HeldHere::new(used))
            }
        };
        if self.shown(&held) != held.told {
            self.list(owner, &mut held);
        }
    }

    /// Claims room for `more` beside what `owner` holds here (`used`), for the caller that is about to count it. Waits for
    /// the store where a slice was taken since it last answered, a second at most, and goes by its last answer then. Without
    /// room the claim is empty, and its caller finds the quota full.
    ///
    /// # Cancel safety
    /// Nothing is claimed.
    pub async fn claim(
        self: &Arc<Self>,
        owner: OwnerKey,
        more: usize,
        used: impl Fn() -> usize,
    ) -> QuotaClaim {
        let since = Instant::now();
        let until = since + CLAIM_WITHIN;
        let claim = |count| QuotaClaim {
            quota: Arc::clone(self),
            owner,
            count: AtomicUsize::new(count),
        };
        loop {
            let answered = self.answered.notified();
            match self.try_claim(owner, (more, used()), since) {
                ClaimState::Claimed => return claim(more),
                ClaimState::Full => return claim(0),
                ClaimState::Unknown => {
                    if timeout_at(until, answered).await.is_err() {
                        return claim(self.claim_unanswered(owner, more));
                    }
                }
            }
        }
    }

    /// Claims room by the last answer, as the store gives none; how much was claimed.
    fn claim_unanswered(&self, owner: OwnerKey, more: usize) -> usize {
        let mut held = self.held.get_mut(&owner);
        let fits = held.as_mut().filter(|held| {
            let wanted = held.used + held.claimed + more;
            wanted <= self.room(held)
        });
        fits.map_or(0, |held| {
            held.claimed += more;
            more
        })
    }

    /// For a claim that waits since `since`: what the store has said before is not enough for a refusal.
    fn try_claim(
        &self,
        owner: OwnerKey,
        (more, used): (usize, usize),
        since: Instant,
    ) -> ClaimState {
        // An entry that was there before is told of each change.
        let new = || HeldHere::new(used);
        let mut held = self.held.entry(owner).or_insert_with(new);
        let wanted = held.used + held.claimed + more;
        let room = self.room(&held);
        let is_fresh = held.answered.is_some_and(|at| at > since);
        // Something larger than a slice, where all else was told.
        let is_first = held.claimed == 0 && self.shown(&held) == held.told;
        if wanted <= self.most_of(&held) || is_fresh && is_first && wanted <= room {
            held.claimed += more;
            return ClaimState::Claimed;
        }
        if held.is_failing || is_fresh && wanted > room {
            return ClaimState::Full;
        }
        held.is_asked |= !is_fresh;
        if held.is_asked || self.shown(&held) != held.told {
            self.list(owner, &mut held);
        }
        ClaimState::Unknown
    }

    /// Waits until the store has said once more what the others hold, where that may matter, or gives no answer, so that the
    /// whole quota is this replica's; asks it four times a second.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next_answer(&self, owner: OwnerKey) {
        let last = self.last_answer(owner);
        // Answers about other callers do not put it off.
        let mut asked = interval_at(Instant::now() + ASKED, ASKED);
        loop {
            let answered = self.answered.notified();
            if self.last_answer(owner) != last {
                return;
            }
            tokio::select! {
                () = answered => {}
                _ = asked.tick() => self.ask(owner),
            }
        }
    }

    /// When the store last said what the others of a caller hold, and whether it gives no answer since.
    fn last_answer(&self, owner: OwnerKey) -> (Option<Instant>, bool) {
        let is_down = self.is_down.load(Ordering::Relaxed);
        self.held.get(&owner).map_or((None, is_down), |held| {
            (held.answered, held.is_failing || is_down)
        })
    }

    /// Has the store say once more, soon, what the others hold.
    pub fn ask(&self, owner: OwnerKey) {
        if let Some(mut held) = self.held.get_mut(&owner) {
            held.is_asked = true;
            self.list(owner, &mut held);
        }
    }

    /// What the store is told: less than a slice is not told, as each replica may have that much.
    fn shown(&self, held: &HeldHere) -> usize {
        if held.used < self.slice { 0 } else { held.used }
    }

    fn list(&self, owner: OwnerKey, held: &mut HeldHere) {
        if !held.is_listed {
            held.is_listed = true;
            lock(&self.wanting).push_back(owner);
            self.work.notify_one();
        }
    }

    async fn run(self: Arc<Self>) {
        let mut calls = CallsUnderWay::new(&*self.store);
        let mut failed = FailedWork::new();
        let mut next_look = Instant::now() + LOOK;
        loop {
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK;
                self.renew();
            }
            if calls.begin_round() {
                lock(&self.wanting).extend(failed.take_due());
                while calls.has_room()
                    && let Some((call, told)) = self.next_call()
                {
                    calls.send(told, vec![call]);
                }
            }
            let more = async {
                tokio::select! {
                    () = self.work.notified() => {}
                    () = failed.due() => {}
                    () = sleep_until(next_look) => {}
                }
            };
            if let Some(((owner, told), results)) = calls.next(more).await {
                self.settle(owner, told, results.first(), &mut failed);
                self.answered.notify_waiters();
            }
        }
    }

    /// Lists callers whose number in the store has to be renewed, and forgets those without one.
    fn renew(&self) {
        let mut due = Vec::new();
        self.held.retain(|owner, held| {
            let is_old = held.answered.is_none_or(|at| at.elapsed() >= RENEWAL);
            if held.told > 0 && is_old && !held.is_listed {
                held.is_listed = true;
                due.push(*owner);
            }
            held.is_listed || held.told > 0 || held.claimed > 0 || held.used >= self.slice
        });
        lock(&self.wanting).extend(due);
    }

    /// The call for the next listed caller, which stays listed until the reply.
    fn next_call(&self) -> Option<(ScriptCall, (OwnerKey, usize))> {
        loop {
            let owner = lock(&self.wanting).pop_front()?;
            let Some(mut held) = self.held.get_mut(&owner) else {
                continue;
            };
            held.is_asked = false;
            let told = self.shown(&held);
            drop(held);
            let call = ScriptCall {
                script: &HOLD,
                keys: vec![self.keys.quota(self.shape.kind, owner)],
                args: vec![
                    self.node.clone().into(),
                    told.to_string().into(),
                    LIFE.as_millis().to_string().into(),
                ],
            };
            return Some((call, (owner, told)));
        }
    }

    fn settle(
        &self,
        owner: OwnerKey,
        told: usize,
        result: Option<&ScriptResult>,
        failed: &mut FailedWork<OwnerKey>,
    ) {
        let Some(mut held) = self.held.get_mut(&owner) else {
            return;
        };
        let others = result.and_then(|result| result.as_ref().ok().and_then(integer));
        let Some(others) = others else {
            // It stays listed until the next attempt.
            held.is_failing = true;
            failed.add(owner);
            let is_down = !self.store.is_reachable();
            self.is_down.store(is_down, Ordering::Relaxed);
            self.warn_of(result);
            return;
        };
        self.is_down.store(false, Ordering::Relaxed);
        let is_back = std::mem::take(&mut held.is_failing);
        if is_back {
            lock(&self.wanting).extend(failed.take_all());
        }
        held.told = told;
        held.others = usize::try_from(others).unwrap_or(0);
        held.answered = Some(Instant::now());
        held.is_listed = false;
        if held.is_asked || self.shown(&held) != told {
            self.list(owner, &mut held);
        }
        drop(held);
        if is_back {
            self.say_that_it_holds();
        }
    }
}

impl CallerQuota {
    /// Says that the quota holds again, once no caller's part of Redis fails.
    fn say_that_it_holds(&self) {
        let holds = !self.held.iter().any(|held| held.is_failing);
        if holds && self.has_warned.swap(false, Ordering::Relaxed) {
            tracing::info!(quota = self.shape.kind, "quota holds in sum again");
        }
    }

    /// Says once in each outage that the quota holds for this replica alone.
    fn warn_of(&self, result: Option<&ScriptResult>) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let error = result
                .and_then(|result| result.as_ref().err())
                .map(|error| chain(error));
            let remedy =
                "see the errors of Redis: until it answers each replica has the whole quota";
            tracing::warn!(
                quota = self.shape.kind,
                error,
                remedy,
                "quota does not hold in sum"
            );
        }
    }
}

impl HeldHere {
    fn new(used: usize) -> Self {
        Self {
            used,
            claimed: 0,
            told: 0,
            others: 0,
            answered: None,
            is_asked: false,
            is_listed: false,
            is_failing: false,
        }
    }
}

impl QuotaClaim {
    /// Notes that the thing is counted in what its caller holds here now, `used`, and is not claimed any more: in one step,
    /// so that it never counts twice. `used` is asked as by [`CallerQuota::changed`].
    pub fn counted(&self, used: impl FnOnce() -> usize) {
        let count = self.count.swap(0, Ordering::Relaxed);
        self.quota.change(self.owner, count, used);
        // What is larger than a slice waits until nothing is claimed.
        if count > 0 {
            self.quota.answered.notify_waiters();
        }
    }

    /// Gives back what is claimed: nothing is to be counted.
    pub fn release(&self) {
        let count = self.count.swap(0, Ordering::Relaxed);
        if count > 0 {
            if let Some(mut held) = self.quota.held.get_mut(&self.owner) {
                held.claimed -= count;
            }
            self.quota.answered.notify_waiters();
        }
    }
}

impl Drop for QuotaClaim {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests;
