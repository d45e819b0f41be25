//! Many idle sessions on several replicas: what each takes in the gateways and in Redis, while nothing happens.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::client::{Caller, Client};
use crate::cluster::Cluster;
use crate::lanes::{PRINCIPALS, principal, upstreams};
use crate::outcome::Outcome;
use crate::place::{GatewayPlan, Place, Stub};
use crate::programs::ProgramArgs;
use crate::provenance::Provenance;
use crate::redis::Redis;
use crate::said::Kind;
use crate::tables::word;
use crate::watch::resident_kib;

/// Sessions opened at once.
const AT_ONCE: usize = 32;
/// Sessions at each replica before the first figure.
const WARM_UP: usize = 100;
/// Bytes in Redis of a session, at most.
const MOST_IN_REDIS: u64 = 2_048;
/// Bytes of the title of a client that says much of itself: more than is kept in each record.
const LONG: usize = 6 << 10;
/// How long Redis may take to have all records.
const WRITTEN: Duration = Duration::from_mins(2);
/// Nothing is written any more where Redis grows by less than `NOISE` bytes in this time.
const QUIET: Duration = Duration::from_secs(2);
const NOISE: u64 = 16 << 10;
/// What keys in Redis begin with.
const PREFIX: &str = "replica";

/// `drill replicas`.
#[derive(Debug, Args)]
pub(crate) struct ReplicasArgs {
    #[command(flatten)]
    programs: ProgramArgs,
    /// Idle sessions on all replicas together.
    #[arg(long, default_value_t = 20_000)]
    sessions: usize,
    /// Replicas.
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Where the page with the figures goes.
    #[arg(long)]
    markdown: Option<PathBuf>,
}

/// Sizes at one moment, in bytes.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    gateways: u64,
    redis: u64,
    /// Keys of sessions, and of long texts.
    records: u64,
    texts: u64,
}

/// What sessions take more than before.
#[derive(Debug, Clone)]
struct Growth {
    name: &'static str,
    /// The name in words.
    what: &'static str,
    sessions: usize,
    /// Bytes for each session.
    gateways: u64,
    redis: u64,
    /// Keys in all: of sessions, and of long texts.
    records: u64,
    texts: u64,
}

/// What is measured.
struct World<'a> {
    place: &'a Place,
    cluster: Cluster,
    redis: &'a Redis,
    addresses: Arc<[SocketAddr]>,
}

/// Runs the check.
pub(crate) async fn run(args: ReplicasArgs) -> anyhow::Result<bool> {
    let provenance = Provenance::now();
    let place = Place::new()?;
    let stub = Stub::start(&place, &args.programs.stub, &[])?;
    let redis = Redis::start(&place)?;
    let most = 2 * args.sessions;
    let upstreams = upstreams(&stub.url, &args.programs.stub)?;
    let tables = format!(
        "[limits]\nrate = \"1000000/s\"\n\n[sessions]\nidle = \"1h\"\nmax_total = {most}\nmax_per_principal = {most}\n"
    );
    let plan = GatewayPlan {
        name: PREFIX,
        threads: 1,
        ..GatewayPlan::new(&args.programs.gateway, upstreams, tables)
    };
    let under = vec![Vec::new(); args.replicas];
    let cluster = Cluster::start(&place, &redis, &plan, &under, "").await?;
    let world = World {
        place: &place,
        addresses: cluster.addresses()?,
        cluster,
        redis: &redis,
    };
    let warm_up = WARM_UP * args.replicas;
    // With calls, so that each replica knows the declaration of the upstream.
    world.open(warm_up, Kind::of, true).await?;
    let begin = world.settled(warm_up).await?;
    world.open(args.sessions, Kind::of, false).await?;
    let mut all = warm_up + args.sessions;
    let opened = world.settled(all).await?;
    let callers = (args.sessions / 4).max(1);
    world.open(callers, Kind::of, true).await?;
    all += callers;
    let called = world.settled(all).await?;
    let titled = (args.sessions / 20).max(1);
    world.open(titled, |_| Kind::titled(LONG), false).await?;
    all += titled;
    let long = world.settled(all).await?;
    let growths = [
        opened.since(begin, ("opened", "opened"), args.sessions),
        called.since(opened, ("called", "after a call each"), callers),
        long.since(
            called,
            ("titled", "with the same `clientInfo` of 6 KiB"),
            titled,
        ),
    ];
    let mut outcome = Outcome::default();
    for growth in &growths {
        judge(&mut outcome, growth);
    }
    let [.., long] = &growths;
    outcome.check(long.texts == 1, || {
        format!(
            "{titled} sessions with one long text keep it {} times",
            long.texts
        )
    });
    outcome.fact("replicas", args.replicas);
    if let Some(file) = &args.markdown {
        let page = page(&args, &provenance, &redis.version()?, &growths)?;
        std::fs::write(file, page).context("cannot write the page")?;
    }
    let passed = outcome.report("replicas")?;
    drop(world);
    drop((stub, redis));
    place.clean()?;
    Ok(passed)
}

