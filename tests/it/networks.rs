//! Upstreams behind slow and broken networks, which close idle connections at the wrong moment: no call
//! fails that can be sent again safely, and none runs twice. Spec: SPEC M-44, U-12; DESIGN §6.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::to_bytes;
use futures_util::future::join_all;
use http::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::network::{Network, Weather};
use crate::harness::tunnel::TlsFront;
use crate::harness::{Actor, Session, Setup, eventually, within};
use crate::unsteady_upstream::usual;

/// How a server treats its connections.
#[derive(Debug, Clone, Copy, Default)]
struct Manner {
    /// Seconds in `Keep-Alive: timeout=`.
    names: Option<u64>,
    /// How long an idle connection is kept.
    idle: Option<Duration>,
    /// Whether each call ends its connection, without `Connection: close`.
    hangs_up: bool,
    /// Whether it leaves the first list and calls of `once` without an answer.
    ignores: bool,
}

/// A server over bare sockets.
#[derive(Debug)]
struct Server {
    port: u16,
    opened: Arc<AtomicUsize>,
    /// How often each tool ran.
    runs: Arc<Mutex<HashMap<String, usize>>>,
    ignored: Arc<AtomicUsize>,
}

impl Server {
    async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let this = Self {
            port: listener.local_addr().unwrap().port(),
            opened: Arc::default(),
            runs: Arc::default(),
            ignored: Arc::default(),
        };
        let (opened, runs) = (Arc::clone(&this.opened), Arc::clone(&this.runs));
        let ignored = Arc::clone(&this.ignored);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                opened.fetch_add(1, Ordering::SeqCst);
                let (runs, ignored) = (Arc::clone(&runs), Arc::clone(&ignored));
                tokio::spawn(converse(stream, manner, runs, ignored));
            }
        });
        this
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    fn runs(&self) -> HashMap<String, usize> {
        self.runs.lock().unwrap().clone()
    }

    async fn has_ignored(&self, count: usize) {
        eventually("a request without an answer", async || {
            (self.ignored.load(Ordering::SeqCst) == count).then_some(())
        })
        .await;
    }
}

