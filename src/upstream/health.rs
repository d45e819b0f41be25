//! `UpstreamHealth` of an upstream, over all its links: the state that operators see, and whether a request waits for
//! the upstream. Spec: DESIGN §6 (health); SPEC G-03.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::carrier::http::login::UpstreamLogin;
use super::error::LinkError;
use super::failure_log::{FailureLog, is_ours};
use super::first_start::FirstStarts;
use super::lock;
use crate::cause::{ErrorCause, LastCause};
use crate::protocol::Revision;
use crate::status::UpstreamState;
use crate::sync::backoff::Backoff;
use crate::telemetry::metrics::{LABELED, LEVELS};

/// Failures in a row after which an upstream is down.
const DOWN_AFTER: u32 = 2;
/// A failure that takes longer costs its caller: further callers are spared the wait during a cool-down.
const SLOW: Duration = Duration::from_secs(1);
/// Cool-down of a hanging upstream: the first, and the longest.
const COOL_FIRST: Duration = Duration::from_secs(1);
const COOL_LONGEST: Duration = Duration::from_secs(15);
/// For how long the failure of a call is shown: `/status` counts failures over the same time.
const CALL_CAUSE: Duration = Duration::from_secs(70);
/// Waiting sessions that may open an upstream per second after its return.
const RETURNS_PER_SECOND: u32 = 50;

/// The state machine of one upstream.
///
/// An upstream that refuses at once costs its callers nothing and is tried every time. An upstream that hangs is
/// *stuck*: for a cool-down (1 s, doubled up to 15 s) requests go on without it at once instead of each waiting for the
/// timeout.
#[derive(Debug)]
pub(super) struct UpstreamHealth {
    upstream: Arc<str>,
    /// An [`UpstreamState`], readable without the lock.
    state: AtomicU8,
    /// The legacy revision of the last session.
    revision: Mutex<Option<Revision>>,
    standing: Mutex<HealthRecord>,
    pub(super) first_starts: FirstStarts,
    recovered: Notify,
    /// The earliest time at which the next session may come back.
    next_return: Mutex<Option<Instant>>,
    failures: FailureLog,
    /// Why the last attempt failed.
    cause: LastCause,
    /// Why the last call failed that had reached the upstream.
    call_cause: LastCause,
    /// `cause` in words for callers.
    reason: Mutex<Option<Cow<'static, str>>>,
}

#[derive(Debug)]
struct HealthRecord {
    state: UpstreamState,
    since: Instant,
    failures: u32,
    /// The cool-downs after slow failures.
    cool_down: Backoff,
    /// The end of the cool-down.
    stuck_until: Option<Instant>,
    /// Whether the last failed attempt was answered, so that an answer alone does not make the upstream `Up`.
    has_answered: bool,
    /// When the last attempt that counts failed.
    failed_at: Option<Instant>,
    /// When a list last went out without the upstream because it was late.
    late_at: Option<Instant>,
}

impl UpstreamHealth {
    pub(super) fn new(upstream: Arc<str>, first_starts: FirstStarts) -> Self {
        LEVELS
            .upstream_state
            .set(&upstream, UpstreamState::Connecting as i64);
        for counter in [&LABELED.upstream_failed, &LABELED.upstream_lost] {
            counter.begin(&upstream);
        }
        Self {
            failures: FailureLog::new(Arc::clone(&upstream)),
            upstream,
            state: AtomicU8::new(UpstreamState::Connecting as u8),
            revision: Mutex::default(),
            standing: Mutex::new(HealthRecord {
                state: UpstreamState::Connecting,
                since: Instant::now(),
                failures: 0,
                cool_down: Backoff::new(COOL_FIRST, COOL_LONGEST),
                stuck_until: None,
                has_answered: false,
                failed_at: None,
                late_at: None,
            }),
            first_starts,
            recovered: Notify::new(),
            next_return: Mutex::default(),
            cause: LastCause::default(),
            call_cause: LastCause::default(),
            reason: Mutex::default(),
        }
    }

    /// Notes a success: the upstream is `Up`.
    pub(super) fn succeeded(&self) {
        if self.state.load(Ordering::Relaxed) == UpstreamState::Up as u8 {
            return;
        }
        let mut standing = lock(&self.standing);
        standing.failures = 0;
        standing.cool_down.reset();
        standing.stuck_until = None;
        self.cause.clear();
        *lock(&self.reason) = None;
        self.enter(&mut standing, UpstreamState::Up);
        drop(standing);
        self.recovered.notify_waiters();
    }