fn judge(outcome: &mut Outcome, growth: &Growth) {
    let Growth {
        name,
        what,
        sessions,
        redis,
        records,
        ..
    } = growth;
    outcome.fact(&format!("{name}_sessions"), *sessions);
    outcome.fact(&format!("{name}_gateway_bytes"), growth.gateways);
    outcome.fact(&format!("{name}_redis_bytes"), *redis);
    outcome.check(*redis <= MOST_IN_REDIS, || {
        format!("{what}: {redis} bytes of a session in Redis, more than {MOST_IN_REDIS}")
    });
    outcome.check(*records == *sessions as u64, || {
        format!("{what}: {records} records of {sessions} sessions in Redis")
    });
}

impl World<'_> {
    /// Opens sessions, the same number at each replica, and leaves them alone; `calls` says whether each makes a call
    /// first.
    async fn open(
        &self,
        count: usize,
        kind: impl Fn(usize) -> Kind,
        calls: bool,
    ) -> anyhow::Result<()> {
        let nowhere: Arc<[SocketAddr]> = Arc::default();
        let mut callers = Vec::new();
        for (number, owner) in (0..count).zip(self.addresses.iter().cycle()) {
            let subject = principal(number % PRINCIPALS);
            let caller = self
                .cluster
                .caller(self.place, &subject, *owner, &nowhere)?;
            let kind = kind(number);
            callers.push(Caller { kind, ..caller });
        }
        let open = |caller: Caller| async move {
            let mut client = Client::in_session(caller).await?;
            if calls {
                let params = r#"{"name":"echo","arguments":{"text":"hello"}}"#;
                client.result("tools/call", params).await?;
            }
            anyhow::Ok(())
        };
        let all = stream::iter(callers.into_iter().map(open));
        all.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Waits until Redis has the records of all sessions, and grows no more; the sizes then.
    async fn settled(&self, sessions: usize) -> anyhow::Result<Sizes> {
        let end = Instant::now() + WRITTEN;
        let mut before = 0;
        let (redis, records) = loop {
            tokio::time::sleep(QUIET).await;
            let redis = self.redis.used_memory()?;
            let records = self.redis.keys(&format!("{PREFIX}:*:record"))?;
            if records >= sessions as u64 && redis.abs_diff(before) < NOISE {
                break (redis, records);
            }
            if Instant::now() > end {
                bail!("Redis has {records} records of {sessions} sessions, and {redis} bytes");
            }
            before = redis;
        };
        let resident = self.cluster.pids().into_iter().map(resident_kib);
        let kib: u64 = resident.sum::<anyhow::Result<u64>>()?;
        Ok(Sizes {
            gateways: kib << 10,
            redis,
            records,
            texts: self.redis.keys(&format!("{PREFIX}:text:*"))?,
        })
    }
}

impl Sizes {
    fn since(
        self,
        earlier: Self,
        (name, what): (&'static str, &'static str),
        sessions: usize,
    ) -> Growth {
        let each = |after: u64, before: u64| after.saturating_sub(before) / sessions.max(1) as u64;
        Growth {
            name,
            what,
            sessions,
            gateways: each(self.gateways, earlier.gateways),
            redis: each(self.redis, earlier.redis),
            records: self.records.saturating_sub(earlier.records),
            texts: self.texts.saturating_sub(earlier.texts),
        }
    }
}

/// The page with the figures.
fn page(
    args: &ReplicasArgs,
    provenance: &Provenance,
    redis: &str,
    growths: &[Growth],
) -> anyhow::Result<String> {
    let mut out = format!(
        "# Idle sessions on several replicas\n\n\
         Written by `make replicas`; do not edit. Sessions of {PRINCIPALS} callers are opened at {} replicas in turn, at an upstream\n\
         of 2025-11-25 over HTTP, and left alone: no connection of theirs stays open. Callers describe themselves in 32 ways,\n\
         as clients of SDKs do. Figures are what one session adds: to the resident memory of all gateways together (one worker\n\
         thread each), and to `used_memory` of Redis {redis}. Each row has sessions of its own, beside those of the rows before.\n\
         An open stream takes memory as well ([benchmarks](benchmarks.md)).\n\n\
         Measured {} at commit {} on {}.\n\n\
         | sessions | how many | bytes in the gateways | bytes in Redis | budget in Redis | verdict |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        args.replicas, provenance.date, provenance.commit, provenance.machine
    );
    for growth in growths {
        writeln!(
            out,
            "| {} | {} | {} | {} | ≤ {MOST_IN_REDIS} | {} |",
            growth.what,
            growth.sessions,
            growth.gateways,
            growth.redis,
            word(Some(growth.redis <= MOST_IN_REDIS))
        )?;
    }
    let texts: u64 = growths.iter().skip(2).map(|growth| growth.texts).sum();
    writeln!(
        out,
        "\nLong texts of clients in Redis after the last row: {texts}. What is longer than 4 KiB is kept once for all sessions."
    )?;
    Ok(out)
}
