//! The session's record in the shared store, if there is one. A session that ends with its connection has none. Nor has an
//! implicit session whose upstreams are all modern: each replica may have one of its own.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::leaving::{LeavingSessions, SessionUses};
use super::lost_calls::LostCalls;
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
    /// The owner that the session's id names: the replica that opened the session.
    named: Ownership,
    /// Sessions at upstreams that a former owner had, and that have no link here yet.
    inherited: Mutex<Vec<UpstreamContinuation>>,
    /// Calls of a former owner that are made again here.
    pub(super) lost_calls: LostCalls,
    /// When the session was opened, since the Unix epoch.
    opened: Duration,
    uses: SessionUses,
    /// The key of the record of an implicit session. The session's own key changes each time it is opened.
    home: Option<SessionKey>,
    /// Whether the record no longer belongs to the session. Locked while the writer is told, so that the writer hears of the
    /// next implicit session under the same record later.
    is_left: Mutex<bool>,
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
            lost_calls: LostCalls::default(),
            opened,
            uses: SessionUses::new(leaving),
            home: None,
            is_left: Mutex::default(),
        }
    }

    /// The requests that are being served.
    pub(super) fn uses(&self) -> &SessionUses {
        &self.uses
    }

    /// The same for an implicit session with the record `home`.
    pub(super) fn at_home(self, home: Option<SessionKey>) -> Self {
        Self { home, ..self }
    }

    /// The same for a session that `named` has opened, and that is adopted with these sessions at upstreams.
    pub(super) fn adopted(self, named: Ownership, inherited: Vec<UpstreamContinuation>) -> Self {
        Self {
            named,
            inherited: Mutex::new(inherited),
            ..self
        }
    }

    /// The ownership that writes the record.
    pub(super) fn ownership(&self) -> Ownership {
        self.by
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
        let is_left = lock(&self.is_left);
        if !*is_left {
            self.writer
                .track(self.record(session.key), Arc::new(source));
        }
    }

    /// Has the changed record written.
    pub(super) fn change(&self, session: SessionKey) {
        if !*lock(&self.is_left) {
            self.writer.change(self.record(session));
        }
    }

    /// Marks the record as that of an ended session: requests with its id are refused from now on. The record of an implicit
    /// session, which has no id, is removed: the next request may begin another session at any replica.
    pub(super) fn end(&self, session: SessionKey) {
        let mut is_left = lock(&self.is_left);
        if !std::mem::replace(&mut *is_left, true) {
            let leaves_record = self.home.is_none();
            self.writer
                .end(self.record(session), self.by, leaves_record);
        }
    }

    /// Leaves the record as it is: to the replica that owns the session, or to the implicit session that comes next.
    pub(super) fn leave(&self, session: SessionKey) {
        let mut is_left = lock(&self.is_left);
        if !std::mem::replace(&mut *is_left, true) {
            self.writer.leave(self.record(session));
        }
    }

    /// Whether the record no longer belongs to the session.
    pub(super) fn is_left(&self) -> bool {
        *lock(&self.is_left)
    }

    /// Writes nothing for an implicit session: another request has opened one with the same key first.
    pub(super) fn abandon(&self) {
        *lock(&self.is_left) = true;
    }

    /// The key of the record of a session.
    pub(super) fn record(&self, session: SessionKey) -> SessionKey {
        self.home.unwrap_or(session)
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
        let links = session.links().all();
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