    /// Notes an answer to a background check: the upstream is `Up`, unless its last failure was an answer too.
    pub(super) fn looked_well(&self) {
        let has_answered = lock(&self.standing).has_answered;
        if !(self.is_failing() && has_answered) {
            self.succeeded();
        }
    }

    /// How long ago the last attempt failed.
    pub(super) fn last_failure(&self) -> Option<Duration> {
        let failed = lock(&self.standing).failed_at;
        failed.map(|at| at.elapsed())
    }

    /// Notes that an attempt begun at `since` failed. Overlapping attempts count once, as one failure answers all the
    /// callers that waited for the attempt.
    pub(super) fn failed(&self, since: Instant, error: &LinkError, login: Option<&UpstreamLogin>) {
        {
            let mut standing = lock(&self.standing);
            if standing.failed_at.is_some_and(|at| since < at) {
                return;
            }
            standing.failed_at = Some(Instant::now());
        }
        self.cause.set(error, error.remedy(login));
        *lock(&self.reason) = Some(error.public_reason());
        self.failures.note_unreached(error, login);
        self.note(since.elapsed() >= SLOW, has_answered(error));
    }

    /// Notes a failed call that had reached the upstream; the state stays.
    pub(super) fn call_failed(&self, error: &LinkError, login: Option<&UpstreamLogin>) {
        if !is_ours(error) {
            self.call_cause.set(error, error.remedy_of_call(login));
            self.failures.note(error, login);
        }
    }

    /// Notes the issuer that the metadata of an upstream names which wants a token.
    pub(super) fn names_issuer(&self, error: &LinkError, login: &UpstreamLogin) {
        let remedy = error.remedy(Some(login));
        let of_this = |cause: &ErrorCause| cause.text.contains(&error.to_string());
        if let Some(cause) = self.cause.snapshot().filter(of_this) {
            self.cause.set_text(&cause.text, remedy.clone());
        }
        let issuer = login.issuer();
        tracing::info!(
            upstream = %self.upstream, unverified_issuer = issuer, remedy = remedy.as_deref(),
            "upstream names the issuer of the token that it wants"
        );
    }

    /// Notes that a list requested at `since` went out without the upstream, which was late. Lists requested together
    /// count once.
    pub(super) fn was_late(&self, since: Instant) {
        {
            let mut standing = lock(&self.standing);
            if standing.late_at.is_some_and(|at| since < at) {
                return;
            }
            standing.late_at = Some(Instant::now());
        }
        self.note(true, false);
    }

    fn note(&self, slow: bool, answered: bool) {
        let mut standing = lock(&self.standing);
        standing.failures = standing.failures.saturating_add(1);
        standing.has_answered = answered;
        let state = if standing.failures < DOWN_AFTER {
            UpstreamState::Degraded
        } else {
            UpstreamState::Down
        };
        standing.stuck_until = if slow && state == UpstreamState::Down {
            Some(Instant::now() + standing.cool_down.next_pause())
        } else {
            None
        };
        self.enter(&mut standing, state);
    }

    fn enter(&self, standing: &mut HealthRecord, state: UpstreamState) {
        let before = std::mem::replace(&mut standing.state, state);
        if before != state {
            standing.since = Instant::now();
            self.state.store(state as u8, Ordering::Relaxed);
            LEVELS.upstream_state.set(&self.upstream, state as i64);
            let (name, upstream) = (state.as_str(), &self.upstream);
            tracing::info!(upstream = %upstream, state = name, "upstream state changed");
        }
    }

