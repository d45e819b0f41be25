//! Honest callers: each makes small sequential calls in its own session.

use std::io;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures_util::future::try_join_all;

use crate::client::Client;
use crate::place::{Gateway, Place};
use crate::wire::limited;

/// Between two calls of one caller.
const PAUSE: Duration = Duration::from_millis(20);
/// Errors whose text is kept for each caller.
const KEPT: usize = 3;
const ECHO: &str = r#"{"name":"echo","arguments":{"text":"hello"}}"#;

/// Honest callers with open sessions.
#[derive(Debug)]
pub(super) struct Callers(Vec<Client>);

/// How their calls went.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Sorted.
    times: Vec<Duration>,
    errors: Vec<String>,
}

impl Callers {
    pub(super) async fn open(
        gateway: &Gateway,
        place: &Place,
        count: usize,
    ) -> anyhow::Result<Self> {
        let mut clients = Vec::with_capacity(count);
        for number in 0..count {
            let caller = gateway.caller(place, "http", &format!("user-{number}"))?;
            let mut client = Client::connect(caller).await?;
            client.open().await.context("an honest session")?;
            clients.push(client);
        }
        Ok(Self(clients))
    }

    /// Calls for so long.
    pub(super) async fn call_for(&mut self, time: Duration) -> anyhow::Result<Calls> {
        let end = Instant::now() + time;
        let all = try_join_all(self.0.iter_mut().map(|client| call_until(client, end))).await?;
        let mut calls = Calls::default();
        for mut each in all {
            calls.times.append(&mut each.times);
            calls.errors.append(&mut each.errors);
        }
        calls.times.sort_unstable();
        Ok(calls)
    }
}

impl Calls {
    pub(super) fn calls(&self) -> usize {
        self.times.len()
    }

    pub(super) fn errors(&self) -> &[String] {
        &self.errors
    }

    /// The quantile `part` of the call times.
    pub(super) fn quantile(&self, part: f64) -> Duration {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "a place in a list that fits into memory"
        )]
        let place = (self.times.len() as f64 * part) as usize;
        let last = self.times.len().saturating_sub(1);
        self.times.get(place.min(last)).copied().unwrap_or_default()
    }
}

async fn call_until(client: &mut Client, end: Instant) -> anyhow::Result<Calls> {
    let mut calls = Calls::default();
    while Instant::now() < end {
        let began = Instant::now();
        match limited(call(client)).await {
            Ok(()) => calls.times.push(began.elapsed()),
            Err(error) => {
                if calls.errors.len() < KEPT {
                    calls.errors.push(error.to_string());
                }
                // Its connection is in an unknown state.
                *client = client.beside().await.context("an honest connection")?;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(calls)
}

async fn call(client: &mut Client) -> io::Result<()> {
    let result = client.result("tools/call", ECHO).await?;
    if result.contains("hello") {
        return Ok(());
    }
    Err(io::Error::other(format!("an echo brought {result}")))
}
