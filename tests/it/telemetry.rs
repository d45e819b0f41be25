//! Telemetry for operators: metrics, traces, logs, and no secrets in them. Spec: DESIGN §10.

mod strangers;

use std::sync::{Arc, Mutex};

use std::collections::{BTreeMap, BTreeSet};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Setup, eventually, within};
use crate::modern::Modern;

/// Takes OTLP over HTTP and keeps the bodies, by signal.
#[derive(Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<Vec<(String, Bytes)>>>);

impl Collector {
    pub(crate) async fn start() -> (Self, String) {
        let collector = Self::default();
        let take =
            async |State(collector): State<Self>, Path(signal): Path<String>, body: Bytes| {
                collector.0.lock().unwrap().push((signal, body));
            };
        let router = Router::new()
            .route("/v1/{signal}", post(take))
            .with_state(collector.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, router).into_future());
        (collector, url)
    }

    /// Whether any body of this signal contains the text (names are plain bytes in protobuf).
    pub(crate) fn has(&self, signal: &str, text: &str) -> bool {
        let bodies = self.0.lock().unwrap();
        bodies
            .iter()
            .filter(|(name, _)| name == signal)
            .any(|(_, body)| {
                body.windows(text.len())
                    .any(|window| window == text.as_bytes())
            })
    }

    /// Every span so far.
    pub(crate) fn recorded_spans(&self) -> Vec<Span> {
        let bodies = self.0.lock().unwrap();
        let traces = bodies.iter().filter(|(signal, _)| signal == "traces");
        let requests = traces.map(|(_, body)| ExportTraceServiceRequest::decode(body.clone()));
        let resources = requests.flat_map(|request| request.unwrap().resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// Attributes of the log records of this scope, and the trace that each belongs to; numbers as
    /// text.
    fn records(&self, scope: &str) -> Vec<BTreeMap<String, String>> {
        let bodies = self.0.lock().unwrap();
        let mut records = Vec::new();
        for (_, body) in bodies.iter().filter(|(signal, _)| signal == "logs") {
            let request = ExportLogsServiceRequest::decode(body.clone()).unwrap();
            let scopes = request.resource_logs.into_iter().flat_map(|r| r.scope_logs);
            let of_scope = scopes.filter(|s| s.scope.as_ref().is_some_and(|s| s.name == scope));
            for record in of_scope.flat_map(|scope| scope.log_records) {
                let trace: [u8; 16] = record.trace_id.try_into().unwrap_or_default();
                let trace = format!("{:032x}", u128::from_be_bytes(trace));
                let attributes = record.attributes.into_iter().map(|attribute| {
                    let value = match attribute.value.and_then(|value| value.value) {
                        Some(AnyValue::StringValue(text)) => text,
                        Some(AnyValue::IntValue(number)) => number.to_string(),
                        other => panic!("{other:?}"),
                    };
                    (attribute.key, value)
                });
                let mut all: BTreeMap<_, _> = attributes.collect();
                all.insert("(trace of the record)".to_owned(), trace);
                records.push(all);
            }
        }
        records
    }
}

#[tokio::test]
async fn access_lines_and_audit_lines_of_every_outcome_reach_a_collector_as_log_records() {
    let (collector, url) = Collector::start().await;
    let setup = Setup::secured().toml(&format!(
        "[telemetry]\notlp_endpoint = {url:?}\n\
         [[auth.tool_scopes]]\ntools = [\"state_*\"]\nscopes = [\"mcp:admin\"]"
    ));
    let gw = setup.stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    alice.text("echo", json!({"text": "private words"})).await;
    let failed = alice.call("fail", json!({"code": -32000})).await;
    failed.expect_err("a JSON-RPC error");
    let lost = alice.call("crash", json!({})).await;
    assert_eq!(lost.expect("a tool error")["isError"], true);
    let call = json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call",
                      "params": {"name": "state_get", "arguments": {"key": "k"}}});
    assert_eq!(alice.post(&call).await.status(), 403);
    gw.stop().await;
    // Stopping flushes.
    eventually("audit lines of every outcome", async || {
        let records = collector.records("audit");
        let outcomes: BTreeSet<_> = records.iter().map(|r| r["outcome"].as_str()).collect();
        let every = BTreeSet::from(["denied", "error", "failed", "ok"]);
        outcomes.is_superset(&every).then_some(())
    })
    .await;
    let audit = collector.records("audit");
    let echo: Vec<_> = audit
        .iter()
        .filter(|r| r.get("name").is_some_and(|name| name == "echo"))
        .collect();
    assert_eq!(echo.len(), 1, "{audit:#?}");
    assert_eq!(
        (&*echo[0]["subject"], &*echo[0]["upstream"]),
        ("alice", "stub")
    );
    // Backends find the lines of a trace by the trace of the record, not by an attribute.
    assert_eq!(echo[0]["trace_id"], echo[0]["(trace of the record)"]);
    let access = collector.records("access");
    let calls: Vec<_> = access
        .iter()
        .filter(|r| r.get("rpc_method").is_some_and(|m| m == "tools/call"))
        .map(|r| (r["name"].as_str(), r["status"].as_str()))
        .collect();
    let expected = [
        ("echo", "200"),
        ("fail", "200"),
        ("crash", "200"),
        ("state_get", "403"),
    ];
    assert_eq!(calls, expected, "{access:#?}");
    for secret in [alice.actor.token().unwrap(), &alice.id, "private words"] {
        assert!(!collector.has("logs", secret), "{secret} in a log record");
    }
}

