//! One session whose connections are broken again and again.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;

use super::Totals;
use super::reading::{Cut, Seen};
use crate::client::{Caller, Client, request_text};
use crate::outcome::Outcome;
use crate::wire::{PATIENCE, invalid};

/// A session whose connections are broken repeatedly.
pub(super) struct Worker {
    client: Client,
    random: StdRng,
    pub(super) totals: Totals,
    /// Every event id of the session so far.
    pub(super) ids: BTreeSet<String>,
    pub(super) outcome: Outcome,
    logged: u64,
}

pub(super) async fn worker(
    caller: Caller,
    random: StdRng,
    left: Arc<AtomicU64>,
) -> (Outcome, Totals) {
    let client = match Client::connect(caller).await {
        Ok(client) => client,
        Err(error) => {
            let mut outcome = Outcome::default();
            outcome.violation(format!("cannot connect: {error}"));
            return (outcome, Totals::default());
        }
    };
    let mut worker = Worker {
        client,
        random,
        totals: Totals::default(),
        ids: BTreeSet::new(),
        outcome: Outcome::default(),
        logged: 0,
    };
    if let Err(error) = worker.work(&left).await {
        worker.outcome.violation(format!("a round failed: {error}"));
    }
    (worker.outcome, worker.totals)
}

impl Worker {
    async fn work(&mut self, left: &AtomicU64) -> io::Result<()> {
        self.client.open().await?;
        while left.load(Ordering::Relaxed) > 0 {
            let before = self.totals.cuts;
            let round = async {
                match self.random.random_range(0..4) {
                    0 => self.idle_round().await,
                    1 => self.silent_call().await,
                    _ => self.noisy_call().await,
                }
            };
            match tokio::time::timeout(PATIENCE * 3, round).await {
                Ok(done) => done?,
                Err(_) => return Err(invalid("a round never ended: something was lost")),
            }
            let cuts = self.totals.cuts - before;
            let take = |count: u64| Some(count.saturating_sub(cuts));
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .ok();
        }
        Ok(())
    }

