//! `CallerQuota`: a cap on the holdings of one caller (sessions, bytes, parked calls) over all replicas.
//!
//! A replica counts by itself. Once a caller holds a slice of the quota here, the replica reports the count to the shared
//! store, which returns the count of the other replicas. No call waits for the store: a replica may go a slice beyond its last
//! report. So the sum exceeds the quota by one slice for each replica at most, or by one thing larger than a slice.

mod held_here;
mod outage;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::Notify;
use tokio::time::{Instant, interval_at, timeout_at};

use self::held_here::{ClaimState, HeldHere, QuotaSize};
use self::outage::StoreOutage;
use super::owner_calls::{OwnerCalls, OwnerTable};
use super::retries::FailedWork;
use super::scripts::{Script, ScriptCall, ScriptResult, ScriptRunner, StoreKeys, integer};
use crate::call::OwnerKey;
use crate::runtime::lifecycle::TaskSpawner;

static HOLD: Script = Script::new("quotas_hold", include_str!("quotas/hold.lua"));

/// Slices of a quota.
const SLICES: usize = 16;
/// Lifetime of a replica's report.
const LIFE: Duration = Duration::from_secs(15);
/// When a report is repeated.
const RENEWAL: Duration = Duration::from_secs(5);
/// How often a wait for room asks the store again.
const ASKED: Duration = Duration::from_millis(250);
/// How long a claim waits for an answer of the store.
const CLAIM_WITHIN: Duration = Duration::from_secs(1);

/// The kind and the size of a quota.
#[derive(Debug, Clone, Copy)]
pub struct QuotaShape {
    /// Part of the names of keys; one word.
    pub kind: &'static str,
    /// The most that a caller may hold in all.
    pub most: usize,
}

/// A quota of each caller.
#[derive(Debug)]
pub struct CallerQuota {
    store: Arc<dyn ScriptRunner>,
    keys: StoreKeys,
    kind: &'static str,
    size: QuotaSize,
    /// This replica.
    node: String,
    /// Callers that hold a slice here, or that the store knows of.
    held: DashMap<OwnerKey, HeldHere>,
    calls: OwnerCalls,
    /// Woken by each answer, and by each claim that ends.
    answered: Notify,
    outage: StoreOutage,
}

