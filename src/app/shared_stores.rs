//! What replicas keep in Redis: made where there is `[cluster]`, and nowhere else.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{ClusterConfig, Config};
use crate::ownership::Ownership;
use crate::policy::rate::{RateLimiter, shape_of};
use crate::redis_client::RedisClient;
use crate::runtime::lifecycle::TaskSpawner;
use crate::seal::Sealer;
use crate::session::SessionRegistry;
use crate::store::events::{LogBounds, SharedEvents, SharedLogParts};
use crate::store::fenced::FencedSessions;
use crate::store::rates::BorrowedRates;
use crate::store::records::{RecordWriter, SharedRecords};
use crate::store::scripts::StoreKeys;

/// Life of a record beyond the idle time of its session, so that the owner ends a session before its record expires.
const BEYOND_IDLE: Duration = Duration::from_mins(1);

/// The stores that all replicas share.
pub(super) struct SharedStores {
    pub(super) events: Arc<SharedEvents>,
    records: Arc<RecordWriter>,
    rates: Arc<BorrowedRates>,
    fenced: Arc<FencedSessions>,
    redis: RedisClient,
    lease: Duration,
}

impl SharedStores {
    /// Starts the tasks that write behind.
    pub(super) fn start(
        (config, cluster): (&Config, &ClusterConfig),
        redis: &RedisClient,
        sealer: &Arc<Sealer>,
        own: Ownership,
        tasks: &TaskSpawner,
    ) -> Self {
        let keys = StoreKeys::new(&cluster.prefix);
        let fenced = Arc::new(FencedSessions::default());
        let events = SharedLogParts {
            bounds: log_bounds(config),
            store: Arc::new(redis.clone()),
            keys: keys.clone(),
            sealer: Arc::clone(sealer),
            own,
            fenced: Arc::clone(&fenced),
        };
        let records = Arc::new(SharedRecords::new(
            Arc::new(redis.clone()),
            keys.clone(),
            Arc::clone(sealer),
            config.sessions.idle.saturating_add(BEYOND_IDLE),
        ));
        let shape = shape_of(config.limits.rate);
        Self {
            events: SharedEvents::start(events, tasks),
            records: RecordWriter::start(records, Arc::clone(&fenced), tasks),
            rates: BorrowedRates::start(Arc::new(redis.clone()), keys, shape, tasks),
            fenced,
            redis: redis.clone(),
            lease: cluster.lease,
        }
    }

    /// The rates of callers, which hold in sum.
    pub(super) fn rate_limiter(&self, config: &Config) -> RateLimiter {
        RateLimiter::sharing(config.limits.rate, Arc::clone(&self.rates))
    }

    /// Keeps the records of `sessions`, gives up those that another replica owns, and writes again what Redis may have
    /// lost.
    pub(super) fn serve(self, sessions: &Arc<SessionRegistry>, tasks: &TaskSpawner) {
        sessions.keep_records(Arc::clone(&self.records));
        let (fenced, given_up) = (self.fenced, Arc::clone(sessions));
        tasks.spawn_service(async move {
            loop {
                given_up.give_up(fenced.next().await);
            }
        });
        let (records, events, lease) = (self.records, self.events, self.lease);
        let mut server = self.redis.server();
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
