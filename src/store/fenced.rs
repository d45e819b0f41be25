//! `FencedSessions`: sessions that another replica owns, as the shared store has told this one.

use std::collections::BTreeSet;
use std::sync::Mutex;

use tokio::sync::Notify;

use super::events::SessionKey;
use crate::lock::lock;
use crate::ownership::Ownership;

/// Sessions to be given up here. A queue between the writers of the shared store and the one task that gives
/// sessions up.
#[derive(Debug, Default)]
pub struct FencedSessions {
    /// Sessions with the ownership that was refused: this replica may have adopted the session again since. In the order
    /// of their keys, as thousands may come at once and each is looked up.
    sessions: Mutex<BTreeSet<(SessionKey, Ownership)>>,
    more: Notify,
}

impl FencedSessions {
    /// Adds a session that this replica owned as `by`, unless the queue has it.
    pub(super) fn add(&self, session: SessionKey, by: Ownership) {
        lock(&self.sessions).insert((session, by));
        self.more.notify_one();
    }

    /// Waits for the next session to give up, and its ownership here.
    ///
    /// # Cancel safety
    /// No session is lost.
    pub async fn next(&self) -> (SessionKey, Ownership) {
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
        let by = |epoch| Ownership { node: 1, epoch };
        fenced.add([1; 16], by(0));
        fenced.add([2; 16], by(0));
        fenced.add([1; 16], by(0));
        assert_eq!(fenced.next().await, ([1; 16], by(0)));
        assert_eq!(fenced.next().await, ([2; 16], by(0)));
        assert_eq!(fenced.next().now_or_never(), None);
        let next = fenced.next();
        let add = async { fenced.add([3; 16], by(2)) };
        assert_eq!(tokio::join!(next, add).0, ([3; 16], by(2)));
    }
}