#[tokio::test]
async fn lines_of_failures_alone_are_exported_where_not_every_request_is() {
    let (collector, url) = Collector::start().await;
    let setup = Setup::secured().toml(&format!(
        "[telemetry]\notlp_endpoint = {url:?}\notlp_every_request = false"
    ));
    let gw = setup.stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    alice.text("echo", json!({})).await;
    let lost = alice.call("crash", json!({})).await;
    assert_eq!(lost.expect("a tool error")["isError"], true);
    gw.stop().await;
    // Stopping flushes.
    let failed = eventually("the audit line of the failure", async || {
        let records = collector.records("audit");
        (!records.is_empty()).then_some(records)
    })
    .await;
    assert_eq!(failed.len(), 1, "{failed:#?}");
    assert_eq!(failed[0]["outcome"], "failed", "{failed:#?}");
}

#[tokio::test]
async fn traces_metrics_and_logs_reach_a_collector() {
    let (collector, url) = Collector::start().await;
    let telemetry = format!(
        "[telemetry]\notlp_endpoint = {url:?}\nsample_ratio = 1.0\nservice_name = \"bridge-test\""
    );
    let gw = Setup::secured()
        .toml(&telemetry)
        .stub("stub", &[])
        .start()
        .await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    alice.text("echo", json!({"text": "hi"})).await;
    gw.stop().await;
    // Stopping flushes.
    eventually("all three signals", async || {
        let has_traces = collector.has("traces", "tools/call echo");
        let has_metrics = collector.has("metrics", "mcp.server.operation.duration");
        (has_traces && has_metrics && collector.has("traces", "bridge-test")).then_some(())
    })
    .await;
    for attribute in [
        "mcp.method.name",
        "gen_ai.tool.name",
        "mcp.protocol.version",
        "network.transport",
    ] {
        assert!(collector.has("traces", attribute), "{attribute}");
    }
    assert!(
        !collector.has("traces", &alice.id),
        "the session id is a secret"
    );
    assert!(!collector.has("traces", alice.actor.token().unwrap()));
}

// A dead collector must not flood the log.
#[tokio::test]
async fn a_collector_that_takes_nothing_is_one_line_for_each_signal() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let telemetry = format!("[telemetry]\notlp_endpoint = {url:?}\nsample_ratio = 1.0");
    let setup = Setup::open().toml(&telemetry).stub("stub", &[]);
    let mut gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    for _ in 0..4 {
        // Each call yields new data to export.
        user.text("echo", json!({"text": "hi"})).await;
        drop(within("an export", listener.accept()).await.unwrap());
    }
    drop(listener);
    gw.signal(Signal::TERM);
    assert_eq!(gw.exit().await, Some(0));
    let said = |text: &str| gw.log().iter().filter(|line| line.contains(text)).count();
    eventually("a line for each signal", async || {
        (said("the collector does not take") == 3).then_some(())
    })
    .await;
    assert_eq!(
        said("ExportError") + said("Export.Failed"),
        0,
        "{:#?}",
        gw.log()
    );
}

