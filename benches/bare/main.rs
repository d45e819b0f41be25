//! `bare-proxy`: the least that a call through hyper costs. `drill bench` measures the gateway beside it.
//!
//! It reads a request, sends it on as it is, and sends the response back, with hyper's connection types alone: no pool
//! of hyper-util, no router, no timer, no limit, no log, and no task but the one of the client's connection, which also
//! drives the upstream's. Allocator, worker threads and build are the gateway's (`src/workers.rs`, `docs/adr/0010`), so
//! that the difference between the two is what the gateway does with a call.

#![expect(
    clippy::disallowed_methods,
    reason = "a stand-alone program beside the gateway: it starts threads and tasks of its own"
)]

mod line;

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Parser;
use http::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::line::{Reply, forward};

#[cfg(not(system_allocator))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Forwards HTTP/1.1 to upstreams, and prints as JSON where it listens for each.
#[derive(Debug, Parser)]
struct Cli {
    /// Worker threads, each with a runtime of its own.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Where the upstreams listen.
    upstreams: Vec<SocketAddr>,
}

/// A thread that connections are placed on.
#[derive(Debug)]
struct Worker {
    runtime: Handle,
    placed: AtomicUsize,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let first = runtime()?;
    let mut workers = vec![Worker::of(&first)];
    for _ in 1..cli.threads {
        let runtime = runtime()?;
        workers.push(Worker::of(&runtime));
        std::thread::spawn(move || runtime.block_on(pending::<()>()));
    }
    let workers: Arc<[Arc<Worker>]> = workers.into_iter().map(Arc::new).collect();
    first.block_on(async {
        // A killed process would not write the counts that a profile is made of (`deploy/profile/take.sh`).
        let mut stop = signal(SignalKind::terminate())?;
        tokio::select! {
            failed = serve(&cli.upstreams, &workers) => failed,
            _ = stop.recv() => Ok(()),
        }
    })
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

impl Worker {
    fn of(runtime: &Runtime) -> Self {
        Self {
            runtime: runtime.handle().clone(),
            placed: AtomicUsize::new(0),
        }
    }
}

/// Listens for each upstream, for ever.
async fn serve(upstreams: &[SocketAddr], workers: &Arc<[Arc<Worker>]>) -> anyhow::Result<()> {
    let mut listening = Vec::new();
    for upstream in upstreams {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        listening.push(listener.local_addr()?);
        tokio::spawn(accept(listener, *upstream, Arc::clone(workers)));
    }
    writeln!(io::stdout(), "{}", serde_json::to_string(&listening)?)?;
    pending().await
}

/// Places each connection on the worker that has the fewest.
async fn accept(listener: TcpListener, upstream: SocketAddr, workers: Arc<[Arc<Worker>]>) {
    loop {
        let accepted = listener.accept().await;
        // The worker's reactor delivers the events of the socket.
        let stream = accepted.and_then(|(stream, _)| {
            stream.set_nodelay(true)?;
            stream.into_std()
        });
        let placed = |worker: &&Arc<Worker>| worker.placed.load(Ordering::Relaxed);
        let (Ok(stream), Some(worker)) = (stream, workers.iter().min_by_key(placed)) else {
            continue;
        };
        worker.placed.fetch_add(1, Ordering::Relaxed);
        let place = Arc::clone(worker);
        worker.runtime.spawn(async move {
            // The client sees the connection end; there is nobody else to tell.
            drop(converse(stream, upstream).await);
            place.placed.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Serves one client until its connection ends.
async fn converse(stream: std::net::TcpStream, upstream: SocketAddr) -> anyhow::Result<()> {
    let stream = TokioIo::new(TcpStream::from_std(stream)?);
    let service = service_fn(|request| async move {
        Ok::<_, Infallible>(forward(upstream, request).await.unwrap_or_else(|_| {
            let mut refusal = http::Response::new(Reply::Empty);
            *refusal.status_mut() = StatusCode::BAD_GATEWAY;
            refusal
        }))
    });
    http1::Builder::new()
        .serve_connection(stream, service)
        .await?;
    Ok(())
}
