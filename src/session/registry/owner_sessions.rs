//! `OwnerSessions`: the sessions of one principal, and what is counted over all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::session::gateway_task::OwnResults;
use crate::session::subscriptions::UriBytes;
use crate::session::{CallPermits, Session, lock};
use crate::store::events::SessionKey;

/// Sessions of one principal.
#[derive(Debug)]
pub(super) struct OwnerSessions {
    pub(super) sessions: Mutex<HashMap<SessionKey, Arc<Session>>>,
    pub(super) permits: Arc<CallPermits>,
    pub(super) results: Arc<OwnResults>,
    /// Bytes of the URIs that its sessions follow.
    pub(super) uris: Arc<UriBytes>,
}

impl OwnerSessions {
    pub(super) fn new(results: OwnResults) -> Self {
        Self {
            sessions: Mutex::default(),
            permits: Arc::default(),
            results: Arc::new(results),
            uris: Arc::default(),
        }
    }

    /// Whether the entry can be removed: no session is open, and no request is about to open one or to wait
    /// for a permit. To be called under the lock of the map, where all clones are made: sessions in a clone
    /// that outlives its entry would not be counted with those in the next entry.
    pub(super) fn is_unused(this: &Arc<Self>) -> bool {
        Arc::strong_count(this) == 1 && lock(&this.sessions).is_empty() && this.permits.are_idle()
    }
}
