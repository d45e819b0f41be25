//! How a replica joins: it takes a number that no living replica has, with its first heartbeat.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::identity::{IdentityError, ReplicaIdentity};
use super::membership::{LeaseState, Membership};
use super::record::{RecordSealer, ReplicaRecord};
use crate::cause::chain;
use crate::config::{ClusterConfig, ReplicaTrust};
use crate::redis_client::{RedisClient, RedisFailure};
use crate::runtime::lifecycle::TaskSpawner;

/// For the first heartbeat; a replica starts without it where Redis is away.
const JOIN_WITHIN: Duration = Duration::from_secs(5);
/// Between two attempts.
const JOIN_PAUSE: Duration = Duration::from_millis(50);

/// Why a replica cannot join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// It has no identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Redis cannot be used, whatever its state.
    #[error("cluster.redis")]
    Redis(#[from] RedisFailure),
    /// Its record cannot be written.
    #[error("the record of this replica")]
    Record(#[from] serde_json::Error),
}

/// A replica that has no number yet.
pub(super) struct JoiningReplica<'a> {
    pub(super) config: &'a ClusterConfig,
    pub(super) redis: &'a RedisClient,
    pub(super) identity: &'a Arc<ReplicaIdentity>,
    pub(super) tasks: &'a TaskSpawner,
    /// Where others reach it.
    pub(super) address: String,
    /// The digest of its configuration.
    pub(super) digest: String,
    /// When it started, in milliseconds since the Unix epoch.
    pub(super) started: u64,
}

impl JoiningReplica<'_> {
    /// Draws random numbers until one is free, for [`JOIN_WITHIN`]. Goes on with the last one where Redis does not
    /// answer, since a restart during an outage has to serve as well.
    ///
    /// # Errors
    /// The record of the replica cannot be written.
    ///
    /// # Cancel safety
    /// A number that was taken stays taken until its lease ends.
    pub(super) async fn membership(&self) -> serde_json::Result<Membership> {
        let mut membership = self.draw()?;
        let claimed = async {
            loop {
                match membership.beat().await {
                    Ok(LeaseState::Held | LeaseState::New) => return Ok(()),
                    Ok(LeaseState::Taken) => membership = self.draw()?,
                    Err(failure) => {
                        tracing::debug!(error = chain(&failure), "first heartbeat failed");
                        tokio::time::sleep(JOIN_PAUSE).await;
                    }
                }
            }
        };
        let claimed: Result<serde_json::Result<()>, _> = timeout(JOIN_WITHIN, claimed).await;
        if let Ok(claimed) = claimed {
            claimed?;
        } else {
            tracing::warn!("replica starts without a lease: Redis does not answer");
        }
        Ok(membership)
    }

    /// A membership under a random number, unknown to Redis.
    fn draw(&self) -> serde_json::Result<Membership> {
        let secret = match &self.config.trust {
            ReplicaTrust::Secret(secret) => Some(secret),
            ReplicaTrust::Tls(_) => None,
        };
        let record = ReplicaRecord {
            // Zero is the owner of everything where there is one process.
            node: rand::random_range(1..=u32::MAX),
            address: self.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config: self.digest.clone(),
            fingerprint: self.identity.fingerprint(),
            started: self.started,
            is_draining: false,
        };
        let records = RecordSealer::new(secret, &self.config.prefix);
        let (redis, identity) = (self.redis.clone(), Arc::clone(self.identity));
        let terms = (self.config.lease, self.tasks.draining().clone());
        Membership::new(redis, identity, records, record, terms)
    }
}
