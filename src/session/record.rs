//! The session's record in the shared store, where there is one. Not kept for a session that ends with its
//! connection, nor for an implicit session, which no other replica could find.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::leaving::{LeavingSessions, SessionUses};
use super::{Session, lock};
use crate::call::{AdoptedLink, UpstreamContinuation, UpstreamLink};
use crate::ownership::Ownership;
use crate::store::events::SessionKey;
use crate::store::records::{RecordSource, RecordWriter, RecordedCapabilities, SessionRecord};

/// Keeps the record of one session.
#[derive(Debug)]
pub(super) struct SessionRecorder {
    writer: Arc<RecordWriter>,
    by: Ownership,
    /// The owner that the session's id names: the one that opened it.
    named: Ownership,
    /// Sessions at upstreams that a former owner had, and that have no link here yet.
    inherited: Mutex<Vec<UpstreamContinuation>>,
    /// When the session was opened, since the Unix epoch.
    opened: Duration,
    uses: SessionUses,
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
    pub(super) fn new(
        writer: &Arc<RecordWriter>,
        leaving: &Arc<LeavingSessions>,
        (by, opened): (Ownership, Duration),
    ) -> Self {
        Self {
            writer: Arc::clone(writer),
            by,
            named: by,
            inherited: Mutex::default(),
            opened,
            uses: SessionUses::new(leaving),
        }
    }

    /// The requests that are being served.
    pub(super) fn uses(&self) -> &SessionUses {
        &self.uses
    }

    /// The same for a session that `named` has opened, and that is adopted with these sessions at upstreams.
    pub(super) fn adopted(self, named: Ownership, inherited: Vec<UpstreamContinuation>) -> Self {
        Self {
            named,
            inherited: Mutex::new(inherited),
            ..self
        }
    }

    /// Whether the id of the session names `owner`.
    pub(super) fn is_named_by(&self, owner: Ownership) -> bool {
        self.named == owner
    }

    /// See [`Session::adopted_link`].
    pub(super) fn adopted_link(&self, session: &Session, upstream: &str) -> Option<AdoptedLink> {
        if self.is_named_by(self.by) {
            return None;
        }
        Some(AdoptedLink {
            continuation: self.inherited(upstream),
            first_id: self.by.first_number(),
            followed: session.subscriptions.granted_at(upstream),
            level: session.levels.wanted(),
        })
    }

    /// The session that a former owner had at an upstream.
    fn inherited(&self, upstream: &str) -> Option<UpstreamContinuation> {
        let inherited = lock(&self.inherited);
        inherited
            .iter()
            .find(|one| one.upstream == upstream)
            .cloned()
    }

    /// Inherited sessions at upstreams whose link is not open yet. An open link has continued the session, or has begun
    /// another.
    fn still_inherited(&self, links: &[Arc<dyn UpstreamLink>]) -> Vec<UpstreamContinuation> {
        let mut inherited = lock(&self.inherited);
        let is_open = |link: &Arc<dyn UpstreamLink>, upstream: &str| {
            **link.upstream() == *upstream && link.declared().is_some()
        };
        inherited.retain(|one| !links.iter().any(|link| is_open(link, &one.upstream)));
        inherited.clone()
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
        let open = links.iter().filter_map(|link| link.continuation());
        let mut upstreams: Vec<UpstreamContinuation> = open.collect();
        let unshared = links.iter().filter(|link| link.ends_with_process());
        let unshared = unshared.map(|link| link.upstream().to_string()).collect();
        if let Some(recorder) = &session.recorder {
            upstreams.extend(recorder.still_inherited(&links));
        }
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
            upstreams,
            unshared,
            tasks: session.tasks.recorded(),
        })
    }
}
