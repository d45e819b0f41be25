//! `AnonymousLists`: the lists that upstreams with accounts of callers give without an account. The gateway requests them
//! in a session of its own, with the configured headers alone, and caches the result for five minutes, also an empty one.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use super::kept_lists::{KeptList, KeptLists};
use super::warm::OwnLister;
use crate::cause::chain;
use crate::config::CarrierConfig;
use crate::endpoint::Endpoint;
use crate::protocol::methods::ListKind;
use crate::sync::single_flight::{Joined, SingleFlight};

/// For how long an answer is believed.
const BELIEVED: Duration = Duration::from_mins(5);
/// For the handshake and all lists.
const LIMIT: Duration = Duration::from_secs(30);
/// Upstreams whose answers are remembered.
const MAX_UPSTREAMS: u64 = 10_000;

/// The lists of one upstream.
type FoundLists = Arc<Vec<(ListKind, KeptList)>>;

/// What upstreams list without an account.
#[derive(Debug)]
pub(super) struct AnonymousLists {
    own: Arc<OwnLister>,
    found: Cache<Arc<str>, FoundLists>,
    asking: SingleFlight<Arc<str>, FoundLists>,
}

impl AnonymousLists {
    pub(super) fn new(own: Arc<OwnLister>) -> Self {
        let found = Cache::builder().max_capacity(MAX_UPSTREAMS);
        Self {
            own,
            found: found.time_to_live(BELIEVED).build(),
            asking: SingleFlight::default(),
        }
    }

    /// The list of `upstream`, which is waited for as long as for any upstream (`mcp.connect_wait`); `None` where there is
    /// none, or not in time.
    ///
    /// # Cancel safety
    /// Dropping the future abandons nothing: the upstream is asked to the end.
    pub(super) async fn list(
        self: &Arc<Self>,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Option<KeptList> {
        // A child would be started for it.
        let settings = self.own.links.upstreams.settings(upstream)?;
        if !matches!(settings.carrier, CarrierConfig::Http(_)) {
            return None;
        }
        let found = match self.found.get(upstream) {
            Some(found) => found,
            None => self.asked(upstream).await?,
        };
        let mut lists = found.iter();
        lists.find_map(|(found, list)| (*found == kind).then(|| list.clone()))
    }

    async fn asked(self: &Arc<Self>, upstream: &Arc<str>) -> Option<FoundLists> {
        let follower = match self.asking.join(Arc::clone(upstream)) {
            Joined::Join(follower) => follower,
            Joined::Lead(leader) => {
                let follower = leader.follow();
                let (lists, upstream) = (Arc::clone(self), Arc::clone(upstream));
                self.own.links.spawner.spawn_service(async move {
                    let found = lists.ask(&upstream).await;
                    lists.found.insert(upstream, Arc::clone(&found));
                    leader.complete(found);
                });
                follower
            }
        };
        let wait = self.own.links.connect_wait;
        tokio::time::timeout(wait, follower.result()).await.ok()?
    }

    async fn ask(&self, upstream: &Arc<str>) -> FoundLists {
        let endpoint = Arc::new(Endpoint::unreachable(upstream));
        // An upstream may give some of its lists without an account, and refuse others.
        let listed = self.own.lists(&endpoint, upstream, (LIMIT, &|_, _| true));
        match listed.await {
            Ok((declared, parts)) => {
                let whole = parts.iter().filter_map(|(kind, part)| {
                    Some((*kind, KeptLists::whole(&declared, *kind, &part.pages)?))
                });
                Arc::new(whole.collect())
            }
            Err(fault) => {
                tracing::debug!(%upstream, error = chain(&fault), "upstream lists nothing without an account");
                FoundLists::default()
            }
        }
    }
}
