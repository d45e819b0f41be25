//! SIGTERM under load: every accepted call gets its reply, and the gateway exits within its grace period.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use rustix::process::Signal;

use crate::client::{Caller, Client, request_text};
use crate::lanes::upstreams;
use crate::outcome::Outcome;
use crate::place::{Gateway, GatewayPlan, Place, Stub};
use crate::programs::ProgramArgs;
use crate::wire::limited;

/// The gateway's default grace period and a little more.
const GRACE: Duration = Duration::from_secs(12);
/// A request written so long before the signal is taken to have been accepted.
const ACCEPTED: Duration = Duration::from_millis(100);

/// `drill drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    programs: ProgramArgs,
    /// Sessions that call all the time.
    #[arg(long, default_value_t = 32)]
    sessions: usize,
    /// How often it is done.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
}

/// Runs the check.
pub(crate) async fn run(args: DrainArgs) -> anyhow::Result<bool> {
    let place = Place::new()?;
    let stub = Stub::start(&place, &args.programs.stub, &[])?;
    let mut outcome = Outcome::default();
    for _ in 0..args.rounds {
        round(&mut outcome, &place, &args, &stub.url).await?;
    }
    outcome.fact("rounds", args.rounds);
    let passed = outcome.report("drain")?;
    drop(stub);
    place.clean()?;
    Ok(passed)
}

/// When the signal was sent, in microseconds since `start`; 0 before.
#[derive(Debug)]
struct Clock {
    start: Instant,
    signalled: AtomicU64,
}

impl Clock {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros())
            .unwrap_or(u64::MAX)
            .max(1)
    }
}

async fn round(
    outcome: &mut Outcome,
    place: &Place,
    args: &DrainArgs,
    url: &str,
) -> anyhow::Result<()> {
    let upstreams = upstreams(url, &args.programs.stub)?;
    let tables = "[limits]\nrate = \"100000/s\"\n".to_owned();
    let plan = GatewayPlan::new(&args.programs.gateway, upstreams, tables);
    let mut gateway = Gateway::start(place, &plan)?;
    let clock = Arc::new(Clock {
        start: Instant::now(),
        signalled: AtomicU64::new(0),
    });
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..args.sessions {
        let upstream = if number % 4 == 0 { "stdio" } else { "http" };
        let caller = gateway.caller(place, upstream, &format!("user-{}", number % 8))?;
        callers.spawn(call_until_the_end(caller, number, Arc::clone(&clock)));
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    gateway.process.signal(Signal::TERM)?;
    clock.signalled.store(clock.now(), Ordering::SeqCst);
    let begin = Instant::now();
    let (mut replies, mut late) = (0, 0);
    while let Some(done) = callers.join_next().await {
        let counted = done.context("a caller ended early")?;
        replies += counted.replies;
        late += counted.replies_after_signal;
        if let Some(lost) = counted.lost {
            outcome.violation(lost);
        }
    }
    let left = GRACE.saturating_sub(begin.elapsed());
    match gateway.process.wait(left)? {
        None => outcome.violation("the gateway did not exit"),
        Some(status) => {
            outcome.check(status.success(), || {
                format!("the gateway exited with {status}")
            });
        }
    }
    let millis = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    outcome.fact("millis_from_signal_to_exit", millis);
    outcome.fact("replies", replies);
    outcome.fact("replies_after_the_signal", late);
    outcome.check(replies > 0, || "nothing was ever answered".to_owned());
    Ok(())
}

#[derive(Debug, Default)]
struct Counted {
    replies: u64,
    replies_after_signal: u64,
    lost: Option<String>,
}

/// Calls until the gateway takes no more; says when an accepted call was lost.
async fn call_until_the_end(caller: Caller, number: usize, clock: Arc<Clock>) -> Counted {
    let mut counted = Counted::default();
    let mut client = match Client::in_session(caller).await {
        Ok(client) => client,
        Err(error) => {
            counted.lost = Some(format!("a session could not be opened: {error}"));
            return counted;
        }
    };
    // Short and long calls, JSON and event streams.
    let millis = [0, 5, 40, 150, 400, 900]
        .get(number % 6)
        .copied()
        .unwrap_or_default();
    loop {
        let written = clock.now();
        match limited(one_call(&mut client, millis)).await {
            Ok(()) => {
                counted.replies += 1;
                if clock.signalled.load(Ordering::SeqCst) > 0 {
                    counted.replies_after_signal += 1;
                }
            }
            Err(error) => {
                let signalled = clock.signalled.load(Ordering::SeqCst);
                let accepted = u64::try_from(ACCEPTED.as_micros()).unwrap_or(0);
                if signalled == 0 || written + accepted < signalled {
                    counted.lost = Some(format!("a call of {millis} ms was lost: {error}"));
                }
                return counted;
            }
        }
    }
}

async fn one_call(client: &mut Client, millis: u64) -> io::Result<()> {
    let id = client.take_id();
    let params = format!(r#"{{"name":"sleep","arguments":{{"ms":{millis}}}}}"#);
    let head = client
        .post(&request_text(id, "tools/call", &params))
        .await?;
    let body = client.wire.rest().await?;
    let body = String::from_utf8_lossy(&body);
    if head.status == 200 && body.contains("slept") && body.contains(&format!("\"id\":{id}")) {
        return Ok(());
    }
    Err(io::Error::other(format!("got {}: {body}", head.status)))
}
