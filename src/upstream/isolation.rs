//! Whose traffic may share an upstream session or child: one session, one principal, or all.
//! Spec: DESIGN §6; BRIDGING §1.3.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dashmap::DashMap;
use futures_util::future::{BoxFuture, join_all};
use tokio::time::Instant;

use super::carrier::{Carrier, Older, Settings};
use super::duplex::Source;
use super::era::{EraCell, EraLink};
use super::health::Health;
use super::http::client::{ClientError, HttpClient};
use super::http::wire::Bounds;
use super::lock;
use super::modern::Schemas;
use super::stdio::{Host, StdioRuntime};
use crate::call::{
    Asked, Call, ClientCapabilities, Declared, Intake, Notice, OwnerKey, Question, Reply,
    UpstreamLink,
};
use crate::config::{self, Isolation, Transport};
use crate::fault::Fault;
use crate::lifecycle::Tasks;
use crate::protocol::{Message, Revision};

/// A shared HTTP session without users is ended after this.
const SHARED_HTTP_IDLE: Duration = Duration::from_mins(1);

/// Who sits at a link, and what may be asked of them.
#[derive(Debug)]
pub struct Seat {
    /// Whose credentials, children and quotas.
    pub owner: OwnerKey,
    /// What the client can be asked.
    pub capabilities: ClientCapabilities,
    /// JSON text of the client's `clientInfo`.
    pub client_info: Bytes,
    /// The revision offered to the upstream: the client's own, so that least has to be projected.
    pub offer: Revision,
    /// Where messages outside calls go.
    pub intake: Arc<dyn Intake>,
}

/// Why upstreams cannot be made ready.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// An HTTP client cannot be made.
    #[error("upstream {upstream:?}: {source}")]
    Client {
        /// Which upstream.
        upstream: String,
        /// Why.
        source: ClientError,
    },
    /// The helper processes for children cannot be started.
    #[error("helper processes for stdio upstreams cannot be started")]
    Stdio(#[from] std::io::Error),
}

/// Every configured upstream.
#[derive(Debug)]
pub struct Upstreams {
    entries: HashMap<Arc<str>, Entry>,
    pools: Arc<DashMap<PoolKey, Arc<Pooled>>>,
    stdio: Option<Arc<StdioRuntime>>,
    limits: config::Limits,
    stdio_idle: Duration,
    tasks: Tasks,
}

#[derive(Debug)]
struct Entry {
    settings: Arc<config::Upstream>,
    carrier: Carrier,
    era: Arc<EraCell>,
    schemas: Arc<Schemas>,
    health: Arc<Health>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PoolKey {
    upstream: Arc<str>,
    owner: Option<OwnerKey>,
    capabilities: u64,
    offer: Revision,
}

impl Upstreams {
    /// Makes ready to reach every upstream of `config`; opens none. `host` is what
    /// children are started with. Needs a Tokio runtime.
    ///
    /// # Errors
    /// A client cannot be made, or the helper processes for children cannot be started.
    pub fn new(config: &config::Config, host: Host, tasks: Tasks) -> Result<Self, SetupError> {
        let limits = config.limits.clone();
        let bounds = Bounds {
            message: limits.upstream_message,
            event: limits.sse_event,
            depth: limits.json_depth,
        };
        let any_stdio = config
            .upstreams
            .iter()
            .any(|u| matches!(u.carrier, config::Carrier::Stdio(_)));
        let stdio = if any_stdio {
            Some(StdioRuntime::start(&config.stdio, &limits, host, &tasks)?)
        } else {
            None
        };
        let mut entries = HashMap::new();
        for upstream in &config.upstreams {
            let carrier = match (&upstream.carrier, &stdio) {
                (config::Carrier::Http(http), _) => {
                    let client = HttpClient::new(http).map_err(|source| SetupError::Client {
                        upstream: upstream.name.clone(),
                        source,
                    })?;
                    let client = Box::new(client);
                    match http.transport {
                        Transport::Streamable => Carrier::Http(client, bounds, None),
                        Transport::Auto => Carrier::Http(client, bounds, Some(Older::default())),
                        Transport::Sse => Carrier::Duplex(Source::Events(client, bounds)),
                        Transport::WebSocket => Carrier::Duplex(Source::Sockets(client, bounds)),
                    }
                }
                (config::Carrier::Stdio(_), Some(stdio)) => {
                    Carrier::Duplex(Source::Children(Arc::clone(stdio)))
                }
                (config::Carrier::Stdio(_), None) => continue,
            };
            let settings = Arc::new(upstream.clone());
            let name: Arc<str> = Arc::from(upstream.name.as_str());
            entries.insert(
                Arc::clone(&name),
                Entry {
                    health: Arc::new(Health::new(name)),
                    era: Arc::new(EraCell::new(upstream)),
                    schemas: Arc::default(),
                    settings,
                    carrier,
                },
            );
        }
        Ok(Self {
            entries,
            pools: Arc::default(),
            stdio,
            limits,
            stdio_idle: config.stdio.idle,
            tasks,
        })
    }

