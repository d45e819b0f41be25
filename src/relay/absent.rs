//! Upstreams that a merged answer goes out without: whether one is waited for, and what happens
//! until it is there. Spec: BRIDGING §5.6, §5.7; SPEC G-03; DESIGN §6.

use std::sync::Arc;
use std::time::Duration;

use super::Relay;
use crate::call::Notice;
use crate::fault::{Fault, FaultKind};
use crate::session::Session;

/// Between two attempts to reach an upstream that was left out: the first, and the longest.
const RETURN_FIRST: Duration = Duration::from_secs(1);
const RETURN_LONGEST: Duration = Duration::from_mins(1);
/// Sessions that wait for the same upstream do not all come at the moment of its return.
const RETURN_SPREAD_MS: u64 = 1000;

impl Relay {
    /// Whether waiting for an upstream would only cost time: it hung lately, and this session has
    /// nothing open with it.
    pub(super) fn is_in_vain(&self, session: &Session, upstream: &str) -> bool {
        self.parts.upstreams.is_stuck(upstream)
            && session
                .link(upstream)
                .is_none_or(|link| link.declared().is_none())
    }

    /// Notes that an answer went out without an upstream that was waited for.
    pub(super) fn note_late(&self, session: &Session, upstream: &str) {
        // One that is open and answers slowly is no matter of its health.
        if session
            .link(upstream)
            .is_none_or(|link| link.declared().is_none())
        {
            self.parts.upstreams.was_late(upstream);
        }
    }

    /// Keeps trying an upstream that was left out, and tells the session when it is there.
    pub(super) fn await_return(&self, session: &Arc<Session>, upstream: &Arc<str>) {
        let Ok(link) = self.link(session, upstream) else {
            return;
        };
        if !session.begin_waiting_for(upstream) {
            return;
        }
        let upstreams = Arc::clone(&self.parts.upstreams);
        let (session, upstream) = (Arc::downgrade(session), Arc::clone(upstream));
        self.parts.tasks.spawn_service(async move {
            // One that is open and only slow is not worth a notice at once.
            let mut pause = if link.declared().is_some() {
                tokio::time::sleep(RETURN_LONGEST).await;
                RETURN_LONGEST
            } else {
                RETURN_FIRST
            };
            loop {
                // A link whose session is over opens nothing.
                let opened = link.open().await.is_ok();
                let Some(session) = session.upgrade() else {
                    return;
                };
                if session.closed().is_cancelled() {
                    return;
                }
                if opened {
                    session.end_waiting_for(&upstream);
                    announce(&session);
                    return;
                }
                drop(session);
                if tokio::time::timeout(pause, upstreams.recovered(&upstream))
                    .await
                    .is_ok()
                {
                    let spread = rand::random_range(0..RETURN_SPREAD_MS);
                    tokio::time::sleep(Duration::from_millis(spread)).await;
                }
                pause = (pause * 2).min(RETURN_LONGEST);
            }
        });
    }
}

/// What a request hears that is not to wait for an upstream any longer.
pub(super) fn not_ready(upstream: &str) -> Fault {
    Fault::upstream(
        FaultKind::UpstreamTimeout,
        format!("upstream \"{upstream}\" is not ready yet"),
    )
}

fn announce(session: &Session) {
    for what in ["tools", "prompts", "resources"] {
        session.tell(Notice::list_changed(what));
    }
}
