//! Notifications of legacy clients: passed on to the upstreams of their session, in their order.

use std::sync::Arc;

use tokio::time::Instant;

use super::admission::{AdmissionControl, MessageDue, OwedAdmission};
use crate::protocol::Message;
use crate::relay::Relay;
use crate::runtime::lifecycle::TaskSpawner;
use crate::session::{HeldNotifications, Session};
use crate::telemetry::metrics::COUNTERS;

/// Passes notifications on once they are admitted.
#[derive(Debug)]
pub(super) struct ClientNotifications {
    pub(super) admission: Arc<AdmissionControl>,
    pub(super) relay: Arc<Relay>,
    pub(super) tasks: TaskSpawner,
}

impl ClientNotifications {
    /// Passes a notification on, at once or in the background once the rate allows it.
    pub(super) fn pass_on_later(
        self: &Arc<Self>,
        session: Arc<Session>,
        message: Message,
        due: MessageDue,
    ) {
        if due.is_none() {
            // Not waited for: answers come on the same channel.
            drop(self.pass_on(&session, &message));
            return;
        }
        let own = Arc::clone(self);
        self.tasks.spawn_service(async move {
            own.pass_on_when_due(session, message, due).await;
        });
    }

    /// Forwards a notification after the earlier ones of the session. If an upstream's queue is full, the notification
    /// is held for `limits.call_wait`, then dropped. Spec: SPEC L-06.
    pub(super) fn pass_on(&self, session: &Arc<Session>, message: &Message) -> HeldNotifications {
        let notices = &self.relay.notices;
        notices.notification(session, message, self.until())
    }

    /// Passes a notification on once the rate allows it and its upstreams have room, or drops it after
    /// `limits.call_wait`. What is never dropped does not wait either. Spec: SPEC C-10, L-03.
    pub(super) async fn pass_on_when_due(
        &self,
        session: Arc<Session>,
        message: Message,
        due: MessageDue,
    ) {
        let until = self.until();
        // It needs no exchange: nothing stays of it.
        let due = due.and_then(OwedAdmission::claim);
        if let Some(due) = due
            && !is_never_dropped(&message)
            && !self.admission.pay_for_notification(&session, due).await
        {
            COUNTERS.messages_dropped.add(1);
            return;
        }
        let held = self.relay.notices.notification(&session, &message, until);
        held.decided().await;
    }

    /// When a notification that begins now is dropped at the latest.
    fn until(&self) -> Instant {
        Instant::now() + self.admission.settings.limits.call_wait
    }
}

/// Whether a notification is taken above every bound: a cancellation ends work, and a client whose
/// `notifications/initialized` is lost could never be asked.
pub(super) fn is_never_dropped(message: &Message) -> bool {
    let method = message.method();
    matches!(
        method,
        Some("notifications/cancelled" | "notifications/initialized")
    )
}
