//! Every open channel of this replica, within the caps on sessions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::channel::Channel;
use crate::call::{OwnerKey, Principal};
use crate::config;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind, FaultSide};
use crate::lock::lock;
use crate::store::events::SessionKey;
use crate::sync::keyed_counter::KeyedCounter;
use crate::telemetry::metrics::COUNTERS;

/// The registry. A channel counts as a session from its beginning, so that connections without
/// `initialize` are bounded too.
#[derive(Debug)]
pub(super) struct ChannelRegistry {
    max_per_principal: usize,
    max_total: usize,
    open: Mutex<ChannelTable>,
}

#[derive(Debug, Default)]
struct ChannelTable {
    by_key: HashMap<SessionKey, Arc<Channel>>,
    by_owner: KeyedCounter<OwnerKey>,
}

impl ChannelRegistry {
    pub(super) fn new(settings: &config::SessionsConfig) -> Self {
        Self {
            max_per_principal: settings.max_per_principal,
            max_total: settings.max_total,
            open: Mutex::default(),
        }
    }

    /// Opens a channel.
    ///
    /// # Errors
    /// A [`Fault`] when a cap is reached.
    pub(super) fn open(
        &self,
        key: SessionKey,
        endpoint: &Arc<Endpoint>,
        principal: &Arc<Principal>,
    ) -> Result<Arc<Channel>, Fault> {
        let mut open = self.lock();
        let refused = if open.by_owner.of(&principal.owner()) >= self.max_per_principal {
            Some((FaultKind::CallerBusy, FaultSide::Downstream))
        } else if open.by_key.len() >= self.max_total {
            Some((FaultKind::GatewayBusy, FaultSide::Gateway))
        } else {
            None
        };
        if let Some((kind, side)) = refused {
            COUNTERS.sessions_refused.add(1);
            return Err(Fault::new(kind, side, "too many connections are open"));
        }
        let channel = Channel::new(key, Arc::clone(endpoint), Arc::clone(principal));
        open.by_key.insert(key, Arc::clone(&channel));
        open.by_owner.add(principal.owner());
        Ok(channel)
    }

    /// The open channel with this key.
    pub(super) fn get(&self, key: &SessionKey) -> Option<Arc<Channel>> {
        self.lock().by_key.get(key).map(Arc::clone)
    }

    /// Takes a channel out that has ended.
    pub(super) fn remove(&self, channel: &Channel) {
        let mut open = self.lock();
        if open.by_key.remove(&channel.key).is_some() {
            open.by_owner.remove(&channel.principal.owner());
        }
    }

    fn lock(&self) -> MutexGuard<'_, ChannelTable> {
        lock(&self.open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Arc<Endpoint> {
        let text = "[auth]\nmode = \"none\"\n[upstreams.up]\ncommand = \"x\"\n";
        let config = config::parse(text, "test.toml", &|_| None).unwrap();
        Arc::new(crate::endpoint::endpoints(&config).remove(0))
    }

    fn someone(name: &str) -> Arc<Principal> {
        Arc::new(Principal::new("i", name, "", Vec::new(), None))
    }

    #[test]
    fn both_caps_hold_and_places_come_back() {
        let channels = ChannelRegistry {
            max_per_principal: 1,
            max_total: 2,
            open: Mutex::default(),
        };
        let (endpoint, alice) = (endpoint(), someone("alice"));
        let first = channels.open([1; 16], &endpoint, &alice).unwrap();
        let refused = channels.open([2; 16], &endpoint, &alice).unwrap_err();
        assert_eq!(refused.kind, FaultKind::CallerBusy);
        let bob = someone("bob");
        let _second = channels.open([3; 16], &endpoint, &bob).unwrap();
        let carol = someone("carol");
        let refused = channels.open([4; 16], &endpoint, &carol).unwrap_err();
        assert_eq!(refused.kind, FaultKind::GatewayBusy);
        assert!(channels.get(&[1; 16]).is_some());
        channels.remove(&first);
        channels.remove(&first);
        assert!(channels.get(&[1; 16]).is_none());
        channels.open([5; 16], &endpoint, &alice).unwrap();
    }
}
