//! Sessions opened and abandoned over stdio with caps on: afterwards nothing is left of them.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use futures_util::{StreamExt as _, stream};
use serde_json::Value;

use crate::client::{Caller, Client};
use crate::gauges::gauges;
use crate::outcome::Outcome;
use crate::place::{Gateway, GatewayPlan, Place};
use crate::programs::ProgramArgs;
use crate::watch::{descendants, program, resident_kib, with_argument};

/// Sessions opened at once.
const AT_ONCE: usize = 8;
/// Principals that they belong to.
const PRINCIPALS: usize = 8;
/// Sessions before the figures that the end is compared with.
const WARM_UP: usize = 100;
/// Idle lifetime of a session and of a child, seconds.
const IDLE: u64 = 2;
/// Memory that may be kept beyond 1.2 times the warm figure, KiB.
const SLACK_KIB: u64 = 8 << 10;
/// Children at once; the caps are tested by running into them.
const MAX_CHILDREN: usize = 24;

/// `drill lifecycle`.
#[derive(Debug, Args)]
pub(crate) struct LifecycleArgs {
    #[command(flatten)]
    programs: ProgramArgs,
    /// Sessions opened and abandoned.
    #[arg(long, default_value_t = 200)]
    sessions: usize,
    /// Seconds from the last expiry to the last look.
    #[arg(long, default_value_t = 60)]
    rest: u64,
}

/// Runs the check.
pub(crate) async fn run(args: LifecycleArgs) -> anyhow::Result<bool> {
    let place = Place::new()?;
    let stub = std::fs::canonicalize(&args.programs.stub).context("no stub upstream program")?;
    let mark = format!("lifecycle-{}", std::process::id());
    let upstreams = format!(
        "[upstreams.stdio]\ncommand = \"{}\"\nargs = [\"stdio\", \"--name\", \"{mark}\"]\n\
         stop = {{ eof = \"500ms\", term = \"500ms\" }}\n",
        stub.display()
    );
    let tables = format!(
        "[stdio]\nidle = \"{IDLE}s\"\nmax_children = {MAX_CHILDREN}\n\
         max_children_per_principal = 4\nspawn_wait = \"20s\"\n\n\
         [sessions]\nidle = \"{IDLE}s\"\nmax_per_principal = 40\n\n\
         [limits]\nrate = \"100000/s\"\n"
    );
    let plan = GatewayPlan::new(&args.programs.gateway, upstreams, tables);
    let gateway = Gateway::start(&place, &plan)?;
    let callers = (0..PRINCIPALS)
        .map(|n| gateway.caller(&place, "stdio", &format!("user-{n}")))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut outcome = Outcome::default();
    let pid = gateway.process.pid();

    outcome.absorb(abandon(&callers, WARM_UP).await);
    tokio::time::sleep(Duration::from_secs(IDLE * 3)).await;
    let warm = resident_kib(pid)?;
    let begin = Instant::now();
    let mut most = 0;
    tokio::select! {
        found = abandon(&callers, args.sessions) => outcome.absorb(found),
        () = watch_children(&mark, &mut most) => {}
    }
    outcome.fact("most_children", most);
    // Children that are being stopped are not counted by the cap.
    outcome.check(most <= 2 * MAX_CHILDREN, || {
        format!("{most} children at once")
    });
    outcome.fact("seconds", begin.elapsed().as_secs_f64());
    let rest = Duration::from_secs(IDLE + args.rest);
    until_gone(&mark, rest).await;
    tokio::time::sleep(Duration::from_secs(args.rest).min(rest)).await;

    let resident = resident_kib(pid)?;
    outcome.fact("sessions", args.sessions);
    outcome.fact("resident_warm_kib", warm);
    outcome.fact("resident_end_kib", resident);
    outcome.check(resident * 10 <= warm * 12 + SLACK_KIB * 10, || {
        format!("resident memory grew from {warm} to {resident} KiB")
    });
    look(&mut outcome, &mark, &gateway)?;
    let passed = outcome.report("lifecycle")?;
    drop(gateway);
    place.clean()?;
    Ok(passed)
}

/// Nothing may be left: no child, no zombie, no entry that a gauge counts.
pub(crate) fn look(outcome: &mut Outcome, mark: &str, gateway: &Gateway) -> anyhow::Result<()> {
    let children = with_argument(mark);
    outcome.check(children.is_empty(), || {
        format!("children are left: {children:?}")
    });
    let ours = program(gateway.process.pid());
    let mut guardians = 0;
    for process in descendants(gateway.process.pid()) {
        outcome.check(!process.is_zombie, || {
            format!("a zombie is left: {process:?}")
        });
        // One process of the gateway's own ends the groups of children should it die.
        let guards = program(process.pid) == ours;
        guardians += usize::from(guards);
        outcome.check(guards && guardians == 1, || {
            format!("a process is left: {process:?}")
        });
    }
    for (name, value) in gauges(gateway.admin)? {
        outcome.fact(&name, value);
        let counted = ["_open", "_running", "_kept", "_parked"]
            .iter()
            .any(|end| name.ends_with(end));
        // Our own connection to the admin listener may be counted.
        let allowed = if name.ends_with("connections_open") {
            1.0
        } else {
            0.0
        };
        outcome.check(!counted || value <= allowed, || {
            format!("{name} is {value}")
        });
    }
    Ok(())
}

/// Opens sessions, makes a call in each, and goes away without a word.
async fn abandon(callers: &[Caller], count: usize) -> Outcome {
    let session = |(number, caller): (usize, Caller)| async move {
        let mut client = Client::in_session(caller).await?;
        let params =
            format!(r#"{{"name":"state_set","arguments":{{"key":"who","value":"{number}"}}}}"#);
        client.result("tools/call", &params).await?;
        // Each session has its own child, so it reads back its own value.
        let params = r#"{"name":"state_get","arguments":{"key":"who"}}"#;
        let got = client.result("tools/call", params).await?;
        let got: Value = serde_json::from_str(&got)?;
        Ok::<_, anyhow::Error>((number, got))
    };
    let callers = callers.iter().cycle().take(count).cloned().enumerate();
    let mut answers = stream::iter(callers.map(session)).buffer_unordered(AT_ONCE);
    let mut outcome = Outcome::default();
    while let Some(answer) = answers.next().await {
        match answer {
            Ok((number, got)) => {
                let text = got.pointer("/content/0/text").and_then(Value::as_str);
                let mine = text == Some(&number.to_string());
                outcome.check(mine, || format!("session {number} read {got}"));
            }
            Err(error) => outcome.violation(format!("a session failed: {error}")),
        }
    }
    outcome
}

/// Keeps the largest number of children seen in `most`, for ever.
async fn watch_children(mark: &str, most: &mut usize) {
    loop {
        *most = with_argument(mark).len().max(*most);
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Waits until no process carries `mark`, but not longer than `patience`.
async fn until_gone(mark: &str, patience: Duration) {
    let end = Instant::now() + patience;
    while Instant::now() < end && !with_argument(mark).is_empty() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
