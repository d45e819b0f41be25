//! Parked calls: modern clients call a legacy upstream that asks a question, and never answer. Memory of the
//! calls is bounded, calls beyond the caps are not parked, and at the deadline the upstream gets every
//! question back.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;

use crate::client::{Caller, Client, result_slice};
use crate::gauges::{count, metric, now, stats};
use crate::lifecycle::look;
use crate::modern::{self, CallResult};
use crate::outcome::Outcome;
use crate::place::{Gateway, GatewayPlan, Place, Stub};
use crate::programs::ProgramArgs;
use crate::watch::{resident_kib, with_argument};
use crate::wire::invalid;

/// Principals that the calls belong to; each has one session upstream, on which not more than 64
/// questions may be open.
const PRINCIPALS: usize = 200;
/// Principals that also park a call at their own stdio child.
const CHILDREN: usize = 8;
/// Connections that calls are made on.
const AT_ONCE: usize = 64;
/// Calls beyond the caps.
const BEYOND: usize = 50;
/// Memory that one parked call may hold in the gateway, KiB.
const KIB_PER_CALL: u64 = 48;
/// What the second round may hold at most: percent of the first, and KiB.
const AGAIN: (u64, u64) = (110, 8 << 10);
/// Idle lifetime of a session and of a child, seconds.
const IDLE: u64 = 2;
/// How long after the deadline everything may take to be gone.
const GRACE: Duration = Duration::from_secs(20);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);

const ASKS: &str = "ask_form";
const CAPABILITIES: &str = r#"{"elicitation":{"form":{}}}"#;
const PARKED: &str = "drawbridge_calls_parked";
const RUNNING: &str = "drawbridge_calls_running";

/// `drill parked`.
#[derive(Debug, Args)]
pub(crate) struct ParkedArgs {
    #[command(flatten)]
    programs: ProgramArgs,
    /// Calls parked at once over HTTP: needs as many open files.
    #[arg(long, default_value_t = 1000)]
    calls: usize,
    /// Seconds that an answer is waited for; all calls must be made in less.
    #[arg(long, default_value_t = 30)]
    deadline: u64,
    /// How often; nothing may add up.
    #[arg(long, default_value_t = 2)]
    rounds: u64,
}

/// What a call came to.
enum Came {
    /// Back with a question, under this state.
    Asked(String),
    /// To its end, with this text.
    Ended(String),
}

/// What takes part in a round.
struct World<'a> {
    args: &'a ParkedArgs,
    stub: &'a Stub,
    gateway: &'a Gateway,
    http: Vec<Caller>,
    stdio: Vec<Caller>,
    /// An argument of every child.
    mark: String,
}

/// Runs the check.
pub(crate) async fn run(args: ParkedArgs) -> anyhow::Result<bool> {
    let place = Place::new()?;
    let stub = Stub::start(&place, &args.programs.stub, &[])?;
    let mark = format!("parked-{}", std::process::id());
    let gateway = Gateway::start(&place, &plan(&args, &stub, &mark)?)?;
    let callers = |upstream: &str, count: usize| {
        (0..count)
            .map(|n| gateway.caller(&place, upstream, &format!("user-{n}")))
            .collect::<anyhow::Result<Vec<_>>>()
    };
    let world = World {
        http: callers("http", PRINCIPALS)?,
        stdio: callers("stdio", CHILDREN)?,
        args: &args,
        stub: &stub,
        gateway: &gateway,
        mark,
    };
    let mut outcome = Outcome::default();
    // Every caller connects once first, so that the later growth is almost only parked calls.
    make(&world.http, PRINCIPALS, "echo").await?;
    let before = resident_kib(gateway.process.pid())?;
    outcome.fact("resident_before_kib", before);
    let mut first = None;
    for round in 1..=args.rounds {
        let full = park(&world, &mut outcome).await?;
        outcome.fact("resident_full_kib", full);
        let per_call = full.saturating_sub(before) / (args.calls + CHILDREN) as u64;
        outcome.fact("kib_per_call", per_call);
        outcome.check(per_call <= KIB_PER_CALL, || {
            format!("a parked call holds {per_call} KiB, more than {KIB_PER_CALL}")
        });
        let first = *first.get_or_insert(full);
        outcome.check(full <= first * AGAIN.0 / 100 + AGAIN.1, || {
            format!("round {round} holds {full} KiB, the first one held {first}")
        });
        release(&world, &mut outcome, round).await?;
    }
    let rest = resident_kib(gateway.process.pid())?;
    outcome.fact("resident_end_kib", rest);
    outcome.fact("calls", args.calls as u64 * args.rounds);
    look(&mut outcome, &world.mark, &gateway)?;
    let passed = outcome.report("parked")?;
    drop((gateway, stub));
    place.clean()?;
    Ok(passed)
}

/// Makes all calls and some beyond the caps; the gateway's resident memory meanwhile, KiB.
async fn park(world: &World<'_>, outcome: &mut Outcome) -> anyhow::Result<u64> {
    let begin = Instant::now();
    let mut came = make(&world.http, world.args.calls, ASKS).await?;
    came.extend(make(&world.stdio, CHILDREN, ASKS).await?);
    let full = resident_kib(world.gateway.process.pid())?;
    check_parked(outcome, world.gateway, &came)?;
    // Every place is taken: the upstream is told that these clients cannot be asked.
    for came in make(&world.http, BEYOND, ASKS).await? {
        let refused = matches!(&came, Came::Ended(text) if text.contains("-32601"));
        outcome.check(refused, || "a call beyond the cap was parked".to_owned());
    }
    let running = now(&stats(world.stub)?, "running");
    outcome.check(running == world.args.calls as u64, || {
        format!("the upstream has {running} of the parked calls")
    });
    let made = begin.elapsed();
    if made >= Duration::from_secs(world.args.deadline) {
        bail!("the calls took {made:?}, longer than they are waited for: give more");
    }
    outcome.fact("seconds_to_park", made.as_secs_f64());
    Ok(full)
}

