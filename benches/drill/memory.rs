//! What sessions cost while nothing happens, and how fast a start is.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::client::{Caller, Client};
use crate::place::{Gateway, GatewayPlan, Place, caller_of, configure, serve};
use crate::watch::{anonymous_kib, resident_kib};

/// Sessions opened at once.
const AT_ONCE: usize = 32;
/// Sessions opened and ended before the first measurement.
const WARM_UP: usize = 50;
/// Idle sessions measured.
const IDLE: usize = 1_000;
/// Sessions opened and ended before the last figure.
const CROWD: usize = 2_000;

/// Pause after a gateway was killed: its guardian then looks for left children for some 20 ms, and the next gateway waits
/// for it, because both use the same state directory. This is part of a restart, not of a start.
const BETWEEN_STARTS: Duration = Duration::from_millis(300);

/// Figures of one gateway process, in KiB.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    pub(crate) after_start: u64,
    pub(crate) after_first_call: u64,
    /// Of it without pages of files.
    pub(crate) own_after_first_call: u64,
    /// Per idle session with an open GET stream.
    pub(crate) idle: f64,
    /// The same after each has made one call.
    pub(crate) idle_after_call: f64,
    /// With [`CROWD`] sessions open.
    pub(crate) crowd: u64,
    /// After they ended and `rest` passed.
    pub(crate) rested: u64,
    /// Of it without pages of files.
    pub(crate) own_rested: u64,
}

/// Measures a fresh gateway; `rest` passes between the end of the last session and the last figure.
pub(crate) async fn measure(
    place: &Place,
    gateway: &Gateway,
    rest: Duration,
) -> anyhow::Result<Memory> {
    let pid = gateway.process.pid();
    let callers = (0..16).map(|n| gateway.caller(place, "http", &format!("idle-{n}")));
    let callers = callers.collect::<anyhow::Result<Vec<_>>>()?;
    let mut memory = Memory {
        after_start: resident_kib(pid)?,
        ..Memory::default()
    };
    close_all(open_many(&callers, 1, true).await?).await?;
    memory.after_first_call = resident_kib(pid)?;
    memory.own_after_first_call = anonymous_kib(pid)?;
    close_all(open_many(&callers, WARM_UP, true).await?).await?;

    settle().await;
    let before = resident_kib(pid)?;
    let held = open_many(&callers, IDLE, false).await?;
    settle().await;
    memory.idle = per_session(before, resident_kib(pid)?, IDLE);
    close_all(held).await?;

    settle().await;
    let before = resident_kib(pid)?;
    let held = open_many(&callers, IDLE, true).await?;
    settle().await;
    memory.idle_after_call = per_session(before, resident_kib(pid)?, IDLE);
    close_all(held).await?;

    let held = open_many(&callers, CROWD, true).await?;
    memory.crowd = resident_kib(pid)?;
    close_all(held).await?;
    tokio::time::sleep(rest).await;
    memory.rested = resident_kib(pid)?;
    memory.own_rested = anonymous_kib(pid)?;
    Ok(memory)
}

/// Opens sessions with an open GET stream each; `calls` says whether each makes a call first.
async fn open_many(callers: &[Caller], count: usize, calls: bool) -> anyhow::Result<Vec<Client>> {
    let open = |caller: Caller| async move {
        let mut client = Client::in_session(caller).await?;
        if calls {
            let params = r#"{"name":"echo","arguments":{"text":"hello"}}"#;
            client.result("tools/call", params).await?;
        }
        let head = client.listen(None).await?;
        if head.status != 200 {
            bail!("GET got {}", head.status);
        }
        Ok(client)
    };
    stream::iter(callers.iter().cycle().take(count).cloned().map(open))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn close_all(clients: Vec<Client>) -> anyhow::Result<()> {
    let close = |client: Client| async move {
        let mut other = client.beside().await?;
        drop(client);
        other.close().await?;
        Ok(())
    };
    stream::iter(clients.into_iter().map(close))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Waits for background work of the gateway to finish.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn per_session(before: u64, after: u64, sessions: usize) -> f64 {
    after.saturating_sub(before) as f64 / sessions.max(1) as f64
}

/// Milliseconds from starting the process to its first answer to an authorized `initialize`.
pub(crate) async fn start_to_first_answer(
    place: &Place,
    plan: &GatewayPlan<'_>,
    rounds: usize,
) -> anyhow::Result<Vec<f64>> {
    let mut millis = Vec::new();
    for round in 0..rounds {
        let plan = GatewayPlan {
            name: "start",
            ..plan.clone()
        };
        let (config, addr, _) = configure(place, &plan)?;
        let caller = caller_of(place, &format!("http://{addr}"), "http", "start")?;
        let begin = Instant::now();
        let process = place.run(&format!("start-{round}"), &mut serve(&plan, &config))?;
        let answered = loop {
            if let Ok(mut client) = Client::connect(caller.clone()).await {
                client.open().await.context("first answer")?;
                break begin.elapsed();
            }
            if begin.elapsed() > Duration::from_secs(10) {
                bail!("no answer within 10 s:\n{}", process.log());
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        };
        drop(process);
        tokio::time::sleep(BETWEEN_STARTS).await;
        millis.push(answered.as_secs_f64() * 1000.0);
    }
    Ok(millis)
}
