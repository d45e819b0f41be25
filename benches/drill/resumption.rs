//! Forced disconnects: from the first event id that the client received, no event lost, none twice,
//! no result lost.

mod reading;
mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::Context as _;
use clap::Args;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::client::{Caller, Target};
use crate::outcome::Outcome;
use crate::place::{Gateway, GatewayPlan, Place, Stub};
use crate::programs::ProgramArgs;

/// `drill resumption`.
#[derive(Debug, Args)]
pub(crate) struct ResumptionArgs {
    #[command(flatten)]
    programs: ProgramArgs,
    /// Connections broken in all.
    #[arg(long, default_value_t = 100)]
    disconnects: u64,
    /// Sessions at once.
    #[arg(long, default_value_t = 8)]
    sessions: usize,
    /// Drives the stub itself (which can resume too), to check the check.
    #[arg(long)]
    direct: bool,
    /// Makes a run repeatable.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the check.
pub(crate) async fn run(args: ResumptionArgs) -> anyhow::Result<bool> {
    let place = Place::new()?;
    let options: &[&str] = if args.direct {
        &["--resumable", "--sse", "always"]
    } else {
        &[]
    };
    let stub = Stub::start(&place, &args.programs.stub, options)?;
    let upstreams = format!("[upstreams.http]\nurl = \"{}\"\n", stub.url);
    let tables = "[limits]\nrate = \"100000/s\"\n".to_owned();
    let plan = GatewayPlan::new(&args.programs.gateway, upstreams, tables);
    let gateway = (!args.direct).then(|| Gateway::start(&place, &plan));
    let gateway = gateway.transpose()?;
    let left = Arc::new(AtomicU64::new(args.disconnects));
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..args.sessions {
        let caller = match &gateway {
            Some(gateway) => gateway.caller(&place, "http", &format!("user-{}", number % 3))?,
            None => Caller::anonymous(Target::parse(&stub.url)?),
        };
        let random = StdRng::seed_from_u64(args.seed.wrapping_mul(1_000) + number as u64);
        workers.spawn(worker::worker(caller, random, Arc::clone(&left)));
    }
    let mut outcome = Outcome::default();
    let mut totals = Totals::default();
    while let Some(done) = workers.join_next().await {
        let (found, counted) = done.context("a worker ended early")?;
        outcome.absorb(found);
        totals.add(&counted);
    }
    outcome.fact("seed", args.seed);
    outcome.fact("disconnects", totals.cuts);
    outcome.fact("calls", totals.calls);
    outcome.fact("idle_rounds", totals.idle);
    outcome.fact("events", totals.events);
    outcome.fact("calls_cut_before_any_event_id", totals.unresumable);
    let enough = totals.cuts >= args.disconnects;
    outcome.check(enough, || "fewer disconnects than asked for".to_owned());
    let passed = outcome.report("resumption")?;
    drop((gateway, stub));
    place.clean()?;
    Ok(passed)
}

#[derive(Debug, Default)]
struct Totals {
    cuts: u64,
    calls: u64,
    idle: u64,
    events: u64,
    unresumable: u64,
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.calls += other.calls;
        self.idle += other.idle;
        self.events += other.events;
        self.unresumable += other.unresumable;
    }
}
