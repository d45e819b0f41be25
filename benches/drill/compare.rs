//! Two builds of the gateway in alternating turns of one run: what a change costs.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::bench;
use crate::client::Target;
use crate::figures::{median_of, ratios};
use crate::lanes::{self, Between, Lane, Stubs};
use crate::load::{self, Measured};
use crate::place::{Gateway, Place};
use crate::rows::{ROWS, Row, Variant};

/// `drill compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The gateway program of before (release build).
    #[arg(long)]
    before: PathBuf,
    /// The gateway program of after (release build).
    #[arg(long, default_value = "target/release/drawbridge")]
    gateway: PathBuf,
    /// The stub upstream program (release build).
    #[arg(long, default_value = "target/release/stub-upstream")]
    stub: PathBuf,
    /// Worker threads of each gateway.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Rounds; each has turns of every build.
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Milliseconds measured per round and build.
    #[arg(long, default_value_t = 1500)]
    window: u64,
    /// Only rows whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// How much a row may cost more, in percent, beyond what the two runs of the same build differ.
    #[arg(long, default_value_t = 3.0)]
    limit: f64,
}

/// Measures every row for before, after and before once more; true when no row costs more than the limit allows.
pub(crate) async fn run(args: CompareArgs) -> anyhow::Result<bool> {
    let place = Place::new()?;
    let stubs = Stubs::start(&place, &args.stub)?;
    let list = lanes::reference_list(&Target::parse(&stubs.legacy.url)?).await?;
    let builds = [
        ("before", &args.before),
        ("after", &args.gateway),
        ("again", &args.before),
    ];
    let mut gateways = Vec::new();
    for (name, binary) in builds {
        let plan = stubs.plan(&args.stub, binary, name, args.threads, None)?;
        gateways.push((name, Gateway::start(&place, &plan)?));
    }
    let mut lanes = Vec::new();
    for (name, gateway) in &gateways {
        lanes.push(Lane::gateway(name, Between::gateway(&place, gateway)?));
    }
    let mut passed = true;
    for row in ROWS.iter().filter(|row| is_wanted(&args, row)) {
        let runs = measure(&args, row, &lanes, &stubs, &list).await?;
        passed &= report(&args, row, &runs)?;
    }
    drop((gateways, stubs));
    place.clean()?;
    Ok(passed)
}

fn is_wanted(args: &CompareArgs, row: &Row) -> bool {
    // A gateway that caches no lists would be one more process for each build, and each build has its profile or none.
    let only = args.only.as_ref();
    row.variant == Variant::Tuned && only.is_none_or(|only| row.name.contains(only))
}

/// Measures one row; returns a list per lane with an entry per turn.
async fn measure(
    args: &CompareArgs,
    row: &Row,
    lanes: &[Lane],
    stubs: &Stubs,
    list: &str,
) -> anyhow::Result<Vec<Vec<Measured>>> {
    let turns = bench::turns_of(row);
    let window = Duration::from_millis(args.window) / turns;
    let mut runs = vec![Vec::new(); lanes.len()];
    for turn in 0..args.rounds * usize::try_from(turns)? {
        // The build that goes first changes with every turn.
        for at in (0..lanes.len()).map(|lane| (lane + turn) % lanes.len()) {
            if let (Some(lane), Some(runs)) = (lanes.get(at), runs.get_mut(at)) {
                let plan = lanes::plan_of(window, row, lane, stubs, &list.into());
                runs.push(load::run(&plan).await?);
            }
        }
    }
    Ok(runs)
}

/// Prints a row; whether it keeps the limit and every answer was right.
fn report(args: &CompareArgs, row: &Row, runs: &[Vec<Measured>]) -> anyhow::Result<bool> {
    let [before, after, again] = runs else {
        anyhow::bail!("three lanes were measured, {} came out", runs.len());
    };
    let (Some(change), Some(spread)) = (ratios(after, before), ratios(again, before)) else {
        anyhow::bail!("{}: no CPU time was read", row.name);
    };
    let failures: u64 = runs.iter().flatten().map(|run| run.failures).sum();
    let allowed = args.limit / 100.0 + (spread.median - 1.0).abs();
    let is_kept = change.median <= 1.0 + allowed && failures == 0;
    writeln!(
        std::io::stdout(),
        "{:<50} before {:>6.1} us  after x {:.3} ({:.3}-{:.3})  before again x {:.3} ({:.3}-{:.3})  failures {failures}{}",
        row.name,
        median_cpu(before),
        change.median,
        change.lower,
        change.upper,
        spread.median,
        spread.lower,
        spread.upper,
        if is_kept { "" } else { "  OVER THE LIMIT" },
    )?;
    Ok(is_kept)
}

/// Median CPU time, in microseconds per reply.
fn median_cpu(runs: &[Measured]) -> f64 {
    let all = runs.iter().filter_map(Measured::own_cpu).collect();
    median_of(all).unwrap_or_default()
}
