//! Redis in trouble while users call and listen at three replicas: outcomes as `docs/operations/replicas.md` has them,
//! and full recovery without a restart of a replica. `make soak` repeats each trouble. Spec: DESIGN §8.1.

mod failovers;
mod front;
mod load;
mod tally;
mod user;

use std::sync::atomic::Ordering;
use std::time::Duration;

use drawbridge::redis_client::cmd;
use futures_util::future::join_all;
use rand::RngExt as _;
use rustix::process::Signal;

use self::load::Load;
use super::adoption::{LEASE, adopted};
use super::cut_off::{Gate, advertised, at, fencings};
use super::failover;
use super::knows;
use crate::harness::network::{Network, Weather};
use crate::harness::redis::{self, RedisServer};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually};

/// Users of a load.
const USERS: usize = 6;
/// Replicas.
const REPLICAS: u32 = 3;
/// How long replicas are without Redis: more than any lease, and its grace, lasts.
const OUTAGE: Duration = Duration::from_secs(6);
/// How long a disturbed Redis is used.
const DISTURBED: Duration = Duration::from_secs(8);

/// How often a trouble comes: once, or `DRAWBRIDGE_ROUNDS` times.
fn rounds() -> usize {
    let rounds = std::env::var("DRAWBRIDGE_ROUNDS").ok();
    rounds.map_or(1, |rounds| rounds.parse().unwrap())
}

/// Three replicas, and users who have sessions at all of them.
struct World {
    replicas: Vec<Gateway>,
    load: Load,
}

impl World {
    async fn start(setups: Vec<Setup>) -> Self {
        let replicas = join_all(setups.into_iter().map(Setup::start)).await;
        for replica in &replicas {
            knows(replica, REPLICAS).await;
        }
        // Redis has to have been there for a lease.
        tokio::time::sleep(LEASE).await;
        let load = Load::open(&replicas, USERS).await;
        Self { replicas, load }
    }

    /// Replicas that reach Redis at `port`.
    async fn at_port(port: u16, stub: &HttpStub) -> Self {
        Self::start((0..REPLICAS).map(|_| at(port, 0, stub)).collect()).await
    }

    /// Waits until all replicas have a lease and know each other, and events of all sessions are stored.
    async fn recovered(&self, servers: &[RedisServer]) {
        for replica in &self.replicas {
            eventually("the replica has a lease", async || {
                let held = replica.metric("drawbridge_cluster_lease_held", "").await;
                let connected = replica.metric("drawbridge_redis_connected", "").await;
                let fenced = replica.metric("drawbridge_cluster_fenced", "").await;
                (held > 0.5 && connected > 0.5 && fenced < 0.5).then_some(())
            })
            .await;
            knows(replica, REPLICAS).await;
        }
        self.load.logs_events().await;
        failover::has_records(servers, self.load.users.len()).await;
    }

    async fn sum(&self, metric: impl AsyncFn(&Gateway) -> f64) -> f64 {
        let mut sum = 0.0;
        for replica in &self.replicas {
            sum += metric(replica).await;
        }
        sum
    }

    /// All owners have served on: no request was refused, no session was adopted, no replica was fenced.
    async fn served_on(&self) {
        self.load.front.tally.nothing_failed();
        let moved = self.sum(adopted).await + self.sum(fencings).await;
        assert!(moved < 0.5, "adopted, or fenced: {moved}");
    }

    /// Prints the tally and checks it, then stops the replicas.
    async fn end(self, calls: usize) {
        let tally = &self.load.front.tally;
        eprintln!(
            "answered {}, refused {}, of unknown outcome {}, events without id {}, median {:?}\n{:#?}",
            tally.answered.load(Ordering::Relaxed),
            tally.refused.load(Ordering::Relaxed),
            tally.unknown.load(Ordering::Relaxed),
            tally.without_id.load(Ordering::Relaxed),
            tally.median(),
            tally.reasons.lock().unwrap()
        );
        tally.check(calls * rounds());
        for replica in self.replicas {
            replica.stop().await;
        }
    }
}

/// Redis is killed and started again, with these arguments.
async fn restarts(arguments: &[&str]) {
    let Some(redis) = redis::server(arguments).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let world = World::at_port(redis.port, &stub).await;
    let mut servers = [redis];
    for _ in 0..rounds() {
        let outage = async {
            servers[0].kill();
            tokio::time::sleep(OUTAGE).await;
            servers[0].start().await;
            // No session is adopted in the first lease; owners write lost records again.
            tokio::time::sleep(2 * LEASE).await;
        };
        world.load.during(outage).await;
        world.recovered(&servers).await;
    }
    world.served_on().await;
    world.end(100).await;
}

