//! What one upstream carries now and has carried in the last minute, for `/status`.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use dashmap::DashMap;

/// Length of one slice of the recent past.
const SLICE: Duration = Duration::from_secs(10);
/// Whole slices that are summed up, besides the one under way: one minute.
const WHOLE: u64 = 6;
/// Slices that are kept.
const SLICES: usize = 7;
/// The first bucket ends here, as a power of two of microseconds.
const FIRST: u32 = 6;
/// Powers of two above it: up to 18 minutes. Longer calls count as these.
const OCTAVES: usize = 24;
/// Buckets of one power of two: a percentile is off by 12 % at most.
const STEPS: usize = 4;
const BUCKETS: usize = 1 + OCTAVES * STEPS;

static LOADS: LazyLock<DashMap<Arc<str>, Arc<UpstreamLoad>>> = LazyLock::new(DashMap::new);

/// Sessions, children and calls of one upstream. A call costs two additions when it begins and ends, and two
/// more for its duration, all without a lock.
#[derive(Debug)]
pub struct UpstreamLoad {
    name: Arc<str>,
    sessions: AtomicI64,
    children: AtomicI64,
    calls: AtomicI64,
    since: Instant,
    /// Milliseconds from `since` to the last answer; 0 for none.
    answered: AtomicU64,
    slices: [LoadSlice; SLICES],
}

/// Calls that ended within one [`SLICE`].
#[derive(Debug)]
struct LoadSlice {
    /// Which slice since the start, from 1; 0 for none.
    number: AtomicU64,
    failures: AtomicU32,
    calls: [AtomicU32; BUCKETS],
}

/// The last minute of an upstream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecentCalls {
    /// Calls per minute that were answered, or failed.
    pub calls: f64,
    /// Calls per minute that got a JSON-RPC error or no answer. A tool's own error is none, and a call that
    /// its client cancelled counts nowhere.
    pub failures: f64,
    /// Half of the calls took no longer; `None` without calls.
    pub p50: Option<Duration>,
    /// 99 of 100 calls took no longer.
    pub p99: Option<Duration>,
}

/// How a call counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::telemetry) enum CallEnd {
    /// The upstream answered, with a result or with an error.
    Answered {
        /// Whether with an error.
        failed: bool,
    },
    /// It did not answer.
    Unanswered,
}

impl UpstreamLoad {
    /// The load of the upstream with this name, which must be one of the configuration: it is kept for good.
    #[must_use]
    pub fn of(name: &str) -> Arc<Self> {
        if let Some(known) = LOADS.get(name) {
            return Arc::clone(&known);
        }
        let name: Arc<str> = name.into();
        let entry = LOADS.entry(Arc::clone(&name));
        Arc::clone(&entry.or_insert_with(|| Arc::new(Self::new(name))))
    }

    fn new(name: Arc<str>) -> Self {
        Self {
            name,
            sessions: AtomicI64::new(0),
            children: AtomicI64::new(0),
            calls: AtomicI64::new(0),
            since: Instant::now(),
            answered: AtomicU64::new(0),
            slices: std::array::from_fn(|_| LoadSlice::new()),
        }
    }

    /// The upstream's name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Sessions with it that are open.
    #[must_use]
    pub fn sessions(&self) -> i64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Children of it that run.
    #[must_use]
    pub fn children(&self) -> i64 {
        self.children.load(Ordering::Relaxed)
    }

    /// Unanswered calls to the upstream.
    #[must_use]
    pub fn calls(&self) -> i64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// How long ago it last answered a call.
    #[must_use]
    pub fn last_answer(&self) -> Option<Duration> {
        let at = match self.answered.load(Ordering::Relaxed) {
            0 => return None,
            at => Duration::from_millis(at),
        };
        Some(self.since.elapsed().saturating_sub(at))
    }

    /// The last minute: six whole slices of ten seconds and the one under way.
    #[must_use]
    pub fn recent(&self) -> RecentCalls {
        self.recent_at(Instant::now())
    }

    /// Counts a session for as long as the guard lives.
    #[must_use = "the session is counted while the guard lives"]
    pub fn session(self: &Arc<Self>) -> LoadGuard {
        LoadGuard::new(self, |load| &load.sessions)
    }

