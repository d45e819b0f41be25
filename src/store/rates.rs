//! `BorrowedRates`: allowances of principals that hold in sum over all replicas.
//!
//! A replica borrows requests ahead, 100 ms of the rate at a time, from an allowance in the shared store, and takes
//! them here: no request asks the store. Unused requests are given back. A replica serves one slice before anything is
//! borrowed: the sum of all replicas may exceed the allowance by one slice for each replica.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::pause::RetryPause;
use super::scripts::{
    Script, ScriptCall, ScriptResult, ScriptRunner, StoreKeys, elements, integer,
};
use crate::call::OwnerKey;
use crate::lock::lock;
use crate::runtime::lifecycle::TaskSpawner;

static BORROW: LazyLock<Script> =
    LazyLock::new(|| Script::new("rates_borrow", include_str!("rates/borrow.lua")));

/// Time of the rate that is borrowed at once.
const SLICE: Duration = Duration::from_millis(100);
/// When a request looks again whether what it waits for was borrowed.
pub const ROUND_TRIP: Duration = Duration::from_millis(5);
/// Principals of one round trip at most.
const AT_ONCE: usize = 256;
/// How often unused requests are given back.
const LOOK: Duration = Duration::from_secs(1);

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
    /// Principals listed for the borrowing task, each once.
    wanting: Mutex<VecDeque<OwnerKey>>,
    work: Notify,
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
    is_listed: bool,
    used: Instant,
}

/// What a borrowing call asks for.
struct Borrowing {
    owner: OwnerKey,
    /// Debt that it charges.
    debt: u32,
    /// Requests that it gives back.
    unused: u32,
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
            wanting: Mutex::default(),
            work: Notify::new(),
            is_down: AtomicBool::new(false),
        });
        tasks.spawn_service(Arc::clone(&rates).run());
        rates
    }

    /// Takes `count` requests, which come together, from the allowance of `owner`, all or none; says how long to wait
    /// where there are not as many. `None` while the store cannot be reached: the caller's own allowance holds then.
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
            used: now,
        };
        let mut allowance = self.allowances.entry(owner).or_insert_with(new);
        allowance.used = now;
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
            lock(&self.wanting).push_back(owner);
            self.work.notify_one();
        }
        Some(outcome)
    }

    /// Whether `count` requests are served before they are borrowed: a slice, or what comes together.
    fn may_owe(&self, debt: u32, count: u32) -> bool {
        let fits = |most: u32| debt.checked_add(count).is_some_and(|sum| sum <= most);
        fits(self.slice) || debt == 0 && fits(self.shape.burst)
    }

    async fn run(self: Arc<Self>) {
        let mut pause = RetryPause::new();
        let mut next_look = Instant::now() + LOOK;
        loop {
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK;
                self.give_back();
            }
            let (calls, borrowings) = self.next_round();
            if calls.is_empty() {
                drop(timeout_at(next_look, self.work.notified()).await);
                continue;
            }
            let results = self.store.run(calls).await;
            let is_down = results.iter().all(Result::is_err);
            self.is_down.store(is_down, Ordering::Relaxed);
            for (at, borrowing) in borrowings.into_iter().enumerate() {
                self.settle(&borrowing, results.get(at));
            }
            if is_down {
                tokio::time::sleep(pause.next()).await;
            } else {
                pause.reset();
            }
        }
    }

    /// Lists principals with unused requests for the task, and evicts principals without requests or debt.
    fn give_back(&self) {
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
        lock(&self.wanting).extend(idle);
    }

    fn next_round(&self) -> (Vec<ScriptCall>, Vec<Borrowing>) {
        let (mut calls, mut borrowings) = (Vec::new(), Vec::new());
        while calls.len() < AT_ONCE {
            let Some(owner) = lock(&self.wanting).pop_front() else {
                break;
            };
            let Some(mut allowance) = self.allowances.get_mut(&owner) else {
                continue;
            };
            // It stays listed until the reply, so that one call at a time is under way for a principal.
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
            calls.push(ScriptCall {
                script: &BORROW,
                keys: vec![self.keys.rate(owner)],
                args: vec![
                    self.shape.each.as_micros().to_string().into(),
                    self.shape.burst.to_string().into(),
                    charge.to_string().into(),
                    wanted.to_string().into(),
                ],
            });
            borrowings.push(Borrowing {
                owner,
                debt,
                unused,
            });
        }
        (calls, borrowings)
    }

    fn settle(&self, borrowing: &Borrowing, result: Option<&ScriptResult>) {
        let Some(mut allowance) = self.allowances.get_mut(&borrowing.owner) else {
            return;
        };
        let Some(Ok(reply)) = result else {
            // Whether the store has taken them back is not known. It stays listed: the next attempt shows whether the
            // store is there again.
            allowance.borrowed = allowance.borrowed.saturating_add(borrowing.unused);
            drop(allowance);
            lock(&self.wanting).push_back(borrowing.owner);
            return;
        };
        allowance.is_listed = false;
        allowance.debt = allowance.debt.saturating_sub(borrowing.debt);
        let numbers = elements(reply);
        let number = |at: usize| numbers.get(at).and_then(integer).unwrap_or(0);
        let lent = u32::try_from(number(0)).unwrap_or(0);
        allowance.borrowed = allowance.borrowed.saturating_add(lent);
        let wait = u64::try_from(number(1)).unwrap_or(0);
        allowance.empty_until = (wait > 0).then(|| Instant::now() + Duration::from_micros(wait));
    }
}
