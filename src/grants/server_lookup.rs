//! `ServerLookup`: the discovery of one upstream's token endpoint, cached for an hour.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use url::Url;

use super::discovery::{self, DiscoveredServer, DiscoveryHints};
use super::documents::DocumentClients;
use super::failure::TokenFailure;
use crate::lock::lock;
use crate::sync::shared_failure::SharedFailure;

/// How long a discovery is cached.
const BELIEVED: Duration = Duration::from_hours(1);
/// Discoveries younger than this are kept when the upstream refuses a caller's token.
const JUST_FOUND: Duration = Duration::from_mins(1);
/// Least time between two [`ServerLookup::forget_once_a_minute`] that drop discoveries.
const FORGOTTEN_EVERY: Duration = Duration::from_mins(1);

/// The cached discoveries of one upstream.
#[derive(Debug)]
pub(super) struct ServerLookup {
    upstream: Arc<str>,
    url: Url,
    /// Whether the configured credentials belong to the first server that the upstream named.
    is_pinned: bool,
    /// The discovery of each server, by issuer; the one that the upstream names has the empty key.
    servers: Mutex<HashMap<String, Arc<KnownServer>>>,
    /// The first server that the upstream named. Spec: SPEC B-10
    pinned: Mutex<Option<String>>,
    /// When [`forget_once_a_minute`](Self::forget_once_a_minute) last dropped the discoveries.
    forgotten: Mutex<Option<Instant>>,
}

/// The cached discovery of one authorization server.
#[derive(Debug, Default)]
struct KnownServer {
    /// The last discovery, and when it was made.
    found: Mutex<Option<(Arc<DiscoveredServer>, Instant)>>,
    /// Serialises discoveries: callers that wait get the result or the error of the one under way.
    search: SharedFailure<TokenFailure>,
}

impl KnownServer {
    fn believed(&self) -> Option<Arc<DiscoveredServer>> {
        let found = lock(&self.found).clone();
        let found = found.filter(|(_, at)| at.elapsed() < BELIEVED);
        found.map(|(found, _)| found)
    }
}

impl ServerLookup {
    /// A lookup for the upstream whose MCP endpoint is `url`. `is_pinned`: only the first server found is used.
    pub(super) fn new(upstream: Arc<str>, url: Url, is_pinned: bool) -> Self {
        Self {
            upstream,
            url,
            is_pinned,
            servers: Mutex::default(),
            pinned: Mutex::default(),
            forgotten: Mutex::default(),
        }
    }

    /// The URL of the upstream.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// The server and resource, cached or looked up.
    ///
    /// # Errors
    /// The discovery failed, or led to another server than the one the credentials belong to.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request under way; the next waiting caller starts another.
    pub(super) async fn find(
        &self,
        clients: &DocumentClients,
        hints: &DiscoveryHints<'_>,
    ) -> Result<Arc<DiscoveredServer>, TokenFailure> {
        let pinned = lock(&self.pinned).clone();
        let issuer = hints.issuer.or(hints.caller_issuer).or(pinned.as_deref());
        let server = {
            let mut servers = lock(&self.servers);
            let key = issuer.unwrap_or_default().to_owned();
            Arc::clone(servers.entry(key).or_default())
        };
        if let Some(found) = server.believed() {
            return Ok(found);
        }
        let attempt = server.search.attempt().await;
        if let Some(found) = server.believed() {
            return Ok(found);
        }
        if let Some(failure) = attempt.spared() {
            return Err(failure);
        }
        let found = discovery::discover(clients, &self.url, hints, issuer).await;
        let found = match found.map_err(|error| error.into_failure(&self.url)) {
            Ok(found) => Arc::new(found),
            Err(failure) => {
                attempt.share(failure.clone());
                return Err(failure);
            }
        };
        let issuer = found.server.issuer.clone();
        tracing::info!(
            upstream = %self.upstream, %issuer, resource = %found.resource,
            "found the token endpoint of an upstream"
        );
        if self.is_pinned && hints.caller_issuer.is_none() {
            // Spec: SPEC B-10
            lock(&self.pinned).get_or_insert(issuer);
        }
        *lock(&server.found) = Some((Arc::clone(&found), Instant::now()));
        Ok(found)
    }

    /// Caches `found` for the server that the upstream names.
    #[cfg(test)]
    pub(super) fn believe(&self, found: DiscoveredServer) {
        let server = Arc::clone(lock(&self.servers).entry(String::new()).or_default());
        *lock(&server.found) = Some((Arc::new(found), Instant::now()));
    }

    /// Drops all cached discoveries.
    pub(super) fn forget(&self) {
        for server in lock(&self.servers).values() {
            *lock(&server.found) = None;
        }
    }

    /// [`forget`](Self::forget), unless this was done less than a minute ago: failures of many callers, or an upstream that
    /// refuses each of their tokens, cause one lookup a minute.
    pub(super) fn forget_once_a_minute(&self) {
        let mut forgotten = lock(&self.forgotten);
        if forgotten.is_none_or(|at| at.elapsed() >= FORGOTTEN_EVERY) {
            *forgotten = Some(Instant::now());
            self.forget();
        }
    }

    /// [`forget`](Self::forget), except discoveries younger than a minute: callers whose tokens the upstream refuses,
    /// one after the other, cause one lookup a minute.
    pub(super) fn forget_old(&self) {
        for server in lock(&self.servers).values() {
            let mut found = lock(&server.found);
            *found = found.take().filter(|(_, at)| at.elapsed() < JUST_FOUND);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grants::server_metadata::ServerMetadata;

    #[tokio::test(start_paused = true)]
    async fn refusals_of_many_callers_cause_one_lookup_a_minute() {
        let url = Url::parse("https://up.test/mcp").unwrap();
        let lookup = ServerLookup::new("up".into(), url.clone(), false);
        let believed = || {
            lookup.believe(DiscoveredServer {
                server: ServerMetadata::remembered("https://as.test", url.clone(), None),
                resource: url.to_string(),
                scopes: Vec::new(),
            });
            lookup.forget_once_a_minute();
            lock(&lookup.servers)[""].believed().is_some()
        };
        assert!(!believed(), "the first one is heard at once");
        assert!(believed());
        tokio::time::advance(FORGOTTEN_EVERY).await;
        assert!(!believed());
        assert!(believed());
    }
}
