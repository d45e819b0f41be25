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
    pub(super) places: Arc<CallPermits>,
    pub(super) results: Arc<OwnResults>,
    /// Bytes of the URIs that are followed.
    pub(super) uris: Arc<UriBytes>,
}

impl OwnerSessions {
    pub(super) fn new(results: OwnResults) -> Self {
        Self {
            sessions: Mutex::default(),
            places: Arc::default(),
            results: Arc::new(results),
            uris: Arc::default(),
        }
    }

    /// Whether nothing is counted here, nor can be soon: no session is open, and no request is about to open
    /// one or to wait for its place. To be asked under the lock of the map, where all clones are made: a
    /// clone that outlived its entry would be counted beside the next one.
    pub(super) fn is_unused(this: &Arc<Self>) -> bool {
        Arc::strong_count(this) == 1 && lock(&this.sessions).is_empty() && this.places.are_idle()
    }
}
