//! `BorrowedRates`: allowances of principals that hold in sum over all replicas.
//!
//! A replica borrows requests ahead, 100 ms of the rate at a time, from an allowance in the shared store, and takes
//! them here: no request asks the store. Unused requests are given back. A replica serves one slice before anything is
//! borrowed: the sum of all replicas may exceed the allowance by one slice for each replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use tokio::time::Instant;

use super::owner_calls::{LOOK, OwnerCalls, OwnerTable};
use super::retries::FailedWork;
use super::scripts::{
    Script, ScriptCall, ScriptResult, ScriptRunner, StoreKeys, elements, integer,
};
use crate::call::OwnerKey;
use crate::redis_client::Value;
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::metrics::LABELED;

static BORROW: Script = Script::new("rates_borrow", include_str!("rates/borrow.lua"));

/// Time of the rate that is borrowed at once.
const SLICE: Duration = Duration::from_millis(100);
/// When a request looks again whether what it waits for was borrowed.
pub const ROUND_TRIP: Duration = Duration::from_millis(5);

/// A rate, and how many requests it allows at once.
#[derive(Debug, Clone, Copy)]
pub struct RateShape {
    /// After how long there is a request more; a microsecond at least.
    pub each: Duration,
    /// Requests of a full allowance.
    pub burst: u32,
}

/// Allowances that all replicas share.
#[derive(Debug)]
pub struct BorrowedRates {
    store: Arc<dyn ScriptRunner>,
    keys: StoreKeys,
    shape: RateShape,
    /// Requests that are borrowed ahead.
    slice: u32,
    allowances: DashMap<OwnerKey, LocalAllowance>,
    calls: OwnerCalls,
    /// Whether the store was not connected when a call last failed.
    is_down: AtomicBool,
}

/// One principal's allowance here.
#[derive(Debug)]
struct LocalAllowance {
    /// Borrowed, and not taken yet.
    borrowed: u32,
    /// Taken before they were borrowed.
    debt: u32,
    /// Requests refused for now, since the store was last asked.
    demand: u32,
    /// Until when the store has nothing to lend.
    empty_until: Option<Instant>,
    /// Whether it is in the list, in a call, or waits after a failed one.
    is_listed: bool,
    /// Whether its last call failed: the caller's own allowance holds.
    is_failing: bool,
    used: Instant,
}

/// What a borrowing call asks for.
pub(super) struct Borrowing {
    owner: OwnerKey,
    /// Debt that it charges.
    debt: u32,
    /// Requests that it gives back.
    unused: u32,
    /// Requests to borrow; 0 for a call that only settles debt or gives back.
    wanted: u32,
}

impl BorrowedRates {
    /// Allowances of `shape`, borrowed by a task of `tasks`.
    #[must_use]
    pub fn start(
        store: Arc<dyn ScriptRunner>,
        keys: StoreKeys,
        shape: RateShape,
        tasks: &TaskSpawner,
    ) -> Arc<Self> {
        let each = shape.each.max(Duration::from_micros(1));
        let slice = u32::try_from(SLICE.as_micros() / each.as_micros()).unwrap_or(u32::MAX);
        let rates = Arc::new(Self {
            store,
            keys,
            shape: RateShape { each, ..shape },
            slice: slice.clamp(1, shape.burst.max(1)),
            allowances: DashMap::new(),
            calls: OwnerCalls::default(),
            is_down: AtomicBool::new(false),
        });
        let borrowing = Arc::clone(&rates);
        tasks.spawn_service(
            async move { borrowing.calls.run(&*borrowing, &*borrowing.store).await },
        );
        rates
    }

    /// Takes `count` requests, which come together, from the allowance of `owner`, all or none; says how long to wait
    /// where there are not as many. `None` while the store cannot be reached, or its shard of `owner`: the caller's own
    /// allowance holds then.
    pub fn take(&self, owner: OwnerKey, count: u32) -> Option<Result<(), Duration>> {
        if self.is_down.load(Ordering::Relaxed) {
            return None;
        }
        let now = Instant::now();
        let new = || LocalAllowance {
            borrowed: 0,
            debt: 0,
            demand: 0,
            empty_until: None,
            is_listed: false,
            is_failing: false,
            used: now,
        };
        let mut allowance = self.allowances.entry(owner).or_insert_with(new);
        allowance.used = now;
        if allowance.is_failing {
            return None;
        }
        let wait = allowance
            .empty_until
            .and_then(|until| until.checked_duration_since(now));
        let outcome = if let Some(left) = allowance.borrowed.checked_sub(count) {
            allowance.borrowed = left;
            Ok(())
        } else if wait.is_none() && self.may_owe(allowance.debt, count) {
            allowance.debt += count;
            Ok(())
        } else {
            allowance.demand = allowance.demand.saturating_add(count).min(self.shape.burst);
            Err(wait.unwrap_or(ROUND_TRIP))
        };
        let is_low = allowance.borrowed <= self.slice / 2;
        if is_low && wait.is_none() && !allowance.is_listed {
            allowance.is_listed = true;
            drop(allowance);
            self.calls.push(owner);
        }
        Some(outcome)
    }

