//! The composition root: configuration in, a serving gateway out. The only module that names
//! concrete parts.

mod asked_stores;
pub mod asking;
pub mod durable;
mod listening;
mod replica;
mod shared_stores;
mod started;

use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::Instant;
use url::Url;

use self::shared_stores::SharedStores;
use crate::audit;
use crate::auth::Authenticator;
use crate::budget::ByteBudget;
use crate::clock::{SharedClock, SystemClock};
use crate::cluster::Cluster;
use crate::config::{self, Config};
use crate::connect::{ConnectPages, ConnectParts};
use crate::descriptors::{self, DescriptorFit};
use crate::downstream::admin::{self, AccessRule, AdminPort, AdminReadiness, StatusPage};
use crate::downstream::guard::OriginGuard;
use crate::downstream::listener::Listener;
use crate::downstream::{AdoptionStores, McpService, McpServiceParts};
use crate::endpoint::{self, Endpoint};
use crate::grants::revocation::{UserAccounts, revoke_queued};
use crate::ownership::Ownership;
use crate::policy::ToolPolicy;
use crate::policy::rate::RateLimiter;
use crate::process::{self, ChildIsolation, HostEnvironment};
use crate::relay::{self, Relay};
use crate::runtime::lifecycle::{DrainResult, ProcessSignals, TaskSpawner};
use crate::runtime::workers::{WorkerPool, Workers};
use crate::seal::Sealer;
use crate::session::{SessionIds, SessionRegistry, SessionSettings};
use crate::store::events::{EventStore, MemoryEvents};
use crate::telemetry;
use crate::telemetry::chain::chain;
use crate::telemetry::setup::{LogControl, MetricsPage};
use crate::upstream::{AccountKeeping, Upstreams};
use crate::vault::Vault;

/// Probes and scrapers that are connected at once.
const ADMIN_CONNECTIONS: usize = 64;

/// How long upstream sessions may take to end at a shutdown.
const LINKS_GRACE: Duration = Duration::from_secs(2);

/// Serves until a signal ends it. `file` names the configuration in the event at the start; `None` is the
/// built-in one.
///
/// # Errors
/// Something the configuration asks for cannot be had: a port, a certificate, a key file.
pub fn run(mut config: Config, file: Option<&str>) -> anyhow::Result<()> {
    // Transparent huge pages multiply the resident memory, without a measurable gain.
    let huge_pages = rustix::thread::disable_transparent_huge_pages(true);
    process::hide_memory().context("memory cannot be hidden")?;
    let descriptors = descriptors::raise();
    let worker_pool =
        WorkerPool::start(config.server.threads).context("the threads cannot be started")?;
    let telemetry = telemetry::setup::init(&config.telemetry).context("telemetry")?;
    if let Err(error) = huge_pages {
        let error = chain(&error);
        tracing::info!(
            error,
            "huge pages cannot be switched off: the gateway may take more memory"
        );
    }
    let fit = DescriptorFit::new(&config, descriptors.limit);
    if let Some(complaint) = fit.complaint() {
        tracing::warn!("{complaint}");
    }
    config.server.max_connections = fit.connections();
    let host = HostEnvironment {
        descriptors: descriptors.inherited,
        ..HostEnvironment::current()
    };
    let workers = worker_pool.workers().clone();
    let mut audit = None;
    let shown = (telemetry.metrics_page(), telemetry.log_control());
    let served = worker_pool.block_on(serve((config, file, host), workers, shown, &mut audit));
    // Exporters block while they are flushed: outside the runtimes. With these the calls end that the
    // stop has cut off, and each has its record.
    drop(worker_pool);
    if let Some(audit) = audit {
        audit.flush();
    }
    drop(telemetry);
    served
}

