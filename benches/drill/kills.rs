//! `kill -9` of a child in mid-call, and of the gateway.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::client::{Client, request_text};
use crate::outcome::Outcome;
use crate::place::{Gateway, GatewayPlan, Place};
use crate::programs::ProgramArgs;
use crate::watch::{is_alive, with_argument};

/// How soon a caller must learn that its child is gone.
const AT_ONCE: Duration = Duration::from_secs(2);
/// How soon everything must be gone after the gateway.
const GONE: Duration = Duration::from_secs(10);

/// `drill kills`.
#[derive(Debug, Args)]
pub(crate) struct KillsArgs {
    #[command(flatten)]
    programs: ProgramArgs,
    /// How often each is done.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Runs the check.
pub(crate) async fn run(args: KillsArgs) -> anyhow::Result<bool> {
    let place = Place::new()?;
    let stub = std::fs::canonicalize(&args.programs.stub).context("no stub upstream program")?;
    let mut outcome = Outcome::default();
    for round in 0..args.rounds {
        let mark = format!("kills-{}-{round}", std::process::id());
        let gateway = start(&place, &args.programs.gateway, &stub, &mark)?;
        kill_child(&mut outcome, &place, &gateway).await?;
        kill_gateway(&mut outcome, &place, gateway, &mark).await?;
    }
    outcome.fact("rounds", args.rounds);
    let passed = outcome.report("kills")?;
    place.clean()?;
    Ok(passed)
}

fn start(place: &Place, binary: &Path, stub: &Path, mark: &str) -> anyhow::Result<Gateway> {
    let upstreams = format!(
        "[upstreams.stdio]\ncommand = \"{}\"\nargs = [\"stdio\", \"--name\", \"{mark}\", \
         \"--ignore-sigterm\", \"--ignore-eof\"]\n",
        stub.display()
    );
    Gateway::start(place, &GatewayPlan::new(binary, upstreams, String::new()))
}

/// The caller gets an error with the child's last words at once; the next call works.
async fn kill_child(outcome: &mut Outcome, place: &Place, gateway: &Gateway) -> anyhow::Result<()> {
    let mut client = Client::in_session(gateway.caller(place, "stdio", "victim")?).await?;
    let child: i32 = text(&mut client, "pid", "{}").await?.parse()?;
    text(&mut client, "flood_stderr", r#"{"bytes":100}"#).await?;
    let mut calling = client.beside().await?;
    let waiting = tokio::spawn(async move {
        let id = calling.take_id();
        let params = r#"{"name":"sleep","arguments":{"ms":30000}}"#;
        let head = calling
            .post(&request_text(id, "tools/call", params))
            .await?;
        let body = calling.wire.rest().await?;
        Ok::<_, std::io::Error>((head.status, body))
    });
    tokio::time::sleep(Duration::from_millis(400)).await;
    let killed = Instant::now();
    kill_process(Pid::from_raw(child).context("no process id")?, Signal::KILL)?;
    match tokio::time::timeout(AT_ONCE, waiting).await {
        Err(_) => outcome.violation("the caller of a killed child got no answer"),
        Ok(answer) => {
            let (status, body) = answer??;
            let body = String::from_utf8_lossy(&body);
            let is_error = body.contains("\"error\"") || body.contains("\"isError\":true");
            outcome.check(is_error, || format!("no error but {status} {body}"));
            outcome.check(body.contains("eeee"), || format!("no last words in {body}"));
            let millis = u64::try_from(killed.elapsed().as_millis()).unwrap_or(u64::MAX);
            outcome.fact("millis_from_kill_to_error", millis);
        }
    }
    match text(&mut client, "pid", "{}").await {
        Ok(next) => outcome.check(next != child.to_string(), || {
            "the same child again".to_owned()
        }),
        Err(error) => outcome.violation(format!("the next call failed: {error}")),
    }
    Ok(())
}

/// No child and no grandchild survives the gateway.
async fn kill_gateway(
    outcome: &mut Outcome,
    place: &Place,
    mut gateway: Gateway,
    mark: &str,
) -> anyhow::Result<()> {
    let mut clients = Vec::new();
    let mut grandchildren: Vec<u32> = Vec::new();
    for number in 0..4 {
        let caller = gateway.caller(place, "stdio", &format!("parent-{number}"))?;
        let mut client = Client::in_session(caller).await?;
        grandchildren.push(text(&mut client, "spawn_grandchild", "{}").await?.parse()?);
        clients.push(client);
    }
    let alive = grandchildren.iter().all(|pid| is_alive(*pid));
    outcome.check(alive, || "a grandchild ended early".to_owned());
    gateway.process.signal(Signal::KILL)?;
    gateway.process.wait(GONE)?;
    let begin = Instant::now();
    let is_left =
        || !with_argument(mark).is_empty() || grandchildren.iter().any(|pid| is_alive(*pid));
    while begin.elapsed() < GONE && is_left() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    outcome.check(!is_left(), || {
        let grandchildren: Vec<_> = grandchildren.iter().filter(|pid| is_alive(**pid)).collect();
        let children = with_argument(mark);
        format!("left after kill -9: children {children:?}, grandchildren {grandchildren:?}")
    });
    let millis = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    outcome.fact("millis_until_all_gone", millis);
    // Nothing of a failed round may outlive the run.
    for process in with_argument(mark) {
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        pid.map(|pid| kill_process(pid, Signal::KILL)).transpose()?;
    }
    Ok(())
}

/// Calls a tool and returns the single text of its result.
async fn text(client: &mut Client, tool: &str, arguments: &str) -> anyhow::Result<String> {
    let params = format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#);
    let result: Value = serde_json::from_str(&client.result("tools/call", &params).await?)?;
    let text = result.pointer("/content/0/text").and_then(Value::as_str);
    Ok(text
        .with_context(|| format!("no text in {result}"))?
        .to_owned())
}
