//! `SessionHandOver`: a replica that drains gives up one session after another, and other replicas go on with these sessions.
//!
//! A session is given up between two requests, once the shared store has its events and its record. Without another
//! replica the sessions are served until the end of the drain, and given up then.
//! Spec: DESIGN §8.1; `docs/adr/0028`.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::adoption::SessionAdopter;
use super::busy::reconnect_delay;
use crate::cause::chain;
use crate::session::Session;
use crate::store::pause::store_backoff;
use crate::sync::backoff::Backoff;
use crate::telemetry::metrics::LABELED;

/// Sessions that are given up at once; others wait.
const AT_ONCE: usize = 100;
/// Between two looks for sessions that are at rest.
const LOOK: Duration = Duration::from_millis(50);
/// From the last use of a session until its connections to upstreams are closed.
const SETTLE: Duration = Duration::from_millis(100);
/// For clients to read what is on their streams.
const READ_WITHIN: Duration = Duration::from_millis(500);
/// For the shared store to take the events of a session.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);
/// A request that waits until its session is at rest waits this much less than one that waits for an owner.
const HELD_LESS: Duration = Duration::from_secs(1);
/// Pause before the store is asked again, after an attempt to give a session up whose outcome is unknown.
const REPEAT: Duration = Duration::from_millis(50);
/// How soon waiting requests are refused when there is no other replica any more, and no heartbeat is answered.
const REFUSES_WITHIN: Duration = Duration::from_secs(1);

/// Gives up the sessions of a replica that drains.
#[derive(Debug)]
pub struct SessionHandOver {
    adopter: Arc<SessionAdopter>,
    /// After this part of the drain, requests wait until their session is at rest.
    hold_after: Duration,
    /// Whether the drain is over: what still runs is cut off.
    is_last: watch::Sender<bool>,
    is_done: watch::Sender<bool>,
    given_up: AtomicU64,
    ended: AtomicU64,
    kept: AtomicU64,
    /// Whether a line says that the shared store takes no sessions.
    has_warned: AtomicBool,
}

/// The outcome of one attempt to give a session up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandOver {
    /// No replica owns it now: the next replica that is asked for it adopts it.
    GivenUp,
    /// Another replica owned it already.
    Lost,
    /// The shared store cannot be written to: it stays.
    Kept,
    /// Its child ends with this replica.
    Ended,
    /// There is no other replica any more: it stays.
    Stayed,
}

/// The pause after the shared store has refused a session, before further sessions are closed for requests.
#[derive(Debug)]
struct HandOverPause {
    backoff: Backoff,
    until: Instant,
}

impl HandOverPause {
    fn new() -> Self {
        let (backoff, until) = (store_backoff(), Instant::now());
        Self { backoff, until }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Notes an outcome. Of many sessions that fail together, only the first makes the pause longer.
    fn note(&mut self, outcome: HandOver) {
        match outcome {
            HandOver::GivenUp => self.backoff.reset(),
            HandOver::Kept if self.is_over() => {
                self.until = Instant::now() + self.backoff.next_pause();
            }
            _ => {}
        }
    }
}

impl SessionHandOver {
    pub(super) fn new(adopter: &Arc<SessionAdopter>, drain: Duration) -> Arc<Self> {
        // A held request waits no longer than a request that waits for an owner.
        let held = adopter.patience().saturating_sub(HELD_LESS);
        Arc::new(Self {
            adopter: Arc::clone(adopter),
            hold_after: drain.saturating_sub(held).max(drain / 2),
            is_last: watch::Sender::new(false),
            is_done: watch::Sender::new(false),
            given_up: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
        })
    }

    /// Waits for the drain, then gives up each session as soon as it is at rest. Returns after [`finish`](Self::finish), once
    /// no session is left.
    ///
    /// # Cancel safety
    /// Sessions that are being given up at that moment are neither served nor ended here, whether or not the shared store
    /// was told.
    pub async fn run(self: Arc<Self>) {
        let sessions = &self.adopter.sessions;
        self.adopter.tasks.draining().cancelled().await;
        let mut hold = pin!(sleep(self.hold_after));
        let mut last = self.is_last.subscribe();
        // The next heartbeat says that this replica drains, and reads which replicas drain.
        tokio::select! {
            () = self.adopter.cluster.look_for_peers() => {}
            Ok(()) = last.changed() => {}
        }
        let (mut work, mut waiting) = (FuturesUnordered::new(), VecDeque::new());
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut is_held, mut is_last) = (false, false);
        let mut pause = HandOverPause::new();
        loop {
            if !is_last && *last.borrow_and_update() {
                is_last = true;
                waiting.extend(sessions.take_ready());
                waiting.extend(sessions.close_for_requests(true));
            }
            while work.len() < AT_ONCE
                && let Some(session) = waiting.pop_front()
            {
                if is_last || pause.is_over() {
                    work.push(self.give_up(session, is_last));
                } else {
                    session.stay();
                }
            }
            if is_last && work.is_empty() {
                // A session that was being given up when the drain ended may have stayed.
                waiting.extend(sessions.take_ready());
                waiting.extend(sessions.close_for_requests(true));
                if waiting.is_empty() {
                    break;
                }
                continue;
            }
            tokio::select! {
                Some(outcome) = work.next() => pause.note(outcome),
                () = sessions.more_ready() => waiting.extend(sessions.take_ready()),
                _ = look.tick(), if !is_last => {
                    // Otherwise sessions are served here until there is another replica and the store accepts them.
                    let goes_on = pause.is_over() && self.adopter.has_successor();
                    sessions.hand_over(goes_on, goes_on && is_held);
                    if goes_on {
                        waiting.extend(sessions.close_for_requests(false));
                    }
                }
                () = hold.as_mut(), if !is_held => is_held = true,
                Ok(()) = last.changed(), if !is_last => {}
            }
        }
        self.is_done.send_replace(true);
    }

