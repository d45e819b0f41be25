//! Connections that were replaced while calls run on them. Over Streamable HTTP each call has an exchange of its own,
//! which stays open when the upstream forgets the session; a child whose token has ended answers the calls that it has.
//! Spec: SPEC U-02; BRIDGING §3.10.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use futures_util::future::join_all;

use super::connection::LegacyConnection;
use crate::upstream::lock;

/// Retired connections of one link over HTTP; the oldest is evicted. The caps on children bound those.
const MOST: usize = 4;

/// The connections of a link that take no new calls but still have running ones, the oldest first.
#[derive(Debug, Default)]
pub(super) struct DrainingConnections(Mutex<VecDeque<Arc<LegacyConnection>>>);

impl DrainingConnections {
    /// Adds a connection; returns the evicted one, if any.
    fn add(&self, connection: &Arc<LegacyConnection>) -> Option<Arc<LegacyConnection>> {
        let mut all = lock(&self.0);
        all.push_back(Arc::clone(connection));
        if all.len() > MOST && !connection.is_pipe() {
            all.pop_front()
        } else {
            None
        }
    }

    /// Closes a replaced connection once its calls have ended: by their own deadlines, or with the link. A pipe that is
    /// over is closed at once, as its calls are lost. Runs in the background.
    pub(super) fn retire(self: &Arc<Self>, connection: Arc<LegacyConnection>) {
        let tasks = connection.settings.tasks.clone();
        if connection.is_pipe() && connection.is_closed() {
            return tasks.spawn_service(async move { connection.close().await });
        }
        let oldest = self.add(&connection);
        let draining = Arc::downgrade(self);
        tasks.spawn_service(async move {
            if let Some(oldest) = oldest {
                oldest.close().await;
            }
            connection.until_given_back().await;
            if let Some(draining) = draining.upgrade() {
                draining.remove(&connection);
            }
            connection.close().await;
        });
    }

    fn remove(&self, connection: &Arc<LegacyConnection>) {
        lock(&self.0).retain(|kept| !Arc::ptr_eq(kept, connection));
    }

    /// Closes all retired connections, even with running calls.
    ///
    /// # Cancel safety
    /// Closes them in any case.
    pub(super) fn close(&self) -> impl Future<Output = ()> + Send + use<> {
        let all = std::mem::take(&mut *lock(&self.0));
        join_all(all.iter().map(LegacyConnection::close)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::super::connection::TakenConnection;
    use super::super::wire::LegacyWire;
    use super::*;
    use crate::call::samples::declared;
    use crate::protocol::Revision;
    use crate::upstream::carrier::fixture;
    use crate::upstream::carrier::http::http_session::HttpSession;

    // A call finds a connection before it has a request there.
    #[tokio::test(start_paused = true)]
    async fn connection_that_a_call_has_just_taken_is_not_closed() {
        let (settings, client, bounds) = fixture::over_http();
        let settings = Arc::new(settings);
        let draining = Arc::new(DrainingConnections::default());
        let session = HttpSession::new(Arc::clone(&settings.name), client, bounds);
        let declared = declared(Revision::V2025_11_25, "{}");
        let wire = LegacyWire::Http(Arc::new(session));
        let connection = LegacyConnection::new(&settings, wire, declared);
        let taken = TakenConnection::new(&connection);
        draining.retire(Arc::clone(&connection));
        let minute = Duration::from_mins(1);
        assert!(
            timeout(minute, connection.closed.cancelled())
                .await
                .is_err()
        );
        drop(taken);
        assert!(timeout(minute, connection.closed.cancelled()).await.is_ok());
    }
}