#[tokio::test]
async fn restart_of_redis_with_its_data_fails_no_call() {
    restarts(&["--appendonly", "yes"]).await;
}

#[tokio::test]
async fn restart_of_redis_without_its_data_fails_no_call() {
    restarts(&[]).await;
}

#[tokio::test]
async fn pause_of_redis_fails_no_call() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let world = World::at_port(redis.port, &stub).await;
    let servers = [redis];
    for _ in 0..rounds() {
        let pause = async {
            servers[0].signal(Signal::STOP);
            tokio::time::sleep(Duration::from_secs(10)).await;
            servers[0].signal(Signal::CONT);
            tokio::time::sleep(2 * LEASE).await;
        };
        world.load.during(pause).await;
        world.recovered(&servers).await;
    }
    world.served_on().await;
    world.end(100).await;
}

#[tokio::test]
async fn slow_redis_fails_no_call_and_no_call_waits_for_it() {
    const SLOW: Duration = Duration::from_millis(200);
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    // Half of it on the way there, and half on the way back.
    let network = Network::start(redis.port, Weather::slow(SLOW / 2))
        .await
        .unwrap();
    let world = World::at_port(network.port, &stub).await;
    for _ in 0..rounds() {
        world.load.during(tokio::time::sleep(DISTURBED)).await;
    }
    world.recovered(&[redis]).await;
    world.served_on().await;
    let median = world.load.front.tally.median();
    assert!(median < SLOW, "{median:?}");
    world.end(50).await;
}

#[tokio::test]
async fn connections_to_redis_that_are_cut_fail_no_call() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let network = Network::start(redis.port, Weather::slow(Duration::ZERO))
        .await
        .unwrap();
    let world = World::at_port(network.port, &stub).await;
    let servers = [redis];
    for _ in 0..rounds() {
        let before = network.opened();
        let cuts = async {
            let end = tokio::time::Instant::now() + DISTURBED;
            while tokio::time::Instant::now() < end {
                let pause = rand::rng().random_range(20..1_000);
                tokio::time::sleep(Duration::from_millis(pause)).await;
                network.cut();
            }
        };
        world.load.during(cuts).await;
        assert!(network.opened() > before + 10, "{}", network.opened());
        world.recovered(&servers).await;
    }
    world.served_on().await;
    world.end(100).await;
}

#[tokio::test]
async fn full_redis_fails_no_call_and_events_go_out_without_ids() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let world = World::at_port(redis.port, &stub).await;
    let client = redis.client().await;
    let limit = async |bytes: usize| {
        let mut set = cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(bytes);
        client.command::<()>("config", &set).await.unwrap();
    };
    let servers = [redis];
    for _ in 0..rounds() {
        let before = world.load.front.tally.without_id.load(Ordering::Relaxed);
        let full = async {
            limit(1).await;
            tokio::time::sleep(OUTAGE).await;
            limit(0).await;
            tokio::time::sleep(2 * LEASE).await;
        };
        world.load.during(full).await;
        let after = world.load.front.tally.without_id.load(Ordering::Relaxed);
        assert!(after > before, "no event could be stored");
        world.recovered(&servers).await;
    }
    world.served_on().await;
    world.end(100).await;
}

#[tokio::test]
async fn sessions_of_a_partitioned_replica_go_on_at_the_others() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let internal = redis::free_port();
    let (to_redis, to_replica) = (Gate::to(redis.port).await, Gate::to(internal).await);
    let advertise = format!("advertise = \"127.0.0.1:{}\"\n", to_replica.port);
    let cut_off = advertised(to_redis.port, internal, &advertise, &stub);
    let setups = vec![cut_off, at(redis.port, 0, &stub), at(redis.port, 0, &stub)];
    let mut world = World::start(setups).await;
    let servers = [redis];
    for round in 0..rounds() {
        if round > 0 {
            // The replica has to own sessions again.
            world.load.add(world.replicas.len()).await;
        }
        let [alone, one, two] = world.replicas.as_slice() else {
            unreachable!()
        };
        let before = adopted(one).await + adopted(two).await;
        let partition = async {
            to_redis.close();
            to_replica.close();
            eventually("sessions are adopted by the others", async || {
                let after = adopted(one).await + adopted(two).await;
                (after > before + 0.5).then_some(())
            })
            .await;
            eventually("the replica is fenced", async || {
                let fenced = alone.metric("drawbridge_cluster_fenced", "").await;
                (fenced > 0.5).then_some(())
            })
            .await;
            tokio::time::sleep(2 * LEASE).await;
            to_redis.open();
            to_replica.open();
            tokio::time::sleep(2 * LEASE).await;
        };
        world.load.during(partition).await;
        world.recovered(&servers).await;
    }
    world.end(100).await;
}