    /// Gives up all sessions that are left, also with running calls, until `until` at the latest. To be called when the
    /// drain is over, before background tasks are stopped.
    ///
    /// # Cancel safety
    /// As for [`run`](Self::run).
    pub async fn finish(&self, until: Instant) {
        self.is_last.send_replace(true);
        let mut done = self.is_done.subscribe();
        drop(timeout_at(until, done.wait_for(|is_done| *is_done)).await);
        tracing::info!(
            given_up = self.given_up.load(Ordering::Relaxed),
            ended = self.ended.load(Ordering::Relaxed),
            kept = self.kept.load(Ordering::Relaxed),
            "sessions handed over"
        );
    }

    /// Gives up a session that admits no request any more. The session ends if one of its upstreams ends with this process. With
    /// `is_last` its calls are cut off.
    async fn give_up(&self, session: Arc<Session>, is_last: bool) -> HandOver {
        if !is_last && !self.adopter.has_successor() {
            session.stay();
            return HandOver::Stayed;
        }
        let (sessions, relay) = (&self.adopter.sessions, &self.adopter.relay);
        let tag = format!("{:016x}", session.tag());
        if is_last {
            session.cut_calls_off(READ_WITHIN).await;
        }
        if let Some(upstream) = session.tied_to_replica(|one| relay.ends_with_replica(one)) {
            tracing::debug!(session = tag, %upstream, "session ended with its replica");
            sessions.close(&session);
            self.ended.fetch_add(1, Ordering::Relaxed);
            LABELED.hand_overs.add("ended", 1);
            return HandOver::Ended;
        }
        // Messages that upstreams sent beside their last reply arrive over other connections.
        let unused = session.age().saturating_sub(session.age_when_used());
        sleep(SETTLE.saturating_sub(unused)).await;
        session.end_streams(reconnect_delay(), READ_WITHIN).await;
        let outcome = self.release(&session).await;
        match outcome {
            HandOver::GivenUp => {
                tracing::debug!(session = tag, "session given up");
                sessions.give_up_session(&session);
                self.given_up.fetch_add(1, Ordering::Relaxed);
                LABELED.hand_overs.add("given_up", 1);
            }
            HandOver::Lost => sessions.give_up_session(&session),
            HandOver::Ended | HandOver::Stayed => {}
            // Its record stays as it is: another replica adopts the session once the lease of this one is gone.
            HandOver::Kept if is_last => {
                self.kept.fetch_add(1, Ordering::Relaxed);
                LABELED.hand_overs.add("kept", 1);
            }
            HandOver::Kept => {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    let remedy = "see the errors of Redis in the metrics and its log";
                    tracing::warn!(remedy, "sessions stay here: Redis does not take them");
                }
                session.stay();
            }
        }
        outcome
    }

    /// Has the shared store say that no replica owns a session, once it has all events of it. An implicit session has none.
    async fn release(&self, session: &Session) -> HandOver {
        let stores = &self.adopter.stores;
        if session.implicit_session().is_none() {
            let flushed = timeout(FLUSH_WITHIN, stores.events.flush(session.key())).await;
            if !flushed.unwrap_or(false) {
                return HandOver::Kept;
            }
        }
        let Some((record, by)) = session.record_key() else {
            return HandOver::Lost;
        };
        let mut is_uncertain = false;
        loop {
            match stores.writer.give_up(record, by).await {
                Ok(true) => return HandOver::GivenUp,
                Ok(false) => return HandOver::Lost,
                Err(failure) => {
                    tracing::debug!(error = chain(&failure), "session not given up");
                    // Another replica may have adopted it by now.
                    is_uncertain |= failure.is_uncertain();
                    if !is_uncertain {
                        return HandOver::Kept;
                    }
                    sleep(REPEAT).await;
                }
            }
        }
    }
}

/// What a drain of this replica means for a session.
#[derive(Debug, Clone)]
pub(super) struct SessionDrain {
    pub(super) draining: CancellationToken,
    /// `None` where no other replica can go on with the session.
    pub(super) adopter: Option<Arc<SessionAdopter>>,
}

impl SessionDrain {
    /// The drain of one session, which `is_handed_over` or ends with this replica.
    pub(super) fn of(&self, is_handed_over: bool) -> Self {
        Self {
            draining: self.draining.clone(),
            adopter: self.adopter.clone().filter(|_| is_handed_over),
        }
    }

    /// Whether the session is handed over to another replica, rather than ended.
    pub(super) fn hands_over(&self) -> bool {
        let adopter = self.adopter.as_ref();
        adopter.is_some_and(|adopter| adopter.has_successor())
    }

    /// Resolves when the drain has begun, unless the session is handed over.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub(super) async fn refuses(self) {
        self.draining.cancelled().await;
        // All others may drain as well.
        while let Some(adopter) = &self.adopter
            && adopter.has_successor()
        {
            // Redis may be away, and answer none.
            drop(timeout(REFUSES_WITHIN, adopter.cluster.next_heartbeat()).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sessions_that_the_store_refuses_are_tried_ever_more_rarely() {
        let mut pause = HandOverPause::new();
        let (began, mut tries) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(10) {
            if pause.is_over() {
                tries += 1;
                // Many are refused at once.
                pause.note(HandOver::Kept);
                pause.note(HandOver::Kept);
            }
            sleep(LOOK).await;
        }
        assert!((5..=20).contains(&tries), "{tries}");
        pause.note(HandOver::GivenUp);
        sleep(Duration::from_secs(2)).await;
        pause.note(HandOver::Kept);
        sleep(Duration::from_millis(100)).await;
        assert!(pause.is_over(), "as from the beginning");
    }
}