    /// The configuration of an upstream.
    #[must_use]
    pub fn settings(&self, upstream: &str) -> Option<&Arc<config::Upstream>> {
        self.entries.get(upstream).map(|entry| &entry.settings)
    }

    /// Whether an upstream hung lately, so that waiting for it now would be in vain.
    #[must_use]
    pub fn is_stuck(&self, upstream: &str) -> bool {
        self.entries
            .get(upstream)
            .is_some_and(|entry| entry.health.is_stuck())
    }

    /// Notes that somebody went on without an upstream because it took too long.
    pub fn was_late(&self, upstream: &str) {
        if let Some(entry) = self.entries.get(upstream) {
            entry.health.was_late();
        }
    }

    /// Resolves when an upstream answers after it did not; never for one that is not configured.
    /// Cancel safe.
    pub async fn recovered(&self, upstream: &str) {
        match self.entries.get(upstream) {
            Some(entry) => entry.health.recovered().await,
            None => std::future::pending().await,
        }
    }

    /// What is declared to an upstream of what the client can be asked: one that serves everybody
    /// over a single connection cannot know whom it asks (DESIGN §6).
    #[must_use]
    pub fn declarable(&self, upstream: &str, client: &ClientCapabilities) -> ClientCapabilities {
        match self.settings(upstream) {
            Some(settings)
                if settings.isolation == Isolation::Shared
                    && !has_streams_of_calls(&settings.carrier) =>
            {
                ClientCapabilities::none()
            }
            _ => client.clone(),
        }
    }

    /// A link for this seat: its own, or a place at one that is shared. Nothing is opened yet.
    #[must_use]
    pub fn link(&self, upstream: &str, seat: Seat) -> Option<Arc<dyn UpstreamLink>> {
        let (name, entry) = self.entries.get_key_value(upstream)?;
        let owner = match entry.settings.isolation {
            Isolation::Session => return Some(self.make(name, entry, seat, true)),
            Isolation::Principal => Some(seat.owner),
            Isolation::Shared => None,
        };
        let key = PoolKey {
            upstream: Arc::clone(name),
            owner,
            capabilities: seat.capabilities.fingerprint(),
            offer: seat.offer,
        };
        let intake = Arc::clone(&seat.intake);
        let pooled = Arc::clone(&self.pools.entry(key.clone()).or_insert_with(|| {
            let members = Arc::new(Members::default());
            let client_info = crate::upstream::OWN_INFO;
            let seat = Seat {
                intake: Arc::clone(&members) as _,
                client_info,
                ..seat
            };
            Arc::new(Pooled {
                link: self.make(name, entry, seat, false),
                members,
            })
        }));
        let number = pooled.members.join(intake);
        let idle = match entry.carrier {
            Carrier::Duplex(Source::Children(_)) => self.stdio_idle,
            Carrier::Duplex(_) | Carrier::Http(..) => SHARED_HTTP_IDLE,
        };
        Some(Arc::new(Place {
            pooled,
            number,
            key,
            pools: Arc::clone(&self.pools),
            idle,
            tasks: self.tasks.clone(),
            listening: AtomicBool::new(false),
        }))
    }

    fn make(&self, name: &Arc<str>, entry: &Entry, seat: Seat, exclusive: bool) -> Arc<EraLink> {
        let settings = Settings {
            upstream: Arc::clone(&entry.settings),
            name: Arc::clone(name),
            carrier: entry.carrier.clone(),
            owner: seat.owner,
            capabilities: seat.capabilities,
            client_info: seat.client_info,
            client: seat.offer.era(),
            offer: entry.era.offer(seat.offer),
            intake: seat.intake,
            exclusive,
            tasks: self.tasks.clone(),
            message_depth: self.limits.json_depth,
            health: Arc::clone(&entry.health),
        };
        let (era, schemas) = (Arc::clone(&entry.era), Arc::clone(&entry.schemas));
        EraLink::new(Arc::new(settings), era, schemas)
    }

