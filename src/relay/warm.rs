//! Upstreams of `mcp.warm`: started and listed when the gateway starts, so that their first start is over, and their
//! lists are known, before the first client comes. Spec: DESIGN §6.

use std::sync::Arc;
use std::time::Duration;

use super::Relay;
use super::nobody::own_call;
use crate::call::{ClientCapabilities, Principal};
use crate::cause::chain;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::protocol::Revision;
use crate::protocol::methods::ListKind;
use crate::session::{Delivery, NewSession};
use crate::upstream::OWN_INFO;

/// How often one is tried, and the pause before the second attempt, which doubles.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(2);

impl Relay {
    /// Starts and lists the upstreams of `mcp.warm` in the background, each in a session of the gateway's own on
    /// one of `endpoints` that shows it. The session ends after that, and its own child with it.
    pub fn warm(&self, endpoints: &[Arc<Endpoint>]) {
        for name in &self.parts.settings.mcp.warm {
            let shows = |endpoint: &&Arc<Endpoint>| {
                endpoint.upstreams.iter().any(|shown| **shown == **name)
            };
            let Some((endpoint, relay)) = endpoints.iter().find(shows).zip(self.own.upgrade())
            else {
                continue;
            };
            let (endpoint, name) = (Arc::clone(endpoint), Arc::from(name.as_str()));
            self.parts.tasks.spawn_service(async move {
                relay.keep_warming(&endpoint, &name).await;
            });
        }
    }

    async fn keep_warming(&self, endpoint: &Arc<Endpoint>, upstream: &Arc<str>) {
        for attempt in 0..ATTEMPTS {
            match self.warm_one(endpoint, upstream).await {
                Ok(lists) => {
                    tracing::info!(%upstream, lists, "warm upstream is listed");
                    return;
                }
                Err(fault) => {
                    let left = ATTEMPTS - attempt - 1;
                    tracing::warn!(%upstream, error = chain(&fault), left, "warm upstream cannot be listed");
                }
            }
            tokio::time::sleep(PAUSE * 2_u32.pow(attempt)).await;
        }
    }

    /// Lists one upstream; how many lists it has.
    async fn warm_one(
        &self,
        endpoint: &Arc<Endpoint>,
        upstream: &Arc<str>,
    ) -> Result<usize, Fault> {
        let principal = Arc::new(Principal::gateway());
        let new = NewSession {
            principal: Arc::clone(&principal),
            endpoint: Arc::clone(endpoint),
            revision: Revision::LATEST_LEGACY,
            capabilities: ClientCapabilities::none(),
            client_info: OWN_INFO,
            delivery: Delivery::Streams,
        };
        let sessions = &self.parts.sessions;
        let opening = sessions.open(new).map_err(super::initialize::refused)?;
        let session = Arc::clone(opening.session());
        let listing = async {
            self.learn(&session, upstream, None).await?;
            let mut lists = 0;
            for kind in ListKind::ALL {
                let request = self.list_request(kind, None)?;
                let call = own_call(&principal, &session, request, ClientCapabilities::none());
                let listed = self.list_one(&call, &session, upstream, kind).await?;
                lists += usize::from(!listed.pages.is_empty());
            }
            Ok(lists)
        };
        let listed = listing.await;
        sessions.close(&session);
        listed
    }
}