    /// Whether `count` requests are served before they are borrowed: a slice, or what comes together.
    fn may_owe(&self, debt: u32, count: u32) -> bool {
        let fits = |most: u32| debt.checked_add(count).is_some_and(|sum| sum <= most);
        fits(self.slice) || debt == 0 && fits(self.shape.burst)
    }
}

impl OwnerTable for BorrowedRates {
    type Sent = Borrowing;

    /// Lists principals with unused requests, which are given back, and evicts principals without requests or debt.
    fn look(&self) {
        let now = Instant::now();
        let life = self.shape.each * self.shape.burst;
        let mut idle = Vec::new();
        self.allowances.retain(|owner, allowance| {
            let unused = now.duration_since(allowance.used);
            let holds = allowance.borrowed > 0 || allowance.debt > 0;
            if holds && unused > SLICE && !allowance.is_listed {
                allowance.is_listed = true;
                idle.push(*owner);
            }
            holds || allowance.is_listed || unused < life.max(LOOK)
        });
        self.calls.extend(idle);
    }

    fn call(&self, owner: OwnerKey) -> Option<(ScriptCall, Borrowing)> {
        let mut allowance = self.allowances.get_mut(&owner)?;
        let is_idle = allowance.used.elapsed() > SLICE;
        let unused = if is_idle {
            std::mem::take(&mut allowance.borrowed)
        } else {
            0
        };
        let wanted = if is_idle {
            0
        } else {
            self.slice.max(std::mem::take(&mut allowance.demand))
        };
        let debt = allowance.debt;
        drop(allowance);
        let charge = i64::from(debt) - i64::from(unused);
        let call = ScriptCall {
            script: &BORROW,
            keys: vec![self.keys.rate(owner)],
            args: vec![
                self.shape.each.as_micros().to_string().into(),
                self.shape.burst.to_string().into(),
                charge.to_string().into(),
                wanted.to_string().into(),
            ],
        };
        let borrowing = Borrowing {
            owner,
            debt,
            unused,
            wanted,
        };
        Some((call, borrowing))
    }

    fn settle(
        &self,
        borrowing: Borrowing,
        result: Option<&ScriptResult>,
        failed: &mut FailedWork<OwnerKey>,
    ) {
        let outcome = borrowing.outcome(result);
        LABELED.rates_borrowed.add(outcome, 1);
        let Some(mut allowance) = self.allowances.get_mut(&borrowing.owner) else {
            return;
        };
        let Some(Ok(reply)) = result else {
            // Whether the store has taken them back is not known. It stays listed until the next attempt.
            allowance.borrowed = allowance.borrowed.saturating_add(borrowing.unused);
            allowance.is_failing = true;
            failed.add(borrowing.owner);
            let is_down = !self.store.is_reachable();
            self.is_down.store(is_down, Ordering::Relaxed);
            return;
        };
        self.is_down.store(false, Ordering::Relaxed);
        if std::mem::take(&mut allowance.is_failing) {
            self.calls.extend(failed.take_all());
        }
        allowance.is_listed = false;
        allowance.debt = allowance.debt.saturating_sub(borrowing.debt);
        let lent = u32::try_from(number(reply, 0)).unwrap_or(0);
        allowance.borrowed = allowance.borrowed.saturating_add(lent);
        let wait = u64::try_from(number(reply, 1)).unwrap_or(0);
        allowance.empty_until = (wait > 0).then(|| Instant::now() + Duration::from_micros(wait));
    }
}

impl Borrowing {
    /// One word for the metrics.
    fn outcome(&self, result: Option<&ScriptResult>) -> &'static str {
        match result {
            Some(Ok(_)) if self.wanted == 0 => "given_back",
            Some(Ok(reply)) if number(reply, 0) > 0 => "lent",
            Some(Ok(_)) => "used_up",
            Some(Err(_)) | None => "failed",
        }
    }
}

/// The number that stands at `at` in a reply; else 0.
fn number(reply: &Value, at: usize) -> i64 {
    elements(reply).get(at).and_then(integer).unwrap_or(0)
}
