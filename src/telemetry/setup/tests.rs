//! What telemetry installs is for a whole process and for good, so that each test has its own.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc;

use super::*;
use crate::config::LogFormat;
use crate::protocol::{Message, Revision};
use crate::telemetry::metrics::{
    UpstreamLoad, forward_ended, grant_refresh_ended, redis_command_ended, token_request_ended,
};
use crate::telemetry::trace::{CallSpan, SpanOutcome, TraceContext};

fn settings(otlp_endpoint: Option<Url>) -> config::TelemetryConfig {
    config::TelemetryConfig {
        otlp_endpoint,
        otlp_every_request: true,
        sample_ratio: 1.0,
        caller_traces: config::RateConfig {
            count: 5,
            per: Duration::from_secs(1),
        },
        log_format: LogFormat::Json,
        log_level: config::LogLevels::default(),
        service_name: "drawbridge-test".to_owned(),
    }
}

/// Whether this is a process for the one test `name`. If not, the test runs in one of its own, this
/// program once more, and must succeed there.
fn is_own_process(name: &str) -> bool {
    const OWN: &str = "DRAWBRIDGE_TEST_IN_ITS_OWN_PROCESS";
    if std::env::var_os(OWN).is_some() {
        return true;
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    #[expect(clippy::disallowed_methods, reason = "it is no child of a gateway")]
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", &format!("{module}::{name}"), "--nocapture"]);
    let child = program.env(OWN, "1").output().unwrap();
    let [said, failed] = [&child.stdout, &child.stderr].map(|text| String::from_utf8_lossy(text));
    let has_passed = child.status.success() && said.contains("test result: ok. 1 passed");
    assert!(has_passed, "{}\n{said}\n{failed}", child.status);
    false
}

fn one_call() {
    let place: Arc<str> = "mcp".into();
    let mut span = CallSpan::server(&TraceContext::default(), "tools/call", &place);
    assert!(span.context().is_sampled());
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"}}"#;
    let call = Message::parse(call.into(), 128).unwrap();
    span.tool("search");
    span.request(&call, || "1".into(), Revision::V2025_11_25);
    span.finish(SpanOutcome::ToolError);
}

// SPEC C-99.
#[test]
fn the_metrics_page_shows_calls_and_counters() {
    if !is_own_process("the_metrics_page_shows_calls_and_counters") {
        return;
    }
    let guard = init(&settings(None)).unwrap();
    let place: Arc<str> = "mcp".into();
    let mut span = CallSpan::server(&TraceContext::default(), "tools/call", &place);
    span.tool("search");
    span.finish(SpanOutcome::Ok);
    for n in 0..50 {
        let mut unknown = CallSpan::server(&TraceContext::default(), "tools/call", &place);
        unknown.tool(&format!("random{n}"));
        unknown.finish(if n % 2 == 0 {
            SpanOutcome::ToolError
        } else {
            SpanOutcome::Rpc(-32602)
        });
        drop(CallSpan::server(
            &TraceContext::default(),
            &format!("made/up{n}"),
            &place,
        ));
    }
    COUNTERS.notices_dropped.add(3);
    LABELED.auth_refused.add("expired", 2);
    let refused = CallSpan::server(&TraceContext::default(), "prompts/get", &place);
    refused.finish(SpanOutcome::Refused("bad_request", -32602));
    let page = guard.metrics_page().render();
    let code = r#"error_type="bad_request",mcp_method_name="prompts/get",rpc_response_status_code="-32602""#;
    assert!(page.contains(code), "{page}");
    let has = |start: &str, end: &str| {
        page.lines()
            .any(|line| line.starts_with(start) && line.ends_with(end))
    };
    assert!(
        has("mcp_server_operation_duration_seconds_count{", "} 1"),
        "{page}"
    );
    assert!(page.contains("gen_ai_tool_name=\"search\""));
    assert!(has("drawbridge_notices_dropped_total", " 3"), "{page}");
    assert!(
        page.contains("drawbridge_auth_refused_total{drawbridge_reason=\"expired\"} 2"),
        "{page}"
    );
    assert!(!page.contains("made/up"), "invented methods make no series");
    let series = page
        .matches("mcp_server_operation_duration_seconds_count{")
        .count();
    assert_eq!(
        series, 5,
        "the tool, two errors of tools nobody knows, methods nobody knows, a prompt"
    );
    assert!(!page.contains("random"));
}

/// Takes OTLP requests and tells path and body.
fn collector() -> (Url, mpsc::Receiver<(String, Vec<u8>)>) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = Url::parse(&format!("http://{}/", socket.local_addr().unwrap())).unwrap();
    let (requests, seen) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in socket.incoming() {
            let requests = requests.clone();
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                while let Some(request) = read_request(&mut stream) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    drop(requests.send(request));
                    stream.write_all(answer).unwrap();
                }
            });
        }
    });
    (url, seen)
}

