//! The figures: direct, through nginx, through the gateway with one and two threads, in one run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;

use crate::client::{Caller, Client, Target};
use crate::load::{self, Measured, Plan, Scenario};
use crate::memory::{self, Memory, Sizes};
use crate::place::{Gateway, GatewayPlan, Nginx, Place, Stub};
use crate::report;

/// Principals that the sessions are spread over.
const PRINCIPALS: usize = 16;

/// `drill bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The gateway program (release build).
    #[arg(long, default_value = "target/release/drawbridge")]
    pub(crate) gateway: PathBuf,
    /// The stub upstream program (release build).
    #[arg(long, default_value = "target/release/stub-upstream")]
    pub(crate) stub: PathBuf,
    /// Rounds per figure; medians are reported.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Milliseconds measured per round.
    #[arg(long, default_value_t = 1500)]
    pub(crate) window: u64,
    /// Only rows whose name contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Leave the memory and start-up figures out.
    #[arg(long)]
    pub(crate) no_memory: bool,
    /// Leave nginx out.
    #[arg(long)]
    pub(crate) no_nginx: bool,
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

/// One line of the report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) scenario: Scenario,
    pub(crate) sessions: usize,
    pub(crate) over: Over,
    pub(crate) budget: Option<Budget>,
}

/// What is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Http,
    /// Gateway only.
    Stdio,
}

/// What the figure is held against.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Budget {
    /// So many times nginx.
    TimesNginx(f64),
    /// So many microseconds.
    Micros(f64),
}

const fn http(name: &'static str, scenario: Scenario, sessions: usize, budget: f64) -> Row {
    Row {
        name,
        scenario,
        sessions,
        over: Over::Http,
        budget: Some(Budget::TimesNginx(budget)),
    }
}

const fn unbudgeted(row: Row) -> Row {
    Row {
        budget: None,
        ..row
    }
}

const fn stdio(name: &'static str, sessions: usize) -> Row {
    Row {
        name,
        scenario: Scenario::Call,
        sessions,
        over: Over::Stdio,
        budget: Some(Budget::Micros(50.0)),
    }
}

/// All rows: issue 2, "How we will know", 8.
const ROWS: [Row; 11] = [
    unbudgeted(http("call, 1 session", Scenario::Call, 1, 2.0)),
    http("call, 16 sessions", Scenario::Call, 16, 2.0),
    http("call, 64 sessions", Scenario::Call, 64, 2.0),
    http("call, 256 sessions", Scenario::Call, 256, 2.0),
    http("tools/list of 100, 16 sessions", Scenario::List, 16, 1.5),
    http(
        "session open and close, 16 at once",
        Scenario::OpenClose,
        16,
        3.0,
    ),
    http(
        "20 notices and a reply, 16 sessions",
        Scenario::Notices,
        16,
        1.6,
    ),
    http(
        "20 notices and a reply, 64 sessions",
        Scenario::Notices,
        64,
        1.6,
    ),
    http(
        "20 notices written apart and a reply, 16 sessions",
        Scenario::NoticesApart,
        16,
        1.6,
    ),
    stdio("stdio call, 1 session", 1),
    stdio("stdio call, 16 sessions", 16),
];

/// Medians of one row, by target.
pub(crate) type Medians = BTreeMap<&'static str, Measured>;

/// Everything measured.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) rows: Vec<(Row, Medians)>,
    pub(crate) memory: Option<Memory>,
    pub(crate) start_millis: Option<f64>,
}

/// A target of the load: its callers and the processes that it costs.
struct Lane {
    name: &'static str,
    http: Vec<Caller>,
    stdio: Vec<Caller>,
    watch: Vec<(String, u32)>,
}

/// Runs everything and writes the report; true when no budget is missed and nothing failed.
pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<bool> {
    let place = Place::new()?;
    let stub = Stub::start(&place, &args.stub, &["--tools", "100"])?;
    let direct = Target::parse(&stub.url)?;
    let nginx = if args.no_nginx {
        None
    } else {
        Some(Nginx::start(&place, &direct)?)
    };
    let sink = nginx.as_ref().map(|nginx| nginx.sink.as_str());
    let upstreams = upstreams(&stub.url, &args.stub)?;
    let plan = |name, threads| GatewayPlan {
        binary: &args.gateway,
        name,
        threads,
        upstreams: upstreams.clone(),
        tables: tables(sink),
    };
    let mut gateways = Vec::new();
    if !args.no_gateway {
        gateways.push((report::ONE, Gateway::start(&place, &plan("gateway-1", 1))?));
        gateways.push((report::TWO, Gateway::start(&place, &plan("gateway-2", 2))?));
    }
    let mut lanes = vec![Lane {
        name: report::DIRECT,
        http: vec![Caller::anonymous(direct.clone())],
        stdio: Vec::new(),
        watch: Vec::new(),
    }];
    if let Some(nginx) = &nginx {
        lanes.push(Lane {
            name: report::NGINX,
            http: vec![Caller::anonymous(Target::parse(&nginx.url)?)],
            stdio: Vec::new(),
            watch: vec![(report::SELF.to_owned(), nginx.worker)],
        });
    }
    for (name, gateway) in &gateways {
        lanes.push(lane(name, &place, gateway)?);
    }
    for lane in &mut lanes {
        lane.watch
            .push((report::UPSTREAM.to_owned(), stub.process.pid()));
    }
    let list: Arc<str> = reference_list(&direct).await?.into();
    let rows = measure_rows(&args, &lanes, &list).await?;
    drop(gateways);
    let (memory, start_millis) = if args.no_memory || args.no_gateway {
        (None, None)
    } else {
        rest(&place, &args, &plan("gateway-memory", 2)).await?
    };
    let figures = Figures {
        rows,
        memory,
        start_millis,
    };
    let passed = report::write(&args, &figures)?;
    drop((nginx, stub));
    place.clean()?;
    Ok(passed)
}

