//! Connections that fail before their first request: a line for the operator, and a count.

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::harness::{Gateway, Setup, eventually};

/// A gateway that ends TLS itself; the directory holds its certificate.
async fn over_tls() -> (Gateway, tempfile::TempDir) {
    let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("cert.pem"), issued.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), issued.signing_key.serialize_pem()).unwrap();
    let tls = format!(
        "[server.tls]\ncert = \"{}\"\nkey = \"{}\"",
        path("cert.pem").display(),
        path("key.pem").display()
    );
    let gw = Setup::open().server(&tls).stub("stub", &[]).start().await;
    (gw, directory)
}

/// The lines about failed connections.
fn lines(gw: &Gateway) -> Vec<Value> {
    let records = gw.log_records().into_iter();
    records
        .filter(|line| line["message"] == "client connection failed")
        .collect()
}

// `increase` in an alert sees a failure only where the series was there before it.
#[tokio::test]
async fn count_of_failed_handshakes_begins_at_0() {
    let (gw, _directory) = over_tls().await;
    let (_, metrics) = gw.admin_text("/metrics").await.unwrap();
    let begins = metrics.lines().any(|line| {
        line.starts_with("drawbridge_connections_failed_total{")
            && line.contains("\"tls_handshake\"")
            && line.ends_with(" 0")
    });
    assert!(begins, "{metrics}");
    gw.stop().await;
}

#[tokio::test]
async fn failed_handshake_has_a_line_and_a_count() {
    let (gw, _directory) = over_tls().await;
    let address = gw.url.strip_prefix("https://").unwrap();
    let counted = async |reason: &str, count: u32| {
        eventually(reason, async || {
            let now = gw
                .metric("drawbridge_connections_failed_total", reason)
                .await;
            ((now - f64::from(count)).abs() < 0.1).then_some(())
        })
        .await;
    };
    // As probes of load balancers do: counted, not logged.
    drop(TcpStream::connect(address).await.unwrap());
    counted("tls_closed", 1).await;
    for count in 1..=3 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        counted("tls_handshake", count).await;
    }
    let lines = eventually("a line", async || {
        let lines = lines(&gw);
        (!lines.is_empty()).then_some(lines)
    })
    .await;
    assert_eq!(lines.len(), 1, "one in a minute: {lines:?}");
    assert_eq!(lines[0]["reason"], "tls_handshake");
    assert_eq!(lines[0]["level"], "WARN");
    let text = |name: &str| lines[0][name].as_str().unwrap_or_default();
    assert!(text("peer").starts_with("127.0.0.1:"), "{lines:?}");
    assert!(!text("error").is_empty(), "{lines:?}");
    assert!(text("remedy").contains("https://"), "{lines:?}");
    gw.stop().await;
}

#[tokio::test]
async fn client_with_tls_at_a_plain_port_has_a_remedy() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let address = gw.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The beginning of a ClientHello. Spec: RFC 8446 §5.1
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    stream.write_all(&hello).await.unwrap();
    let lines = eventually("a line", async || {
        let lines = lines(&gw);
        (!lines.is_empty()).then_some(lines)
    })
    .await;
    assert_eq!(lines[0]["reason"], "bad_head");
    let remedy = lines[0]["remedy"].as_str().unwrap_or_default();
    assert!(remedy.contains("server.tls"), "{lines:?}");
    gw.stop().await;
}
