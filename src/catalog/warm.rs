//! Upstreams that the gateway starts and lists itself. Those of `mcp.warm` when it starts, so that their first start is
//! over, and their lists are known, before the first client comes; all of them for `check --online`; and upstreams
//! with accounts of callers, for their lists without an account. Spec: DESIGN §6.

use std::sync::Arc;
use std::time::Duration;

use super::page_key::list_request;
use super::reader::{ListReader, UpstreamList};
use crate::call::{ClientCapabilities, Principal, ServerDeclaration};
use crate::cause::chain;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::outbound::{EditDepth, SessionLinks, own_call, refused};
use crate::protocol::Revision;
use crate::protocol::methods::ListKind;
use crate::session::{DeliveryMode, NewSession, SessionRegistry};
use crate::upstream::OWN_INFO;

/// How often one is tried, and the pause before the second attempt, which doubles.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(2);
/// For one attempt. Handshake and lists have bounds of their own, which end it sooner.
const LONGEST: Duration = Duration::from_hours(1);

/// What an upstream declares, and its lists.
pub(super) type WholeLists = (Arc<ServerDeclaration>, Vec<(ListKind, UpstreamList)>);

/// Whether a list that fails is left out.
pub(super) type MayMiss<'a> = &'a (dyn Fn(ListKind, &Fault) -> bool + Sync);

/// Lists upstreams in sessions of the gateway's own.
#[derive(Debug)]
pub(crate) struct OwnLister {
    pub(super) links: Arc<SessionLinks>,
    pub(super) reader: Arc<ListReader>,
    pub(super) sessions: Arc<SessionRegistry>,
    /// `mcp.warm`.
    pub(super) warm: Vec<String>,
    pub(super) edits: EditDepth,
}

impl OwnLister {
    /// Starts and lists the upstreams of `mcp.warm` in the background, each in a session of the gateway's own on
    /// one of `endpoints` that shows it. The session ends after that, and its own child with it.
    pub(crate) fn warm(self: &Arc<Self>, endpoints: &[Arc<Endpoint>]) {
        for name in &self.warm {
            let shows = |endpoint: &&Arc<Endpoint>| {
                endpoint.upstreams.iter().any(|shown| **shown == **name)
            };
            let Some(endpoint) = endpoints.iter().find(shows) else {
                continue;
            };
            let lister = Arc::clone(self);
            let (endpoint, name) = (Arc::clone(endpoint), Arc::from(name.as_str()));
            self.links.spawner.spawn_service(async move {
                lister.keep_warming(&endpoint, &name).await;
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
        let lengths = self.list_alone(endpoint, upstream, LONGEST).await?;
        Ok(lengths.len())
    }

    /// Opens and lists `upstream` in a session of the gateway's own on `endpoint`, which has to show it; returns the
    /// number of entries of each list that the upstream declares. The session ends after that, and its own child with
    /// it. Handshake and lists together take no longer than `limit`.
    ///
    /// # Errors
    /// The [`Fault`] of the first list that failed, or of the handshake.
    ///
    /// # Cancel safety
    /// The session of a dropped future stays open until
    /// [`SessionRegistry::close_all`].
    pub(crate) async fn list_alone(
        &self,
        endpoint: &Arc<Endpoint>,
        upstream: &Arc<str>,
        limit: Duration,
    ) -> Result<Vec<(ListKind, usize)>, Fault> {
        // `resources` declares templates as well, and many servers that have none refuse to list them.
        let may_miss = |kind, fault: &Fault| kind == ListKind::Templates && is_refusal(fault);
        let listed = self.lists(endpoint, upstream, (limit, &may_miss)).await;
        let (_, parts) = listed?;
        let lengths = parts.iter().map(|(kind, part)| (*kind, part.length(*kind)));
        Ok(lengths.collect())
    }

    /// The same with what is listed, and what the upstream declares. A list that fails is left out where `may_miss` says
    /// so.
    ///
    /// # Errors
    /// The [`Fault`] of the first list that may not be missed, or of the handshake.
    ///
    /// # Cancel safety
    /// As for [`list_alone`](Self::list_alone).
    pub(super) async fn lists(
        &self,
        endpoint: &Arc<Endpoint>,
        upstream: &Arc<str>,
        (limit, may_miss): (Duration, MayMiss<'_>),
    ) -> Result<WholeLists, Fault> {
        let principal = Arc::new(Principal::gateway());
        let new = NewSession {
            principal: Arc::clone(&principal),
            endpoint: Arc::clone(endpoint),
            revision: Revision::LATEST_LEGACY,
            capabilities: ClientCapabilities::none(),
            client_info: OWN_INFO,
            delivery: DeliveryMode::Streams,
        };
        let sessions = &self.sessions;
        let opening = sessions.open(new).map_err(refused)?;
        let session = Arc::clone(opening.session());
        let listing = async {
            let declared = self.links.learn(&session, upstream, None).await?;
            let mut parts = Vec::new();
            for kind in ListKind::ALL {
                let request = list_request(self.edits, kind, None)?;
                let call = own_call(&principal, &session, request, ClientCapabilities::none());
                match self.reader.list_one(&call, &session, upstream, kind).await {
                    Ok(part) if part.pages.is_empty() => {}
                    Ok(part) => parts.push((kind, part)),
                    Err(fault) if may_miss(kind, &fault) => {}
                    Err(fault) => return Err(fault),
                }
            }
            Ok((declared, parts))
        };
        let listed = tokio::time::timeout(limit, listing).await;
        sessions.close(&session);
        listed.unwrap_or_else(|_| Err(too_late(upstream, limit)))
    }
}

/// Whether an upstream answered with something else than a list.
fn is_refusal(fault: &Fault) -> bool {
    fault.kind == FaultKind::UpstreamInvalid
}

fn too_late(upstream: &str, limit: Duration) -> Fault {
    let seconds = limit.as_secs();
    let text = format!("upstream \"{upstream}\" was not opened and listed within {seconds} s");
    Fault::upstream(FaultKind::UpstreamTimeout, text)
}
