//! Connections that were replaced while calls run on them. Over Streamable HTTP the exchange of a call is
//! its own: that the upstream forgets the session ends none that is open. Spec: SPEC U-02; BRIDGING §3.10.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use super::LegacyLink;
use super::connection::Connection;
use crate::upstream::lock;

/// Retired connections of one link; the oldest gives way to one more.
const MOST: usize = 4;

/// The connections of a link that take no calls any more and still have some, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Retired(Mutex<VecDeque<Arc<Connection>>>);

impl Retired {
    /// Keeps one more; the one that gives way to it, if any.
    fn add(&self, connection: &Arc<Connection>) -> Option<Arc<Connection>> {
        let mut all = lock(&self.0);
        all.push_back(Arc::clone(connection));
        if all.len() > MOST {
            all.pop_front()
        } else {
            None
        }
    }

    fn remove(&self, connection: &Arc<Connection>) {
        lock(&self.0).retain(|kept| !Arc::ptr_eq(kept, connection));
    }

    /// Closes all of them, whatever runs there.
    pub(super) async fn close(&self) {
        let all = std::mem::take(&mut *lock(&self.0));
        for connection in all {
            connection.close().await;
        }
    }
}

impl LegacyLink {
    /// Closes a connection that was replaced, once the calls there have ended: by their own deadlines, or
    /// with the link. What is lost with a pipe is lost. Nobody waits for it.
    pub(super) fn retire(&self, connection: Arc<Connection>) {
        let tasks = &self.settings.tasks;
        if connection.is_pipe() {
            return tasks.spawn_service(async move { connection.close().await });
        }
        let oldest = self.retired.add(&connection);
        let link = Weak::clone(&self.own);
        tasks.spawn_service(async move {
            if let Some(oldest) = oldest {
                oldest.close().await;
            }
            connection.until_unused().await;
            if let Some(link) = link.upgrade() {
                link.retired.remove(&connection);
            }
            connection.close().await;
        });
    }
}