    /// Why the last attempt failed, in words for callers.
    pub(super) fn public_reason(&self) -> Option<Cow<'static, str>> {
        lock(&self.reason).clone()
    }

    /// Why the last attempt failed; empty after a success.
    pub(super) fn cause(&self) -> &LastCause {
        &self.cause
    }

    /// Why the last call failed that had reached the upstream. A success of another call does not clear the cause, as
    /// the failures of one session among many would never be seen: at `now`, since the Unix epoch, the cause is dropped
    /// once older than the failures that `/status` counts.
    pub(super) fn recent_call_cause(&self, now: Duration) -> Option<ErrorCause> {
        let is_recent = |cause: &ErrorCause| now.saturating_sub(cause.at) < CALL_CAUSE;
        self.call_cause.snapshot().filter(is_recent)
    }

    /// The state, and for how long the upstream has been in it.
    pub(super) fn state(&self) -> (UpstreamState, Duration) {
        let standing = lock(&self.standing);
        (standing.state, standing.since.elapsed())
    }

    /// Notes the revision of a new legacy session.
    pub(super) fn speaks(&self, revision: Revision) {
        *lock(&self.revision) = Some(revision);
    }

    /// The revision of the last legacy session.
    pub(super) fn legacy_revision(&self) -> Option<Revision> {
        *lock(&self.revision)
    }

    /// Whether the upstream hung recently, so that waiting would be in vain.
    pub(super) fn is_stuck(&self) -> bool {
        self.state.load(Ordering::Relaxed) == UpstreamState::Down as u8
            && lock(&self.standing)
                .stuck_until
                .is_some_and(|until| Instant::now() < until)
    }

    /// Whether the last attempt failed or was given up.
    pub(super) fn is_failing(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state == UpstreamState::Degraded as u8 || state == UpstreamState::Down as u8
    }

    /// Resolves when the upstream answers again after a failure. Cancel safe.
    pub(super) async fn recovered(&self) {
        self.recovered.notified().await;
    }

    /// When a session that waited for the return may open the upstream: the first session now, then
    /// [`RETURNS_PER_SECOND`], to spare an upstream that has just recovered.
    pub(super) fn next_return(&self) -> Instant {
        let mut next = lock(&self.next_return);
        let now = Instant::now();
        let turn = next.map_or(now, |next| next.max(now));
        *next = Some(turn + Duration::from_secs(1) / RETURNS_PER_SECOND);
        turn
    }
}

