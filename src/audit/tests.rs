use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::call::{ClientCapabilities, DownstreamLink, InputOutcome, InputRequests, Notice};
use crate::clock::TestClock;
use crate::endpoint::Endpoint;
use crate::protocol::{Message, Revision};
use crate::telemetry::record::capture::RecordCapture;
use crate::telemetry::trace::TraceContext;

#[derive(Debug)]
struct NoLink(ClientCapabilities, Option<String>);

impl DownstreamLink for NoLink {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.0
    }

    fn notify(&self, _: Notice) {}

    fn ask(&self, _: InputRequests) -> BoxFuture<'_, InputOutcome> {
        Box::pin(async { InputOutcome::CannotAsk("everything".to_owned()) })
    }

    fn cancel_reason(&self) -> Option<&str> {
        self.1.as_deref()
    }
}

fn call(message: &str) -> Call {
    let endpoint = Endpoint {
        name: "dev".into(),
        path: "/mcp/dev".to_owned(),
        resource: "https://gw.test/mcp/dev".to_owned(),
        ..Endpoint::unreachable(&"files".into())
    };
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    Call {
        principal: Arc::new(Principal::new(
            "https://i.test",
            "alice",
            "c",
            Vec::new(),
            None,
        )),
        endpoint: Arc::new(endpoint),
        revision: Revision::V2025_11_25,
        message: Message::parse(Bytes::from(message.to_owned()), 128).expect("a message"),
        link: Arc::new(NoLink(ClientCapabilities::none(), None)),
        trace: TraceContext::parse(trace, None).expect("a trace"),
        cancel: CancellationToken::new(),
        resumption: None,
        param_headers: None,
    }
}

const MESSAGE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":{"password":"hunter2"}}}"#;

fn record(rule: Option<&str>) -> AuditRecord {
    AuditRecord::new(&call(MESSAGE), &"files".into(), Some("read"), rule)
}

fn sink() -> AuditSink {
    AuditSink::idle(TestClock::at(1_800_000_000))
}

// SPEC O-04
#[test]
fn a_record_says_who_what_where_and_how_it_ended_and_nothing_else() {
    let log = RecordCapture::begin();
    let sink = sink();
    sink.record(record(Some("auth.tool_scopes[0]")));
    sink.flush();
    assert_eq!(
        log.lines(),
        [json!({
            "timestamp": "1970-01-01T00:00:00.000Z",
            "level": "WARN",
            "target": "audit",
            "time": "2027-01-15T08:00:00.000Z",
            "issuer": "https://i.test",
            "subject": "alice",
            "client": "c",
            "endpoint": "dev",
            "upstream": "files",
            "method": "tools/call",
            "name": "read",
            "outcome": "denied",
            "rule": "auth.tool_scopes[0]",
            "trace_id": "0af7651916cd43dd8448eb211c80319c",
        })]
    );
}

// SPEC O-04
#[test]
fn record_of_an_account_says_whose_where_and_why() {
    let log = RecordCapture::begin();
    let (sink, call) = (sink(), call(MESSAGE));
    let owner = call.principal.owner();
    let record = AccountRecord::new(AccountEvent::Connected, owner, "files")
        .by(&call.principal)
        .server("https://as.test")
        .scopes(&["read".to_owned(), "write".to_owned()])
        .program(Some("editor"));
    sink.account(record);
    let record = AccountRecord::new(AccountEvent::Refused, owner, "files").of_call(&call);
    sink.account(record.server("").reason(AuditOutcome::Denied, "declined"));
    sink.flush();
    let principal = owner.to_string();
    assert_eq!(
        log.lines(),
        [
            json!({
                "timestamp": "1970-01-01T00:00:00.000Z", "level": "INFO", "target": "audit",
                "time": "2027-01-15T08:00:00.000Z", "event": "account_connected", "principal": principal,
                "issuer": "https://i.test", "subject": "alice", "client": "c", "upstream": "files",
                "server": "https://as.test", "scopes": "read write", "program": "editor", "outcome": "ok",
            }),
            json!({
                "timestamp": "1970-01-01T00:00:00.000Z", "level": "WARN", "target": "audit",
                "time": "2027-01-15T08:00:00.000Z", "event": "account_refused", "principal": principal,
                "issuer": "https://i.test", "subject": "alice", "client": "c", "endpoint": "dev",
                "upstream": "files", "outcome": "denied", "reason": "declined",
                "trace_id": "0af7651916cd43dd8448eb211c80319c",
            }),
        ]
    );
}

#[test]
fn records_are_written_in_their_order() {
    let log = RecordCapture::begin();
    let sink = sink();
    let outcomes = [AuditOutcome::Ok, AuditOutcome::Error, AuditOutcome::Failed];
    for outcome in outcomes {
        sink.begin(&call(MESSAGE), record(None)).end(outcome);
    }
    sink.flush();
    let written: Vec<Value> = log
        .lines()
        .iter()
        .map(|line| line["outcome"].clone())
        .collect();
    assert_eq!(written, ["ok", "error", "failed"]);
}

#[test]
fn a_call_that_is_dropped_is_recorded_as_failed() {
    let sink = sink();
    drop(sink.begin(&call(MESSAGE), record(None)));
    let QueuedRecord::Call(record) = &sink.lock()[0].1 else {
        panic!("a record of a call");
    };
    assert_eq!(record.outcome, AuditOutcome::Failed);
}

// SPEC C-12
#[test]
fn a_cancelled_call_is_recorded_with_the_reason_its_client_gave() {
    let log = RecordCapture::begin();
    let sink = sink();
    let mut cancelled = call(MESSAGE);
    let reason = "no longer needed ".repeat(100);
    cancelled.link = Arc::new(NoLink(ClientCapabilities::none(), Some(reason.clone())));
    sink.begin(&cancelled, record(None))
        .end(AuditOutcome::Failed);
    // The reply was faster.
    sink.begin(&cancelled, record(None)).end(AuditOutcome::Ok);
    sink.begin(&call(MESSAGE), record(None))
        .end(AuditOutcome::Failed);
    sink.flush();
    let reasons: Vec<Value> = log
        .lines()
        .iter()
        .map(|line| line["reason"].clone())
        .collect();
    assert_eq!(
        reasons,
        [json!(reason[..MAX_TEXT]), Value::Null, Value::Null]
    );
}

#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let sink = sink();
    let before = COUNTERS.audit_dropped.get();
    for _ in 0..CAPACITY + 3 {
        sink.record(record(None));
    }
    assert!(COUNTERS.audit_dropped.get() >= before + 3);
    assert_eq!(sink.lock().len(), CAPACITY);
}

#[test]
fn an_endless_name_is_cut_between_characters() {
    let name = "é".repeat(1000);
    let record = AuditRecord::new(&call(MESSAGE), &"files".into(), Some(&name), None);
    let kept = record.name.expect("a name");
    assert_eq!(kept.len(), MAX_TEXT);
    assert!(name.starts_with(&*kept));
}

#[tokio::test(start_paused = true)]
async fn the_writer_writes_what_has_gathered() {
    let log = RecordCapture::begin();
    let tasks = TaskSpawner::new();
    let sink = AuditSink::start(TestClock::at(0), &tasks);
    sink.record(record(None));
    sink.record(record(None));
    assert_eq!(log.lines().len(), 0);
    sleep(2 * GATHER).await;
    assert_eq!(log.lines().len(), 2);
    sink.record(record(None));
    sleep(2 * GATHER).await;
    assert_eq!(log.lines().len(), 3);
}
