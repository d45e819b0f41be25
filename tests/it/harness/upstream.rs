//! The stub upstream (`tests/stubs`) as the tests start it, and upstreams that tests script themselves.

use std::process::Stdio;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use super::{Actor, eventually, within};

/// The path of the stub, which cargo builds with `--features stubs`.
pub(crate) fn stub_program() -> String {
    match option_env!("CARGO_BIN_EXE_stub-upstream") {
        Some(path) => path.to_owned(),
        None => panic!("there is no stub upstream: run the tests with `--features stubs`"),
    }
}

/// Has `answer` answer whatever comes to a free port; the origin of its URLs.
pub(crate) async fn serve<F>(
    answer: impl Fn(Request) -> F + Clone + Send + Sync + 'static,
) -> String
where
    F: Future<Output = Response> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(answer);
    tokio::spawn(axum::serve(listener, router).into_future());
    origin
}

/// A stub HTTP server, stopped on drop.
pub(crate) struct HttpStub {
    pub(crate) url: String,
    child: Child,
}

impl HttpStub {
    /// Starts a stub on a free port and waits until the port is open.
    pub(crate) async fn start(args: &[&str]) -> Self {
        Self::start_on(0, args).await
    }

    /// Starts a stub on this port (0 takes a free one) and waits until the port is open.
    pub(crate) async fn start_on(port: u16, args: &[&str]) -> Self {
        Self::start_as("http", port, args).await
    }

    /// Starts a stub on the transport `mode`: `http`, `sse` or `ws`.
    pub(crate) async fn start_as(mode: &str, port: u16, args: &[&str]) -> Self {
        let mut child = Command::new(stub_program())
            .args([mode, "--port", &port.to_string(), "--until-eof"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = within("the stub's address", lines.next_line())
            .await
            .unwrap()
            .unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let url = ready["url"].as_str().unwrap().to_owned();
        Self { url, child }
    }

    /// The stub's port.
    pub(crate) fn port(&self) -> u16 {
        self.url.parse::<url::Url>().unwrap().port().unwrap()
    }

    /// Counts of everything received so far, from `/stats`.
    pub(crate) async fn stats(&self) -> Value {
        let base = self.url.strip_suffix("/mcp").unwrap();
        let text = Actor::new(base, None).try_get_any("/stats").await;
        serde_json::from_str(&text).unwrap()
    }

    /// How often the stub received this method.
    pub(crate) async fn counted(&self, method: &str) -> u64 {
        self.stats().await["counts"][method].as_u64().unwrap_or(0)
    }

    /// Waits until the gateway's GET stream is open.
    pub(crate) async fn heard(&self) {
        eventually("the upstream's GET stream", async || {
            (self.stats().await["open_get_streams"] == json!(1)).then_some(())
        })
        .await;
    }

    /// Ends it and waits until its port is free.
    pub(crate) async fn stop(mut self) {
        self.child.kill().await.unwrap();
    }
}
