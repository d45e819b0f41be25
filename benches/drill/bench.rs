//! The figures: direct, through nginx, through the gateway with one and two threads, in one run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;

use crate::client::{Caller, Client, Target};
use crate::figures::{self, Figures, Handshakes, RowFigures, Runs};
use crate::gauges::{count, stats};
use crate::load::{self, Plan};
use crate::memory::{self, Memory, Sizes};
use crate::place::{Gateway, GatewayPlan, Nginx, Place, Stub};
use crate::report;
use crate::rows::{Over, ROWS, Row};

/// The modern upstream. Its name is as long as the legacy upstream's, so that tokens for both have the same
/// length: longer tokens cost more to verify.
const MODERN: &str = "next";
/// The lanes share a round in so many turns: a machine that others use changes its pace within a second.
const TURNS: u32 = 10;
/// Sessions that are opened within the warm-up of a turn, at most.
const CROWD: usize = 64;
/// Principals that the sessions are spread over.
const PRINCIPALS: usize = 16;

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

/// A target of the load: its callers and the measured process.
pub(crate) struct Lane {
    name: &'static str,
    http: Vec<Caller>,
    modern: Vec<Caller>,
    stdio: Vec<Caller>,
    /// Of a process between.
    pid: Option<u32>,
    /// Whether it is the gateway.
    bridges: bool,
}

impl Lane {
    fn callers(&self, over: Over) -> &[Caller] {
        match over {
            Over::Bridged if !self.bridges => &[],
            Over::Http | Over::Bridged => &self.http,
            Over::Modern => &self.modern,
            Over::Stdio => &self.stdio,
        }
    }
}

/// The stub upstreams that listen.
pub(crate) struct Stubs {
    pub(crate) legacy: Stub,
    modern: Stub,
}

impl Stubs {
    pub(crate) fn start(place: &Place, binary: &Path) -> anyhow::Result<Self> {
        let start = |era| Stub::start(place, binary, &["--tools", "100", "--era", era]);
        Ok(Self {
            legacy: start("legacy")?,
            modern: start("modern")?,
        })
    }

    /// A gateway in front of them and of the stub as a child; its telemetry goes to `sink`.
    pub(crate) fn plan<'a>(
        &self,
        stub: &Path,
        binary: &'a Path,
        name: &'a str,
        threads: usize,
        sink: Option<&str>,
    ) -> anyhow::Result<GatewayPlan<'a>> {
        let modern = format!("\n[upstreams.{MODERN}]\nurl = \"{}\"\n", self.modern.url);
        Ok(GatewayPlan {
            under: Vec::new(),
            binary,
            name,
            threads,
            upstreams: upstreams(&self.legacy.url, stub)? + &modern,
            tables: tables(sink),
        })
    }

    fn behind(&self, over: Over) -> &Stub {
        match over {
            Over::Modern => &self.modern,
            Over::Http | Over::Bridged | Over::Stdio => &self.legacy,
        }
    }
}

