//! A session that calls at the moments when its server closes idle connections.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::time::Instant;

use super::disturbance::Kind;
use super::{SAFE, Site, UNSAFE};
use crate::client::{Caller, Client};
use crate::wire::Wire;

/// How far from the moment of a close calls are made, milliseconds, and as much again as bytes take.
const SPREAD: u64 = 60;
/// How long a caller waits for an answer: longer than the gateway waits for the server.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long a half-open connection may lie in a pool before it fails a call.
const POOLED: Duration = Duration::from_secs(8);
/// Violations whose text is kept for each session.
const KEPT: usize = 5;

/// Whether the call of this number may run twice.
pub(super) fn is_safe(call: u64) -> bool {
    call.is_multiple_of(2)
}

/// What came of the calls.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) calls: u64,
    pub(super) answered: u64,
    /// By cause.
    pub(super) failures: BTreeMap<&'static str, u64>,
    pub(super) violations: Vec<String>,
}

impl Counted {
    pub(super) fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.answered += other.answered;
        for (cause, count) in other.failures {
            *self.failures.entry(cause).or_default() += count;
        }
        self.violations.extend(other.violations);
    }
}

/// Why a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The gateway reports that the call may have run.
    Unknown,
    /// The gateway says that the server did not answer in time.
    Silent,
    /// The connection to the gateway broke.
    FrontLost,
    /// The gateway did not answer in time.
    FrontSilent,
    /// The gateway says something else.
    Other,
}

impl Cause {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::FrontSilent,
            io::ErrorKind::Other => Self::said(&error.to_string()),
            _ => Self::FrontLost,
        }
    }

    fn said(text: &str) -> Self {
        if text.contains("whether the request ran is unknown") {
            Self::Unknown
        } else if text.contains("did not answer in time") {
            Self::Silent
        } else {
            Self::Other
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Unknown => "broke_off_may_have_run",
            Self::Silent => "no_answer_of_the_server",
            Self::FrontLost => "connection_to_the_gateway_lost",
            Self::FrontSilent => "no_answer_of_the_gateway",
            Self::Other => "other",
        }
    }
}

/// One session.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    site: Arc<Site>,
    random: StdRng,
    /// Since when its connection is used.
    connected: Instant,
    counted: Counted,
}

impl Session {
    pub(super) async fn open(caller: Caller, site: Arc<Site>, random: StdRng) -> io::Result<Self> {
        let connected = Instant::now();
        let client = Client::in_session(caller).await?;
        Ok(Self {
            client,
            site,
            random,
            connected,
            counted: Counted::default(),
        })
    }

    /// Calls until `next` has reached `calls`; calls take their numbers from it.
    pub(super) async fn call_until(mut self, next: Arc<AtomicU64>, calls: u64) -> Counted {
        loop {
            let call = next.fetch_add(1, Ordering::Relaxed);
            if call >= calls {
                return self.counted;
            }
            tokio::time::sleep(self.pause()).await;
            self.call(call).await;
        }
    }

    /// How long to wait, so that the next request arrives at the server about when it closes.
    fn pause(&mut self) -> Duration {
        let latency = u64::try_from(self.site.latency.as_millis()).unwrap_or_default();
        let idle = self.site.server.manner.idle * 1000;
        // The last answer and the next request each take two networks.
        let spread = SPREAD + latency;
        let first = idle.saturating_sub(4 * latency + spread);
        let late = self.random.random_range(0..2 * spread);
        Duration::from_millis(first + late)
    }

    async fn call(&mut self, call: u64) {
        // A client hears of a reset before it writes.
        let is_cut = self.site.disturbances.since(self.connected, Kind::CutFront) > 0;
        if is_cut && !self.reconnect().await {
            self.counted.calls += 1;
            return self.fails(call, Cause::FrontLost, "cannot connect");
        }
        let tool = if is_safe(call) { SAFE } else { UNSAFE };
        let params = format!(r#"{{"name":"{tool}","arguments":{{"call":{call}}}}}"#);
        let begun = Instant::now();
        let answer = tokio::time::timeout(PATIENCE, self.client.result("tools/call", &params));
        let answer = answer
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        self.counted.calls += 1;
        let (cause, text) = match answer {
            Ok(result) if result.contains("done") => {
                self.counted.answered += 1;
                return;
            }
            Ok(result) => (Cause::said(&result), result),
            Err(error) => (Cause::of(&error), error.to_string()),
        };
        *self.counted.failures.entry(cause.word()).or_default() += 1;
        if !self.is_excused(call, cause, begun) {
            self.fails(call, cause, &text);
        }
        if matches!(cause, Cause::FrontLost | Cause::FrontSilent) && !self.reconnect().await {
            self.fails(call, cause, "cannot connect again");
        }
    }

    /// Whether the networks explain a failure, and the call could not be sent again safely.
    fn is_excused(&self, call: u64, cause: Cause, begun: Instant) -> bool {
        let since = |then, kind| self.site.disturbances.since(then, kind);
        let earlier = |time: Duration| begun.checked_sub(time).unwrap_or(begun);
        match cause {
            // What may run twice is repeated once.
            Cause::Unknown => since(begun, Kind::CutBehind) > usize::from(is_safe(call)),
            Cause::Silent => since(earlier(POOLED), Kind::FrozenBehind) > 0,
            Cause::FrontLost => since(begun, Kind::CutFront) > 0,
            Cause::FrontSilent => since(self.connected, Kind::FrozenFront) > 0,
            Cause::Other => false,
        }
    }

    fn fails(&mut self, call: u64, cause: Cause, text: &str) {
        if self.counted.violations.len() < KEPT {
            let (site, cause) = (self.site.name(), cause.word());
            let text = format!("call {call} at {site} failed ({cause}): {text}");
            self.counted.violations.push(text);
        }
    }

    /// Goes on with the session on a new connection.
    async fn reconnect(&mut self) -> bool {
        let connected = Instant::now();
        let Ok(wire) = Wire::connect(self.client.caller.target.addr).await else {
            return false;
        };
        self.client.wire = wire;
        self.connected = connected;
        true
    }
}
