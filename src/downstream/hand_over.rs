//! `SessionHandOver`: while this replica drains, it gives its sessions up one by one, and other replicas go on with them.
//!
//! A session is given up between two requests, once the shared store has its events and its record. Without another
//! replica the sessions are served until the end of the drain, and given up then.
//! Spec: DESIGN §8; `docs/adr/0028`.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::adoption::SessionAdopter;
use super::busy::come_back;
use crate::cause::chain;
use crate::session::Session;
use crate::store::events::SessionKey;
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
/// Requests that wait for their session to come to rest wait for so much less than a request waits for an owner.
const HELD_LESS: Duration = Duration::from_secs(1);
/// Until the store is asked again that has not said whether a session is given up.
const REPEAT: Duration = Duration::from_millis(50);

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
}

/// What became of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandOver {
    /// Any replica goes on with it.
    GivenUp,
    /// Another replica owned it already.
    Lost,
    /// The shared store cannot be written to: it stays.
    Kept,
}

impl SessionHandOver {
    pub(super) fn new(adopter: &Arc<SessionAdopter>, drain: Duration) -> Arc<Self> {
        // A request that is held waits for no longer than for an owner.
        let held = adopter.patience().saturating_sub(HELD_LESS);
        Arc::new(Self {
            adopter: Arc::clone(adopter),
            hold_after: drain.saturating_sub(held).max(drain / 2),
            is_last: watch::Sender::new(false),
            is_done: watch::Sender::new(false),
            given_up: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            kept: AtomicU64::new(0),
        })
    }

    /// Waits for the drain, then gives sessions up as they come to rest, until the last of them after
    /// [`finish`](Self::finish).
    ///
    /// # Cancel safety
    /// Sessions that are being given up then may have been: they are neither served nor ended here.
    pub async fn run(self: Arc<Self>) {
        let sessions = &self.adopter.sessions;
        self.adopter.tasks.draining().cancelled().await;
        let mut hold = pin!(sleep(self.hold_after));
        let (mut last, mut is_held) = (self.is_last.subscribe(), false);
        while !*last.borrow_and_update() && !self.adopter.has_successor() {
            drop(timeout(LOOK, last.changed()).await);
        }
        sessions.begin_hand_over();
        let (mut work, mut waiting) = (FuturesUnordered::new(), VecDeque::new());
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_last = false;
        loop {
            if !is_last && *last.borrow_and_update() {
                is_last = true;
                waiting.extend(sessions.take_ready());
                waiting.extend(sessions.close_for_requests(true));
            }
            while work.len() < AT_ONCE
                && let Some(session) = waiting.pop_front()
            {
                work.push(self.give_up(session, is_last));
            }
            if is_last && work.is_empty() {
                break;
            }
            tokio::select! {
                Some(()) = work.next() => {}
                () = sessions.more_ready() => waiting.extend(sessions.take_ready()),
                _ = look.tick() => if !is_last && self.adopter.has_successor() {
                    waiting.extend(sessions.close_for_requests(false));
                },
                () = hold.as_mut(), if !is_held => {
                    is_held = true;
                    if self.adopter.has_successor() {
                        sessions.hold_requests();
                    }
                }
                Ok(()) = last.changed() => {}
            }
        }
        self.is_done.send_replace(true);
    }

    /// Gives up all sessions that are left, whatever they do, until the time `until` at the latest. To be called when the
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

    /// Gives up a session that admits no request any more. It ends where an upstream of it ends with this process. With
    /// `is_last` its calls are cut off.
    async fn give_up(&self, session: Arc<Session>, is_last: bool) {
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
            return;
        }
        // What upstreams have sent beside their last reply comes over other connections.
        let unused = session.age().saturating_sub(session.age_when_used());
        sleep(SETTLE.saturating_sub(unused)).await;
        session.end_streams(come_back(), READ_WITHIN).await;
        match self.release(session.key()).await {
            HandOver::GivenUp => {
                tracing::debug!(session = tag, "session given up");
                sessions.give_up(session.key());
                self.given_up.fetch_add(1, Ordering::Relaxed);
                LABELED.hand_overs.add("given_up", 1);
            }
            HandOver::Lost => sessions.give_up(session.key()),
            // Its record stays as it is: another replica adopts the session once the lease of this one is gone.
            HandOver::Kept if is_last => {
                self.kept.fetch_add(1, Ordering::Relaxed);
                LABELED.hand_overs.add("kept", 1);
            }
            HandOver::Kept => session.stay(),
        }
    }

    /// Has the shared store say that no replica owns a session, once it has all events of it.
    async fn release(&self, session: SessionKey) -> HandOver {
        let stores = &self.adopter.stores;
        let flushed = timeout(FLUSH_WITHIN, stores.events.flush(session)).await;
        if !flushed.unwrap_or(false) {
            return HandOver::Kept;
        }
        let mut is_uncertain = false;
        loop {
            match stores.writer.give_up(session).await {
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
#[derive(Debug)]
pub(super) struct SessionDrain {
    pub(super) draining: CancellationToken,
    /// `None` where no other replica can go on with the session.
    pub(super) adopter: Option<Arc<SessionAdopter>>,
}

impl SessionDrain {
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
        if self.hands_over() {
            pending::<()>().await;
        }
    }
}
