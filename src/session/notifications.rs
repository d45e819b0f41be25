//! Notifications of a client on their way upstream: in their order, one queue for each upstream that does
//! not take one at once. Spec: SPEC L-06; BRIDGING §2.4.

mod fifo;
mod queue;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::queue::{NotificationQueue, QueueAdmission, QueuedNotification, SendingNotification};
use super::{Session, lock};
use crate::call::UpstreamLink;
use crate::telemetry::metrics::LABELED;

/// The queues of a session: one for each upstream that takes a notification right now. A session whose
/// upstreams take theirs at once has none, and no task.
#[derive(Debug, Default)]
pub(super) struct NotificationQueues(Mutex<BTreeMap<Arc<str>, NotificationQueue>>);

impl NotificationQueues {
    /// Drops all waiting notifications.
    pub(super) fn clear(&self) {
        let queues = std::mem::take(&mut *lock(&self.0));
        drop(queues);
    }
}

/// Waits for what becomes of notifications that found their queues full.
#[derive(Debug, Default)]
#[must_use = "the client that sent them may be made to wait"]
pub struct HeldNotifications(Vec<oneshot::Receiver<()>>);

impl HeldNotifications {
    /// Sends a notification of the client of `session` to each of `links`, in the order of arrival. A full queue holds the notification
    /// until `until`, then drops and counts it; a queue that holds as many already drops it at once. After the
    /// end of the session nothing is sent.
    pub fn send(
        session: &Arc<Session>,
        links: Vec<Arc<dyn UpstreamLink>>,
        message: &Bytes,
        until: Instant,
    ) -> Self {
        let mut held = Self::default();
        for link in links {
            let upstream = Arc::clone(link.upstream());
            let notification = QueuedNotification {
                link,
                message: message.clone(),
            };
            match send_or_queue(session, &upstream, notification, until) {
                QueueAdmission::Queued => {}
                QueueAdmission::Held(decided) => held.0.push(decided),
                QueueAdmission::Dropped { is_first } => note_dropped(&upstream, 1, is_first),
            }
        }
        held
    }

    /// Whether no notification is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits until each has its place in the queue or is dropped.
    ///
    /// # Cancel safety
    /// The notifications stay where they are.
    pub async fn decided(self) {
        for decided in self.0 {
            drop(decided.await);
        }
    }
}

fn send_or_queue(
    session: &Arc<Session>,
    upstream: &Arc<str>,
    notification: QueuedNotification,
    until: Instant,
) -> QueueAdmission {
    let mut queues = lock(&session.notifications.0);
    if session.closed.is_cancelled() {
        return QueueAdmission::Queued;
    }
    if let Some(queue) = queues.get_mut(upstream) {
        return queue.push(notification, until);
    }
    let mut sending = notification.send();
    // `sending` is polled under the lock, so that a later notification queues behind it.
    if sending.as_mut().now_or_never().is_none() {
        let queue = NotificationQueue::default();
        let sender = QueueSender {
            session: Arc::downgrade(session),
            closed: session.closed.clone(),
            upstream: Arc::clone(upstream),
            changed: queue.changed(),
        };
        queues.insert(Arc::clone(upstream), queue);
        drop(queues);
        session.undelivered.tasks.spawn_service(sender.run(sending));
    }
    QueueAdmission::Queued
}

fn note_dropped(upstream: &Arc<str>, count: u64, is_first: bool) {
    LABELED.notifications_dropped.add(upstream, count);
    if is_first {
        tracing::warn!(%upstream, "upstream does not take notifications: client notifications dropped");
    }
}

/// Sends the notifications in one queue, until it is empty or the session ends. Does not keep the session.
struct QueueSender {
    session: Weak<Session>,
    closed: CancellationToken,
    upstream: Arc<str>,
    /// Told when the first notification is held.
    changed: Arc<Notify>,
}

impl QueueSender {
    async fn run(self, mut sending: SendingNotification) {
        loop {
            let expiry = self.drop_expired();
            let expired = async {
                match expiry {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = &mut sending => match self.next() {
                    Some(next) => sending = next.send(),
                    None => return,
                },
                () = self.changed.notified() => {}
                () = expired => {}
            }
        }
    }

    /// The next notification; the queue is gone when there is none.
    fn next(&self) -> Option<QueuedNotification> {
        let session = self.session.upgrade()?;
        let mut queues = lock(&session.notifications.0);
        let next = queues.get_mut(&self.upstream)?.pop();
        if next.is_none() {
            queues.remove(&self.upstream);
        }
        next
    }

    /// Drops notifications that were held for too long; returns when the next one was held.
    fn drop_expired(&self) -> Option<Instant> {
        let session = self.session.upgrade()?;
        let mut queues = lock(&session.notifications.0);
        let expired = queues.get_mut(&self.upstream)?.expire(Instant::now());
        drop(queues);
        if expired.count > 0 {
            note_dropped(&self.upstream, expired.count, expired.is_first);
        }
        expired.next
    }
}

#[cfg(test)]
mod tests;
