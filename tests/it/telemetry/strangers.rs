//! Abuse of telemetry that callers must not achieve: endless traces, secrets and long texts in spans, lost audit lines.

use futures_util::future::join_all;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::Collector;
use crate::harness::process::resident;
use crate::harness::session::Session;
use crate::harness::{Gateway, Setup, eventually};

/// A `traceparent` whose flag asks for a record.
const ASKS: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

impl Collector {
    /// The names of the spans of this kind.
    fn spans(&self, kind: SpanKind) -> Vec<String> {
        let spans = self.recorded_spans().into_iter();
        spans
            .filter(|span| span.kind == kind as i32)
            .map(|span| span.name)
            .collect()
    }
}

/// A gateway that sends spans to the collector at `url`, and a caller that it does not know. `more` follows the table
/// `[telemetry]`.
async fn stranger(url: &str, more: &str) -> (Gateway, Session) {
    let telemetry = format!("[telemetry]\notlp_endpoint = {url:?}\nsample_ratio = 0.0\n{more}");
    let setup = Setup::open().toml(&telemetry).stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    (gw, user)
}

/// Makes `count` calls that ask for a record of their trace.
async fn call_traced(user: &Session, count: usize) {
    for _ in 0..count {
        let params = json!({"name": "seen_meta", "arguments": {}, "_meta": {"traceparent": ASKS}});
        user.request("tools/call", params).await.expect("a result");
    }
}

async fn read(user: &Session, uri: &str) {
    let params = json!({"uri": uri, "_meta": {"traceparent": ASKS}});
    drop(user.request("resources/read", params).await);
}

// SPEC C-98, C-99
#[tokio::test]
async fn a_stranger_has_few_traces_recorded() {
    let (collector, url) = Collector::start().await;
    let more = "caller_traces = \"20/h\"\n[limits]\nrate = \"1000/s\"";
    let (gw, user) = stranger(&url, more).await;
    call_traced(&user, 100).await;
    gw.stop().await;
    // Stopping flushes.
    eventually("the traces", async || {
        (collector.spans(SpanKind::Server).len() == 20).then_some(())
    })
    .await;
    assert_eq!(collector.spans(SpanKind::Client).len(), 20);
}

// SPEC C-98, C-99
#[tokio::test]
async fn strangers_traces_are_few_by_default() {
    let (collector, url) = Collector::start().await;
    let (gw, user) = stranger(&url, "").await;
    call_traced(&user, 300).await;
    gw.stop().await;
    let recorded = eventually("some traces", async || {
        let recorded = collector.spans(SpanKind::Server).len();
        (recorded > 0).then_some(recorded)
    })
    .await;
    assert!(recorded <= 150, "{recorded}");
}

// SPEC C-22, C-99
#[tokio::test]
async fn a_span_shows_no_secret_of_a_uri() {
    let (collector, url) = Collector::start().await;
    let (gw, user) = stranger(&url, "").await;
    read(
        &user,
        "https://files.example/x?token=5ECRET0001&sig=5ECRET0002",
    )
    .await;
    read(
        &user,
        "https://s3.example/x?X-Amz-Signature=5ECRET0003&key=5ECRET0004",
    )
    .await;
    gw.stop().await;
    eventually("the traces", async || {
        (collector.spans(SpanKind::Server).len() == 2).then_some(())
    })
    .await;
    assert!(collector.has("traces", "https://files.example/x?token=[redacted]"));
    assert!(!collector.has("traces", "5ECRET") && !collector.has("logs", "5ECRET"));
}

// SPEC C-99
#[tokio::test]
async fn large_uris_are_not_kept_for_a_slow_collector() {
    // A collector that accepts connections and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (gw, user) = stranger(&url, "caller_traces = \"1000/s\"").await;
    let uri = format!("memo:{}", "x".repeat(4 * 1024 * 1024 - 1024));
    let before = resident(gw.pid());
    for _ in 0..40 {
        read(&user, &uri).await;
    }
    let kept = resident(gw.pid()).saturating_sub(before);
    assert!(kept <= 96 * 1024 * 1024, "{kept} bytes");
    gw.kill().await;
}

// SPEC O-04
#[tokio::test]
async fn audit_lines_and_counted_losses_are_all_calls() {
    const ROUNDS: i64 = 80;
    const CALLS: i64 = 50;
    let gw = Setup::open()
        .toml("[limits]\nrate = \"100000/s\"")
        .stub("stub", &[])
        .start()
        .await;
    let user = gw.anonymous();
    let user = user.open_as("/mcp/stub", "2025-03-26", json!({})).await;
    gw.hold_output(true);
    // A name that the audit line cuts at 256 bytes: 4,000 lines are more than one buffer of 1 MiB.
    let name = "n".repeat(1000);
    for round in 0..ROUNDS {
        let call = |n| {
            json!({"jsonrpc": "2.0", "id": round * CALLS + n, "method": "tools/call",
                   "params": {"name": name, "arguments": {}}})
        };
        let array = Value::Array((0..CALLS).map(call).collect());
        // An array or a stream, as long as it took.
        user.post(&array).await.text().await;
        // Refused requests, whose lines fill the log buffer.
        let refused = (0..50).map(|_| user.actor.get(&user.path, &[]));
        join_all(refused).await;
    }
    gw.hold_output(false);
    let all = f64::from(u32::try_from(ROUNDS * CALLS).unwrap());
    eventually("a line or a count for each call", async || {
        let lines = gw.log();
        let is_audit = |line: &&String| line.contains("\"target\":\"audit\"");
        let lines = u32::try_from(lines.iter().filter(is_audit).count()).unwrap();
        let lost = gw.metric("drawbridge_audit_dropped_total", "").await;
        ((f64::from(lines) + lost - all).abs() < 0.5).then_some(())
    })
    .await;
    gw.stop().await;
}