    /// Ends shared links and every child, until `by` at the latest.
    pub async fn shut_down(&self, by: Instant) {
        let pools: Vec<_> = self
            .pools
            .iter()
            .map(|entry| Arc::clone(entry.value()))
            .collect();
        self.pools.clear();
        let links = join_all(pools.iter().map(|pooled| pooled.link.close()));
        let children = async {
            if let Some(stdio) = &self.stdio {
                stdio.shut_down(by).await;
            }
        };
        drop(tokio::join!(tokio::time::timeout_at(by, links), children));
    }
}

/// Whether a question can come on the stream of the call that it belongs to.
fn has_streams_of_calls(carrier: &config::Carrier) -> bool {
    match carrier {
        config::Carrier::Stdio(_) => false,
        config::Carrier::Http(http) => {
            matches!(http.transport, Transport::Auto | Transport::Streamable)
        }
    }
}

/// A link with several sessions at it.
#[derive(Debug)]
struct Pooled {
    link: Arc<EraLink>,
    members: Arc<Members>,
}

/// Passes what belongs to no call to every session at the link.
#[derive(Debug, Default)]
struct Members {
    next: AtomicU64,
    intakes: Mutex<HashMap<u64, Arc<dyn Intake>>>,
    listening: AtomicU64,
    /// Who follows which URI.
    followers: Mutex<HashMap<String, HashSet<u64>>>,
}

impl Members {
    fn all(&self) -> Vec<Arc<dyn Intake>> {
        lock(&self.intakes).values().map(Arc::clone).collect()
    }

    fn join(&self, intake: Arc<dyn Intake>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.intakes).insert(number, intake);
        number
    }

    /// Notes a subscription; `false` when the member had it before.
    fn follow(&self, uri: &str, member: u64) -> bool {
        let mut followers = lock(&self.followers);
        followers.entry(uri.to_owned()).or_default().insert(member)
    }

    fn follows(&self, uri: &str, member: u64) -> bool {
        let followers = lock(&self.followers);
        followers
            .get(uri)
            .is_some_and(|members| members.contains(&member))
    }

    /// Ends a subscription; `true` when nobody has it any more.
    fn unfollow(&self, uri: &str, member: u64) -> bool {
        let mut followers = lock(&self.followers);
        let Some(members) = followers.get_mut(uri) else {
            return true;
        };
        members.remove(&member);
        let is_last = members.is_empty();
        if is_last {
            followers.remove(uri);
        }
        is_last
    }

    /// Forgets a member; what it alone has followed.
    fn leave(&self, member: u64) -> Vec<String> {
        lock(&self.intakes).remove(&member);
        let mut left = Vec::new();
        lock(&self.followers).retain(|uri, members| {
            if members.remove(&member) && members.is_empty() {
                left.push(uri.clone());
            }
            !members.is_empty()
        });
        left
    }
}

impl Intake for Members {
    fn opened(&self, upstream: &Arc<str>, declared: &Arc<Declared>) {
        for member in self.all() {
            member.opened(upstream, declared);
        }
    }

    fn heard(&self, upstream: &Arc<str>, lists: &[&'static str]) {
        for member in self.all() {
            member.heard(upstream, lists);
        }
    }

    fn notice(&self, upstream: &Arc<str>, notice: Notice) {
        for member in self.all() {
            member.notice(upstream, notice.clone());
        }
    }

    fn question(&self, _upstream: &Arc<str>, _question: Question) -> BoxFuture<'_, Asked> {
        let refusal = "the question names no call, and several sessions share the upstream";
        Box::pin(std::future::ready(Asked::CannotAsk(refusal.to_owned())))
    }
}

/// One session's place at a shared link.
#[derive(Debug)]
struct Place {
    pooled: Arc<Pooled>,
    number: u64,
    key: PoolKey,
    pools: Arc<DashMap<PoolKey, Arc<Pooled>>>,
    idle: Duration,
    tasks: Tasks,
    listening: AtomicBool,
}

