//! One hostile caller beside honest ones: it does everything that a caller can do to use up memory,
//! connections and file descriptors, at once and on half a core. The honest callers lose no call, and the
//! gateway stays under a bound of memory.

mod attacks;
mod bodies;
mod connections;
mod honest;
mod pace;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::lanes::upstreams;
use crate::outcome::Outcome;
use crate::place::{Gateway, GatewayPlan, Place, Stub};
use crate::programs::ProgramArgs;
use crate::watch::resident_kib;

/// Users who call all the time.
const HONEST: usize = 8;
/// The honest callers are measured alone for this part of the time.
const ALONE: u64 = 5;
/// Latency beside the hostile caller, as a multiple of that without it: median and 99th percentile.
const MEDIAN_FACTOR: f64 = 2.0;
const P99_FACTOR: f64 = 5.0;
/// Between two looks at the gateway's memory.
const LOOK: Duration = Duration::from_millis(100);
/// How long the hostile caller may take to stop.
const STOP: Duration = Duration::from_secs(20);

/// `drill hostile`.
#[derive(Debug, Args)]
pub(crate) struct HostileArgs {
    #[command(flatten)]
    programs: ProgramArgs,
    /// Seconds of hostility.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Memory that the gateway may hold, MiB: the bound that `drawbridge check` prints, or less.
    #[arg(long, default_value_t = 1024)]
    memory: u64,
    /// Do not compare latencies: for builds without optimisation and busy machines.
    #[arg(long)]
    no_latency: bool,
}

/// Runs the check.
pub(crate) async fn run(args: HostileArgs) -> anyhow::Result<bool> {
    raise_descriptors()?;
    let place = Place::new()?;
    let stub = Stub::start(&place, &args.programs.stub, &[])?;
    let upstreams = upstreams(&stub.url, &args.programs.stub)?;
    let tables = "[server.websocket]\nenabled = true\n".to_owned();
    let plan = GatewayPlan::new(&args.programs.gateway, upstreams, tables);
    let gateway = Gateway::start(&place, &plan)?;
    let mut outcome = Outcome::default();
    let mut callers = honest::Callers::open(&gateway, &place, HONEST).await?;
    let alone = Duration::from_secs((args.seconds / ALONE).max(3));
    let before = callers.call_for(alone).await?;
    outcome.fact("calls_alone", before.calls());

    let victims = attacks::Victims {
        http: gateway.caller(&place, "http", "mallory")?,
        stdio: gateway.caller(&place, "stdio", "mallory")?,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let hostile = std::thread::spawn(move || attacks::run(&victims, &stopped));
    let pid = gateway.process.pid();
    let spell = callers.call_for(Duration::from_secs(args.seconds));
    let (during, highest) = tokio::join!(spell, highest_kib(pid, args.seconds));
    let during = during?;
    stop.store(true, Ordering::Relaxed);
    let end = Instant::now() + STOP;
    while !hostile.is_finished() && Instant::now() < end {
        tokio::time::sleep(LOOK).await;
    }
    outcome.check(hostile.is_finished(), || {
        "the hostile caller does not stop".to_owned()
    });
    if hostile.is_finished() {
        let done = hostile.join().map_err(|_| anyhow!("it panicked"))??;
        done.report(&mut outcome);
    }

    outcome.fact("calls_beside", during.calls());
    outcome.check(during.calls() > 0, || "no call was made".to_owned());
    for error in during.errors() {
        outcome.violation(format!("an honest call failed: {error}"));
    }
    let mib = highest? >> 10;
    outcome.fact("highest_resident_mib", mib);
    outcome.check(mib <= args.memory, || {
        format!("the gateway held {mib} MiB, more than {}", args.memory)
    });
    for (name, part, factor) in [("median", 0.5, MEDIAN_FACTOR), ("p99", 0.99, P99_FACTOR)] {
        let (alone, beside) = (before.quantile(part), during.quantile(part));
        outcome.fact(&format!("{name}_alone_us"), micros(alone));
        outcome.fact(&format!("{name}_beside_us"), micros(beside));
        let times = beside.as_secs_f64() / alone.as_secs_f64().max(f64::MIN_POSITIVE);
        outcome.fact(&format!("{name}_factor"), times);
        outcome.check(args.no_latency || times <= factor, || {
            format!("the {name} is {times:.1} times what it is alone")
        });
    }
    let passed = outcome.report("hostile")?;
    drop((gateway, stub));
    place.clean()?;
    Ok(passed)
}

/// Peak resident memory of a process within `seconds`, KiB.
async fn highest_kib(pid: u32, seconds: u64) -> anyhow::Result<u64> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut highest = 0;
    while Instant::now() < end {
        highest = highest.max(resident_kib(pid)?);
        tokio::time::sleep(LOOK).await;
    }
    Ok(highest)
}

/// Both ends of thousands of connections are here: takes as many descriptors as there may be.
fn raise_descriptors() -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of open files")
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
