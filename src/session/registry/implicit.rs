//! `ImplicitSessions`: the implicit sessions that further requests of their clients join.

use std::hash::BuildHasher;
use std::sync::Arc;

use dashmap::DashMap;

use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::session::{ImplicitSessionKey, Session};
use crate::store::events::SessionKey;
use crate::sync::fast_maps::FastDashMap;

/// Implicit sessions by their keys, and those with a record also by the key of the record.
#[derive(Debug, Default)]
pub(super) struct ImplicitSessions {
    by_client: DashMap<ImplicitSessionKey, Arc<Session>>,
    by_record: FastDashMap<SessionKey, Arc<Session>>,
}

impl ImplicitSessions {
    /// The key of the implicit session of a client that declares `declares`.
    pub(super) fn key(
        &self,
        principal: &Principal,
        endpoint: &Endpoint,
        declares: &str,
        is_recorded: bool,
    ) -> ImplicitSessionKey {
        ImplicitSessionKey {
            binding: principal.binding(),
            endpoint: Arc::clone(&endpoint.name),
            declared: self.by_client.hasher().hash_one(declares),
            is_recorded,
        }
    }

    pub(super) fn get(&self, key: &ImplicitSessionKey) -> Option<Arc<Session>> {
        self.by_client.get(key).map(|session| Arc::clone(&session))
    }

    /// The implicit session with this record.
    pub(super) fn of_record(&self, record: SessionKey) -> Option<Arc<Session>> {
        let found = self.by_record.get(&record);
        found.map(|session| Arc::clone(&session))
    }

    /// Adds a session and begins to keep its record, unless another session with its key is there. Returns the session
    /// that is there.
    pub(super) fn enter(&self, made: &Arc<Session>) -> Arc<Session> {
        let Some(implicit_session) = &made.implicit else {
            return Arc::clone(made);
        };
        let key = implicit_session.key.clone();
        let place = self.by_client.entry(key);
        let present = Arc::clone(&place.or_insert_with(|| Arc::clone(made)));
        let is_made = Arc::ptr_eq(&present, made);
        if let Some(recorder) = &made.recorder {
            if !is_made {
                recorder.abandon();
            } else if let Some(home) = implicit_session.home {
                self.by_record.insert(home.record, Arc::clone(made));
                recorder.track(made);
            }
        }
        present
    }

    /// Removes a session; its record is left to the next one.
    pub(super) fn remove(&self, session: &Arc<Session>) {
        let Some(implicit_session) = &session.implicit else {
            return;
        };
        if let Some(home) = implicit_session.home {
            if let Some(recorder) = &session.recorder {
                recorder.leave(session.key());
            }
            self.by_record
                .remove_if(&home.record, |_, there| Arc::ptr_eq(there, session));
        }
        self.by_client.remove_if(&implicit_session.key, |_, there| {
            Arc::ptr_eq(there, session)
        });
    }
}
