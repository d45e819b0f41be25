//! Pages and rebinding: `Origin`, `Host`, CORS. Spec: SPEC T-02 to T-04, T-18; DESIGN §4.

use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::http::initialize;
use crate::harness::{Gateway, Setup};

async fn gateway() -> Gateway {
    let setup = Setup::secured().server("allowed_origins = [\"https://app.example\"]");
    setup.stub("stub", &[]).start().await
}

#[tokio::test]
async fn a_foreign_origin_is_403_on_every_method() {
    let gw = gateway().await;
    let alice = gw.principal("alice");
    let hello = initialize(1, "2025-11-25", &json!({})).to_string();
    for origin in [
        "https://evil.example",
        "null",
        "https://app.example.evil.example",
        "file://",
    ] {
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let headers = [("origin", origin)];
            let answer = alice
                .send(method.clone(), "/mcp/stub", &headers, hello.clone())
                .await;
            assert_eq!(answer.status(), 403, "{method} {origin}");
        }
    }
    for origin in [
        "https://app.example",
        gw.url.as_str(),
        "http://localhost:3000",
    ] {
        let answer = alice
            .post_raw("/mcp/stub", &[("origin", origin)], hello.clone())
            .await;
        assert_eq!(answer.status(), 200, "{origin}");
    }
    gw.stop().await;
}

#[tokio::test]
async fn a_foreign_host_is_421() {
    let gw = gateway().await;
    let alice = gw.principal("alice");
    let hello = initialize(1, "2025-11-25", &json!({}));
    for host in [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
    ] {
        let answer = alice.post("/mcp/stub", &[("host", host)], &hello).await;
        assert_eq!(answer.status(), 421, "{host}");
        let metadata = "/.well-known/oauth-protected-resource/mcp/stub";
        let headers = [("host", host), ("accept", "*/*")];
        assert_eq!(alice.get(metadata, &headers).await.status(), 421, "{host}");
    }
    for host in ["localhost", "127.0.0.1:1", "[::1]:9999"] {
        let answer = alice.post("/mcp/stub", &[("host", host)], &hello).await;
        assert_eq!(answer.status(), 200, "{host}");
    }
    gw.stop().await;
}

// Spec: RFC 9112 §3.2.
#[tokio::test]
async fn missing_and_repeated_hosts_are_400() {
    let gw = gateway().await;
    let address = gw.url.strip_prefix("http://").unwrap();
    let status = async |hosts: &str| {
        let head = format!("GET /mcp/stub HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        let mut tcp = TcpStream::connect(address).await.unwrap();
        tcp.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tcp.read_to_string(&mut answer).await.unwrap();
        let status = answer.strip_prefix("HTTP/1.1 ").unwrap();
        status.chars().take(3).collect::<String>()
    };
    let host = format!("host: {address}\r\n");
    for hosts in [
        String::new(),
        host.repeat(2),
        format!("{host}host: evil.example\r\n"),
        "host: localhost:a\r\n".to_owned(),
    ] {
        assert_eq!(status(&hosts).await, "400", "{hosts:?}");
    }
    assert_eq!(status(&host).await, "401");
    assert_eq!(status("host: evil.example\r\n").await, "421");
    gw.stop().await;
}

#[tokio::test]
async fn a_preflight_needs_no_token_and_allows_what_clients_send() {
    let gw = gateway().await;
    let asked = "authorization, content-type, mcp-session-id, mcp-protocol-version, \
                 last-event-id, mcp-method, mcp-name, mcp-param-region";
    let headers = [
        ("origin", "https://app.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", asked),
    ];
    let answer = gw
        .anonymous()
        .send(Method::OPTIONS, "/mcp/stub", &headers, "")
        .await;
    assert_eq!(answer.status(), 204);
    assert_eq!(
        answer.header("access-control-allow-origin"),
        Some("https://app.example")
    );
    let allowed = answer
        .header("access-control-allow-headers")
        .unwrap()
        .to_lowercase();
    for name in asked.split(", ").map(str::trim) {
        assert!(allowed.contains(name), "{name} in {allowed}");
    }
    let methods = answer.header("access-control-allow-methods").unwrap();
    for method in ["GET", "POST", "DELETE"] {
        assert!(methods.contains(method), "{methods}");
    }
    let foreign = [
        ("origin", "https://evil.example"),
        ("access-control-request-method", "POST"),
    ];
    let answer = gw
        .anonymous()
        .send(Method::OPTIONS, "/mcp/stub", &foreign, "")
        .await;
    assert_eq!(answer.header("access-control-allow-origin"), None);
    gw.stop().await;
}

// A page must be able to read why it was refused.
#[tokio::test]
async fn refusals_and_answers_can_be_read_by_an_allowed_page() {
    let gw = gateway().await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    let headers = [("origin", "https://app.example")];
    for (actor, status) in [(gw.anonymous(), 401), (gw.principal("alice"), 200)] {
        let answer = actor.post("/mcp/stub", &headers, &hello).await;
        assert_eq!(answer.status(), status);
        assert_eq!(
            answer.header("access-control-allow-origin"),
            Some("https://app.example")
        );
        let exposed = answer
            .header("access-control-expose-headers")
            .unwrap()
            .to_lowercase();
        assert!(exposed.contains("mcp-session-id") && exposed.contains("www-authenticate"));
    }
    let metadata = "/.well-known/oauth-protected-resource/mcp/stub";
    let headers = [("origin", "https://anybody.example"), ("accept", "*/*")];
    let answer = gw.anonymous().get(metadata, &headers).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    gw.stop().await;
}