    /// Counts a child for as long as the guard lives.
    #[must_use = "the child is counted while the guard lives"]
    pub fn child(self: &Arc<Self>) -> LoadGuard {
        LoadGuard::new(self, |load| &load.children)
    }

    pub(in crate::telemetry) fn call_began(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// A call that began at `started` is over; `ended` is absent where its client cancelled it.
    pub(in crate::telemetry) fn call_ended(
        &self,
        started: Instant,
        took: Duration,
        ended: Option<CallEnd>,
    ) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
        let Some(ended) = ended else { return };
        let at = started.saturating_duration_since(self.since) + took;
        if let CallEnd::Answered { .. } = ended {
            let at = u64::try_from(at.as_millis()).unwrap_or(u64::MAX).max(1);
            self.answered.store(at, Ordering::Relaxed);
        }
        let number = slice_number(at);
        let Some(slice) = self.slice(number) else {
            return;
        };
        slice.begin(number);
        if ended != (CallEnd::Answered { failed: false }) {
            slice.failures.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(count) = slice.calls.get(bucket(took)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn slice(&self, number: u64) -> Option<&LoadSlice> {
        let place = usize::try_from(number % SLICES as u64).ok()?;
        self.slices.get(place)
    }

    fn recent_at(&self, now: Instant) -> RecentCalls {
        let age = now.saturating_duration_since(self.since);
        let current = slice_number(age);
        let mut counts = [0_u64; BUCKETS];
        let mut failures = 0_u64;
        for number in current.saturating_sub(WHOLE).max(1)..=current {
            let slice = self.slice(number);
            let Some(slice) = slice.filter(|one| one.number.load(Ordering::Acquire) == number)
            else {
                continue;
            };
            failures += u64::from(slice.failures.load(Ordering::Relaxed));
            for (sum, count) in counts.iter_mut().zip(&slice.calls) {
                *sum += u64::from(count.load(Ordering::Relaxed));
            }
        }
        let under_way = age.as_secs_f64() % SLICE.as_secs_f64();
        let window = (SLICE * u32::try_from(WHOLE).unwrap_or(1)).as_secs_f64() + under_way;
        let minutes = window.min(age.as_secs_f64()).max(SLICE.as_secs_f64()) / 60.0;
        let calls: u64 = counts.iter().sum();
        let per_minute = |count: u64| u32::try_from(count).map_or(f64::MAX, f64::from) / minutes;
        RecentCalls {
            calls: per_minute(calls),
            failures: per_minute(failures),
            p50: percentile(&counts, calls.div_ceil(2)),
            p99: percentile(&counts, calls - calls / 100),
        }
    }
}

impl LoadSlice {
    fn new() -> Self {
        Self {
            number: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            calls: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Makes this the slice `number`. A call that ends in the same moment may be lost.
    fn begin(&self, number: u64) {
        let before = self.number.load(Ordering::Acquire);
        if before == number {
            return;
        }
        let changed =
            self.number
                .compare_exchange(before, number, Ordering::AcqRel, Ordering::Relaxed);
        if changed.is_ok() {
            self.failures.store(0, Ordering::Relaxed);
            for count in &self.calls {
                count.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// A guard that counts one unit in an upstream's load.
#[derive(Debug)]
pub struct LoadGuard {
    load: Arc<UpstreamLoad>,
    number: fn(&UpstreamLoad) -> &AtomicI64,
}

impl LoadGuard {
    fn new(load: &Arc<UpstreamLoad>, number: fn(&UpstreamLoad) -> &AtomicI64) -> Self {
        number(load).fetch_add(1, Ordering::Relaxed);
        Self {
            load: Arc::clone(load),
            number,
        }
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        (self.number)(&self.load).fetch_sub(1, Ordering::Relaxed);
    }
}

fn slice_number(age: Duration) -> u64 {
    age.as_secs() / SLICE.as_secs() + 1
}

/// The bucket of a duration.
fn bucket(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let Some(octave) = micros.checked_ilog2().filter(|octave| *octave >= FIRST) else {
        return 0;
    };
    let step = (micros >> (octave - 2)) & 3;
    let place = (octave - FIRST) as usize * STEPS + usize::try_from(step).unwrap_or(0);
    (1 + place).min(BUCKETS - 1)
}

/// The upper bound of a bucket.
fn upper(bucket: usize) -> Duration {
    let Some(place) = bucket.checked_sub(1) else {
        return Duration::from_micros(1 << FIRST);
    };
    let octave = u32::try_from(place / STEPS).unwrap_or(0) + FIRST;
    let step = u64::try_from(place % STEPS).unwrap_or(0);
    Duration::from_micros((5 + step) << (octave - 2))
}

/// The upper bound of the bucket that holds the call with this rank, from 1.
fn percentile(counts: &[u64], rank: u64) -> Option<Duration> {
    let mut seen = 0;
    let found = counts.iter().position(|count| {
        seen += count;
        rank > 0 && seen >= rank
    });
    found.map(upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Option<CallEnd> = Some(CallEnd::Answered { failed: false });

    fn ends(load: &UpstreamLoad, at: u64, took: Duration, ended: Option<CallEnd>) {
        load.call_began();
        load.call_ended(load.since + Duration::from_secs(at), took, ended);
    }

    fn recent(load: &UpstreamLoad, at: u64) -> RecentCalls {
        load.recent_at(load.since + Duration::from_secs(at))
    }

    fn per_minute(count: f64, expected: f64) -> bool {
        (count - expected).abs() < 0.01
    }

    #[test]
    fn buckets_follow_each_other_and_hold_their_durations() {
        for bucket_number in 1..BUCKETS {
            let below = upper(bucket_number - 1);
            assert_eq!(bucket(below), bucket_number, "{below:?}");
            let last = upper(bucket_number).saturating_sub(Duration::from_micros(1));
            assert_eq!(bucket(last), bucket_number, "{last:?}");
        }
        assert_eq!(bucket(Duration::ZERO), 0);
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_close_to_what_was_recorded() {
        let load = UpstreamLoad::new("up".into());
        for n in 1..=1000 {
            ends(&load, 1, Duration::from_millis(n), GOOD);
        }
        let found = recent(&load, 5);
        let near = |found: Option<Duration>, wanted: f64| {
            let found = found.unwrap().as_secs_f64();
            assert!(found >= wanted && found < wanted * 1.26, "{found}");
        };
        near(found.p50, 0.5);
        near(found.p99, 0.99);
    }

    #[test]
    fn calls_count_for_a_minute() {
        let load = UpstreamLoad::new("up".into());
        for at in [100, 101, 102] {
            ends(&load, at, Duration::from_millis(3), GOOD);
        }
        let failed = Some(CallEnd::Answered { failed: true });
        ends(&load, 103, Duration::from_millis(3), failed);
        ends(
            &load,
            104,
            Duration::from_secs(3),
            Some(CallEnd::Unanswered),
        );
        ends(&load, 105, Duration::from_secs(3), None);
        let now = recent(&load, 120);
        assert!(per_minute(now.calls, 5.0), "{now:?}");
        assert!(per_minute(now.failures, 2.0), "{now:?}");
        // The slices from 110 on.
        let later = recent(&load, 170);
        assert!(per_minute(later.calls, 0.0), "{later:?}");
        assert_eq!((later.p50, later.p99), (None, None));
        // Their places are used again.
        ends(&load, 170, Duration::from_millis(3), GOOD);
        assert!(per_minute(recent(&load, 180).calls, 1.0));
    }

    #[test]
    fn a_young_gateway_counts_its_own_age() {
        let load = UpstreamLoad::new("up".into());
        for _ in 0..10 {
            ends(&load, 15, Duration::from_millis(3), GOOD);
        }
        let now = recent(&load, 30);
        assert!(per_minute(now.calls, 20.0), "{now:?}");
    }

    #[test]
    fn what_is_open_is_counted_until_it_ends() {
        let load = Arc::new(UpstreamLoad::new("up".into()));
        let open = (load.session(), load.session(), load.child());
        load.call_began();
        let now = || (load.sessions(), load.children(), load.calls());
        assert_eq!(now(), (2, 1, 1));
        assert_eq!(load.last_answer(), None);
        drop(open);
        load.call_ended(Instant::now(), Duration::ZERO, None);
        assert_eq!(now(), (0, 0, 0));
        assert_eq!(load.last_answer(), None, "a cancelled call tells nothing");
        ends(&load, 0, Duration::from_millis(1), GOOD);
        assert!(load.last_answer().is_some());
    }
}