// Spec: SPEC C-98.
#[tokio::test]
async fn the_callers_trace_goes_on_upstream() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let meta = json!({"traceparent": parent, "example.com/own": {"kept": [1, 2]}});
    let params = json!({"name": "seen_meta", "arguments": {}, "_meta": meta});
    let result = user.request("tools/call", params).await.expect("a result");
    let seen: Value = serde_json::from_str(text_of(&result)).unwrap();
    let passed = seen["traceparent"].as_str().unwrap();
    assert!(passed.contains(trace), "{passed}");
    assert_ne!(passed, parent, "a span of ours is between");
    assert_eq!(seen["example.com/own"], json!({"kept": [1, 2]}));
    let message = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call",
                         "params": {"name": "seen_meta", "arguments": {}}});
    let mut headers = user.headers();
    headers.push(("traceparent", &parent));
    let reply = gw
        .anonymous()
        .post("/mcp/stub", &headers, &message)
        .await
        .json()
        .await;
    assert!(text_of(&reply["result"]).contains(trace), "{reply}");
    gw.stop().await;
}

// Spec: SPEC C-98.
#[tokio::test]
async fn baggage_and_what_is_no_trace_context_do_not_reach_a_legacy_upstream() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open()
        .stub("piped", &[])
        .http("posted", &stub, "")
        .start()
        .await;
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for upstream in ["piped", "posted"] {
        let user = gw.anonymous().open(&format!("/mcp/{upstream}")).await;
        for (parent, state) in [
            (Value::Null, "a=1"),
            (json!("00-x"), "a=1"),
            (json!(good), "a"),
        ] {
            let meta = json!({"baggage": "secret=1", "traceparent": parent, "tracestate": state,
                              "vendor.example/x": 1});
            let params = json!({"name": "seen_meta", "arguments": {}, "_meta": meta});
            let result = user.request("tools/call", params).await.unwrap();
            let seen: Value = serde_json::from_str(text_of(&result)).unwrap();
            assert_eq!(seen["baggage"], Value::Null, "{upstream}: {seen}");
            assert_eq!(seen["tracestate"], Value::Null, "{upstream}: {seen}");
            assert_eq!(seen["vendor.example/x"], 1, "{upstream}: {seen}");
        }
    }
    gw.stop().await;
}

#[tokio::test]
async fn metrics_have_names_and_no_secrets() {
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    alice.text("echo", json!({})).await;
    let stream = alice.listen().await;
    let (status, text) = gw.admin_text("/metrics").await.unwrap();
    assert_eq!(status, 200);
    for name in [
        "mcp_server_operation_duration",
        "drawbridge_sessions_open",
        "drawbridge_children",
    ] {
        assert!(text.contains(name), "{name} in\n{text}");
    }
    assert!((gw.metric("drawbridge_sessions_open", "").await - 1.0).abs() < 0.1);
    for secret in [alice.actor.token().unwrap(), &alice.id, "alice"] {
        assert!(!text.contains(secret), "{secret} in\n{text}");
    }
    drop(stream);
    gw.stop().await;
}

// A scraper that counts itself as a client sees the cap come near that it has no share in.
#[tokio::test]
async fn who_asks_for_the_metrics_is_no_client() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let open = gw.metric("drawbridge_connections_open", "").await;
    assert!(open < 0.5, "{open}");
    let user = gw.anonymous().open("/mcp/stub").await;
    let _stream = user.listen().await;
    let open = gw.metric("drawbridge_connections_open", "").await;
    assert!(open > 0.5, "{open}");
    gw.stop().await;
}

