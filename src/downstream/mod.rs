//! The side of MCP clients: the way of a request from the socket to the spine, and back.

pub mod access_log;
pub mod admin;
mod admission;
mod adoption;
mod batch;
mod body;
mod busy;
mod call_telemetry;
mod channel;
mod channel_dispatch;
mod channel_writer;
mod channels;
mod client_notifications;
mod connect_page;
mod connection_id;
pub mod cors;
mod cut_off;
mod detachable_call;
mod dispatch;
mod event_body;
mod exchange;
mod forwarding;
mod get_stream;
pub mod guard;
mod hand_over;
mod held_body;
mod held_request;
mod homes;
mod http_sse;
mod initialize;
mod keep_alive;
mod legacy_calls;
pub mod listener;
mod liveness;
mod media;
mod modern;
mod over_budget;
mod paths;
pub mod peer;
mod plain_events;
mod refused_body;
mod reply;
mod request_body;
mod request_place;
mod room;
#[cfg(test)]
pub(crate) mod samples;
mod socket_reader;
mod streamable;
mod unwritten;
mod websocket;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Version};
use hyper::body::Incoming;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use self::admission::AdmissionControl;
pub use self::adoption::AdoptionStores;
use self::adoption::{AdoptionWork, SessionAdopter};
use self::body::BodyReader;
use self::channels::ChannelRegistry;
use self::client_notifications::ClientNotifications;
use self::cut_off::CutOff;
use self::detachable_call::BackgroundCalls;
use self::exchange::LegacyExchanges;
use self::forwarding::RequestForwarder;
use self::guard::OriginGuard;
use self::hand_over::SessionDrain;
pub use self::hand_over::SessionHandOver;
use self::legacy_calls::LegacyCalls;
use self::modern::calls::ModernCalls;
use self::modern::parking::{ParkedCalls, ParkingCaps};
use self::paths::PathTable;
use self::refused_body::BodyScans;
use self::request_body::RequestBody;
use crate::address::ClientNetwork;
use crate::auth::Authenticator;
use crate::budget::ByteBudget;
use crate::clock::SharedClock;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::connect::ConnectPages;
use crate::endpoint::Endpoint;
use crate::policy::rate::RateLimiter;
use crate::relay::Relay;
use crate::runtime::lifecycle::TaskSpawner;
use crate::seal::Sealer;
use crate::session::SessionRegistry;
use crate::store::quotas::CallerQuota;
use crate::sync::keyed_permits::KeyedPermits;

/// After the drain, for clients to read how their calls ended.
const READ_WITHIN: Duration = Duration::from_millis(500);

/// The MCP service for clients.
#[derive(Debug)]
pub struct McpService {
    settings: Arc<Config>,
    paths: PathTable,
    guard: OriginGuard,
    auth: Arc<Authenticator>,
    admission: Arc<AdmissionControl>,
    bodies: BodyReader,
    replies: Arc<ByteBudget>,
    sessions: Arc<SessionRegistry>,
    channels: ChannelRegistry,
    relay: Arc<Relay>,
    /// `None` without `[cluster]`.
    forwarder: Option<RequestForwarder>,
    pages: Option<Arc<ConnectPages>>,
    page_permits: Arc<KeyedPermits<ClientNetwork>>,
    notifications: Arc<ClientNotifications>,
    calls: Arc<LegacyCalls>,
    exchanges: LegacyExchanges,
    modern: Arc<ModernCalls>,
    drain: SessionDrain,
    tasks: TaskSpawner,
    /// Cancelled when everything has to end now. Shared, as clones of a token meet in a lock.
    stop: Arc<CancellationToken>,
}

/// The parts that a [`McpService`] is made from.
#[derive(Debug)]
pub struct McpServiceParts {
    /// The whole configuration.
    pub settings: Arc<Config>,
    /// Every endpoint.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Authenticates callers.
    pub auth: Arc<Authenticator>,
    /// Limits the rate of callers.
    pub rate: RateLimiter,
    /// The byte budget of messages of clients.
    pub budget: Arc<ByteBudget>,
    /// The byte budget of replies.
    pub replies: Arc<ByteBudget>,
    /// All sessions of clients.
    pub sessions: Arc<SessionRegistry>,
    /// The spine.
    pub relay: Arc<Relay>,
    /// The other replicas, and the stores shared with them; `None` without `[cluster]`.
    pub cluster: Option<(Arc<Cluster>, AdoptionStores)>,
    /// The quota of each caller's parked calls over all replicas, where there are several.
    pub parked: Option<Arc<CallerQuota>>,
    /// The connect pages, where an upstream has accounts of callers.
    pub pages: Option<Arc<ConnectPages>>,
    /// Seals the `requestState` of modern clients.
    pub sealer: Arc<Sealer>,
    /// The time of day.
    pub clock: SharedClock,
    /// Background work.
    pub tasks: TaskSpawner,
}

