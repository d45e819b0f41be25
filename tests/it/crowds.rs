//! Few connection permits, and clients that want all of them.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::http::initialize;
use crate::harness::{Actor, Gateway, Session, Setup, eventually, within};
use crate::modern::Modern;

/// A connection that is spoken to in bytes.
struct Raw(TcpStream);

impl Raw {
    async fn connect(gw: &Gateway) -> Self {
        let address = gw.url.strip_prefix("http://").unwrap();
        Self(TcpStream::connect(address).await.unwrap())
    }

    /// Sends a request without a body and gives the status of its answer; nothing where the connection
    /// is closed first.
    async fn send(&mut self, line: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let mut head = format!("{line} HTTP/1.1\r\nhost: localhost\r\n");
        for (name, value) in headers {
            head.push_str(&[name, ": ", value, "\r\n"].concat());
        }
        head.push_str("\r\n");
        self.0.write_all(head.as_bytes()).await.ok()?;
        let mut answer = String::new();
        while !answer.ends_with("\r\n\r\n") {
            answer.push(char::from(self.byte().await?));
        }
        // A response without a length is not read to its end.
        let length = answer.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.lines().next()?.parse().ok());
        for _ in 0..length.unwrap_or(0) {
            self.byte().await?;
        }
        answer[9..12].parse().ok()
    }

    async fn byte(&mut self) -> Option<u8> {
        within("an answer", self.0.read_u8()).await.ok()
    }

    /// A GET stream of this session; the status of its answer.
    async fn listen(&mut self, session: &Session) -> Option<u16> {
        let token = format!("Bearer {}", session.actor.token().unwrap());
        let headers = [
            ("authorization", token.as_str()),
            ("accept", "text/event-stream"),
            ("mcp-session-id", session.id.as_str()),
        ];
        self.send("GET /mcp/stub", &headers).await
    }

    /// Waits until the gateway closes it.
    async fn closed(&mut self) {
        let mut rest = Vec::new();
        // A reset is an end as well.
        drop(within("its end", self.0.read_to_end(&mut rest)).await);
    }
}

async fn evicted(gw: &Gateway, reason: &str) -> f64 {
    let labels = format!("reason=\"{reason}\"");
    gw.metric("drawbridge_connections_evicted_total", &labels)
        .await
}

/// Fails unless a new session of this caller is served, call included.
async fn is_served(gw: &Gateway, name: &str) {
    let user = gw.principal(name).open("/mcp/stub").await;
    assert_eq!(user.text("echo", json!({})).await, "{}");
}

#[tokio::test]
async fn connections_without_a_token_do_not_keep_a_caller_out() {
    let gw = Setup::secured()
        .server("max_connections = 60\nidle_timeout = \"10m\"\nrefused_idle_timeout = \"10m\"")
        .stub("stub", &[])
        .start()
        .await;
    let mut held = Vec::new();
    for _ in 0..60 {
        let mut raw = Raw::connect(&gw).await;
        assert_eq!(raw.send("GET /mcp/stub", &[]).await, Some(401));
        held.push(raw);
    }
    is_served(&gw, "alice").await;
    // The oldest connections were evicted: all have the same address.
    held[0].closed().await;
    assert!(evicted(&gw, "address").await >= 1.0);
    let warned = |record: &Value| record.to_string().contains("make room");
    assert!(gw.log_records().iter().any(warned));
    gw.stop().await;
}

#[tokio::test]
async fn streams_of_one_caller_do_not_keep_another_out() {
    let gw = Setup::secured()
        .server("max_connections = 60\nidle_timeout = \"10m\"")
        .toml("[limits]\nstreams_per_session = 100")
        .stub("stub", &[])
        .start()
        .await;
    let mallory = gw.principal("mallory").open("/mcp/stub").await;
    let mut held = Vec::new();
    let mut statuses = Vec::new();
    for _ in 0..60 {
        let mut raw = Raw::connect(&gw).await;
        statuses.extend(raw.listen(&mallory).await);
        held.push(raw);
    }
    let count = |status: u16| statuses.iter().filter(|one| **one == status).count();
    assert_eq!((count(200), count(429)), (15, 45), "{statuses:?}");
    is_served(&gw, "alice").await;
    let refused = gw.metric("drawbridge_exchanges_refused_total", "").await;
    assert_eq!(refused.to_string(), "45");
    assert!(evicted(&gw, "share").await >= 1.0);
    gw.stop().await;
}