/// Waits for the deadline and until everything is gone, but not for ever.
async fn release(world: &World<'_>, outcome: &mut Outcome, round: u64) -> anyhow::Result<()> {
    let admin = world.gateway.admin;
    let end = Instant::now() + Duration::from_secs(world.args.deadline) + GRACE;
    let held = || anyhow::Ok(metric(admin, PARKED)? + metric(admin, RUNNING)?);
    while held()? > 0.5 && Instant::now() < end {
        tokio::time::sleep(PAUSE).await;
    }
    let busy = |seen: &Value| now(seen, "running") + now(seen, "sessions");
    while (busy(&stats(world.stub)?) > 0 || !with_argument(&world.mark).is_empty())
        && Instant::now() < end
    {
        tokio::time::sleep(PAUSE).await;
    }
    let seen = stats(world.stub)?;
    for what in ["running", "sessions"] {
        let left = now(&seen, what);
        outcome.check(left == 0, || format!("{left} {what} are left upstream"));
    }
    // Each question was answered once: that nobody will.
    let questions = (world.args.calls + BEYOND) as u64 * round;
    let answers = count(&seen, "answers");
    outcome.check(answers == questions, || {
        format!("the upstream had {answers} answers to {questions} questions")
    });
    Ok(())
}

/// A gateway with exactly as many places as calls are to be parked.
fn plan<'a>(args: &'a ParkedArgs, stub: &Stub, mark: &str) -> anyhow::Result<GatewayPlan<'a>> {
    let binary = std::fs::canonicalize(&args.programs.stub).context("no stub upstream program")?;
    let share = args.calls.div_ceil(PRINCIPALS) + 1;
    let upstreams = format!(
        "[upstreams.http]\nurl = \"{}\"\nask_timeout = \"{deadline}s\"\n\n\
         [upstreams.stdio]\ncommand = \"{}\"\nargs = [\"stdio\", \"--name\", \"{mark}\"]\n\
         ask_timeout = \"{deadline}s\"\n",
        stub.url,
        binary.display(),
        deadline = args.deadline,
    );
    let tables = format!(
        "[limits]\nrate = \"100000/s\"\nparked_per_principal = {share}\n\
         parked_total = {}\ncalls_per_principal = {}\n\n\
         [stdio]\nidle = \"{IDLE}s\"\n\n[sessions]\nidle = \"{IDLE}s\"\n",
        args.calls + CHILDREN,
        2 * share + BEYOND,
    );
    Ok(GatewayPlan::new(&args.programs.gateway, upstreams, tables))
}

/// Every call came back with a state of its own and has its place.
fn check_parked(outcome: &mut Outcome, gateway: &Gateway, came: &[Came]) -> anyhow::Result<()> {
    let states: HashSet<&str> = came.iter().filter_map(Came::state).collect();
    outcome.check(states.len() == came.len(), || {
        format!("{} of {} calls came back asked", states.len(), came.len())
    });
    let parked = metric(gateway.admin, PARKED)?;
    let missing = f64::from(u32::try_from(came.len())?) - parked;
    outcome.check(missing.abs() < 0.5, || format!("{parked} calls are parked"));
    Ok(())
}

/// Makes `count` calls of `tool`, divided among the callers; each caller makes its share sequentially.
async fn make(callers: &[Caller], count: usize, tool: &str) -> anyhow::Result<Vec<Came>> {
    let shares = callers.iter().enumerate().map(|(number, caller)| {
        let share = (count + callers.len() - 1 - number) / callers.len();
        async move {
            let mut client = Client::connect(caller.clone()).await?;
            client.speak_modern(modern::head_lines(tool));
            let mut came = Vec::with_capacity(share);
            for _ in 0..share {
                came.push(call(&mut client, tool).await?);
            }
            Ok::<_, io::Error>(came)
        }
    });
    let shares = stream::iter(shares).buffer_unordered(AT_ONCE);
    let came: Vec<Vec<Came>> = shares.try_collect().await?;
    Ok(came.into_iter().flatten().collect())
}

async fn call(client: &mut Client, tool: &str) -> io::Result<Came> {
    let id = client.take_id();
    let mut body = String::new();
    let info = client.caller.kind.info();
    let meta = modern::describe(&info, CAPABILITIES);
    modern::write_call(&mut body, id, tool, "{}", &meta)?;
    let head = client.post(&body).await?;
    let reply = client.wire.rest().await?;
    if head.status != 200 || head.is_events {
        return Err(io::Error::other(format!("a call got {}", head.status)));
    }
    let result: CallResult<'_> = serde_json::from_str(result_slice(&reply, id)?.get())?;
    match (&result.state, result.text()) {
        (Some(state), _) if result.asks() => Ok(Came::Asked(state.clone().into_owned())),
        (_, Some(text)) => Ok(Came::Ended(text.to_owned())),
        _ => Err(invalid("a call came to nothing")),
    }
}

impl Came {
    /// What its client is to bring back.
    fn state(&self) -> Option<&str> {
        match self {
            Self::Asked(state) => Some(state),
            Self::Ended(_) => None,
        }
    }
}