impl McpService {
    /// Puts the parts together.
    #[must_use]
    pub fn new(parts: McpServiceParts) -> Arc<Self> {
        let settings = parts.settings;
        let forwarder = parts.cluster.map(|(cluster, stores)| {
            RequestForwarder::new(SessionAdopter {
                cluster,
                sessions: Arc::clone(&parts.sessions),
                relay: Arc::clone(&parts.relay),
                replies: Arc::clone(&parts.replies),
                tasks: parts.tasks.clone(),
                stores,
                work: AdoptionWork::new(settings.sessions.idle),
            })
        });
        let adopter = forwarder.as_ref().map(RequestForwarder::adopter);
        let drain = SessionDrain {
            draining: parts.tasks.draining().clone(),
            adopter: adopter.map(Arc::clone),
        };
        let admission = Arc::new(AdmissionControl {
            rate: Arc::new(parts.rate),
            settings: Arc::clone(&settings),
            sessions: Arc::clone(&parts.sessions),
            drain: drain.clone(),
        });
        let calls = Arc::new(LegacyCalls {
            admission: Arc::clone(&admission),
            relay: Arc::clone(&parts.relay),
            auth: Arc::clone(&parts.auth),
        });
        let modern = Arc::new(ModernCalls {
            admission: Arc::clone(&admission),
            relay: Arc::clone(&parts.relay),
            auth: Arc::clone(&parts.auth),
            parking: ParkedCalls::new(
                parts.sealer,
                parts.sessions.ownership(),
                parts.clock,
                parts.tasks.clone(),
                (
                    ParkingCaps::new(&settings.limits, &settings.server),
                    parts.parked,
                ),
            ),
            cut_off: CutOff::default(),
        });
        Arc::new(Self {
            guard: OriginGuard::new(&settings.server),
            paths: PathTable::new(&settings, &parts.endpoints, parts.pages.as_deref()),
            auth: parts.auth,
            bodies: BodyReader {
                settings: Arc::clone(&settings),
                budget: parts.budget,
                scans: Arc::new(BodyScans::new(settings.limits.body)),
            },
            replies: parts.replies,
            sessions: parts.sessions,
            channels: ChannelRegistry::new(&settings.sessions),
            notifications: Arc::new(ClientNotifications {
                admission: Arc::clone(&admission),
                relay: Arc::clone(&parts.relay),
                tasks: parts.tasks.clone(),
            }),
            relay: parts.relay,
            admission,
            forwarder,
            pages: parts.pages,
            page_permits: connect_page::permits(),
            exchanges: LegacyExchanges {
                settings: Arc::clone(&settings),
                background: BackgroundCalls {
                    tasks: parts.tasks.clone(),
                    places: Arc::new(Semaphore::new(settings.sessions.max_detached)),
                },
            },
            calls,
            modern,
            drain,
            stop: Arc::new(parts.tasks.stopping().clone()),
            tasks: parts.tasks,
            settings,
        })
    }

    /// Every route: each path is looked up behind the Host and Origin checks, so that there is
    /// only one handler (DESIGN §4 has the order of refusals), and no router before it.
    pub fn service(self: Arc<Self>) -> impl listener::ResponseService {
        tower::service_fn(move |request: Request<Incoming>| {
            let service = Arc::clone(&self);
            async move {
                // An HTTP/2 connection is a task of its own, and its window waits for that wake-up.
                let request = match request.version() {
                    Version::HTTP_2 => request.map(Body::new),
                    _ => request.map(|body| Body::new(RequestBody(body))),
                };
                // Large, and needed while a request is served only: most connections are idle.
                Ok(Box::pin(service.serve(request)).await)
            }
        })
    }

    /// The service of the internal listener: forwarded requests, which a drain waits for, and the greeting of this
    /// replica.
    pub fn replica_service(
        self: &Arc<Self>,
        cluster: Arc<Cluster>,
    ) -> impl listener::ResponseService {
        let service = Arc::clone(self);
        tower::service_fn(move |request: Request<Incoming>| {
            let service = Arc::clone(&service);
            let taken = forwarding::take_in(&cluster, request.map(Body::new));
            async move {
                match taken {
                    Ok(request) => {
                        let running = service.tasks.hold();
                        let response = Box::pin(service.serve(request)).await;
                        Ok(held_body::hold(response, Some(running)))
                    }
                    Err(answer) => Ok(*answer),
                }
            }
        })
    }

    /// Ends the calls that outlast the drain, but for those of sessions that are handed over, and waits until the answers are
    /// written: half a second, and until `until` at the latest. To be called when the drain is over, before background
    /// tasks are stopped.
    ///
    /// # Cancel safety
    /// The calls end in any case.
    pub async fn cut_calls_off(&self, until: Instant) {
        self.modern.cut_off.cancel();
        let until = until.min(Instant::now() + READ_WITHIN);
        let written = async {
            self.sessions.cut_calls_off(READ_WITHIN).await;
            self.tasks.ended().await;
        };
        drop(timeout_at(until, written).await);
    }

    /// Hands the sessions over while the process drains; `None` without `[cluster]`.
    #[must_use]
    pub fn session_hand_over(&self) -> Option<Arc<SessionHandOver>> {
        let adopter = self.forwarder.as_ref().map(RequestForwarder::adopter);
        adopter.map(|adopter| SessionHandOver::new(adopter, self.settings.server.drain))
    }
}