/// Whether a failure is an answer of the upstream itself, which a later answer to a background check does not refute.
/// A status 5xx may be that of a proxy in front of the upstream.
fn has_answered(error: &LinkError) -> bool {
    match error {
        LinkError::Status(status) => *status < 500,
        LinkError::Handshake(_)
        | LinkError::Invalid(_)
        | LinkError::TooLarge { .. }
        | LinkError::Unanswered(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, SystemClock};
    use crate::telemetry::captured::LogCapture;

    fn health() -> UpstreamHealth {
        UpstreamHealth::new("health-test".into(), FirstStarts::new(false))
    }

    fn state(health: &UpstreamHealth) -> UpstreamState {
        lock(&health.standing).state
    }

    #[test]
    fn counters_of_the_alerts_have_a_series_before_the_first_failure() {
        let name = "never-failed";
        drop(UpstreamHealth::new(name.into(), FirstStarts::new(false)));
        for counter in [&LABELED.upstream_failed, &LABELED.upstream_lost] {
            let counts = counter.get();
            assert!(counts.contains(&(name.to_owned(), 0)), "{counts:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_failure_degrades_and_two_in_a_row_are_down() {
        let health = health();
        assert_eq!(state(&health), UpstreamState::Connecting);
        health.failed(Instant::now(), &LinkError::Timeout, None);
        assert_eq!(state(&health), UpstreamState::Degraded);
        health.succeeded();
        health.failed(Instant::now(), &LinkError::Timeout, None);
        assert_eq!(state(&health), UpstreamState::Degraded);
        health.failed(Instant::now(), &LinkError::Timeout, None);
        assert_eq!(state(&health), UpstreamState::Down);
        health.succeeded();
        assert_eq!(state(&health), UpstreamState::Up);
    }

    #[tokio::test]
    async fn the_cause_of_a_failure_lasts_until_a_success() {
        let health = health();
        health.failed(Instant::now(), &LinkError::Status(502), None);
        let cause = health.cause().snapshot().unwrap();
        assert!(cause.text.contains("502"), "{cause:?}");
        health.was_late(Instant::now());
        assert_eq!(health.cause().snapshot(), Some(cause));
        health.succeeded();
        assert_eq!(health.cause().snapshot(), None);
    }

    #[tokio::test]
    async fn a_failed_call_is_a_cause_for_70_seconds() {
        let health = health();
        health.succeeded();
        for of_us in [LinkError::Cancelled, LinkError::AwaitsAnswer] {
            health.call_failed(&of_us, None);
        }
        let now = SystemClock.now();
        assert_eq!(health.recent_call_cause(now), None);
        health.call_failed(&LinkError::Timeout, None);
        // Another session is served meanwhile.
        health.succeeded();
        let cause = health.recent_call_cause(now).unwrap();
        assert!(cause.text.contains("no answer in time"), "{cause:?}");
        let remedy = cause.remedy.unwrap();
        assert!(remedy.contains("`idle_timeout`"), "{remedy}");
        assert_eq!(health.cause().snapshot(), None, "it is reached");
        assert_eq!(state(&health), UpstreamState::Up);
        assert_eq!(health.recent_call_cause(now + 2 * CALL_CAUSE), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_answers_many_counts_once() {
        let health = health();
        let first = Instant::now();
        for _ in 0..2 {
            let began = Instant::now();
            tokio::time::advance(SLOW).await;
            health.failed(began, &LinkError::Timeout, None);
        }
        assert!(health.is_stuck());
        // The late caller waited only for a moment, the first caller for the whole time.
        health.failed(Instant::now() - SLOW / 2, &LinkError::Timeout, None);
        health.failed(first, &LinkError::Timeout, None);
        assert!(health.is_stuck());
        assert_eq!(lock(&health.standing).failures, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_to_a_look_refutes_no_answer_alone() {
        let health = health();
        health.looked_well();
        assert_eq!(state(&health), UpstreamState::Up);
        for refuted in [LinkError::Timeout, LinkError::Status(502)] {
            health.failed(Instant::now(), &refuted, None);
            assert_eq!(state(&health), UpstreamState::Degraded);
            health.looked_well();
            assert_eq!(state(&health), UpstreamState::Up);
        }
        health.was_late(Instant::now());
        health.looked_well();
        assert_eq!(state(&health), UpstreamState::Up);
        for _ in 0..2 {
            health.failed(Instant::now(), &LinkError::Status(401), None);
        }
        health.looked_well();
        assert_eq!(
            state(&health),
            UpstreamState::Down,
            "it answers, and refuses us"
        );
        health.succeeded();
        assert_eq!(state(&health), UpstreamState::Up);
    }

    #[tokio::test(start_paused = true)]
    async fn what_refuses_at_once_is_tried_every_time() {
        let health = health();
        for _ in 0..10 {
            health.failed(Instant::now(), &LinkError::Timeout, None);
            assert!(!health.is_stuck());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_is_left_alone_for_growing_whiles() {
        let health = health();
        health.was_late(Instant::now());
        assert!(!health.is_stuck(), "once may be chance");
        let mut pauses = Vec::new();
        for _ in 0..6 {
            health.was_late(Instant::now());
            let mut seconds = 0;
            while health.is_stuck() {
                tokio::time::advance(Duration::from_secs(1)).await;
                seconds += 1;
            }
            pauses.push(seconds);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 15, 15]);
        health.was_late(Instant::now());
        health.succeeded();
        assert!(!health.is_stuck());
    }

    #[tokio::test(start_paused = true)]
    async fn lists_that_are_late_together_count_once() {
        let (health, since) = (health(), Instant::now());
        tokio::time::advance(SLOW).await;
        for _ in 0..3 {
            health.was_late(since);
        }
        assert_eq!(state(&health), UpstreamState::Degraded);
        health.was_late(Instant::now());
        assert_eq!(state(&health), UpstreamState::Down);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cause_is_logged_once_a_minute() {
        let (health, caught) = (health(), LogCapture::begin());
        for _ in 0..10 {
            health.failed(Instant::now(), &LinkError::Status(401), None);
            health.call_failed(&LinkError::Status(401), None);
        }
        let lines = caught.of_level("WARN");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0]["message"], "upstream fails");
        assert!(lines[0]["error"].to_string().contains("wants a token"));
        assert!(
            lines[0]["remedy"]
                .to_string()
                .contains("`headers.Authorization`")
        );
        assert_eq!(caught.of_level("INFO").len(), 2, "degraded, down");
        tokio::time::advance(Duration::from_mins(1)).await;
        health.failed(Instant::now(), &LinkError::Status(401), None);
        assert_eq!(caught.of_level("WARN")[1]["muted"], 19);
    }

    // Spec: DESIGN §6.
    #[tokio::test(start_paused = true)]
    async fn sessions_come_back_at_a_bounded_rate() {
        let health = health();
        let second = Duration::from_secs(1);
        let each = usize::try_from(RETURNS_PER_SECOND).unwrap();
        for _ in 0..2 {
            let began = Instant::now();
            let turns: Vec<_> = (0..2000).map(|_| health.next_return() - began).collect();
            assert_eq!(turns[0], Duration::ZERO, "nobody is before the first");
            for of_a_second in turns.windows(each + 1) {
                assert!(of_a_second[each] >= of_a_second[0] + second);
            }
            assert!(turns[1999] <= 2000 * second / RETURNS_PER_SECOND);
            tokio::time::advance(2 * turns[1999]).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_callers_learn_of_the_recovery() {
        let health = health();
        health.was_late(Instant::now());
        let waiting = health.recovered();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        health.succeeded();
        assert!(futures_util::poll!(&mut waiting).is_ready());
    }
}
