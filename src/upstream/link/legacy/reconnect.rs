//! Reopens a lost connection that has listeners, even while no call runs: otherwise notices after an upstream's restart
//! would be missed until the next call. Spec: BRIDGING §3.4; SPEC U-02, D-06.

use std::sync::Weak;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::link_connections::LinkConnections;
use crate::cause::chain;
use crate::sync::backoff::Backoff;
use crate::upstream::lock;

/// The pause before a lost connection is reopened, a quarter more or less. Doubled each time that the reopening fails
/// or the connection is soon lost again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause; a connection of this age has recovered.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

impl LinkConnections {
    /// Starts to reopen the connection whenever lost, while the link listens or follows a resource.
    pub(super) fn keep(&self) {
        let was_kept = std::mem::replace(&mut *lock(&self.kept), true);
        if !was_kept {
            let kept = keep(Weak::clone(&self.own));
            self.settings.tasks.spawn_service(kept);
        }
    }

    /// Whether to go on reopening the connection; if not, `kept` is cleared.
    fn goes_on(&self) -> bool {
        // `kept` changes under the lock of `listening`: a listener that finds `kept` set is seen here.
        let mut goes_on = false;
        self.listening.apply(|listening| {
            goes_on = *listening || !self.state.followed.is_empty();
            *lock(&self.kept) = goes_on;
        });
        goes_on
    }
}

/// Reopens the first one of `connections`; keeps none of them alive.
async fn keep(connections: Weak<LinkConnections>) {
    // Random, as all sessions of an upstream lose their connections at the same time.
    let mut backoff = Backoff::with_jitter(FIRST_PAUSE, LONGEST_PAUSE, 0.75..1.25);
    loop {
        let since = Instant::now();
        let open = connections.upgrade().and_then(|all| all.open());
        if let Some(over) = open.map(|open| open.over()) {
            over.await;
            if since.elapsed() >= LONGEST_PAUSE {
                backoff.reset();
            }
        }
        sleep(backoff.next_pause()).await;
        let Some(connections) = connections.upgrade() else {
            return;
        };
        if connections.has_ended() || !connections.goes_on() {
            return;
        }
        if let Err(error) = connections.connection().await {
            tracing::debug!(upstream = %connections.settings.name, error = chain(&error), "not opened again yet");
            connections.state.doubt.raise(&error);
        }
    }
}
