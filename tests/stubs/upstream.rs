//! `stub-upstream`: a small, scriptable MCP server for tests and benchmarks.
//!
//! The stub speaks the legacy revisions, 2026-07-28, or both over stdio or Streamable HTTP. It shares no code with the
//! gateway, so that a bug in the gateway's code is not hidden by its twin. Tools make the stub misbehave on request:
//! see `tools.rs`. `GET /stats` (over HTTP) and the tool `stats` report the received messages.

#![expect(
    clippy::disallowed_methods,
    clippy::exit,
    reason = "a stand-alone peer: it starts tasks and children, reads its environment and dies on request"
)]

mod catalog;
mod duplex;
mod errands;
mod extension;
mod http;
mod methods;
mod modern;
mod options;
mod outlet;
mod rpc;
mod session;
mod stdio;
mod stream;
mod tools;
mod world;

use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;

use crate::options::{Mode, Options};
use crate::world::World;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    if options.crash_on_start {
        world::last_words("stub-upstream: crashing at start, as asked");
        std::process::exit(3);
    }
    std::thread::sleep(Duration::from_millis(options.slow_start));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.threads)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    if options.ignore_sigterm {
        runtime.block_on(async { ignore_sigterm() })?;
    }
    let mode = options.mode.clone();
    let world = World::new(options);
    match mode {
        Mode::Stdio => stdio::serve(&world, runtime.handle()),
        Mode::Http { port } | Mode::Sse { port } | Mode::Ws { port } => {
            runtime.block_on(http::serve(world, port))
        }
    }
}

/// Swallows SIGTERM for the life of the process.
fn ignore_sigterm() -> anyhow::Result<()> {
    let mut terminations =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::spawn(async move { while terminations.recv().await.is_some() {} });
    Ok(())
}