    /// A call with many notices, broken anywhere, up to three times.
    async fn noisy_call(&mut self) -> io::Result<()> {
        let count = self.random.random_range(3..40);
        let gap = self.random.random_range(0..4);
        let bytes = self.random.random_range(0..300);
        let arguments = format!(r#"{{"n":{count},"gap_ms":{gap},"bytes":{bytes}}}"#);
        let seen = self.broken_call("notices", &arguments).await?;
        let Some(seen) = seen else { return Ok(()) };
        let wanted: Vec<u64> = (1..=count).collect();
        self.outcome.check(seen.numbers == wanted, || {
            format!("notices of {count}: got {:?}", seen.numbers)
        });
        let reply = seen.reply.unwrap_or_default();
        self.outcome
            .check(reply.contains(&format!("{count} sent")), || {
                format!("notices of {count}: replied {reply}")
            });
        Ok(())
    }

    /// A call without notifications before its reply, long enough to become an event stream.
    async fn silent_call(&mut self) -> io::Result<()> {
        let millis = self.random.random_range(280..500);
        let seen = self
            .broken_call("sleep", &format!(r#"{{"ms":{millis}}}"#))
            .await?;
        let Some(seen) = seen else { return Ok(()) };
        let reply = seen.reply.unwrap_or_default();
        self.outcome
            .check(reply.contains("slept"), || format!("sleep replied {reply}"));
        Ok(())
    }

    /// Calls a tool on a connection of its own and breaks it; `None` when there was no id to resume from.
    async fn broken_call(&mut self, tool: &str, arguments: &str) -> io::Result<Option<Seen>> {
        self.totals.calls += 1;
        let id = self.client.take_id();
        let params = format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#);
        let mut seen = Seen::default();
        let mut connection = self.client.beside().await?;
        let cut = self.cut();
        let request = request_text(id, "tools/call", &params);
        let posted = match cut {
            Cut::After(after) => tokio::time::timeout(after, connection.post(&request)).await,
            _ => Ok(connection.post(&request).await),
        };
        let mut ended = match posted {
            Err(_) => false,
            Ok(head) => {
                let head = head?;
                if head.status != 200 || !head.is_events {
                    return Err(io::Error::other(format!("{tool} got {head:?}")));
                }
                self.read(&mut connection, &mut seen, cut).await?
            }
        };
        let mut breaks = 0;
        while !ended {
            self.disconnect(connection).await?;
            if seen.last_id.is_none() {
                self.totals.unresumable += 1;
                return Ok(None);
            }
            breaks += 1;
            let cut = if breaks < 3 { self.cut() } else { Cut::Never };
            connection = self.resume(&seen).await?;
            ended = self.read(&mut connection, &mut seen, cut).await?;
        }
        let answered = seen.reply.is_some();
        self.outcome.check(answered, || {
            format!("{tool}: the result is lost, last id {:?}", seen.last_id)
        });
        Ok(Some(seen))
    }

    /// A GET stream, broken while idle or while messages come.
    async fn idle_round(&mut self) -> io::Result<()> {
        self.totals.idle += 1;
        let first = self.logged + 1;
        let mut seen = Seen::default();
        let mut stream = self.client.beside().await?;
        let status = stream.listen(None).await?.status;
        if status != 200 {
            return Err(io::Error::other(format!("GET got {status}")));
        }
        // Priming makes the stream resumable.
        let primed = |seen: &Seen| seen.last_id.is_some();
        self.read_until(&mut stream, &mut seen, Cut::Never, primed)
            .await?;
        for _ in 0..self.random.random_range(1..4) {
            if self.random.random_bool(0.5) {
                self.emit().await?;
            }
            let cut = Cut::After(Duration::from_millis(self.random.random_range(0..20)));
            self.read(&mut stream, &mut seen, cut).await?;
            self.disconnect(stream).await?;
            if self.random.random_bool(0.5) {
                self.emit().await?;
            }
            stream = self.resume(&seen).await?;
        }
        self.emit().await?;
        let wanted: Vec<u64> = (first..=self.logged).collect();
        let complete = |seen: &Seen| seen.numbers.len() >= wanted.len();
        self.read_until(&mut stream, &mut seen, Cut::After(PATIENCE), complete)
            .await?;
        // What comes twice comes soon.
        self.read(
            &mut stream,
            &mut seen,
            Cut::After(Duration::from_millis(20)),
        )
        .await?;
        self.outcome.check(seen.numbers == wanted, || {
            format!("GET stream: wanted {wanted:?}, got {:?}", seen.numbers)
        });
        Ok(())
    }

    /// Lets the upstream log a few numbered messages on the session's stream.
    async fn emit(&mut self) -> io::Result<()> {
        let count = self.random.random_range(1..6);
        let params = format!(
            r#"{{"name":"log","arguments":{{"via":"get","first":{},"n":{count}}}}}"#,
            self.logged + 1
        );
        self.client.result("tools/call", &params).await?;
        self.logged += count;
        Ok(())
    }

    fn cut(&mut self) -> Cut {
        match self.random.random_range(0..10) {
            0..=5 => Cut::Bytes(self.random.random_range(0..6_000)),
            6..=8 => Cut::After(Duration::from_millis(self.random.random_range(0..400))),
            _ => Cut::Never,
        }
    }

    /// Breaks a connection, gently or not, and waits a little.
    async fn disconnect(&mut self, connection: Client) -> io::Result<()> {
        self.totals.cuts += 1;
        if self.random.random_bool(0.5) {
            connection.wire.reset()?;
        }
        let pause = Duration::from_millis(self.random.random_range(0..60));
        tokio::time::sleep(pause).await;
        Ok(())
    }

    async fn resume(&mut self, seen: &Seen) -> io::Result<Client> {
        let mut connection = self.client.beside().await?;
        let head = connection.listen(seen.last_id.as_deref()).await?;
        if head.status != 200 {
            let what = format!("resuming after {:?} got {}", seen.last_id, head.status);
            return Err(io::Error::other(what));
        }
        Ok(connection)
    }
}
