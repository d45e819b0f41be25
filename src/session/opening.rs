//! A session while its own `initialize` runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Session;

/// A session whose `initialize` runs. A busy session neither expires nor makes room for another one; its
/// idle time begins when this is dropped.
#[derive(Debug)]
#[must_use = "the session counts as idle once this is dropped"]
pub struct OpeningSession(Arc<Session>);

impl OpeningSession {
    /// Takes over a session that was made busy.
    pub(super) fn of(session: Arc<Session>) -> Self {
        Self(session)
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.0
    }
}

impl Drop for OpeningSession {
    fn drop(&mut self) {
        // In this order: a session that is not busy any more must not look idle since its beginning.
        self.0.touch();
        self.0.opening.store(false, Ordering::Release);
    }
}