async fn serve(
    (mut config, file, host): (Config, Option<&str>, HostEnvironment),
    workers: Workers,
    (metrics, log): (MetricsPage, LogControl),
    records: &mut Option<audit::AuditSink>,
) -> anyhow::Result<()> {
    let mut signals = ProcessSignals::install().context("signal handlers")?;
    let tasks = TaskSpawner::new();
    let opened = Box::pin(open(&config, &host, &tasks));
    let Some(opened) = signals.before(opened).await else {
        return Ok(());
    };
    let opened = opened?;
    let (vault, listener, admin) = (opened.vault, opened.listener, opened.admin);
    // After the cluster was joined: replicas may differ by it.
    name_chosen_port(&mut config.server.public_url, listener.local_addr().port())?;
    let (cluster, internal) = opened.joined.unzip();
    let config = Arc::new(config);
    let endpoints: Vec<_> = endpoint::endpoints(&config)
        .into_iter()
        .map(Arc::new)
        .collect();
    let missing = started::shortcomings(&config, &host);
    let parts = assemble(
        &config,
        (host, cluster.clone(), vault.as_ref()),
        &endpoints,
        &tasks,
    )?;
    if let Some(vault) = &vault {
        let kept = durable::keep(vault.clone(), config.connect.forget, parts.audit.clone());
        tasks.spawn_service(kept);
        tasks.spawn_service(vault.clone().follow_changes());
    }
    let readiness = AdminReadiness::new(tasks.clone());
    tasks.spawn_service(Arc::clone(&parts.sessions).reap());
    let (sessions, upstreams) = (Arc::clone(&parts.sessions), Arc::clone(&parts.upstreams));
    *records = Some(parts.audit);
    let has_children = config.upstreams.iter().any(|one| one.carrier.is_stdio());
    let status = StatusPage {
        children: has_children.then(|| ChildIsolation::available(config.stdio.trust_children)),
        started: Instant::now(),
        readiness: readiness.clone(),
        upstreams: Arc::clone(&upstreams),
        cluster: cluster.clone(),
        auth: Arc::clone(&parts.service.auth),
        clock: Arc::new(SystemClock),
        vault: vault.clone(),
    };
    if let Some(every) = config.health.interval {
        upstreams.check_health(every);
    }
    parts.service.relay.warm(&endpoints);
    let service = McpService::new(parts.service);
    let (address, admin_address) = (listener.local_addr(), admin.local_addr());
    let port = AdminPort {
        readiness: readiness.clone(),
        metrics: Some(metrics),
        status: Some(status),
        log: Some(log),
        guard: OriginGuard::for_operators(&config.admin),
        access: AccessRule::new(config.admin.token.clone()),
    };
    tasks.spawn_service(admin.run(
        admin::router(port),
        TaskSpawner::new(),
        Workers::only_this(),
    ));
    let joined = cluster.as_ref().zip(internal);
    let (internal, hand_over) = replica::serve(joined, &service, (&tasks, &workers));
    // The drain waits for it: the backlog is served.
    tasks.spawn(listener.run(Arc::clone(&service).service(), tasks.clone(), workers));
    readiness.started();
    let missing = missing.as_deref();
    started::log(&config, file, &endpoints, address, admin_address, missing);
    let last = async |until| replica::finish_calls(&service, hand_over, until).await;
    let drained = signals.drain(&tasks, config.server.drain, last).await;
    // Children that are closed with their sessions are on their ladder already.
    let left = drained.by.saturating_duration_since(Instant::now());
    sessions.close_all(LINKS_GRACE.min(left / 2)).await;
    upstreams.shut_down(drained.by).await;
    replica::leave(cluster.zip(internal), config.server.drain_linger).await;
    if let Some(vault) = vault {
        vault.close().await;
    }
    stopped(drained)
}

/// The last line of the log.
///
/// # Errors
/// No signal has asked for the end: the exit code has a supervisor start another process.
fn stopped(drained: DrainResult) -> anyhow::Result<()> {
    tracing::info!(clean = drained.clean, "stopped");
    anyhow::ensure!(
        drained.is_asked,
        "the gateway could not go on, its log says why"
    );
    Ok(())
}

