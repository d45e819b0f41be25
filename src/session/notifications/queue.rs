//! The queue of notifications toward one upstream: those queued, and those held until the queue has room.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::fifo::{BoundedFifo, HasSize};
use crate::call::UpstreamLink;

/// A notification on its way.
pub(super) type SendingNotification = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A notification and the link that it goes to.
#[derive(Debug)]
pub(super) struct QueuedNotification {
    pub(super) link: Arc<dyn UpstreamLink>,
    pub(super) message: Bytes,
}

impl QueuedNotification {
    pub(super) fn send(self) -> SendingNotification {
        Box::pin(async move { self.link.notify(self.message).await })
    }
}

impl HasSize for QueuedNotification {
    fn size(&self) -> usize {
        self.message.len()
    }
}

/// A notification that found no room.
#[derive(Debug)]
struct HeldNotification {
    notification: QueuedNotification,
    until: Instant,
    /// Sent when the notification is queued, dropped with it.
    decided: oneshot::Sender<()>,
}

impl HasSize for HeldNotification {
    fn size(&self) -> usize {
        self.notification.size()
    }
}

/// What becomes of a notification.
#[derive(Debug)]
pub(super) enum QueueAdmission {
    /// It is sent, in its turn.
    Queued,
    /// It waits for room.
    Held(oneshot::Receiver<()>),
    /// There is no room to wait for room either.
    Dropped {
        /// Whether this queue dropped none before.
        is_first: bool,
    },
}

/// What was held for too long.
#[derive(Debug)]
pub(super) struct ExpiredNotifications {
    pub(super) count: u64,
    /// Whether this queue dropped none before.
    pub(super) is_first: bool,
    /// When the next one is held for too long.
    pub(super) next: Option<Instant>,
}

/// A queue, in the order in which the notifications came.
#[derive(Debug, Default)]
pub(super) struct NotificationQueue {
    waiting: BoundedFifo<QueuedNotification>,
    held: BoundedFifo<HeldNotification>,
    changed: Arc<Notify>,
    has_dropped: bool,
}

impl NotificationQueue {
    /// Told when the first notification is held.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Takes a notification, which may be held until then at most.
    pub(super) fn push(
        &mut self,
        notification: QueuedNotification,
        until: Instant,
    ) -> QueueAdmission {
        let size = notification.size();
        if self.held.is_empty() && self.waiting.has_room(size) {
            self.waiting.push(notification);
            return QueueAdmission::Queued;
        }
        if until <= Instant::now() || !self.held.has_room(size) {
            let is_first = !std::mem::replace(&mut self.has_dropped, true);
            return QueueAdmission::Dropped { is_first };
        }
        if self.held.is_empty() {
            self.changed.notify_one();
        }
        let (decided, outcome) = oneshot::channel();
        self.held.push(HeldNotification {
            notification,
            until,
            decided,
        });
        QueueAdmission::Held(outcome)
    }

    /// The next notification to send; held notifications fill the room.
    pub(super) fn pop(&mut self) -> Option<QueuedNotification> {
        let next = self.waiting.pop();
        while let Some(held) = self.held.front()
            && self.waiting.has_room(held.size())
            && let Some(held) = self.held.pop()
        {
            self.waiting.push(held.notification);
            // A client that has gone is not told.
            let _ = held.decided.send(());
        }
        next
    }

    /// Drops what is held for too long.
    pub(super) fn expire(&mut self, now: Instant) -> ExpiredNotifications {
        let dropped = self.held.retain(|held| held.until > now);
        let is_first = dropped > 0 && !std::mem::replace(&mut self.has_dropped, true);
        ExpiredNotifications {
            count: dropped.try_into().unwrap_or(u64::MAX),
            is_first,
            next: self.held.iter().map(|held| held.until).min(),
        }
    }
}
