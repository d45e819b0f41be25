//! Replicas of one cluster, each a process; a client's requests may go to any of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::client::{Caller, Target};
use crate::gauges::metric;
use crate::lanes::{Between, PRINCIPALS, principal};
use crate::place::{Gateway, GatewayPlan, Place, caller_of, free_addr};
use crate::redis::Redis;

/// How long replicas may take to know each other.
const MEETING: Duration = Duration::from_mins(1);

/// Running replicas.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) replicas: Vec<Gateway>,
    /// The URL by which clients know all of them; nothing listens there.
    origin: String,
}

impl Cluster {
    /// Starts one replica for each of `under`, the program with its options that runs it, and waits until they know each
    /// other. `more` are lines of `[cluster]`.
    pub(crate) async fn start(
        place: &Place,
        redis: &Redis,
        plan: &GatewayPlan<'_>,
        under: &[Vec<String>],
        more: &str,
    ) -> anyhow::Result<Self> {
        let origin = format!("http://{}", free_addr()?);
        let server = format!("public_url = \"{origin}\"\n{}", plan.server);
        let tables = plan.tables.clone() + &redis.tables(plan.name, more);
        let mut replicas = Vec::new();
        for (number, under) in under.iter().enumerate() {
            let plan = GatewayPlan {
                name: &format!("{}-{number}", plan.name),
                server: server.clone(),
                tables: tables.clone(),
                under: under.clone(),
                ..plan.clone()
            };
            replicas.push(Gateway::start(place, &plan)?);
        }
        let cluster = Self { replicas, origin };
        cluster.meet().await?;
        Ok(cluster)
    }

    /// Waits until each replica knows all.
    async fn meet(&self) -> anyhow::Result<()> {
        let all = f64::from(u32::try_from(self.replicas.len())?);
        let end = Instant::now() + MEETING;
        for replica in &self.replicas {
            // Below callgrind an answer may be late.
            let known = || metric(replica.admin, "drawbridge_cluster_replicas");
            while !known().is_ok_and(|known| known + 0.5 > all) {
                if Instant::now() > end {
                    bail!(
                        "replicas do not find each other:\n{}",
                        replica.process.log()
                    );
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        let pids = self.replicas.iter().map(|replica| replica.process.pid());
        pids.collect()
    }

    /// Where clients reach each replica.
    pub(crate) fn addresses(&self) -> anyhow::Result<Arc<[SocketAddr]>> {
        let address = |replica: &Gateway| Ok(Target::parse(&replica.origin)?.addr);
        self.replicas.iter().map(address).collect()
    }

    /// A caller whose sessions are opened at the replica `owner`, and whose later requests go to `entries` in turn.
    pub(crate) fn caller(
        &self,
        place: &Place,
        subject: &str,
        owner: SocketAddr,
        entries: &Arc<[SocketAddr]>,
    ) -> anyhow::Result<Caller> {
        let mut caller = caller_of(place, &self.origin, "http", subject)?;
        caller.target.addr = owner;
        caller.entries = Arc::clone(entries);
        Ok(caller)
    }

    /// What leads through all replicas: sessions are opened at each in turn, and so are their calls.
    pub(crate) fn in_turn(&self, place: &Place) -> anyhow::Result<Between> {
        let addresses = self.addresses()?;
        let owners = addresses.iter().cycle().enumerate().take(PRINCIPALS);
        let caller = |(number, owner): (usize, &SocketAddr)| {
            self.caller(place, &principal(number), *owner, &addresses)
        };
        let callers = owners.map(caller).collect::<anyhow::Result<_>>()?;
        Ok(Between::replicas(callers, self.pids()))
    }

    /// What leads through two replicas: the first one owns all sessions, and the second one gets all calls.
    pub(crate) fn passed_on(&self, place: &Place) -> anyhow::Result<Between> {
        let addresses = self.addresses()?;
        let [owner, entry] = *addresses else {
            bail!("calls are passed on between two replicas");
        };
        let entries: Arc<[SocketAddr]> = Arc::from([entry]);
        let caller = |number| self.caller(place, &principal(number), owner, &entries);
        let callers = (0..PRINCIPALS).map(caller);
        let callers = callers.collect::<anyhow::Result<_>>()?;
        Ok(Between::replicas(callers, self.pids()))
    }

    /// How many requests the replicas have passed on to each other.
    pub(crate) fn forwards(&self) -> anyhow::Result<f64> {
        self.sum("drawbridge_cluster_forward_duration_seconds_count")
    }

    /// How many requests they have answered, each counted at the owner of its session.
    pub(crate) fn requests(&self) -> anyhow::Result<f64> {
        self.sum("mcp_server_operation_duration_seconds_count")
    }

    fn sum(&self, name: &str) -> anyhow::Result<f64> {
        let replicas = self.replicas.iter();
        replicas.map(|replica| metric(replica.admin, name)).sum()
    }
}
