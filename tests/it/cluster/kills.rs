//! 200 sessions call and stream through nginx while one replica after the other is killed and comes back: what Redis has
//! acknowledged is neither lost nor doubled, and every session goes on. Spec: DESIGN §8.1; `docs/adr/0025`, `docs/adr/0027`.
//!
//! `DRAWBRIDGE_KILL_SECONDS` is how long: 30 without it, 120 in `make soak`.

mod acknowledged;
mod caller;
mod findings;
mod line;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};

use self::caller::Caller;
use self::findings::Findings;
use self::line::Front;
use crate::harness::Setup;
use crate::harness::replicas::Replicas;
use crate::harness::upstream::HttpStub;

/// How many sessions there are, and how many callers share them.
const SESSIONS: usize = 200;
const CALLERS: usize = 40;
/// Every so many-th session has its GET stream open.
const LISTENS: usize = 4;
/// Handshakes at once.
const AT_ONCE: usize = 16;
/// From one kill to the next.
const EVERY: Duration = Duration::from_secs(5);
/// How long a replica is away, beside its start.
const AWAY: Duration = Duration::from_millis(500);

/// A call whose replica was lost is known to be so within this, once it is resumed.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// A session goes on within this.
const GOES_ON_WITHIN: Duration = Duration::from_secs(15);
/// "At once", on a busy machine. An owner that is silent, and not dead, would be given up after 3.7 s at the earliest.
const SOON: Duration = Duration::from_millis(2500);

fn seconds() -> u64 {
    let text = std::env::var("DRAWBRIDGE_KILL_SECONDS");
    text.map_or(30, |text| text.parse().unwrap())
}

/// Kills the oldest replica again and again, until the time is over; how often.
async fn kill_in_turn(replicas: &mut Replicas<impl Fn() -> Setup>, findings: &Findings) -> usize {
    let until = Instant::now() + Duration::from_secs(seconds());
    let mut kills = 0;
    while Instant::now() + EVERY / 2 < until {
        let next = tokio::time::Instant::now() + EVERY;
        findings.killed(replicas.oldest());
        let place = replicas.kill_oldest().await;
        findings.acknowledgements.look(&replicas.redis).await;
        tokio::time::sleep(AWAY).await;
        replicas.replace(place).await;
        kills += 1;
        tokio::time::sleep_until(next).await;
    }
    kills
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_replicas_lose_no_session_and_no_acknowledged_event() {
    let stub = HttpStub::start(&[]).await;
    let make = || Setup::secured().http("stub", &stub, "");
    let Some(mut replicas) = Replicas::start(make).await else {
        return;
    };
    let findings = Arc::new(Findings::default());
    let front = Arc::new(Front::new(&replicas.url, "/mcp/stub", &findings));
    let tokens: Vec<String> = (0..CALLERS)
        .map(|number| replicas.token(&format!("caller-{number}"), &["/mcp/stub"]))
        .collect();
    let opening = (0..SESSIONS).map(|number| {
        let token = tokens[number % CALLERS].clone();
        Caller::open(&front, number, token)
    });
    let callers: Vec<Caller> = stream::iter(opening)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;

    let listening = callers
        .iter()
        .step_by(LISTENS)
        .map(|caller| tokio::spawn(caller.listener().keep_listening()))
        .collect::<Vec<_>>();
    let calling = callers
        .into_iter()
        .map(|caller| tokio::spawn(caller.keep_calling()))
        .collect::<Vec<_>>();
    let kills = kill_in_turn(&mut replicas, &findings).await;
    front.end();
    for ended in join_all(calling).await {
        ended.unwrap();
    }
    for ended in join_all(listening).await {
        ended.unwrap();
    }

    let adopted = replicas
        .metric("drawbridge_cluster_sessions_adopted_total", "")
        .await;
    eprintln!(
        "{kills} kills in {} s, {SESSIONS} sessions, {adopted} adopted at the replicas that run\n{findings}",
        seconds()
    );
    let compared = findings.acknowledgements.compare(caller::number_of);
    eprintln!(
        "events that Redis had at a kill and that were heard: {}, {} of them of interrupted calls",
        compared.events, compared.of_lost_calls
    );
    assert!(compared.of_lost_calls >= kills, "nothing to look for");
    findings.assert_bounds(TOLD_WITHIN, GOES_ON_WITHIN, SOON);
    assert!(adopted > 0.5);
    replicas.stop().await;
}