// Spec: SPEC T-17.
#[tokio::test]
async fn over_its_share_a_caller_alone_is_refused_and_its_answers_are_taken() {
    let gw = Setup::secured()
        .server("exchanges_per_principal = 2\n[server.sse]\nenabled = true")
        .stub("stub", &[])
        .start()
        .await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let mut held = [Raw::connect(&gw).await, Raw::connect(&gw).await];
    for raw in &mut held {
        assert_eq!(raw.listen(&alice).await, Some(200));
    }
    // A request of a live session is refused by name, whatever it came with.
    let refused = alice.request("tools/list", json!({})).await.unwrap_err();
    assert!(
        refused["data"]["retryAfterMs"].as_u64() > Some(0),
        "{refused}"
    );
    assert!(alice.request("ping", json!({})).await.is_ok());
    // A message without an id is accepted.
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
    assert_eq!(alice.post(&changed).await.status(), StatusCode::ACCEPTED);
    let answer = json!({"jsonrpc": "2.0", "id": 7, "result": {}});
    assert_eq!(alice.post(&answer).await.status(), StatusCode::ACCEPTED);
    // Everything else by its status.
    let hello = initialize(1, "2025-11-25", &json!({}));
    let second = alice.actor.post("/mcp/stub", &[], &hello).await;
    assert_eq!(second.status(), 429);
    assert!(second.header("retry-after").is_some());
    for path in ["/mcp/stub", "/sse/stub"] {
        let stream = alice.actor.get(path, &alice.headers()).await;
        assert_eq!(stream.status(), 429, "{path}");
        assert!(stream.header("retry-after").is_some());
    }
    let modern = Modern::with(alice.actor.clone(), "/mcp/stub", json!({}));
    let refused = modern.send("tools/list", json!({})).await.unwrap_err();
    assert!(
        refused["message"].as_str().unwrap().contains("too many"),
        "{refused}"
    );
    is_served(&gw, "bob").await;
    drop(held);
    eventually("a stream that is over counts no more", async || {
        alice.request("tools/list", json!({})).await.ok().map(drop)
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC T-33.
#[tokio::test]
async fn over_its_share_each_request_of_an_array_is_refused_by_name() {
    let gw = Setup::secured()
        .server("exchanges_per_principal = 1")
        .stub("stub", &[])
        .start()
        .await;
    let alice = gw.principal("alice");
    let alice = alice.open_as("/mcp/stub", "2025-03-26", json!({})).await;
    let mut held = Raw::connect(&gw).await;
    assert_eq!(held.listen(&alice).await, Some(200));
    let array = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
        {"jsonrpc": "2.0", "id": 2, "method": "prompts/list"},
    ]);
    let replies = alice.post(&array).await.expect(StatusCode::OK).await;
    let replies = replies.json().await;
    let replies = replies.as_array().unwrap();
    assert_eq!(replies.len(), 2);
    for reply in replies {
        assert!(
            reply["error"]["data"]["retryAfterMs"].as_u64() > Some(0),
            "{reply}"
        );
    }
    gw.stop().await;
}

#[tokio::test]
async fn refused_connection_is_closed_early_unless_a_good_token_follows() {
    let gw = Setup::secured()
        .server("refused_idle_timeout = \"300ms\"")
        .stub("stub", &[])
        .start()
        .await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let mut known = Raw::connect(&gw).await;
    let authorization = format!("Bearer {}", alice.actor.token().unwrap());
    let delete = [("authorization", authorization.as_str())];
    assert_eq!(known.send("DELETE /mcp/stub", &delete).await, Some(400));
    let mut stranger = Raw::connect(&gw).await;
    assert_eq!(stranger.send("GET /mcp/stub", &[]).await, Some(401));
    stranger.closed().await;
    // The known client keeps the usual idle timeout: 75 s.
    assert_eq!(known.send("DELETE /mcp/stub", &delete).await, Some(400));
    gw.stop().await;
}

#[tokio::test]
async fn address_of_three_callers_is_taken_for_a_proxy_and_said_once() {
    let gw = Setup::secured()
        .server("max_connections = 40\nconnections_per_address = 1")
        .stub("stub", &[])
        .start()
        .await;
    let users = ["alice", "bob", "carol", "dave"].map(|name| gw.principal(name));
    let mut sessions = Vec::new();
    for user in users {
        sessions.push(user.open("/mcp/stub").await);
    }
    let warnings = || {
        let mut records = gw.log_records();
        records.retain(|record| record.to_string().contains("server.trusted_proxies"));
        records
    };
    let warning = eventually("it is said", async || warnings().pop()).await;
    assert_eq!(warning["level"], "WARN");
    assert!(warning.to_string().contains("127.0.0.1"), "{warning}");
    let mut held = Vec::new();
    for _ in 0..34 {
        held.push(Raw::connect(&gw).await);
    }
    is_served(&gw, "alice").await;
    assert!(evicted(&gw, "address").await < 0.5);
    assert_eq!(warnings().len(), 1);
    gw.stop().await;
}

// Issue: "endpoints without auth, where all callers are one anonymous principal".
#[tokio::test]
async fn without_authentication_nobody_has_a_share() {
    let gw = Setup::open()
        .server("max_connections = 60\nexchanges_per_principal = 1\nsse_after = \"20ms\"\ndrain = \"1s\"")
        .stub("stub", &[])
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(user.start_call("never", json!({})).await);
    }
    assert_eq!(user.text("echo", json!({})).await, "{}");
    drop(held);
    gw.stop().await;
}

// The places of the admin port are few.
#[tokio::test]
async fn silent_connections_do_not_keep_probes_out() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let admin = gw.admin_address().to_owned();
    let mut held = Vec::new();
    for _ in 0..80 {
        held.push(TcpStream::connect(&admin).await.unwrap());
    }
    let live = gw.admin_text("/live").await.map(|(status, _)| status);
    assert_eq!(live, Some(200));
    drop(held);
    gw.stop().await;
}

#[tokio::test]
async fn admin_port_answers_to_its_own_names_alone() {
    let gw = Setup::open()
        .admin("allowed_hosts = [\"gateway.internal\"]")
        .stub("stub", &[])
        .start()
        .await;
    let actor = Actor::new(&format!("http://{}", gw.admin_address()), None);
    let status = async |host: &str| {
        let headers = [("host", host)];
        let answer = actor.send(Method::GET, "/metrics", &headers, "").await;
        answer.status()
    };
    for host in [
        "localhost",
        "127.0.0.1:9090",
        "[::1]:9090",
        "10.1.2.3:9090",
        "gateway.internal",
    ] {
        assert_eq!(status(host).await, 200, "{host}");
    }
    for host in [
        "evil.example",
        "127.0.0.1.evil.example",
        "gateway.internal.evil.example",
    ] {
        assert_eq!(status(host).await, 421, "{host}");
    }
    gw.stop().await;
}
