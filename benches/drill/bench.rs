//! The figures: direct, through nginx, through the bare proxy and the gateway with one and two threads, in one run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::accounts;
use crate::bare::{self, BarePlan};
use crate::figures::{Figures, Handshakes, RowFigures, Runs, median_of};
use crate::gauges::{count, stats};
use crate::instructions::{self, Counting};
use crate::lanes::{self, Lane, Stubs};
use crate::load;
use crate::memory;
use crate::place::{Gateway, GatewayPlan, Nginx, Place};
use crate::programs::{Programs, Starter};
use crate::provenance::Provenance;
use crate::redis::Redis;
use crate::replica_calls;
use crate::report;
use crate::rows::{Over, ROWS, Row, Variant, groups};

/// The lanes share a round in so many turns: a machine that others use changes its pace within a second.
const TURNS: u32 = 10;
/// Sessions that are opened within the warm-up of a turn, at most.
const CROWD: usize = 64;
/// `drill bench`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub(crate) struct BenchArgs {
    /// The gateway program (release build).
    #[arg(long, default_value = "target/release/drawbridge")]
    pub(crate) gateway: PathBuf,
    /// The stub upstream program (release build).
    #[arg(long, default_value = "target/release/stub-upstream")]
    pub(crate) stub: PathBuf,
    /// The bare proxy program (release build).
    #[arg(long, default_value = "target/release/bare-proxy")]
    pub(crate) bare: PathBuf,
    /// Directory with builds of the gateway and the bare proxy without the profile, for the rows of such; none without.
    #[arg(long)]
    pub(crate) untuned: Option<PathBuf>,
    /// File with the instructions that a row may exceed by 3 percent.
    #[arg(long)]
    pub(crate) recorded: Option<PathBuf>,
    /// Rounds per figure; medians are reported.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Milliseconds measured per round.
    #[arg(long, default_value_t = 1500)]
    pub(crate) window: u64,
    /// Only rows whose name contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Judge the answers alone: for a build whose cost says nothing.
    #[arg(long)]
    pub(crate) no_budgets: bool,
    /// Leave the memory and start-up figures out.
    #[arg(long)]
    pub(crate) no_memory: bool,
    /// Leave nginx out.
    #[arg(long)]
    pub(crate) no_nginx: bool,
    /// Leave the bare proxy out.
    #[arg(long)]
    pub(crate) no_bare: bool,
    /// Leave the instructions out, which take valgrind.
    #[arg(long)]
    pub(crate) no_instructions: bool,
    /// Leave out what takes Redis: the rows with it, and the calls through several replicas.
    #[arg(long)]
    pub(crate) no_redis: bool,
    /// Leave the gateway out (to see what the tool itself can do); implies `--no-memory`.
    #[arg(long)]
    pub(crate) no_gateway: bool,
    /// Seconds between the end of 2,000 sessions and the last memory figure.
    #[arg(long, default_value_t = 60)]
    pub(crate) rest: u64,
    /// Where the report goes.
    #[arg(long)]
    pub(crate) markdown: Option<PathBuf>,
    /// Where the figures go.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
}

/// Runs everything and writes the report; true when nothing failed and no budget that counts is missed.
pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<bool> {
    let mut measured = Figures {
        provenance: Provenance::now(),
        ..Figures::default()
    };
    if let Some(file) = &args.recorded {
        measured.recorded = instructions::read(file)?;
    }
    let place = Place::new()?;
    let stubs = Stubs::start(&place, &args.stub)?;
    let (legacy, modern) = stubs.targets()?;
    let behind = [&legacy, &modern];
    let nginx = (!args.no_nginx).then(|| Nginx::start(&place, &behind));
    let nginx = nginx.transpose()?;
    let with_redis = !args.no_redis && !args.no_gateway;
    let redis = with_redis.then(|| Redis::start(&place)).transpose()?;
    let starter = Starter {
        args: &args,
        place: &place,
        stubs: &stubs,
        nginx: nginx.as_ref(),
        redis: redis.as_ref(),
    };
    let list: Arc<str> = lanes::reference_list(&legacy).await?.into();
    let mut programs = Programs::default();
    let lanes = starter.lanes(&mut programs).await?;
    (measured.rows, measured.handshakes) = measure_rows(&args, &lanes, &stubs, &list).await?;
    drop(programs);
    if let Some(redis) = redis.as_ref().filter(|_| args.only.is_none()) {
        measured.replicas = replica_calls::measure(&args, &place, redis, &stubs, &list).await?;
    }
    if !args.no_memory && !args.no_gateway {
        let sink = nginx.as_ref().map(|nginx| nginx.sink.as_str());
        let plan = stubs.plan(&args.stub, &args.gateway, "gateway-memory", 2, sink)?;
        rest(&place, &args, (&plan, &stubs.legacy.url), &mut measured).await?;
        if !args.no_bare {
            let plan = BarePlan::new("bare-start", &args.bare, 2, &behind);
            let millis = bare::start_to_first_answer(&place, plan, starts(&args)).await?;
            measured.bare_start_millis = median_of(millis);
        }
    }
    if !args.no_instructions
        && let Some(counting) =
            Counting::if_possible(&place, &stubs, redis.as_ref(), &list, wanted(&args))
    {
        count_instructions(&args, &counting, &mut measured).await?;
    }
    let passed = report::write(&args, &measured)?;
    drop((nginx, stubs, redis));
    place.clean()?;
    Ok(passed)
}