/// What the start waits for.
struct OpenedParts {
    vault: Option<Vault>,
    listener: Listener,
    admin: Listener,
    joined: Option<(Arc<Cluster>, Listener)>,
}

/// Opens the vault, binds the listeners for clients and for operators, and joins the cluster. Waits for `PostgreSQL` and
/// Redis, for several seconds where they do not answer.
async fn open(
    config: &Config,
    host: &HostEnvironment,
    tasks: &TaskSpawner,
) -> anyhow::Result<OpenedParts> {
    let vault = durable::open_if_there(config, host, durable::LostKey::Replaced).await;
    let vault = vault.context("durable data")?;
    let headers = config.limits.headers;
    let listener = listening::bind("server.listen", &config.server, headers)?;
    let admin = listening::bind("admin.listen", &admin_listener(config), headers)?.for_operators();
    let joined = replica::join(config, tasks).await.context("cluster")?;
    Ok(OpenedParts {
        vault,
        listener,
        admin,
        joined,
    })
}

/// With port 0 the system chose: clients must be told the real one.
fn name_chosen_port(public_url: &mut Url, port: u16) -> anyhow::Result<()> {
    if public_url.port() == Some(0) {
        let named = public_url.set_port(Some(port));
        named.map_err(|()| anyhow::anyhow!("public_url cannot have a port"))?;
    }
    Ok(())
}

/// The operators' port is served like the public one, but in the clear and without proxies.
fn admin_listener(config: &Config) -> config::HttpServerConfig {
    config::HttpServerConfig {
        listen: config.admin.listen,
        tls: None,
        trusted_proxies: Vec::new(),
        max_connections: ADMIN_CONNECTIONS,
        connections_per_address: None,
        exchanges_per_principal: None,
        ..config.server.clone()
    }
}

struct AssembledApp {
    service: McpServiceParts,
    sessions: Arc<SessionRegistry>,
    upstreams: Arc<Upstreams>,
    audit: audit::AuditSink,
}

/// Has authorization servers told of the accounts that were disconnected.
fn tell_of_revocations(vault: &Vault, upstreams: &Upstreams, tasks: &TaskSpawner) {
    let accounts = upstreams.caller_accounts().tokens().map(|tokens| {
        let account = Arc::clone(tokens.account());
        (Arc::clone(account.upstream()), account)
    });
    let accounts: UserAccounts = accounts.collect();
    if !accounts.is_empty() {
        tasks.spawn_service(revoke_queued(vault.clone(), accounts));
    }
}

fn session_registry(
    config: &Config,
    ids: SessionIds,
    events: Arc<dyn EventStore>,
    clock: &SharedClock,
    tasks: &TaskSpawner,
) -> Arc<SessionRegistry> {
    let settings = SessionSettings {
        idle: config.sessions.idle,
        absolute: config.sessions.absolute,
        max_per_principal: config.sessions.max_per_principal,
        max_total: config.sessions.max_total,
        hold_question: config.sessions.hold_question,
    };
    SessionRegistry::new(ids, settings, events, Arc::clone(clock), tasks.clone())
}

/// The owner of the sessions of this process.
fn ownership(cluster: Option<&Cluster>) -> Ownership {
    cluster.map_or(Ownership::ALONE, |cluster| {
        let (node, epoch) = (cluster.node(), 0);
        Ownership { node, epoch }
    })
}

/// Shares the stores in Redis between replicas; returns the parts that adoptions need.
fn share(
    shared: SharedStores,
    relay: &Arc<Relay>,
    sessions: &Arc<SessionRegistry>,
    tasks: &TaskSpawner,
) -> AdoptionStores {
    let receiver: Weak<Relay> = Arc::downgrade(relay);
    relay.share_changes(shared.notices(receiver, tasks));
    shared.serve(sessions, tasks)
}

