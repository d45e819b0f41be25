//! The Redis that replicas share: one handle over one server, a server that sentinels name, or a Cluster.
//!
//! A task keeps one connection and replaces it when it breaks, after a jittered wait. Callers never wait for it: without
//! a connection, with too many commands under way, or without an answer in time they get an error at once and decide
//! themselves. Every command has a name for the metrics. The crate `redis` is named here only.

mod cluster_keeper;
mod connect;
mod failure;
mod keeper;
mod link;
mod script;
mod server_info;
mod server_runs;
mod traffic;

use std::sync::Arc;

use redis::RedisResult;
pub use redis::{Cmd, FromRedisValue, Value, cmd};
use tokio::sync::watch;
use tokio::time::Instant;

pub use self::connect::ANSWER_WITHIN;
use self::connect::RedisLink;
pub use self::failure::RedisFailure;
pub use self::link::RedisServer;
use self::link::SharedLink;
pub use self::script::RedisScript;
use self::server_info::ServerInfo;
use crate::config::RedisConfig;
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::metrics::{COUNTERS, GAUGES, redis_command_ended};

/// Commands under way at once; more are refused.
pub const MAX_COMMANDS: usize = 4096;

/// Operations on the lease of this replica. One of them is under way at a time, in addition to [`MAX_COMMANDS`] commands.
const OF_LEASE: [&str; 2] = ["heartbeat", "leave"];

/// Connects once: the policy by which Redis evicts keys when its memory is full; `None` where it evicts none.
///
/// # Errors
/// Redis cannot be reached, refuses the login, or cannot be written to.
///
/// # Cancel safety
/// Nothing is changed.
pub async fn evicting_policy(config: &RedisConfig) -> Result<Option<String>, RedisFailure> {
    let connector = connect::RedisConnector::new(config)?;
    let (_, infos) = connector.connect().await?;
    let policy = infos.iter().find_map(ServerInfo::evicting_policy);
    Ok(policy.map(str::to_owned))
}

/// A handle; clones share the connection.
#[derive(Debug, Clone)]
pub struct RedisClient(Arc<SharedLink>);

impl RedisClient {
    /// Starts to connect in the background, for as long as the gateway runs. Every key begins with `prefix`.
    ///
    /// # Errors
    /// Certificates of `config` cannot be read.
    pub fn start(
        config: &RedisConfig,
        prefix: &str,
        tasks: &TaskSpawner,
    ) -> Result<Self, RedisFailure> {
        let connector = connect::RedisConnector::new(config)?;
        let client = Self(Arc::new(SharedLink::new(prefix, MAX_COMMANDS)));
        tasks.spawn_service(keeper::keep(connector, Arc::clone(&client.0)));
        Ok(client)
    }

    /// The whole key. What has to lie in one slot of a Cluster carries the same `{hash tag}`.
    #[must_use]
    pub fn key(&self, rest: &str) -> String {
        format!("{}:{rest}", self.0.prefix())
    }

    /// The server, and whether it is connected; changes with each connection that is made or lost.
    #[must_use]
    pub fn server(&self) -> watch::Receiver<RedisServer> {
        self.0.server()
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.is_connected()
    }

    /// Sends one command; `operation` names it in metrics.
    ///
    /// # Errors
    /// See [`RedisFailure`]. After [`RedisFailure::is_uncertain`] the command may have run.
    ///
    /// # Cancel safety
    /// The command may run nevertheless.
    pub async fn command<T: FromRedisValue>(
        &self,
        operation: &'static str,
        command: &Cmd,
    ) -> Result<T, RedisFailure> {
        let started = Instant::now();
        let result = self.sent(operation, command).await;
        let outcome = result.as_ref().err().map_or("ok", RedisFailure::word);
        redis_command_ended(operation, outcome, started.elapsed());
        result
    }

    /// Runs a script, sent in full only where the server does not have it. All keys lie in one slot.
    ///
    /// # Errors
    /// As for [`Self::command`].
    ///
    /// # Cancel safety
    /// The script may run nevertheless.
    pub async fn script<T: FromRedisValue>(
        &self,
        operation: &'static str,
        script: &RedisScript,
        keys: &[String],
        arguments: &[&[u8]],
    ) -> Result<T, RedisFailure> {
        let known = script.by_hash(keys, arguments);
        match self.command(operation, &known).await {
            Err(RedisFailure::Refused(error)) if script::is_unknown(&error) => {
                let whole = script.in_full(keys, arguments);
                self.command(operation, &whole).await
            }
            other => other,
        }
    }

    async fn sent<T: FromRedisValue>(
        &self,
        operation: &'static str,
        command: &Cmd,
    ) -> Result<T, RedisFailure> {
        let (number, mut link) = self.0.present().ok_or(RedisFailure::NotConnected)?;
        let permit = self.0.permit();
        if permit.is_none() && !OF_LEASE.contains(&operation) {
            return Err(RedisFailure::TooManyCommands);
        }
        let _under_way = GAUGES.redis_commands.enter();
        COUNTERS.redis_sent.add(traffic::of_command(command) as u64);
        let answer = async {
            match &mut link {
                RedisLink::Single(link) => command.query_async::<Value>(link).await,
                RedisLink::Cluster(link) => command.query_async(link).await,
            }
        };
        let result = tokio::time::timeout(ANSWER_WITHIN, answer).await;
        let result = result.map(|answer| -> RedisResult<T> {
            let reply = answer?;
            COUNTERS
                .redis_received
                .add(traffic::of_reply(&reply) as u64);
            Ok(redis::from_redis_value(reply)?)
        });
        let failure = match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => RedisFailure::from(error),
            Err(_) => RedisFailure::Silent,
        };
        if failure.ends_connection() {
            self.0.failed(number);
        }
        Err(failure)
    }
}
