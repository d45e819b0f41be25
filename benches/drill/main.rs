//! `drill`: drives a gateway from outside, as benchmark and as endurance test.
//!
//! Starts everything that it needs on loopback (a stub upstream, nginx, the gateway) and ends it again.
//! Exit code 1: a budget is missed or an invariant broken; the report says which.

#![expect(
    clippy::disallowed_methods,
    reason = "a test driver beside the gateway: it starts processes and reads the real clock"
)]

mod accounts;
mod bare;
mod bench;
mod client;
mod cluster;
mod compare;
mod drain;
mod figures;
mod gauges;
mod hostile;
mod instructions;
mod keys;
mod kills;
mod lanes;
mod lifecycle;
mod load;
mod memory;
mod modern;
mod network;
mod outcome;
mod parked;
mod place;
mod programs;
mod provenance;
mod redis;
mod replica_calls;
mod replicas;
mod report;
mod resumption;
mod rows;
mod said;
mod sse;
mod tables;
mod watch;
mod wire;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

/// Drives a gateway.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// CPU, memory and start-up figures beside nginx and a bare hyper proxy.
    Bench(bench::BenchArgs),
    /// CPU of two builds of the gateway in alternating turns: what a change costs.
    Compare(compare::CompareArgs),
    /// Counts instructions per reply under callgrind, of one build or of two.
    Instructions(instructions::InstructionsArgs),
    /// Forced disconnects: no event lost, none twice, no result lost.
    Resumption(resumption::ResumptionArgs),
    /// Sessions opened and abandoned over stdio: nothing is left of them.
    Lifecycle(lifecycle::LifecycleArgs),
    /// `kill -9` of a child and of the gateway.
    Kills(kills::KillsArgs),
    /// SIGTERM under load.
    Drain(drain::DrainArgs),
    /// Slow networks, cuts and half-open connections around the moments when servers close idle ones.
    Network(network::NetworkArgs),
    /// One caller that does everything at once to use up memory, connections and descriptors: the others
    /// lose nothing.
    Hostile(hostile::HostileArgs),
    /// Calls that ask and are never answered: bounded while they wait, nothing left at the deadline.
    Parked(parked::ParkedArgs),
    /// Many idle sessions on several replicas: what each takes in the gateways and in Redis.
    Replicas(replicas::ReplicasArgs),
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let passed = runtime.block_on(async {
        match cli.command {
            Command::Bench(args) => bench::run(args).await,
            Command::Compare(args) => compare::run(args).await,
            Command::Instructions(args) => instructions::run(args).await,
            Command::Resumption(args) => resumption::run(args).await,
            Command::Lifecycle(args) => lifecycle::run(args).await,
            Command::Kills(args) => kills::run(args).await,
            Command::Drain(args) => drain::run(args).await,
            Command::Network(args) => network::run(args).await,
            Command::Hostile(args) => hostile::run(args).await,
            Command::Parked(args) => parked::run(args).await,
            Command::Replicas(args) => replicas::run(args).await,
        }
    })?;
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