fn authenticator(
    config: &Config,
    clock: &SharedClock,
    tasks: &TaskSpawner,
) -> anyhow::Result<Arc<Authenticator>> {
    let (auth, egress) = (&config.auth, &config.egress);
    let made = Authenticator::new(auth, egress, Arc::clone(clock), tasks.clone());
    made.context("auth")
}

fn assemble(
    config: &Arc<Config>,
    (host, cluster, vault): (HostEnvironment, Option<Arc<Cluster>>, Option<&Vault>),
    endpoints: &[Arc<Endpoint>],
    tasks: &TaskSpawner,
) -> anyhow::Result<AssembledApp> {
    let clock: SharedClock = Arc::new(SystemClock);
    let sealer = Arc::new(Sealer::new(&config.keys.seal).context("keys.seal")?);
    let own = ownership(cluster.as_deref());
    let settings = config.cluster.as_ref().zip(cluster.as_ref());
    let shared = settings.map(|(settings, cluster)| {
        SharedStores::start((config, settings), cluster, &sealer, own, tasks)
    });
    let events: Arc<dyn EventStore> = match &shared {
        Some(shared) => Arc::clone(&shared.events) as _,
        None => Arc::new(MemoryEvents::new(shared_stores::log_bounds(config))),
    };
    let rate = match &shared {
        Some(shared) => shared.rate_limiter(config),
        None => RateLimiter::new(config.limits.rate),
    };
    let ids = SessionIds::new(Arc::clone(&sealer), own);
    let sessions = session_registry(config, ids, events, &clock, tasks);
    let fence = shared.as_ref().map(|shared| shared.fence().clone());
    let parked = shared.as_ref().map(SharedStores::parked);
    let audit = audit::AuditSink::start(Arc::clone(&clock), tasks);
    let keeping = vault.map(|vault| AccountKeeping::new(vault, &audit));
    let upstreams = Upstreams::new(config, host, keeping, tasks.clone()).context("upstreams")?;
    let upstreams = Arc::new(upstreams.behind(&fence.unwrap_or_default()));
    let relay = Relay::new(relay::RelayParts {
        settings: Arc::clone(config),
        upstreams: Arc::clone(&upstreams),
        policy: Arc::new(ToolPolicy::new(&config.auth)),
        audit: audit.clone(),
        sealer: Arc::clone(&sealer),
        sessions: Arc::clone(&sessions),
        vault: vault.cloned(),
        clock: Arc::clone(&clock),
        tasks: tasks.clone(),
    });
    let stores = shared.map(|shared| share(shared, &relay, &sessions, tasks));
    let auth = authenticator(config, &clock, tasks)?;
    let mut pages = None;
    if let Some(vault) = vault {
        if config.has_user_accounts() {
            let parts = ConnectParts {
                settings: Arc::clone(config),
                vault: vault.clone(),
                audit: audit.clone(),
                sealer: Arc::clone(&sealer),
                clock: Arc::clone(&clock),
                tokens: upstreams.caller_accounts().tokens().cloned().collect(),
                withheld: upstreams.caller_accounts().withheld().collect(),
                auth: Arc::clone(&auth),
                endpoints: endpoints.to_vec(),
            };
            pages = Some(ConnectPages::new(parts).context("connect.login")?);
        }
        tasks.spawn_service(Arc::clone(&relay).follow_accounts(vault.changes()));
        tell_of_revocations(vault, &upstreams, tasks);
    }
    let limits = &config.limits;
    let (in_sum, share) = (limits.bytes_total, limits.bytes_per_principal);
    let service = McpServiceParts {
        auth,
        rate,
        budget: ByteBudget::new(in_sum, share, limits.body),
        replies: Arc::clone(upstreams.replies()),
        settings: Arc::clone(config),
        endpoints: endpoints.to_vec(),
        sessions: Arc::clone(&sessions),
        relay,
        cluster: cluster.zip(stores),
        parked,
        pages,
        sealer,
        clock: Arc::clone(&clock),
        tasks: tasks.clone(),
    };
    Ok(AssembledApp {
        service,
        sessions,
        upstreams,
        audit,
    })
}