async fn count_instructions(
    args: &BenchArgs,
    counting: &Counting<'_>,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    if !args.no_gateway {
        let gateway = counting.gateway("counted", &args.gateway, &args.stub);
        figures.instructions = gateway.await?;
    }
    if !args.no_bare {
        figures.bare_instructions = counting.bare(&args.bare).await?;
    }
    Ok(())
}

/// How many starts are measured.
fn starts(args: &BenchArgs) -> usize {
    args.rounds.max(5)
}

/// The memory and start-up figures, from fresh processes.
async fn rest(
    place: &Place,
    args: &BenchArgs,
    (plan, legacy): (&GatewayPlan<'_>, &str),
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let rest = Duration::from_secs(args.rest);
    let gateway = Gateway::start(place, plan)?;
    figures.memory = Some(memory::measure(place, &gateway, rest).await?);
    drop(gateway);
    let starts = starts(args);
    let without_tables = GatewayPlan {
        tables: String::new(),
        ..plan.clone()
    };
    let millis = memory::start_to_first_answer(place, &without_tables, starts).await?;
    figures.start_millis = median_of(millis);
    figures.account_start_millis =
        Some(account_starts(place, &without_tables, legacy, starts).await?);
    Ok(())
}

/// Milliseconds of a start without accounts, and with many.
async fn account_starts(
    place: &Place,
    plan: &GatewayPlan<'_>,
    legacy: &str,
    starts: usize,
) -> anyhow::Result<(f64, f64)> {
    let mut medians = [0.0; 2];
    for (count, figure) in [0, accounts::MANY].into_iter().zip(&mut medians) {
        let subjects = (0..count).map(|number| format!("subject-{number}"));
        let name = format!("start-{count}");
        let tables = accounts::prepare(place, &name, legacy, subjects).await?;
        let plan = GatewayPlan {
            tables,
            ..plan.clone()
        };
        let millis = memory::start_to_first_answer(place, &plan, starts).await?;
        *figure = median_of(millis).unwrap_or_default();
    }
    let [none, many] = medians;
    Ok((none, many))
}

fn wanted(args: &BenchArgs) -> Vec<&'static Row> {
    let only = args.only.as_ref();
    let is_there = |row: &Row| match row.variant {
        Variant::Untuned => args.untuned.is_some(),
        Variant::Redis | Variant::Forwarded => !args.no_redis,
        Variant::Tuned | Variant::Uncached | Variant::Accounts => true,
    };
    let is_wanted = |row: &&Row| is_there(row) && only.is_none_or(|only| row.name.contains(only));
    ROWS.iter().filter(is_wanted).collect()
}

async fn measure_rows(
    args: &BenchArgs,
    lanes: &[Lane],
    stubs: &Stubs,
    list: &Arc<str>,
) -> anyhow::Result<(Vec<RowFigures>, Option<Handshakes>)> {
    let mut figures = Vec::new();
    let mut handshakes = None;
    let rows: Vec<Row> = wanted(args).into_iter().copied().collect();
    for group in &groups(&rows) {
        let greeted = || anyhow::Ok(count(&stats(&stubs.legacy)?, "initialize"));
        let before = greeted()?;
        let measured = measure_group(args, group, lanes, stubs, list).await?;
        if let Some(row) = group.iter().find(|row| row.over == Over::Bridged) {
            let callers = lanes.iter().map(|lane| lane.callers(row).len());
            handshakes = Some(Handshakes {
                seen: greeted()? - before,
                allowed: callers
                    .map(|callers| callers.min(row.sessions) as u64)
                    .sum(),
            });
        }
        for row in &measured {
            report::progress(row)?;
        }
        figures.extend(measured);
    }
    Ok((figures, handshakes))
}

/// Measures a group of rows whose figures are compared.
///
/// A turn measures each lane, and on each lane one row directly after the other, so that a slow moment of the
/// machine hits whatever is compared alike.
async fn measure_group(
    args: &BenchArgs,
    group: &[Row],
    lanes: &[Lane],
    stubs: &Stubs,
    list: &Arc<str>,
) -> anyhow::Result<Vec<RowFigures>> {
    let mut runs = vec![Runs::new(); group.len()];
    let turns = group.iter().map(turns_of).min().unwrap_or(TURNS);
    let window = Duration::from_millis(args.window) / turns;
    let turns = (0..args.rounds).flat_map(|_| 0..turns);
    for lane in turns.flat_map(|_| lanes) {
        for (row, runs) in group.iter().zip(&mut runs) {
            if lane.callers(row).is_empty() {
                continue;
            }
            let measured = load::run(&lanes::plan_of(window, row, lane, stubs, list)).await?;
            runs.entry(lane.name).or_default().push(measured);
        }
    }
    let figures = |(row, runs): (&Row, Runs)| RowFigures::new(*row, runs);
    Ok(group.iter().zip(runs).map(figures).collect())
}

/// How many turns of a round a row can have. For each turn sessions are opened again: with many of them, or a child
/// each, that would cost more than the calls.
pub(crate) fn turns_of(row: &Row) -> u32 {
    if row.over == Over::Stdio || row.sessions > CROWD {
        1
    } else {
        TURNS
    }
}
