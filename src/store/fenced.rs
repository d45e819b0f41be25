//! `FencedSessions`: sessions that another replica owns, as the shared store has told this one.

use std::collections::BTreeSet;
use std::sync::Mutex;

use tokio::sync::Notify;

use super::events::SessionKey;
use crate::lock::lock;

/// Sessions to be given up here. A queue between the writers of the shared store and the one task that gives
/// sessions up.
#[derive(Debug, Default)]
pub struct FencedSessions {
    /// As many as there are sessions at most. In the order of their keys, as thousands may come at once and each is looked
    /// up.
    sessions: Mutex<BTreeSet<SessionKey>>,
    more: Notify,
}

impl FencedSessions {
    /// Adds a session unless the queue has it.
    pub(super) fn add(&self, session: SessionKey) {
        lock(&self.sessions).insert(session);
        self.more.notify_one();
    }

    /// Waits for the next session to give up.
    ///
    /// # Cancel safety
    /// No session is lost.
    pub async fn next(&self) -> SessionKey {
        loop {
            let next = lock(&self.sessions).pop_first();
            match next {
                Some(session) => return session,
                None => self.more.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn each_fenced_session_is_handed_out_once() {
        let fenced = FencedSessions::default();
        fenced.add([1; 16]);
        fenced.add([2; 16]);
        fenced.add([1; 16]);
        assert_eq!(fenced.next().await, [1; 16]);
        assert_eq!(fenced.next().await, [2; 16]);
        assert_eq!(fenced.next().now_or_never(), None);
        let next = fenced.next();
        let add = async { fenced.add([3; 16]) };
        assert_eq!(tokio::join!(next, add).0, [3; 16]);
    }
}