impl Place {
    async fn subscribe(
        &self,
        uri: Cow<'_, str>,
        request: &Message,
        call: &Call,
    ) -> Result<Reply, Fault> {
        let (link, members) = (&self.pooled.link, &self.pooled.members);
        let uri = &*uri;
        let is_new = members.follow(uri, self.number);
        let reply = link.call(request, call).await;
        let is_refused = reply.as_ref().map_or(true, |reply| reply.error().is_some());
        if is_refused && is_new {
            members.unfollow(uri, self.number);
        } else if !is_refused
            && !members.follows(uri, self.number)
            && members.unfollow(uri, self.number)
        {
            // The session has ended meanwhile, and nobody else wants it.
            link.unsubscribe(uri).await;
        }
        reply
    }
}

impl UpstreamLink for Place {
    fn upstream(&self) -> &Arc<str> {
        self.pooled.link.upstream()
    }

    fn call<'a>(
        &'a self,
        request: &'a Message,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Reply, Fault>> {
        match (request.method(), request.param_str("uri")) {
            (Some("resources/subscribe"), Some(uri)) => {
                Box::pin(self.subscribe(uri, request, call))
            }
            // The upstream hears of the first who follows and of the last who no longer does.
            (Some("resources/unsubscribe"), Some(uri))
                if !self.pooled.members.unfollow(&uri, self.number) =>
            {
                let done = Reply::Result(Bytes::from_static(b"{}"));
                Box::pin(std::future::ready(Ok(done)))
            }
            _ => self.pooled.link.call(request, call),
        }
    }

    fn notify(&self, message: Bytes) -> BoxFuture<'_, ()> {
        self.pooled.link.notify(message)
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<Declared>, Fault>> {
        self.pooled.link.open()
    }

    fn declared(&self) -> Option<Arc<Declared>> {
        self.pooled.link.declared()
    }

    fn listen(&self, wanted: bool) {
        let members = &self.pooled.members;
        match (self.listening.swap(wanted, Ordering::Relaxed), wanted) {
            (false, true) => members.listening.fetch_add(1, Ordering::Relaxed),
            (true, false) => members.listening.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
        self.pooled
            .link
            .listen(members.listening.load(Ordering::Relaxed) > 0);
    }

    fn hearing(&self) -> Option<u64> {
        self.pooled.link.hearing()
    }

    /// Leaves the link; it ends when nobody has come back for a while.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.listen(false);
            let (pooled, members) = (&self.pooled, &self.pooled.members);
            for uri in members.leave(self.number) {
                pooled.link.unsubscribe(&uri).await;
            }
            if !lock(&members.intakes).is_empty() {
                return;
            }
            let (pools, key) = (Arc::clone(&self.pools), self.key.clone());
            let (pooled, idle) = (Arc::clone(&self.pooled), self.idle);
            self.tasks.spawn_service(async move {
                tokio::time::sleep(idle).await;
                let unused = |pooled: &Arc<Pooled>| lock(&pooled.members.intakes).is_empty();
                if pools
                    .remove_if(&key, |_, current| {
                        Arc::ptr_eq(current, &pooled) && unused(current)
                    })
                    .is_some()
                {
                    pooled.link.close().await;
                }
            });
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Principal;
    use crate::fault::FaultKind;
    use crate::upstream::stdio::Host;

    #[derive(Debug)]
    struct Nobody;

    impl Intake for Nobody {
        fn opened(&self, _upstream: &Arc<str>, _declared: &Arc<Declared>) {}

        fn heard(&self, _upstream: &Arc<str>, _lists: &[&'static str]) {}

        fn notice(&self, _upstream: &Arc<str>, _notice: Notice) {}

        fn question(&self, _upstream: &Arc<str>, _question: Question) -> BoxFuture<'_, Asked> {
            Box::pin(std::future::ready(Asked::CannotAsk(String::new())))
        }
    }

    #[tokio::test]
    async fn a_link_whose_session_is_over_opens_nothing() {
        let text = "[auth]\nmode = \"none\"\n[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\n";
        let config = config::parse(text, "test.toml", &|_| None).unwrap();
        let upstreams = Upstreams::new(&config, Host::current(), Tasks::new()).unwrap();
        let seat = Seat {
            owner: Principal::anonymous().owner(),
            capabilities: ClientCapabilities::none(),
            client_info: Bytes::from_static(b"{}"),
            offer: Revision::LATEST_LEGACY,
            intake: Arc::new(Nobody),
        };
        let link = upstreams.link("up", seat).unwrap();
        let before = link.open().await.unwrap_err();
        assert_eq!(before.kind, FaultKind::UpstreamUnavailable);
        link.close().await;
        let after = link.open().await.unwrap_err();
        assert_eq!(after.kind, FaultKind::Cancelled);
    }
}