fn read_request(stream: &mut std::net::TcpStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head
        .lines()
        .find_map(|line| {
            line.to_ascii_lowercase()
                .strip_prefix("content-length:")
                .map(str::to_owned)
        })
        .map_or(0, |text| text.trim().parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    Some((head.split(' ').nth(1).unwrap().to_owned(), body))
}

fn contains(body: &[u8], text: &str) -> bool {
    body.windows(text.len())
        .any(|window| window == text.as_bytes())
}

// Inside a runtime, with the export threads outside of it.
#[tokio::test]
async fn all_three_signals_reach_the_collector_without_secrets() {
    if !is_own_process("all_three_signals_reach_the_collector_without_secrets") {
        return;
    }
    let (url, seen) = collector();
    let guard = init(&settings(Some(url))).unwrap();
    one_call();
    tracing::warn!(
        password = "hunter2",
        "upstream said Bearer abcdef0123456789"
    );
    tokio::task::spawn_blocking(move || drop(guard))
        .await
        .unwrap();
    let requests: Vec<_> = seen.try_iter().collect();
    let body = |path: &str| {
        let found = requests.iter().find(|(seen, _)| seen == path);
        &found.unwrap_or_else(|| panic!("nothing came to {path}")).1
    };
    assert!(contains(body("/v1/traces"), "tools/call search"));
    assert!(contains(body("/v1/traces"), "tool_error"));
    assert!(contains(
        body("/v1/metrics"),
        "mcp.server.operation.duration"
    ));
    assert!(contains(body("/v1/metrics"), "drawbridge.connections.open"));
    let logs = body("/v1/logs");
    assert!(contains(logs, "upstream said Bearer [redacted]"));
    assert!(!contains(logs, "hunter2") && !contains(logs, "abcdef0123456789"));
}

#[test]
fn certificates_are_read_for_a_proxy_that_is_reached_by_https() {
    let has = |set: &'static str, proxy: &'static str| {
        has_https_proxy(|name| (name == set).then(|| proxy.to_owned()))
    };
    assert!(has("http_proxy", "https://proxy.test:3128"));
    assert!(has("ALL_PROXY", "HTTPS://u:p@proxy.test"));
    assert!(!has("http_proxy", "proxy.test:3128"));
    // Not for a collector by `http`.
    assert!(!has("HTTPS_PROXY", "https://proxy.test"));
}

#[test]
fn a_dead_collector_does_not_hold_up_the_end() {
    if !is_own_process("a_dead_collector_does_not_hold_up_the_end") {
        return;
    }
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = Url::parse(&format!("http://{}", socket.local_addr().unwrap())).unwrap();
    let guard = init(&settings(Some(url))).unwrap();
    one_call();
    let started = Instant::now();
    drop(guard);
    assert!(
        started.elapsed() < 2 * LAST_EXPORT,
        "{:?}",
        started.elapsed()
    );
}

/// Names in Prometheus spelling that `text` asks for, without the suffixes of histograms.
fn metrics_named_in(text: &str) -> Vec<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("drawbridge_") || word.starts_with("mcp_"))
        .filter(|word| {
            ![
                "drawbridge_listener",
                "drawbridge_upstream",
                "drawbridge_outcome",
                "drawbridge_reason",
                "drawbridge_redis_operation",
                "drawbridge_state",
                "mcp_method_name",
            ]
            .contains(word)
        })
        .collect()
}

#[test]
fn dashboards_and_alerts_ask_for_metrics_that_exist() {
    if !is_own_process("dashboards_and_alerts_ask_for_metrics_that_exist") {
        return;
    }
    let guard = init(&settings(None)).unwrap();
    let place: Arc<str> = "x".into();
    drop(CallSpan::server(&TraceContext::default(), "ping", &place));
    let load = UpstreamLoad::of("x");
    drop(CallSpan::client(&TraceContext::default(), "ping", &load));
    for labeled in LABELED.all() {
        labeled.add("x", 1);
    }
    for level in LEVELS.all() {
        level.set("x", 1);
    }
    for state in STATES.all() {
        state.replace([(("x".to_owned(), "x"), 1)]);
    }
    forward_ended("x", Duration::ZERO);
    grant_refresh_ended("x", "x", Duration::ZERO);
    redis_command_ended("x", "x", Duration::ZERO);
    token_request_ended("x", "x", "x", Duration::ZERO);
    let page = guard.metrics_page().render();
    // What the alerts know a new process by.
    let target = page.lines().find(|line| line.starts_with("target_info{"));
    assert!(
        target.is_some_and(|line| line.contains("service_instance_id=\"")),
        "{page}"
    );
    for file in ["grafana/drawbridge.json", "alerts/drawbridge.yaml"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("deploy")
            .join(file);
        let text = std::fs::read_to_string(path).unwrap();
        let named = metrics_named_in(&text);
        assert!(named.len() > 10, "{file} names {} metrics", named.len());
        for name in named {
            let shown = |end: char| page.contains(&format!("\n{name}{end}"));
            assert!(shown(' ') || shown('{'), "{file}: there is no {name}");
        }
    }
}
