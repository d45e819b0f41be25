//! `bare-proxy` between the load and the stubs: the least that a call through hyper costs.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail};

use crate::client::{Caller, Client, Target};
use crate::lanes::Between;
use crate::place::{Place, Running};

/// A running `bare-proxy`.
#[derive(Debug)]
pub(crate) struct Bare {
    pub(crate) process: Running,
    /// In the order of its upstreams.
    targets: Vec<Target>,
}

/// How it is to be run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BarePlan<'a> {
    /// Names its log.
    pub(crate) name: &'a str,
    pub(crate) binary: &'a Path,
    /// Worker threads.
    pub(crate) threads: usize,
    pub(crate) upstreams: &'a [&'a Target],
    /// The program to run it under, with its options; empty for none.
    pub(crate) under: &'a [String],
}

impl<'a> BarePlan<'a> {
    /// Run by nothing else.
    pub(crate) fn new(
        name: &'a str,
        binary: &'a Path,
        threads: usize,
        upstreams: &'a [&'a Target],
    ) -> Self {
        Self {
            name,
            binary,
            threads,
            upstreams,
            under: &[],
        }
    }
}

impl Bare {
    pub(crate) fn start(place: &Place, plan: BarePlan<'_>) -> anyhow::Result<Self> {
        let words = plan.under.iter().map(String::as_ref);
        let mut words = words.chain([plan.binary.as_os_str()]);
        let mut command = Command::new(words.next().context("no program")?);
        command
            .args(words)
            .args(["--threads", &plan.threads.to_string()])
            .args(plan.upstreams.iter().map(|it| it.addr.to_string()))
            .stdout(Stdio::piped());
        let mut process = place.run(plan.name, &mut command)?;
        let addresses = process.first_line()?;
        let addresses: Vec<SocketAddr> = serde_json::from_value(addresses)?;
        let through = |(addr, upstream): (SocketAddr, &&Target)| Target {
            addr,
            host: addr.to_string(),
            path: upstream.path.clone(),
        };
        let targets = addresses.into_iter().zip(plan.upstreams).map(through);
        Ok(Self {
            targets: targets.collect(),
            process,
        })
    }

    /// What is measured through it, where its upstreams are the legacy and the modern stub.
    pub(crate) fn between(&self) -> anyhow::Result<Between> {
        let [legacy, modern] = self.targets.as_slice() else {
            bail!("the bare proxy has {} upstreams", self.targets.len());
        };
        let pid = Some(self.process.pid());
        Ok(Between::plain(legacy, modern, pid))
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // A killed process does not write its profile counters (`make profile`), so ask it to exit.
        self.process.end();
    }
}

/// Milliseconds from starting the process to its first answer to an `initialize`.
pub(crate) async fn start_to_first_answer(
    place: &Place,
    plan: BarePlan<'_>,
    rounds: usize,
) -> anyhow::Result<Vec<f64>> {
    let mut millis = Vec::new();
    for _ in 0..rounds {
        let begin = Instant::now();
        let bare = Bare::start(place, plan)?;
        let target = bare.targets.first().context("no upstream")?;
        let caller = Caller::anonymous(target.clone());
        Client::in_session(caller).await?;
        millis.push(begin.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(millis)
}
