//! What replicas keep in Redis: made where there is `[cluster]`, and nowhere else.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::cluster::{Cluster, SessionCheck};
use crate::config::{ClusterConfig, Config};
use crate::downstream::AdoptionStores;
use crate::ownership::{Fence, Ownership};
use crate::policy::rate::{RateLimiter, shape_of};
use crate::runtime::lifecycle::TaskSpawner;
use crate::seal::Sealer;
use crate::session::{SessionRegistry, SharedQuotas};
use crate::store::events::{LogBounds, SharedEvents, SharedLogParts};
use crate::store::fenced::FencedSessions;
use crate::store::notices::{ListChangeReceiver, SharedNotices};
use crate::store::quotas::{CallerQuota, QuotaShape};
use crate::store::rates::BorrowedRates;
use crate::store::records::{RecordWriter, SharedRecords};
use crate::store::scripts::StoreKeys;

/// Life of a record beyond the idle time of its session, so that the owner ends a session before its record expires.
const BEYOND_IDLE: Duration = Duration::from_mins(1);

/// The stores that all replicas share.
pub(super) struct SharedStores {
    pub(super) events: Arc<SharedEvents>,
    records: Arc<SharedRecords>,
    writer: Arc<RecordWriter>,
    rates: Arc<BorrowedRates>,
    parked: Arc<CallerQuota>,
    quotas: SharedQuotas,
    fenced: Arc<FencedSessions>,
    fence: Fence,
    keys: StoreKeys,
    cluster: Arc<Cluster>,
    lease: Duration,
}

/// The sessions of this replica, and their records.
#[derive(Debug)]
struct OwnSessions {
    sessions: Arc<SessionRegistry>,
    records: Arc<RecordWriter>,
}

impl SessionCheck for OwnSessions {
    fn give_up_adopted(&self) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let Some(lost) = self.records.lost().await else {
                return false;
            };
            for (session, by) in lost {
                self.sessions.give_up(session, by);
            }
            true
        })
    }
}

impl SharedStores {
    /// Starts the tasks that write behind.
    pub(super) fn start(
        (config, settings): (&Config, &ClusterConfig),
        cluster: &Arc<Cluster>,
        sealer: &Arc<Sealer>,
        own: Ownership,
        tasks: &TaskSpawner,
    ) -> Self {
        let (redis, fence) = (cluster.redis(), Fence::closed());
        let keys = StoreKeys::new(&settings.prefix);
        let fenced = Arc::new(FencedSessions::default());
        let events = SharedLogParts {
            bounds: log_bounds(config),
            store: Arc::new(redis.clone()),
            keys: keys.clone(),
            sealer: Arc::clone(sealer),
            own,
            fenced: Arc::clone(&fenced),
            fence: fence.clone(),
        };
        let records = Arc::new(SharedRecords::new(
            Arc::new(redis.clone()),
            keys.clone(),
            Arc::clone(sealer),
            config.sessions.idle.saturating_add(BEYOND_IDLE),
        ));
        let shape = shape_of(config.limits.rate);
        let limits = &config.limits;
        let quota = |kind, most| {
            let (store, shape) = (Arc::new(redis.clone()), QuotaShape { kind, most });
            CallerQuota::start(store, keys.clone(), shape, own.node, tasks)
        };
        let quotas = SharedQuotas {
            sessions: quota("sessions", config.sessions.max_per_principal),
            results: quota("results", limits.hosted_tasks.results_per_principal),
        };
        Self {
            events: SharedEvents::start(events, tasks),
            writer: RecordWriter::start(Arc::clone(&records), Arc::clone(&fenced), tasks),
            records,
            parked: quota("parked", limits.parked_per_principal),
            quotas,
            rates: BorrowedRates::start(Arc::new(redis.clone()), keys.clone(), shape, tasks),
            fenced,
            fence,
            keys,
            cluster: Arc::clone(cluster),
            lease: settings.lease,
        }
    }

    /// Closed while another replica may own sessions of this one.
    pub(super) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// The rates of callers, which hold in sum.
    pub(super) fn rate_limiter(&self, config: &Config) -> RateLimiter {
        RateLimiter::sharing(config.limits.rate, Arc::clone(&self.rates))
    }

    /// The quota of parked calls, which holds in sum.
    pub(super) fn parked(&self) -> Arc<CallerQuota> {
        Arc::clone(&self.parked)
    }

    /// Exchanges notices of changed lists with other replicas, for `receiver`.
    pub(super) fn notices(
        &self,
        receiver: Weak<dyn ListChangeReceiver>,
        tasks: &TaskSpawner,
    ) -> Arc<SharedNotices> {
        let store = Arc::new(self.cluster.redis().clone());
        SharedNotices::start(store, self.keys.clone(), receiver, tasks)
    }

    /// Keeps the records of `sessions`, gives up those that another replica owns, and writes again what Redis may have
    /// lost. What adoptions need is returned.
    pub(super) fn serve(
        self,
        sessions: &Arc<SessionRegistry>,
        tasks: &TaskSpawner,
    ) -> AdoptionStores {
        let stores = AdoptionStores {
            records: self.records,
            writer: Arc::clone(&self.writer),
            events: Arc::clone(&self.events),
            fence: self.fence.clone(),
        };
        let own = OwnSessions {
            sessions: Arc::clone(sessions),
            records: Arc::clone(&self.writer),
        };
        self.cluster.keep_fence(&self.fence, Arc::new(own));
        sessions.keep_records(Arc::clone(&self.writer));
        sessions.owners().share_quotas(self.quotas);
        let (fenced, given_up) = (self.fenced, Arc::clone(sessions));
        tasks.spawn_service(async move {
            loop {
                let (session, by) = fenced.next().await;
                given_up.give_up(session, by);
            }
        });
        let (records, events, lease) = (self.writer, self.events, self.lease);
        let mut server = self.cluster.redis().server();
        tasks.spawn_service(async move {
            let mut known = server.borrow().run_id.clone();
            while server.changed().await.is_ok() {
                let (run_id, is_connected) = {
                    let server = server.borrow();
                    (server.run_id.clone(), server.is_connected)
                };
                // Another process may have less than the one before, or nothing.
                if is_connected && run_id != known {
                    known = run_id;
                    tokio::join!(records.write_again(lease), events.write_again(lease));
                }
            }
        });
        stores
    }
}

/// Bounds of the event log in this process.
pub(super) fn log_bounds(config: &Config) -> LogBounds {
    LogBounds {
        max_age: config.events.max_age,
        per_session: config.events.per_session,
        total: config.events.total,
    }
}
