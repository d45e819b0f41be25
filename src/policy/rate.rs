//! How many requests one principal may send (SPEC O-01).

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter as Governor};
use tokio::time::{Instant, sleep};

use crate::call::OwnerKey;
use crate::config::RateConfig;
use crate::lock::lock;
use crate::store::rates::{BorrowedRates, ROUND_TRIP, RateShape};
use crate::sync::keyed_counter::KeyedCounter;

/// For the shared store to say whether it lends.
const BORROW_WITHIN: Duration = Duration::from_secs(1);
/// Checks between two removals of principals that have their full allowance back.
const CHECKS_PER_SWEEP: u32 = 4096;

/// One allowance per principal: a sustained rate, and twice its count at once.
#[derive(Debug)]
pub struct RateLimiter<C: Clock = MonotonicClock> {
    governor: Governor<OwnerKey, DashMapStateStore<OwnerKey>, C, NoOpMiddleware<C::Instant>>,
    /// After how long a request more may be sent.
    each: Duration,
    /// How many requests a full allowance holds.
    burst: u32,
    clock: C,
    checks: AtomicU32,
    /// Who has requests that wait for the allowance, and how many requests those are in all.
    claims: Mutex<KeyedCounter<OwnerKey>>,
    claimed: AtomicUsize,
    /// Allowances that hold in sum over all replicas; the own ones hold while these cannot be reached.
    shared: Option<Arc<BorrowedRates>>,
}

/// A request that has not been taken out of the allowance yet. While there is one, no later request of its
/// principal is, unless it waits too.
#[derive(Debug)]
pub struct RateClaim {
    limiter: Arc<RateLimiter>,
    owner: OwnerKey,
}

impl RateClaim {
    /// Takes the request out of the allowance.
    ///
    /// # Errors
    /// The allowance is used up; says how long until the next request may come.
    pub fn pay(&self) -> Result<(), Duration> {
        self.limiter.take(self.owner)
    }
}

