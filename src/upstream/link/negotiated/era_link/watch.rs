//! Checks the era of an upstream whose stream of notices is refused: a client that only keeps a stream open makes no
//! call that would reveal the other era. Spec: SPEC U-07; BRIDGING §3.4.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::EraLink;
use crate::sync::backoff::Backoff;
use crate::upstream::error::LinkError;
use crate::upstream::link::negotiated::RECONSIDER;
use crate::upstream::link::session_state::DoubtReporter;
use crate::upstream::lock;

/// The longest pause between two checks; the first is [`RECONSIDER`], and each is twice as long as the one before.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// How long the era counts as settled once a check has found a modern upstream that refuses `subscriptions/listen`:
/// each check sends a request, and may start a child.
const CONFIRMED: Duration = Duration::from_mins(10);
/// Time within which all waiting links check, once another link has learnt of a change.
const LEARNT_WITHIN: Duration = Duration::from_secs(1);

/// Starts a check for each report of a link of `own`; does not keep `own` alive.
pub(super) fn doubt(own: &Weak<EraLink>) -> DoubtReporter {
    let own = Weak::clone(own);
    DoubtReporter::new(move |error| {
        if let Some(link) = own.upgrade() {
            link.doubted(error);
        }
    })
}

/// Reports that the era may have changed, and what the checks of them have found.
#[derive(Debug, Default)]
pub(super) struct EraDoubts {
    /// Reports since the last check that settled all reports.
    reports: AtomicU32,
    /// When a check last found that the upstream is modern although it refuses `subscriptions/listen`.
    confirmed: Mutex<Option<Instant>>,
}

impl EraDoubts {
    /// Notes a report; returns whether it is the first of a check.
    fn report(&self) -> bool {
        self.reports.fetch_add(1, Ordering::AcqRel) == 0
    }

    /// The number of reports so far, to settle them.
    fn reported(&self) -> u32 {
        self.reports.load(Ordering::Acquire)
    }

    /// Settles `reports`; `false` where another one arrived during the check, which needs another check.
    fn settle(&self, reports: u32) -> bool {
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let settled = self.reports.compare_exchange(reports, 0, order, failed);
        settled.is_ok()
    }

    /// Notes that a check has confirmed the modern era.
    pub(super) fn confirm(&self) {
        *lock(&self.confirmed) = Some(Instant::now());
    }

    /// Whether a recent check has confirmed the modern era, so that a refusal is no evidence.
    fn is_confirmed(&self) -> bool {
        lock(&self.confirmed).is_some_and(|at| at.elapsed() < CONFIRMED)
    }
}

impl EraLink {
    /// Starts a check, unless one is under way or the error says nothing about the era.
    fn doubted(self: &Arc<Self>, error: &LinkError) {
        let is_pinned = self.cell.pin.is_some();
        let Some(inner) = self
            .current
            .get()
            .filter(|_| !is_pinned && self.current.is_heard())
        else {
            return;
        };
        if !self.doubts.is_confirmed()
            && self.contradicts(inner.era(), error)
            && self.doubts.report()
        {
            let look = look(Weak::clone(&self.own));
            self.settings.tasks.spawn_service(look);
        }
    }

    /// Whether no check is needed: the link has the upstream's era, or nothing listens to it.
    async fn is_settled(&self) -> bool {
        while self.current.is_heard() {
            let Some(inner) = self.current.get() else {
                return true;
            };
            match self.fits(&inner).await {
                Some(true) => return true,
                // The next round checks the fresh link of the other era, which opens it.
                Some(false) if self.reconsider(&inner).await.is_some() => {}
                Some(false) | None => return self.doubts.is_confirmed(),
            }
        }
        true
    }
}

/// Checks until the reports are settled. Keeps the link alive only during a check.
async fn look(link: Weak<EraLink>) {
    // Random, since all sessions of an upstream lose their streams at the same time.
    let mut backoff = Backoff::with_jitter(RECONSIDER, LONGEST_PAUSE, 1.0..1.25);
    loop {
        let Some(this) = link.upgrade() else { return };
        // Subscribed before the check, so that changes during the check are not missed.
        let mut learnt = this.cell.learnt.subscribe();
        let doubts = this.doubts.reported();
        if Box::pin(this.is_settled()).await && this.doubts.settle(doubts) {
            return;
        }
        drop(this);
        tokio::select! {
            () = sleep(backoff.next_pause()) => {}
            Ok(()) = learnt.changed() => sleep(LEARNT_WITHIN.mul_f64(rand::random_range(0.0..1.0))).await,
        }
    }
}