/// Room for something that is about to be held; given back when dropped, unless the thing was counted.
#[derive(Debug)]
pub struct QuotaClaim {
    quota: Arc<CallerQuota>,
    owner: OwnerKey,
    count: AtomicUsize,
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
            kind: shape.kind,
            size: QuotaSize {
                most: shape.most,
                slice: (shape.most / SLICES).max(1),
            },
            node: node.to_string(),
            held: DashMap::new(),
            calls: OwnerCalls::default(),
            answered: Notify::new(),
            outage: StoreOutage::new(shape.kind),
        });
        let telling = Arc::clone(&quota);
        tasks.spawn_service(async move { telling.calls.run(&*telling, &*telling.store).await });
        quota
    }

    /// What `owner` may hold at this replica now, by the last answer: always a slice, and the whole quota while the store
    /// cannot be reached.
    #[must_use]
    pub fn most(&self, owner: OwnerKey) -> usize {
        match self.held.get(&owner) {
            Some(held) => held.most(self.size, self.outage.is_down()),
            None if self.outage.is_down() => self.size.most,
            None => self.size.slice,
        }
    }

    /// [`most`](Self::most) without unreported changes: for a decision without a count.
    #[must_use]
    pub fn most_known(&self, owner: OwnerKey) -> usize {
        let held = self.held.get(&owner);
        let room = held.map_or(self.size.most, |held| held.room(self.size));
        room.max(self.size.slice)
    }

    /// Reports soon how much `owner` holds at this replica. `used` is called under a lock, so that of two parallel changes
    /// the later one counts.
    pub fn changed(&self, owner: OwnerKey, used: impl FnOnce() -> usize) {
        self.change(owner, 0, used);
    }

    /// [`changed`](Self::changed) after so much of the change was `claimed`; the claim ends.
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
                if used < self.size.slice {
                    return;
                }
                entry.insert(HeldHere::new(used))
            }
        };
        if held.shown(self.size) != held.told {
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
                        let held = self.held.get_mut(&owner);
                        let fits =
                            held.is_some_and(|mut held| held.claim_unanswered(self.size, more));
                        return claim(if fits { more } else { 0 });
                    }
                }
            }
        }
    }

    /// For a claim that waits since `since`: an older answer of the store is no reason for a refusal.
    fn try_claim(
        &self,
        owner: OwnerKey,
        (more, used): (usize, usize),
        since: Instant,
    ) -> ClaimState {
        // An entry that was there before is told of each change.
        let new = || HeldHere::new(used);
        let mut held = self.held.entry(owner).or_insert_with(new);
        let state = held.claim(self.size, (more, since), self.outage.is_down());
        if matches!(state, ClaimState::Unknown)
            && (held.is_asked || held.shown(self.size) != held.told)
        {
            self.list(owner, &mut held);
        }
        state
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
        let is_down = self.outage.is_down();
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

    fn list(&self, owner: OwnerKey, held: &mut HeldHere) {
        if !held.is_listed {
            held.is_listed = true;
            self.calls.push(owner);
        }
    }

    /// Takes in one reply. `settle` wakes the waiting claims afterwards, also where this returns early.
    fn take_answer(
        &self,
        (owner, told): (OwnerKey, usize),
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
            let error = result.and_then(|result| result.as_ref().err());
            self.outage.failed(!self.store.is_reachable(), error);
            return;
        };
        self.outage.answered();
        let is_back = std::mem::take(&mut held.is_failing);
        if is_back {
            self.calls.extend(failed.take_all());
        }
        held.told = told;
        held.others = usize::try_from(others).unwrap_or(0);
        held.answered = Some(Instant::now());
        held.is_listed = false;
        if held.is_asked || held.shown(self.size) != told {
            self.list(owner, &mut held);
        }
        drop(held);
        if is_back && !self.held.iter().any(|held| held.is_failing) {
            self.outage.over();
        }
    }
}

impl OwnerTable for CallerQuota {
    type Sent = (OwnerKey, usize);

    /// Lists callers whose number in the store has to be renewed, and forgets those without one.
    fn look(&self) {
        let mut due = Vec::new();
        self.held.retain(|owner, held| {
            let is_old = held.answered.is_none_or(|at| at.elapsed() >= RENEWAL);
            if held.told > 0 && is_old && !held.is_listed {
                held.is_listed = true;
                due.push(*owner);
            }
            held.is_listed || held.told > 0 || held.claimed > 0 || held.used >= self.size.slice
        });
        self.calls.extend(due);
    }

    fn call(&self, owner: OwnerKey) -> Option<(ScriptCall, Self::Sent)> {
        let mut held = self.held.get_mut(&owner)?;
        held.is_asked = false;
        let told = held.shown(self.size);
        drop(held);
        let call = ScriptCall {
            script: &HOLD,
            keys: vec![self.keys.quota(self.kind, owner)],
            args: vec![
                self.node.clone().into(),
                told.to_string().into(),
                LIFE.as_millis().to_string().into(),
            ],
        };
        Some((call, (owner, told)))
    }

    fn settle(
        &self,
        sent: Self::Sent,
        result: Option<&ScriptResult>,
        failed: &mut FailedWork<OwnerKey>,
    ) {
        self.take_answer(sent, result, failed);
        self.answered.notify_waiters();
    }
}

impl QuotaClaim {
    /// Notes that the thing is counted in what its caller holds here now, `used`, and is not claimed any more. One step does
    /// both: the thing never counts twice. `used` is asked as by [`CallerQuota::changed`].
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