/// The memory and start-up figures, from fresh processes.
async fn rest(
    place: &Place,
    args: &BenchArgs,
    plan: &GatewayPlan<'_>,
) -> anyhow::Result<(Option<Memory>, Option<f64>)> {
    let sizes = Sizes {
        idle: 1_000,
        crowd: 2_000,
        rest: Duration::from_secs(args.rest),
    };
    let gateway = Gateway::start(place, plan)?;
    let memory = memory::measure(place, &gateway, "http", sizes).await?;
    drop(gateway);
    let mut millis =
        memory::start_to_first_answer(place, plan.binary, &plan.upstreams, args.rounds.max(5))
            .await?;
    millis.sort_unstable_by(f64::total_cmp);
    Ok((Some(memory), millis.get(millis.len() / 2).copied()))
}

async fn measure_rows(
    args: &BenchArgs,
    lanes: &[Lane],
    list: &Arc<str>,
) -> anyhow::Result<Vec<(Row, Medians)>> {
    let mut rows = Vec::new();
    let wanted = |row: &&Row| {
        args.only
            .as_ref()
            .is_none_or(|only| row.name.contains(only))
    };
    for row in ROWS.iter().filter(wanted) {
        let mut runs: BTreeMap<&'static str, Vec<Measured>> = BTreeMap::new();
        // Rounds alternate between targets, so that a slow moment of the machine hits all.
        for _ in 0..args.rounds {
            for lane in lanes {
                let callers = match row.over {
                    Over::Http => &lane.http,
                    Over::Stdio => &lane.stdio,
                };
                if callers.is_empty() {
                    continue;
                }
                let measured = load::run(&Plan {
                    scenario: row.scenario,
                    callers: callers.iter().cycle().take(row.sessions).cloned().collect(),
                    warm: Duration::from_millis(args.window / 4),
                    window: Duration::from_millis(args.window),
                    watch: lane.watch.clone(),
                    list: Some(Arc::clone(list)),
                })
                .await?;
                runs.entry(lane.name).or_default().push(measured);
            }
        }
        let medians: Medians = runs
            .into_iter()
            .map(|(name, runs)| (name, report::median(&runs)))
            .collect();
        report::progress(row, &medians)?;
        rows.push((*row, medians));
    }
    Ok(rows)
}

fn lane(name: &'static str, place: &Place, gateway: &Gateway) -> anyhow::Result<Lane> {
    let callers = |upstream: &str| {
        let caller = |n: usize| gateway.caller(place, upstream, &format!("principal-{n}"));
        (0..PRINCIPALS)
            .map(caller)
            .collect::<anyhow::Result<Vec<_>>>()
    };
    Ok(Lane {
        name,
        http: callers("http")?,
        stdio: callers("stdio")?,
        watch: vec![(report::SELF.to_owned(), gateway.process.pid())],
    })
}

/// What `tools/list` says without anybody between.
async fn reference_list(direct: &Target) -> anyhow::Result<String> {
    let mut client = Client::connect(Caller::anonymous(direct.clone())).await?;
    client.open().await?;
    client
        .result("tools/list", "{}")
        .await
        .context("reference list")
}

/// One HTTP and one stdio upstream.
pub(crate) fn upstreams(url: &str, stub: &Path) -> anyhow::Result<String> {
    let stub = std::fs::canonicalize(stub).context("no stub upstream program")?;
    Ok(format!(
        "[upstreams.http]\nurl = \"{url}\"\n\n[upstreams.stdio]\ncommand = \"{}\"\nargs = [\"stdio\", \"--tools\", \"100\"]\n",
        stub.display()
    ))
}

/// Room for everything; limits and rates are checked all the same.
fn tables(sink: Option<&str>) -> String {
    let sink = sink.map_or_else(String::new, |sink| {
        format!("\n[telemetry]\notlp_endpoint = \"{sink}\"\n")
    });
    format!("[limits]\nrate = \"1000000/s\"\n\n[sessions]\nmax_per_principal = 10000\n{sink}")
}
