//! Upstreams that the gateway starts and lists itself. Those of `mcp.warm` when it starts, so that their first start is
//! over, and their lists are known, before the first client comes; all of them for `check --online`; and upstreams
//! with accounts of callers, for their lists without an account. Spec: DESIGN §6.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

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
            match self.list_alone(endpoint, upstream, LONGEST).await {
                Ok(lists) => {
                    tracing::info!(%upstream, lists = lists.len(), "warm upstream is listed");
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

    /// The same with what is listed, and what the upstream declares. A list that fails, or does not come within `limit`,
    /// is left out where `may_miss` says so.
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
        let opening = sessions.open(new, None).map_err(refused)?;
        let session = Arc::clone(opening.session());
        let by = Instant::now() + limit;
        let late = || too_late(upstream, limit);
        let listing = async {
            let declared = timeout_at(by, self.links.learn(&session, upstream, None)).await;
            let declared = declared.unwrap_or_else(|_| Err(late()))?;
            let list_one = |kind| -> BoxFuture<'_, Result<UpstreamList, Fault>> {
                let (principal, session) = (&principal, &session);
                Box::pin(async move {
                    let request = list_request(self.edits, kind, None)?;
                    let call = own_call(principal, session, request, ClientCapabilities::none());
                    self.reader.list_one(&call, session, upstream, kind).await
                })
            };
            let parts = each_list(by, &list_one, (may_miss, &late)).await?;
            Ok((declared, parts))
        };
        let listed = listing.await;
        sessions.close(&session);
        listed
    }
}

/// The lists of each kind by `list_one`. Those that fail, or have not come at `by`, are left out where `may_miss` says so of
/// their fault.
async fn each_list<'a>(
    by: Instant,
    list_one: &(dyn Fn(ListKind) -> BoxFuture<'a, Result<UpstreamList, Fault>> + Sync),
    (may_miss, late): (MayMiss<'_>, &(dyn Fn() -> Fault + Sync)),
) -> Result<Vec<(ListKind, UpstreamList)>, Fault> {
    let mut parts = Vec::new();
    for kind in ListKind::ALL {
        let listed = if Instant::now() < by {
            let listed = timeout_at(by, list_one(kind)).await;
            listed.unwrap_or_else(|_| Err(late()))
        } else {
            Err(late())
        };
        match listed {
            Ok(part) if part.pages.is_empty() => {}
            Ok(part) => parts.push((kind, part)),
            Err(fault) if may_miss(kind, &fault) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(parts)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::digest_of;
    use crate::protocol::{Message, json};
    use crate::translate::project::CacheHints;

    #[tokio::test(start_paused = true)]
    async fn lists_that_came_before_the_limit_are_kept() {
        let limit = Duration::from_secs(30);
        let list_one = |kind| -> BoxFuture<'static, Result<UpstreamList, Fault>> {
            Box::pin(async move {
                if kind != ListKind::Tools {
                    std::future::pending::<()>().await;
                }
                let text = r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#;
                let page = Message::parse(text.into(), json::MAX_DEPTH).unwrap();
                let mut part = UpstreamList::empty(&Arc::from("up"), CacheHints::NONE);
                part.pages.push((digest_of([b"page".as_slice()]), page));
                Ok(part)
            })
        };
        let late = || too_late("up", limit);
        let begun = Instant::now();
        let missed = std::sync::Mutex::new(Vec::new());
        let may_miss = |kind, fault: &Fault| {
            missed.lock().unwrap().push((kind, fault.kind));
            true
        };
        let parts = each_list(begun + limit, &list_one, (&may_miss, &late)).await;
        let kinds = parts.map(|parts| parts.iter().map(|(kind, _)| *kind).collect::<Vec<_>>());
        assert_eq!(kinds.unwrap(), [ListKind::Tools]);
        assert_eq!(begun.elapsed(), limit);
        assert_eq!(missed.lock().unwrap().len(), ListKind::ALL.len() - 1);
        assert!(missed.lock().unwrap()[0].1 == FaultKind::UpstreamTimeout);
        let again = Instant::now() + limit;
        let fault = each_list(again, &list_one, (&|_, _| false, &late)).await;
        assert_eq!(
            fault.map(drop).unwrap_err().kind,
            FaultKind::UpstreamTimeout
        );
    }
}