// The metric behind the alert DrawbridgeUpstreamLost.
#[tokio::test]
async fn a_child_that_crashes_counts_as_lost_and_one_that_we_stop_does_not() {
    let setup = Setup::open().toml("[stdio]\nidle = \"300ms\"");
    let gw = setup.stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let lost = async || gw.metric("drawbridge_upstream_lost_total", "stub").await;
    for crashes in [1.0, 2.0] {
        let crash = user.call("crash", json!({})).await.expect("a tool error");
        assert_eq!(crash["isError"], true);
        assert!((lost().await - crashes).abs() < 0.1, "{}", lost().await);
    }
    user.text("echo", json!({"text": "here again"})).await;
    eventually("the child is stopped as idle", async || {
        let running = gw.metric("drawbridge_children_running", "").await;
        (running < 0.5).then_some(())
    })
    .await;
    assert!((lost().await - 2.0).abs() < 0.1, "{}", lost().await);
    gw.stop().await;
}

#[tokio::test]
async fn one_structured_line_per_request_and_no_secrets() {
    let keys = "env = { API_KEY = \"hunter2-secret\" }";
    let gw = Setup::secured().stub_with("stub", &[], keys).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    alice.text("echo", json!({"text": "private words"})).await;
    gw.bearer("wrong-token-value")
        .post("/mcp/stub", &[], &json!({}))
        .await;
    let is_call =
        |record: &Value| record["target"] == "access" && record.to_string().contains("tools/call");
    let records = eventually("the access lines of both", async || {
        let records = gw.log_records();
        let is_refused = |record: &Value| record["status"] == 401;
        (records.iter().any(is_refused) && records.iter().any(is_call)).then_some(records)
    })
    .await;
    let calls = records.iter().filter(|record| is_call(record)).count();
    assert_eq!(calls, 1, "{records:#?}");
    let all = gw.log().join("\n");
    for secret in [
        alice.actor.token().unwrap(),
        alice.id.as_str(),
        "hunter2-secret",
        "private words",
        "wrong-token-value",
    ] {
        assert!(!all.contains(secret), "{secret} in the log");
    }
    gw.stop().await;
}

// A merged endpoint: the path does not tell it.
#[tokio::test]
async fn the_access_line_names_the_upstream_that_answered() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open()
        .stub("left", &[])
        .http("right", &stub, "")
        .start()
        .await;
    let user = gw.anonymous().open("/mcp").await;
    user.text("right__echo", json!({"text": "a"})).await;
    user.text("left__echo", json!({"text": "b"})).await;
    let lines = eventually("the access lines of both", async || {
        let mut records = gw.log_records();
        records.retain(|r| r["target"] == "access" && r["rpc_method"] == "tools/call");
        (records.len() == 2).then_some(records)
    })
    .await;
    let named: Vec<_> = lines.iter().map(|r| (&r["name"], &r["upstream"])).collect();
    let expected = [
        (&json!("right__echo"), &json!("right")),
        (&json!("left__echo"), &json!("left")),
    ];
    assert_eq!(named, expected);
    gw.stop().await;
}

// Modern clients know no session; the implicit session that the gateway keeps is counted separately.
#[tokio::test]
async fn sessions_kept_for_modern_clients_are_counted_apart() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let modern = Modern::new(gw.anonymous(), "/mcp/stub");
    let reply = modern.call("echo", json!({"text": "a"})).await;
    reply.expect("a result");
    let _legacy = gw.anonymous().open("/mcp/stub").await;
    for name in [
        "drawbridge_implicit_sessions_open",
        "drawbridge_sessions_open",
    ] {
        let open = gw.metric(name, "").await;
        assert!((open - 1.0).abs() < 0.1, "{name}: {open}");
    }
    gw.stop().await;
}

#[tokio::test]
async fn probes_answer_on_the_admin_port_only() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    for path in ["/live", "/ready"] {
        assert_eq!(gw.admin_text(path).await.unwrap().0, 200, "{path}");
        assert_eq!(
            gw.anonymous()
                .get(path, &[("accept", "*/*")])
                .await
                .status(),
            404,
            "{path}"
        );
    }
    assert_eq!(
        gw.anonymous()
            .get("/metrics", &[("accept", "*/*")])
            .await
            .status(),
        404
    );
    gw.stop().await;
}