impl Drop for RateClaim {
    fn drop(&mut self) {
        lock(&self.limiter.claims).remove(&self.owner);
        self.limiter.claimed.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RateLimiter {
    /// Every principal starts with its full allowance.
    #[must_use]
    pub fn new(rate: RateConfig) -> Self {
        Self::with_clock(rate, MonotonicClock)
    }

    /// The same with allowances that all replicas share, of the shape that [`shape_of`] gives.
    #[must_use]
    pub fn sharing(rate: RateConfig, shared: Arc<BorrowedRates>) -> Self {
        Self {
            shared: Some(shared),
            ..Self::new(rate)
        }
    }

    /// Has a request of `owner` wait for the allowance.
    #[must_use]
    pub fn claim(self: &Arc<Self>, owner: OwnerKey) -> RateClaim {
        self.claimed.fetch_add(1, Ordering::SeqCst);
        lock(&self.claims).add(owner);
        RateClaim {
            limiter: Arc::clone(self),
            owner,
        }
    }
}

impl<C: Clock + Clone> RateLimiter<C> {
    fn with_clock(rate: RateConfig, clock: C) -> Self {
        let RateShape { each, burst } = shape_of(rate);
        let most = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(each).unwrap_or_else(|| Quota::per_second(most));
        Self {
            governor: Governor::new(
                quota.allow_burst(most),
                DashMapStateStore::default(),
                clock.clone(),
            ),
            each,
            burst,
            clock,
            checks: AtomicU32::new(0),
            claims: Mutex::default(),
            claimed: AtomicUsize::new(0),
            shared: None,
        }
    }

    /// Takes one request from the allowance of `owner`, unless others wait for it.
    ///
    /// # Errors
    /// The allowance is used up; says how long until the next request may come.
    pub fn check(&self, owner: OwnerKey) -> Result<(), Duration> {
        if self.claimed.load(Ordering::SeqCst) > 0 && lock(&self.claims).of(&owner) > 0 {
            return Err(self.each);
        }
        self.take(owner)
    }

    /// Takes one request from the allowance of `owner`, also while others wait.
    ///
    /// # Errors
    /// The allowance is used up; says how long until the next request may come.
    pub fn take(&self, owner: OwnerKey) -> Result<(), Duration> {
        let shared = self.shared.as_ref();
        if let Some(taken) = shared.and_then(|shared| shared.take(owner, 1)) {
            return taken;
        }
        let checks = self.checks.fetch_add(1, Ordering::Relaxed);
        if checks % CHECKS_PER_SWEEP == CHECKS_PER_SWEEP - 1 {
            self.sweep();
        }
        let taken = self.governor.check_key(&owner);
        taken.map_err(|refused| refused.wait_time_from(self.clock.now()))
    }

    /// Takes one request as [`take`](Self::take) does. If this replica has used up what it borrowed, and the shared
    /// allowance may lend more, waits for the loan, a second at most.
    ///
    /// # Errors
    /// The allowance is used up; says how long until the next request may come.
    ///
    /// # Cancel safety
    /// Dropping the future takes nothing.
    pub async fn take_once_borrowed(&self, owner: OwnerKey) -> Result<(), Duration> {
        let until = Instant::now() + BORROW_WITHIN;
        loop {
            let Err(wait) = self.take(owner) else {
                return Ok(());
            };
            let may_be_lent = self.shared.is_some() && wait <= ROUND_TRIP;
            if !may_be_lent || Instant::now() >= until {
                return Err(wait);
            }
            sleep(wait).await;
        }
    }

    /// How many requests a full allowance and what comes to it within `wait` are enough for.
    #[must_use]
    pub fn most_within(&self, wait: Duration) -> usize {
        let later = wait.as_nanos() / self.each.as_nanos();
        usize::try_from(later)
            .unwrap_or(usize::MAX)
            .saturating_add(self.burst as usize)
    }

    /// Takes `more` requests from the allowance of `owner`, all or none, for an array whose first one
    /// is paid for; `false` where the allowance does not hold them all.
    pub fn check_further(&self, owner: OwnerKey, more: u32) -> bool {
        let Some(cells) = NonZeroU32::new(more) else {
            return true;
        };
        let shared = self.shared.as_ref();
        if let Some(taken) = shared.and_then(|shared| shared.take(owner, more)) {
            return taken.is_ok();
        }
        matches!(self.governor.check_key_n(&owner, cells), Ok(Ok(())))
    }

    /// Forgets the principals whose allowance is full again, so that the map holds no more than
    /// those of the last moments and one round of checks.
    fn sweep(&self) {
        self.governor.retain_recent();
        self.governor.shrink_to_fit();
    }
}

/// The allowance of a rate: twice its count at once.
#[must_use]
pub fn shape_of(rate: RateConfig) -> RateShape {
    let count = rate.count.max(1);
    RateShape {
        // A period of no length would mean no limit; the shortest is one nanosecond.
        each: (rate.per / count).max(Duration::from_nanos(1)),
        burst: count.saturating_add(count),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;
    use governor::clock::FakeRelativeClock;

    use super::*;
    use crate::call::samples::owner;
    use crate::redis_client::{RedisFailure, Value};
    use crate::runtime::lifecycle::TaskSpawner;
    use crate::store::scripts::{ScriptCall, ScriptResult, ScriptRunner, StoreKeys};

    const RATE: RateConfig = RateConfig {
        count: 10,
        per: Duration::from_secs(1),
    };

    fn spend_all(limiter: &RateLimiter<FakeRelativeClock>, owner: OwnerKey) -> usize {
        (0..1000)
            .take_while(|_| limiter.check(owner).is_ok())
            .count()
    }

    // SPEC O-01
    #[test]
    fn a_burst_is_twice_the_rate_and_then_comes_the_rate() {
        let clock = FakeRelativeClock::default();
        let limiter = RateLimiter::with_clock(RATE, clock.clone());
        assert_eq!(spend_all(&limiter, owner("a")), 20);
        clock.advance(Duration::from_secs(1));
        assert_eq!(spend_all(&limiter, owner("a")), 10);
    }

    #[test]
    fn a_refusal_says_how_long_to_wait() {
        let clock = FakeRelativeClock::default();
        let limiter = RateLimiter::with_clock(RATE, clock.clone());
        spend_all(&limiter, owner("a"));
        let wait = limiter.check(owner("a")).expect_err("used up");
        assert_eq!(wait, Duration::from_millis(100));
        clock.advance(wait);
        assert_eq!(limiter.check(owner("a")), Ok(()));
    }

    // SPEC O-01, T-33.
    #[test]
    fn an_array_takes_as_much_as_it_holds_or_nothing() {
        let clock = FakeRelativeClock::default();
        let limiter = RateLimiter::with_clock(RATE, clock.clone());
        let post = |holds: u32| {
            limiter.check(owner("a")).is_ok() && limiter.check_further(owner("a"), holds - 1)
        };
        assert!(post(15));
        assert!(!post(10), "four are left for the further nine");
        assert_eq!(spend_all(&limiter, owner("a")), 4);
        clock.advance(Duration::from_secs(1));
        assert!(post(10));
        assert!(!limiter.check_further(owner("b"), 21), "more than a burst");
        assert!(limiter.check_further(owner("b"), 20));
    }

    #[test]
    fn most_requests_are_the_burst_and_what_comes_while_they_wait() {
        let limiter = RateLimiter::with_clock(RATE, FakeRelativeClock::default());
        assert_eq!(limiter.most_within(Duration::ZERO), 20);
        assert_eq!(limiter.most_within(Duration::from_millis(550)), 25);
    }

    #[test]
    fn a_newcomer_does_not_overtake_what_waits() {
        let rate = RateConfig {
            count: 1,
            per: Duration::from_hours(1),
        };
        let limiter = Arc::new(RateLimiter::new(rate));
        assert_eq!(limiter.check(owner("a")), Ok(()));
        let claim = limiter.claim(owner("a"));
        assert!(limiter.check(owner("a")).is_err(), "one waits");
        assert_eq!(limiter.check(owner("b")), Ok(()));
        assert_eq!(claim.pay(), Ok(()));
        drop(claim);
        assert!(limiter.check(owner("a")).is_err(), "used up");
        assert_eq!(limiter.claimed.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn one_principal_does_not_spend_the_allowance_of_another() {
        let limiter = RateLimiter::with_clock(RATE, FakeRelativeClock::default());
        spend_all(&limiter, owner("a"));
        assert_eq!(limiter.check(owner("b")), Ok(()));
    }

    #[test]
    fn principals_that_have_gone_are_forgotten() {
        let clock = FakeRelativeClock::default();
        let limiter = RateLimiter::with_clock(RATE, clock.clone());
        for n in 0..3 * CHECKS_PER_SWEEP {
            clock.advance(Duration::from_secs(1));
            assert_eq!(limiter.check(owner(&n.to_string())), Ok(()));
        }
        assert!(limiter.governor.len() <= CHECKS_PER_SWEEP as usize);
    }

    /// A shared store that lends `0` of what it is asked for and nothing for a minute then, or does not answer. It
    /// takes 20 ms.
    #[derive(Debug)]
    struct Lender(Option<i64>);

    impl ScriptRunner for Lender {
        fn run(&self, calls: Vec<ScriptCall>) -> BoxFuture<'_, Vec<ScriptResult>> {
            Box::pin(async move {
                sleep(Duration::from_millis(20)).await;
                let wait = |lent| if lent == 0 { 60_000_000 } else { 0 };
                let lend = |lent| Value::Array(vec![Value::Int(lent), Value::Int(wait(lent))]);
                let reply = |_| self.0.map(lend).ok_or(RedisFailure::Silent);
                calls.into_iter().map(reply).collect()
            })
        }

        fn is_reachable(&self) -> bool {
            self.0.is_some()
        }
    }

    fn sharing(lent: Option<i64>) -> RateLimiter {
        let store = Arc::new(Lender(lent));
        let (keys, tasks) = (StoreKeys::new("test"), TaskSpawner::new());
        let shared = BorrowedRates::start(store, keys, shape_of(RATE), &tasks);
        RateLimiter::sharing(RATE, shared)
    }

    #[tokio::test(start_paused = true)]
    async fn shared_allowance_refuses_what_the_own_one_has() {
        let limiter = sharing(Some(0));
        assert_eq!(limiter.check(owner("a")), Ok(()), "a slice ahead");
        sleep(Duration::from_millis(21)).await;
        let wait = limiter.check(owner("a")).expect_err("used up");
        assert!(wait > Duration::from_secs(50), "{wait:?}");
        assert!(!limiter.check_further(owner("a"), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn empty_slice_is_waited_for_and_a_used_up_allowance_is_not() {
        for (lent, outcome) in [(1, true), (0, false)] {
            let limiter = sharing(Some(lent));
            assert_eq!(limiter.take(owner("a")), Ok(()), "a slice ahead");
            assert!(limiter.take(owner("a")).is_err(), "the slice is empty");
            let taken = limiter.take_once_borrowed(owner("a")).await;
            assert_eq!(taken.is_ok(), outcome, "{taken:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn own_allowance_holds_without_a_shared_one() {
        let limiter = sharing(None);
        assert_eq!(limiter.check(owner("a")), Ok(()));
        sleep(Duration::from_millis(21)).await;
        let taken = (0..100).take_while(|_| limiter.check(owner("a")).is_ok());
        assert_eq!(taken.count(), 20);
    }
}
