//! At its start a replica calls its own `cluster.advertise`: where that leads nowhere, or to another process, no other
//! replica reaches it either.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::failure::ForwardFailure;
use super::greeting;
use super::identity::ReplicaIdentity;
use super::peers::Peer;
use super::record::ReplicaRecord;
use crate::cause::chain;
use crate::runtime::lifecycle::TaskSpawner;

/// Attempts, as an address may take a moment to lead here.
const ATTEMPTS: usize = 5;
/// Between two.
const PAUSE: Duration = Duration::from_secs(1);
/// For the answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Logs whether `own` reaches itself. To be called once the internal listener runs.
pub(super) async fn check(own: &ReplicaRecord, identity: &ReplicaIdentity, tasks: &TaskSpawner) {
    let (node, address) = (own.node, &*own.address);
    let remedy =
        "set cluster.advertise to a host and port that lead to cluster.listen of this replica";
    let mut met = Err(String::new());
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            sleep(PAUSE).await;
        }
        met = meet(own, identity, tasks).await;
        if met == Ok(node) {
            return tracing::debug!(node, address, "replica reaches itself");
        }
    }
    match met {
        Ok(other) => {
            let line = "another replica answers at the own address";
            tracing::warn!(node, address, other, remedy, "{line}");
        }
        Err(error) => {
            tracing::warn!(
                node,
                address,
                error,
                remedy,
                "replica does not reach itself"
            );
        }
    }
}

/// The number of the replica that answers at the address of `own`, or why none does.
async fn meet(
    own: &ReplicaRecord,
    identity: &ReplicaIdentity,
    tasks: &TaskSpawner,
) -> Result<u32, String> {
    let peer = Peer::new(own.clone(), identity).map_err(|error| chain(&error))?;
    match timeout(ANSWER_WITHIN, greeting::ask(&peer, tasks)).await {
        Ok(Ok(greeting)) => Ok(greeting.node),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(chain(&ForwardFailure::Silent)),
    }
}
