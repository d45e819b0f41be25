//! What a call costs with one, two and three replicas, where each replica gets an equal share of all requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::bench::BenchArgs;
use crate::cluster::Cluster;
use crate::figures::{self, median, ratios};
use crate::lanes::{self, Lane, Stubs};
use crate::load::{self, Measured};
use crate::place::Place;
use crate::redis::Redis;
use crate::rows::{CALL_16, ROWS};

/// The most replicas.
const MOST: usize = 3;
/// A round is shared in so many turns, as in the rows.
const TURNS: u32 = 5;
/// The Redis of all of them, among the measured processes.
const REDIS: &str = "redis";
/// Calls below this number say nothing of the share that is passed on.
const ENOUGH: f64 = 1.0;

/// The figures with one number of replicas.
#[derive(Debug, Clone)]
pub(crate) struct ReplicaCalls {
    pub(crate) replicas: usize,
    /// The share of requests that a replica has passed on to another one.
    pub(crate) forwarded: f64,
    /// How many times the CPU time of one replica a call takes, at all replicas together.
    pub(crate) times_one: f64,
    /// The middle turn.
    pub(crate) median: Measured,
}

impl ReplicaCalls {
    /// CPU time of Redis, in microseconds per call.
    pub(crate) fn redis_cpu(&self) -> Option<f64> {
        self.median.cpu_micros.get(REDIS).copied()
    }
}

/// Measures 16 sessions that call, with each number of replicas in turn. A replica has one worker thread.
pub(crate) async fn measure(
    args: &BenchArgs,
    place: &Place,
    redis: &Redis,
    stubs: &Stubs,
    list: &Arc<str>,
) -> anyhow::Result<Vec<ReplicaCalls>> {
    let Some(row) = ROWS.iter().find(|row| row.name == CALL_16) else {
        return Ok(Vec::new());
    };
    let mut clusters = Vec::new();
    for count in 1..=MOST {
        let name = format!("replicas-{count}");
        let plan = stubs.plan(&args.stub, &args.gateway, &name, 1, None)?;
        let cluster = Cluster::start(place, redis, &plan, &vec![Vec::new(); count], "").await?;
        let lane = Lane::plain(figures::ONE, cluster.in_turn(place)?);
        clusters.push((cluster, lane));
    }
    let window = Duration::from_millis(args.window) / TURNS;
    let turns = args.rounds * usize::try_from(TURNS)?;
    let mut runs = vec![Vec::new(); clusters.len()];
    let mut shares: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for _ in 0..turns {
        for (at, ((cluster, lane), runs)) in clusters.iter().zip(&mut runs).enumerate() {
            let mut plan = lanes::plan_of(window, row, lane, stubs, list);
            plan.watch.push((REDIS.to_owned(), redis.process.pid()));
            let before = (cluster.forwards()?, cluster.requests()?);
            runs.push(load::run(&plan).await?);
            let (forwards, requests) = shares.entry(at).or_default();
            *forwards += cluster.forwards()? - before.0;
            *requests += cluster.requests()? - before.1;
        }
    }
    let one = runs.first().cloned().unwrap_or_default();
    let figures = runs.iter().enumerate().map(|(at, runs)| {
        let (forwards, requests) = shares.get(&at).copied().unwrap_or_default();
        ReplicaCalls {
            replicas: at + 1,
            forwarded: forwards / requests.max(ENOUGH),
            times_one: ratios(runs, &one).map_or(f64::NAN, |ratios| ratios.median),
            median: median(runs),
        }
    });
    Ok(figures.collect())
}
