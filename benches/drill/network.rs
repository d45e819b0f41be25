//! Slow and broken networks before and behind the gateway, and servers that close idle connections: no
//! call fails that can be sent again safely, and no other call runs twice.

mod caller;
mod disturbance;
#[path = "../../tests/it/harness/network.rs"]
mod proxy;
mod server;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::task::JoinSet;

use self::caller::{Counted, Session};
use self::disturbance::Disturbances;
use self::proxy::{Network, Weather};
use self::server::{Manner, Server};
use crate::gauges::metric;
use crate::outcome::Outcome;
use crate::place::{Gateway, GatewayPlan, Place};

/// Calls with this tool may run twice, as the configuration says.
const SAFE: &str = "look";
/// Calls with this one may not.
const UNSAFE: &str = "change";

/// Milliseconds that every byte takes, and how the server behind treats idle connections.
const SITES: [(u64, Manner); 4] = [
    (20, Manner::closing(1).named()),
    (80, Manner::closing(2).named()),
    (200, Manner::closing(1).named()),
    (50, Manner::closing(5)),
];

/// `drill network`.
#[derive(Debug, Args)]
pub(crate) struct NetworkArgs {
    /// The gateway program.
    #[arg(long, default_value = "target/release/drawbridge")]
    gateway: PathBuf,
    /// Calls in all.
    #[arg(long, default_value_t = 1000)]
    calls: u64,
    /// Sessions at once.
    #[arg(long, default_value_t = 120)]
    sessions: usize,
    /// Seconds between two disturbances of one network, about.
    #[arg(long, default_value_t = 5)]
    pause: u64,
    /// Seed of the random numbers, for repeatable runs (timing aside).
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One server with a network before it, and the network through which its callers reach the gateway.
#[derive(Debug)]
struct Site {
    number: usize,
    latency: Duration,
    server: Server,
    behind: Network,
    /// Absent until the gateway runs.
    front: Option<Network>,
    disturbances: Disturbances,
}

impl Site {
    fn name(&self) -> String {
        format!("site{}", self.number)
    }
}

/// Runs the check.
pub(crate) async fn run(args: NetworkArgs) -> anyhow::Result<bool> {
    let place = Place::new()?;
    let mut sites = Vec::new();
    for (number, (latency, manner)) in SITES.into_iter().enumerate() {
        let latency = Duration::from_millis(latency);
        let server = Server::start(manner).await?;
        let behind = Network::start(server.port, Weather::slow(latency)).await?;
        sites.push(Site {
            number,
            latency,
            server,
            behind,
            front: None,
            disturbances: Disturbances::default(),
        });
    }
    let gateway = start(&place, &args, &sites)?;
    let port = gateway
        .origin
        .rsplit(':')
        .next()
        .and_then(|port| port.parse().ok());
    let port = port.context("no port")?;
    for site in &mut sites {
        site.front = Some(Network::start(port, Weather::slow(site.latency)).await?);
    }
    let sites: Vec<_> = sites.into_iter().map(Arc::new).collect();
    let mut outcome = Outcome::default();
    let totals = call_all(&place, &gateway, &args, &sites).await?;
    judge(&mut outcome, &totals, &sites, args.calls);
    let repeats = metric(gateway.admin, "drawbridge_calls_repeated_total")?;
    outcome.fact("seed", args.seed);
    outcome.fact("repeats", repeats);
    let passed = outcome.report("network")?;
    drop(gateway);
    place.clean()?;
    Ok(passed)
}

fn start(place: &Place, args: &NetworkArgs, sites: &[Site]) -> anyhow::Result<Gateway> {
    let upstreams: Vec<_> = sites
        .iter()
        .map(|site| {
            format!(
                "[upstreams.{}]\nurl = \"{}\"\nera = \"legacy\"\nidle_timeout = \"3s\"\n\
                 retry_safe = [\"{SAFE}\"]\n",
                site.name(),
                site.behind.url(),
            )
        })
        .collect();
    let tables = "[limits]\nrate = \"100000/s\"\n".to_owned();
    let plan = GatewayPlan::new(&args.gateway, upstreams.concat(), tables);
    Gateway::start(place, &plan)
}

/// Has all sessions call until that is enough, and disturbs their networks meanwhile.
async fn call_all(
    place: &Place,
    gateway: &Gateway,
    args: &NetworkArgs,
    sites: &[Arc<Site>],
) -> anyhow::Result<Counted> {
    let next = Arc::new(AtomicU64::new(0));
    let mut sessions = JoinSet::new();
    for (number, site) in (0..args.sessions).zip(sites.iter().cycle()) {
        let mut caller = gateway.caller(place, &site.name(), &format!("user-{}", number % 8))?;
        let front = site
            .front
            .as_ref()
            .context("no network before the gateway")?;
        caller.target.addr = SocketAddr::from((Ipv4Addr::LOCALHOST, front.port));
        let random = StdRng::seed_from_u64(args.seed.wrapping_mul(1_000) + number as u64);
        let session = Session::open(caller, Arc::clone(site), random)
            .await
            .with_context(|| format!("session {number} cannot be opened"))?;
        sessions.spawn(session.call_until(Arc::clone(&next), args.calls));
    }
    let mut disturbing = JoinSet::new();
    for site in sites {
        let pause = Duration::from_secs(args.pause);
        disturbing.spawn(disturbance::disturb(Arc::clone(site), pause));
    }
    let mut totals = Counted::default();
    while let Some(done) = sessions.join_next().await {
        totals.add(done.context("a session ended early")?);
    }
    Ok(totals)
}

fn judge(outcome: &mut Outcome, totals: &Counted, sites: &[Arc<Site>], calls: u64) {
    for violation in &totals.violations {
        outcome.violation(violation);
    }
    outcome.check(totals.calls == calls, || {
        format!("{} calls instead of {calls}", totals.calls)
    });
    outcome.fact("calls", totals.calls);
    outcome.fact("answered", totals.answered);
    outcome.fact("failures", serde_json::json!(totals.failures));
    let (mut closed, mut twice, mut kinds) = (0, 0, BTreeMap::<&str, u64>::new());
    for site in sites {
        closed += site.server.closed.load(Ordering::Relaxed);
        for kind in site.disturbances.all() {
            *kinds.entry(kind.word()).or_default() += 1;
        }
        for (call, runs) in site.server.runs() {
            twice += u64::from(runs > 1);
            let most = 1 + u32::from(caller::is_safe(call));
            outcome.check(runs <= most, || format!("call {call} ran {runs} times"));
        }
    }
    outcome.fact("calls_that_ran_twice", twice);
    outcome.fact("connections_closed_while_idle", closed);
    outcome.fact("disturbances", serde_json::json!(kinds));
    outcome.check(closed > 0, || "no idle connection was closed".to_owned());
}