/// Runs everything and writes the report; true when nothing failed and no budget that counts is missed.
pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<bool> {
    let place = Place::new()?;
    let stubs = Stubs::start(&place, &args.stub)?;
    let targets = [&stubs.legacy, &stubs.modern].map(|stub| Target::parse(&stub.url));
    let [direct, modern] = targets;
    let (direct, modern) = (direct?, modern?);
    let nginx = if args.no_nginx {
        None
    } else {
        Some(Nginx::start(&place, &[&direct, &modern])?)
    };
    let sink = nginx.as_ref().map(|nginx| nginx.sink.as_str());
    let plan = |name, threads| stubs.plan(&args.stub, &args.gateway, name, threads, sink);
    let mut gateways = Vec::new();
    if !args.no_gateway {
        gateways.push((
            figures::ONE,
            Gateway::start(&place, &plan("gateway-1", 1)?)?,
        ));
        gateways.push((
            figures::TWO,
            Gateway::start(&place, &plan("gateway-2", 2)?)?,
        ));
    }
    let mut lanes = vec![plain(figures::DIRECT, &direct, &modern, None)];
    if let Some(nginx) = &nginx {
        let (http, modern) = (Target::parse(nginx.url(0)?)?, Target::parse(nginx.url(1)?)?);
        lanes.push(plain(figures::NGINX, &http, &modern, Some(nginx.worker)));
    }
    for (name, gateway) in &gateways {
        lanes.push(lane(name, &place, gateway)?);
    }
    let list: Arc<str> = reference_list(&direct).await?.into();
    let (rows, handshakes) = measure_rows(&args, &lanes, &stubs, &list).await?;
    drop(gateways);
    let (memory, start_millis) = if args.no_memory || args.no_gateway {
        (None, None)
    } else {
        rest(&place, &args, &plan("gateway-memory", 2)?).await?
    };
    let measured = Figures {
        rows,
        handshakes,
        memory,
        start_millis,
    };
    let passed = report::write(&args, &measured)?;
    drop((nginx, stubs));
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
    stubs: &Stubs,
    list: &Arc<str>,
) -> anyhow::Result<(Vec<RowFigures>, Option<Handshakes>)> {
    let mut figures = Vec::new();
    let mut handshakes = None;
    let wanted = |row: &Row| {
        args.only
            .as_ref()
            .is_none_or(|only| row.name.contains(only))
    };
    let rows: Vec<Row> = ROWS.into_iter().filter(wanted).collect();
    for group in rows.chunk_by(|row, next| next.is_compared_with(row)) {
        let greeted = || anyhow::Ok(count(&stats(&stubs.legacy)?, "initialize"));
        let before = greeted()?;
        let measured = measure_group(args, group, lanes, stubs, list).await?;
        if let Some(row) = group.iter().find(|row| row.over == Over::Bridged) {
            let callers = lanes.iter().map(|lane| lane.callers(row.over).len());
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
            if lane.callers(row.over).is_empty() {
                continue;
            }
            let measured = load::run(&plan_of(window, row, lane, stubs, list)).await?;
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

pub(crate) fn plan_of(
    window: Duration,
    row: &Row,
    lane: &Lane,
    stubs: &Stubs,
    list: &Arc<str>,
) -> Plan {
    let own = lane.pid.map(|pid| (figures::SELF.to_owned(), pid));
    let upstream = stubs.behind(row.over).process.pid();
    let callers = lane.callers(row.over).iter().cycle();
    Plan {
        scenario: row.scenario,
        callers: callers.take(row.sessions).cloned().collect(),
        warm: window / 4,
        window,
        watch: own
            .into_iter()
            .chain([(figures::UPSTREAM.to_owned(), upstream)])
            .collect(),
        list: Some(Arc::clone(list)),
    }
}

/// A lane without tokens.
fn plain(name: &'static str, http: &Target, modern: &Target, pid: Option<u32>) -> Lane {
    Lane {
        name,
        http: vec![Caller::anonymous(http.clone())],
        modern: vec![Caller::anonymous(modern.clone())],
        stdio: Vec::new(),
        pid,
        bridges: false,
    }
}

/// A lane to the callers of a gateway.
pub(crate) fn lane(name: &'static str, place: &Place, gateway: &Gateway) -> anyhow::Result<Lane> {
    let callers = |upstream: &str| {
        let caller = |n: usize| gateway.caller(place, upstream, &format!("principal-{n}"));
        (0..PRINCIPALS)
            .map(caller)
            .collect::<anyhow::Result<Vec<_>>>()
    };
    Ok(Lane {
        name,
        http: callers("http")?,
        modern: callers(MODERN)?,
        stdio: callers("stdio")?,
        pid: Some(gateway.process.pid()),
        bridges: true,
    })
}

/// What `tools/list` says without anybody between.
pub(crate) async fn reference_list(direct: &Target) -> anyhow::Result<String> {
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
        format!("\n[telemetry]\notlp_endpoint = \"{sink}\"\notlp_every_request = false\n")
    });
    format!("[limits]\nrate = \"1000000/s\"\n\n[sessions]\nmax_per_principal = 10000\n{sink}")
}
