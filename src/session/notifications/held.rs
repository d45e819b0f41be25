//! Notifications whose upstream has no room for them yet.

use tokio::sync::oneshot;

/// Waits for what becomes of notifications that found their queues full.
#[derive(Debug, Default)]
#[must_use = "the client that sent them may be made to wait"]
pub struct HeldNotifications(Vec<oneshot::Receiver<()>>);

impl HeldNotifications {
    pub(super) fn add(&mut self, decided: oneshot::Receiver<()>) {
        self.0.push(decided);
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
