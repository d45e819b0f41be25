//! The session's record in the shared store, where there is one. Not kept for a session that ends with its
//! connection, nor for an implicit session, which no other replica could find.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Session;
use crate::ownership::Ownership;
use crate::protocol::Era;
use crate::store::events::SessionKey;
use crate::store::records::{RecordSource, RecordWriter, RecordedCapabilities, SessionRecord};

/// Keeps the record of one session.
#[derive(Debug)]
pub(super) struct SessionRecorder {
    writer: Arc<RecordWriter>,
    by: Ownership,
    /// When the session was opened, since the Unix epoch.
    opened: Duration,
}

/// A session for the task that writes records.
#[derive(Debug)]
struct RecordedSession {
    session: Weak<Session>,
    by: Ownership,
    opened: Duration,
}

impl SessionRecorder {
    /// Writes through `writer` the record of a session that `by` opens at `opened`.
    pub(super) fn new(writer: &Arc<RecordWriter>, by: Ownership, opened: Duration) -> Self {
        Self {
            writer: Arc::clone(writer),
            by,
            opened,
        }
    }

    /// Begins to keep the record.
    pub(super) fn track(&self, session: &Arc<Session>) {
        let source = RecordedSession {
            session: Arc::downgrade(session),
            by: self.by,
            opened: self.opened,
        };
        self.writer.track(session.key, Arc::new(source));
    }

    /// Has the record written once more.
    pub(super) fn change(&self, session: SessionKey) {
        self.writer.change(session);
    }

    /// Has the record say that the session is over, which a client that knows its id is told from now on.
    pub(super) fn end(&self, session: SessionKey) {
        self.writer.end(session, self.by, true);
    }

    /// Leaves the record to the replica that owns the session.
    pub(super) fn leave(&self, session: SessionKey) {
        self.writer.leave(session);
    }
}

impl RecordSource for RecordedSession {
    fn ownership(&self) -> Ownership {
        self.by
    }

    fn highest_stream(&self) -> u32 {
        let next = |session: Arc<Session>| session.next_stream.load(Ordering::Relaxed);
        self.session
            .upgrade()
            .map_or(0, |session| next(session) - 1)
    }

    fn record(&self) -> Option<SessionRecord> {
        let session = self.session.upgrade()?;
        let links = session.links();
        let unshared = links.iter().filter(|link| {
            let declared = link.declared();
            declared.is_some_and(|declared| declared.revision.era() == Era::Legacy)
                && link.continuation().is_none()
        });
        let unshared = unshared.map(|link| link.upstream().to_string()).collect();
        Some(SessionRecord {
            binding: session.principal.binding(),
            owner: session.owner(),
            tag: session.tag,
            opened: self.opened,
            used: self.opened + session.age_when_used(),
            is_initialized: session.initialized.load(Ordering::Acquire),
            endpoint: session.endpoint.name.to_string(),
            revision: session.revision,
            level: session.levels.wanted(),
            capabilities: RecordedCapabilities::from(&session.capabilities),
            client_info: session.client_info.clone(),
            subscriptions: session.subscriptions.granted(),
            upstreams: links
                .iter()
                .filter_map(|link| link.continuation())
                .collect(),
            unshared,
            tasks: session.tasks.recorded(),
        })
    }
}
