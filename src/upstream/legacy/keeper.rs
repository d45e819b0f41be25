//! A connection that somebody listens to is opened again when it is lost, also while nobody calls:
//! what the upstream announces after its restart would be heard by nobody until then.
//! Spec: BRIDGING §3.4; SPEC U-02, D-06.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::LegacyLink;
use crate::cause::chain;
use crate::upstream::lock;

/// The pause before a lost connection is opened again, a quarter more or less. Doubled each time that
/// this fails or the connection is soon lost again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause; a connection that lasted as long has recovered.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

impl LegacyLink {
    /// From now on, what is open is opened again when it is lost, for as long as somebody listens.
    pub(super) fn keep(&self) {
        let was_kept = std::mem::replace(&mut *lock(&self.kept), true);
        if !was_kept {
            let kept = keep(Weak::clone(&self.own));
            self.settings.tasks.spawn_service(kept);
        }
    }

    /// Whether the link is still to be kept; if not, it is not kept any more.
    fn goes_on(&self) -> bool {
        // Whoever begins to listen and sees before this that it is kept, is seen here.
        let mut goes_on = false;
        self.listening.make_so(|listening| {
            goes_on = *listening || !self.state.followed.is_empty();
            *lock(&self.kept) = goes_on;
        });
        goes_on
    }
}

/// Keeps neither the link nor its connection alive.
async fn keep(link: Weak<LegacyLink>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let since = Instant::now();
        let open = link.upgrade().and_then(|link| link.open_connection());
        if let Some(over) = open.map(|open| open.over()) {
            over.await;
            if since.elapsed() >= LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
        }
        // All sessions of an upstream lose it at the same time.
        sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        let Some(link) = link.upgrade() else { return };
        if link.ended.load(Ordering::Acquire) || !link.goes_on() {
            return;
        }
        if let Err(error) = link.connection().await {
            tracing::debug!(upstream = %link.settings.name, error = chain(&error), "not opened again yet");
        }
    }
}
