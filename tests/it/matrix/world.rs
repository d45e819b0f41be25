//! One gateway in front of every upstream of the matrix.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use super::cells::{Back, Cell, R4, R5, Shape, TWIN};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually};

/// How long an upstream may be silent in a call.
const IDLE_TIMEOUT: &str = "4s";

/// The gateway and its upstreams.
pub(super) struct World {
    pub(super) gw: Gateway,
    _stubs: Vec<HttpStub>,
    ledger: TempDir,
    /// Locks for changes that all callers of an upstream see.
    changing: BTreeMap<String, Mutex<()>>,
}

impl World {
    /// Starts the upstreams that these cells need.
    pub(super) async fn start(cells: &[Cell]) -> Self {
        let ledger = tempfile::tempdir().unwrap();
        let place = ledger.path().to_str().unwrap().to_owned();
        let upstreams: BTreeMap<String, Cell> = cells
            .iter()
            .map(|cell| (cell.upstream_name(), *cell))
            .collect();
        let remote = upstreams.iter().filter(|(_, c)| c.back != Back::Stdio);
        let started = join_all(remote.map(async |(name, cell)| {
            let args = arguments(*cell, &place);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let mode = match cell.back {
                Back::Events => "sse",
                Back::Socket => "ws",
                Back::Stdio | Back::Json | Back::Sse => "http",
            };
            (name.clone(), HttpStub::start_as(mode, 0, &args).await)
        }));
        let (started, twin) = tokio::join!(started, HttpStub::start(&["--name", TWIN]));
        let keys = format!("idle_timeout = \"{IDLE_TIMEOUT}\"");
        let mut setup = Setup::secured()
            .server("[server.sse]\nenabled = true\n[server.websocket]\nenabled = true")
            .toml("[limits]\nrate = \"5000/s\"")
            .toml("[stdio]\nmax_children = 1000")
            .http(TWIN, &twin, "");
        for (name, stub) in &started {
            let old = upstreams[name].back == Back::Events;
            let transport = if old { "\ntransport = \"sse\"" } else { "" };
            setup = setup.http(name, stub, &format!("{keys}{transport}"));
        }
        for (name, cell) in upstreams.iter().filter(|(_, c)| c.back == Back::Stdio) {
            let args = arguments(*cell, &place);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            setup = setup.stub_with(name, &args, &keys);
        }
        let merged: BTreeMap<String, Cell> = cells
            .iter()
            .filter(|cell| cell.shape == Shape::Merged)
            .map(|cell| (cell.upstream_name(), *cell))
            .collect();
        for name in merged.keys() {
            let upstreams = [name.as_str(), TWIN];
            setup = setup.toml(&format!("[endpoints.m-{name}]\nupstreams = {upstreams:?}"));
        }
        let modern = upstreams
            .into_iter()
            .filter(|(_, c)| c.upstream.is_modern());
        let modern = modern.map(|(name, _)| name);
        let mut stubs: Vec<_> = started.into_iter().map(|(_, stub)| stub).collect();
        stubs.push(twin);
        Self {
            gw: setup.start().await,
            _stubs: stubs,
            ledger,
            changing: modern.map(|name| (name, Mutex::default())).collect(),
        }
    }

    /// Locks the upstream of the cell for changes: a modern upstream changes for all its clients.
    pub(super) async fn alone(&self, cell: Cell) -> Option<MutexGuard<'_, ()>> {
        Some(self.changing.get(&cell.upstream_name())?.lock().await)
    }

    /// Waits until the lasting call `key` says something about itself.
    pub(super) async fn state(&self, key: &str) -> String {
        let file = self.ledger.path().join(key);
        eventually("the call is known", async || {
            let state = std::fs::read_to_string(&file).ok();
            state.filter(|state| !state.is_empty())
        })
        .await
    }

    /// Waits until the lasting call `key` is over; how it went.
    pub(super) async fn end(&self, key: &str) -> String {
        eventually("the call is over", async || {
            Some(self.state(key).await).filter(|state| state != "running")
        })
        .await
    }

    /// Lets the lasting call `key` go.
    pub(super) fn let_go(&self, key: &str) {
        std::fs::write(self.ledger.path().join(format!("{key}.go")), "").unwrap();
    }
}

/// Arguments of the stub behind a cell.
fn arguments(cell: Cell, ledger: &str) -> Vec<String> {
    let mut arguments = if cell.upstream.is_modern() {
        vec!["--era", "modern"]
    } else {
        vec!["--revision", cell.upstream.wire(), "--only"]
    };
    arguments.extend([
        "--ledger",
        ledger,
        "--list-page-size",
        "15",
        "--empty-cursor",
    ]);
    match cell.upstream {
        R4 => arguments.push("--tasks"),
        R5 => arguments.extend(["--extensions", r#"{"io.modelcontextprotocol/tasks":{}}"#]),
        _ => {}
    }
    match cell.back {
        // A modern server has no other stream for notices: such calls are answered with a stream.
        Back::Json if cell.upstream.is_modern() => {}
        Back::Json => arguments.extend(["--sse", "never"]),
        Back::Sse => arguments.extend(["--sse", "always"]),
        Back::Stdio | Back::Events | Back::Socket => {}
    }
    arguments.into_iter().map(str::to_owned).collect()
}
