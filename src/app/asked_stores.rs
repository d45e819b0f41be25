//! The servers that keep data of the gateway, as `check --online` finds them: Redis of `[cluster]`, and `PostgreSQL`.

use std::time::Duration;

use tokio::time::timeout;

use super::durable;
use crate::cause::LastCause;
use crate::config::{Config, ConfigDoubt, RedisConfig};
use crate::database::DatabaseError;
use crate::redis_client::{self, RedisFailure};
use crate::status::AskedStore;

/// For all attempts to connect to Redis: several sentinels, or nodes of a Cluster.
const REDIS_WITHIN: Duration = Duration::from_secs(9);

/// Connects to each once. A policy of Redis that loses sessions is a doubt.
///
/// # Cancel safety
/// Dropping the future abandons the connections.
pub(super) async fn ask(config: &Config) -> (Vec<AskedStore>, Option<ConfigDoubt>) {
    let (redis, server) = tokio::join!(ask_redis(config), durable::ask_server(config));
    let (redis, doubt) = redis.unzip();
    let server = server.map(|outcome| store("PostgreSQL", outcome, DatabaseError::server_remedy));
    (redis.into_iter().chain(server).collect(), doubt.flatten())
}

async fn ask_redis(config: &Config) -> Option<(AskedStore, Option<ConfigDoubt>)> {
    let redis: &RedisConfig = &config.cluster.as_ref()?.redis;
    let asked = timeout(REDIS_WITHIN, redis_client::evicting_policy(redis)).await;
    let asked = asked.unwrap_or(Err(RedisFailure::Silent));
    let policy = asked.as_ref().ok().cloned().flatten();
    let doubt = policy.map(|policy| ConfigDoubt {
        key: "cluster.redis".to_owned(),
        what: format!(
            "Redis evicts keys when its memory is full (maxmemory-policy {policy}): sessions would be lost"
        ),
        hint: "set maxmemory-policy noeviction".to_owned(),
    });
    Some((
        store("Redis", asked, |failure| Some(failure.remedy())),
        doubt,
    ))
}

fn store<T, E: std::error::Error>(
    name: &str,
    outcome: Result<T, E>,
    remedy: fn(&E) -> Option<&'static str>,
) -> AskedStore {
    let cause = LastCause::default();
    if let Err(error) = outcome {
        cause.set(&error, remedy(&error).map(Into::into));
    }
    AskedStore {
        name: name.to_owned(),
        cause: cause.snapshot().map(Into::into),
    }
}