async fn converse(
    stream: TcpStream,
    manner: Manner,
    runs: Arc<Mutex<HashMap<String, usize>>>,
    ignored: Arc<AtomicUsize>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let idle = manner.idle.unwrap_or(Duration::from_mins(1));
    let mut stream = BufReader::new(stream);
    while let Ok(Some((method, body))) = tokio::time::timeout(idle, request(&mut stream)).await {
        let is_call = body["method"] == "tools/call";
        if is_call {
            let tool = body["params"]["name"].as_str().unwrap().to_owned();
            *runs.lock().unwrap().entry(tool).or_default() += 1;
        }
        let is_first_list = body["method"] == "tools/list" && ignored.load(Ordering::SeqCst) == 0;
        if manner.ignores && (is_first_list || body["params"]["name"] == "once") {
            ignored.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
        let (head, body) = usual(&method, &body).into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        let mut text = format!("HTTP/1.1 {}\r\n", head.status);
        for (name, value) in &head.headers {
            write!(text, "{name}: {}\r\n", value.to_str().unwrap()).unwrap();
        }
        if let Some(seconds) = manner.names {
            write!(text, "Keep-Alive: timeout={seconds}\r\n").unwrap();
        }
        write!(text, "content-length: {}\r\n\r\n", body.len()).unwrap();
        stream.write_all(text.as_bytes()).await?;
        stream.write_all(&body).await?;
        if is_call && manner.hangs_up {
            break;
        }
    }
    Ok(())
}

/// Reads one request; nothing at the end of the connection.
async fn request(stream: &mut BufReader<TcpStream>) -> Option<(Method, Value)> {
    let (mut method, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        match (&method, line.split_once(": ")) {
            (None, _) => {
                let name = line.split(' ').next()?.to_ascii_uppercase();
                method = Some(name.parse().ok()?);
            }
            (Some(_), Some(("content-length", value))) => length = value.parse().ok()?,
            (Some(_), _) if line.is_empty() => break,
            (Some(_), _) => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some((method?, body))
}

async fn call(user: &Session, tool: &str) -> Result<(), String> {
    let reply = within(tool, user.call(tool, json!({}))).await;
    let reply = reply.map_err(|error| error.to_string())?.to_string();
    if reply.contains("done") {
        Ok(())
    } else {
        Err(reply)
    }
}

// Spec: DESIGN §6: at the very moment when the server closes what was idle, both ends being far away.
#[tokio::test]
async fn no_call_is_lost_where_idle_connections_end() {
    const SESSIONS: u64 = 30;
    const ROUNDS: u64 = 10;
    let closes_after = Duration::from_secs(1);
    let manner = Manner {
        names: Some(1),
        idle: Some(closes_after),
        ..Manner::default()
    };
    let server = Server::start(manner).await;
    let weather = Weather::slow(Duration::from_millis(20));
    let behind = Network::start(server.port, weather).await.unwrap();
    let keys = "era = \"legacy\"";
    let gw = Setup::open().url("up", &behind.url(), keys).start().await;
    let own = gw.url.parse::<url::Url>().unwrap().port().unwrap();
    let front = Network::start(own, weather).await.unwrap();
    let base = format!("http://127.0.0.1:{}", front.port);
    let calls = (0..SESSIONS).map(async |session| {
        let user = Actor::new(&base, None).open("/mcp/up").await;
        let mut failed = Vec::new();
        for round in 0..ROUNDS {
            // From 60 ms before the connection's idle timeout to 60 ms after.
            let pause = 940 + (session * ROUNDS + round) * 7 % 120;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            failed.extend(call(&user, &format!("{session}-{round}")).await.err());
        }
        failed
    });
    let failed: Vec<_> = join_all(calls).await.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{} failed: {failed:?}", failed.len());
    let runs = server.runs();
    assert_eq!(runs.len(), usize::try_from(SESSIONS * ROUNDS).unwrap());
    assert!(runs.values().all(|runs| *runs == 1), "{runs:?}");
    gw.stop().await;
}

// Spec: SPEC M-44: whether the server read a request behind its close cannot be told.
#[rstest]
#[tokio::test]
async fn only_safe_calls_repeat_behind_a_close(#[values("legacy", "modern")] era: &str) {
    let manner = Manner {
        hangs_up: true,
        ..Manner::default()
    };
    let server = Server::start(manner).await;
    let weather = Weather {
        latency: Duration::from_millis(5),
        farewell: Duration::from_millis(100),
    };
    let network = Network::start(server.port, weather).await.unwrap();
    let keys = format!("era = {era:?}\nretry_safe = [\"safe\"]");
    let gw = Setup::open().url("up", &network.url(), &keys).start().await;
    let user = gw.anonymous().open("/mcp/up").await;
    for _ in 0..10 {
        assert_eq!(call(&user, "safe").await, Ok(()));
        // Right behind the close of the call.
        let listed = within("a list", user.request("tools/list", json!({}))).await;
        assert_eq!(listed.unwrap()["tools"], json!([]));
    }
    for round in 0..10 {
        let tool = format!("round-{round}");
        if let Err(said) = call(&user, &tool).await {
            assert!(
                said.contains("whether the request ran is unknown"),
                "{said}"
            );
        }
    }
    let runs = server.runs();
    assert!(
        runs.iter().all(|(tool, runs)| tool == "safe" || *runs == 1),
        "{runs:?}"
    );
    gw.stop().await;
}

// Spec: SPEC M-44: a list may be asked for twice, a call may not.
#[rstest]
#[tokio::test]
async fn only_what_reads_is_repeated_after_a_cut(#[values("legacy", "modern")] era: &str) {
    let manner = Manner {
        ignores: true,
        ..Manner::default()
    };
    let server = Server::start(manner).await;
    let network = Network::start(server.port, Weather::slow(Duration::from_millis(5)))
        .await
        .unwrap();
    let keys = format!("era = {era:?}");
    let gw = Setup::open().url("up", &network.url(), &keys).start().await;
    let user = gw.anonymous().open("/mcp/up").await;
    let cut = async |ignored| {
        server.has_ignored(ignored).await;
        network.cut();
    };
    let (listed, ()) = tokio::join!(user.request("tools/list", json!({})), cut(1));
    assert_eq!(listed.unwrap()["tools"], json!([]));
    let (called, ()) = tokio::join!(call(&user, "once"), cut(2));
    let said = called.expect_err("it may have run");
    assert!(
        said.contains("whether the request ran is unknown"),
        "{said}"
    );
    assert_eq!(server.runs()["once"], 1);
    assert_eq!(call(&user, "next").await, Ok(()));
    gw.stop().await;
}

// Spec: SPEC U-12.
#[tokio::test]
async fn half_open_connection_fails_one_call() {
    let server = Server::start(Manner::default()).await;
    let network = Network::start(server.port, Weather::slow(Duration::ZERO))
        .await
        .unwrap();
    let keys = "era = \"legacy\"\nidle_timeout = \"1s\"\npool_idle = \"1m\"";
    let gw = Setup::open().url("up", &network.url(), keys).start().await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert_eq!(call(&user, "first").await, Ok(()));
    network.freeze();
    let said = call(&user, "second").await.expect_err("nothing comes");
    assert!(said.contains("did not answer in time"), "{said}");
    assert_eq!(call(&user, "third").await, Ok(()));
    gw.stop().await;
}

// Spec: DESIGN §6: over TLS the same holds, once the upstream has turned out to speak HTTP/1.1.
#[rstest]
#[case::named(Manner { names: Some(1), ..Manner::default() }, "", 1)]
#[case::unnamed(Manner::default(), "", 0)]
#[case::configured(Manner::default(), "pool_idle = \"0s\"\n", 1)]
#[tokio::test]
async fn named_keep_alive_holds_over_tls(
    #[case] manner: Manner,
    #[case] keys: &str,
    #[case] connections_per_call: usize,
) {
    let server = Server::start(manner).await;
    let front = TlsFront::start(server.port).await;
    let url = format!("https://localhost:{}/mcp", front.port);
    let keys = format!("era = \"legacy\"\n{keys}ca_file = {:?}", front.ca_file());
    let gw = Setup::open().url("up", &url, &keys).start().await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert_eq!(call(&user, "warm").await, Ok(()));
    let before = server.opened();
    for round in 0..5 {
        assert_eq!(call(&user, &format!("{round}")).await, Ok(()));
    }
    assert_eq!(server.opened() - before, 5 * connections_per_call);
    gw.stop().await;
}
