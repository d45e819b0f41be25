use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http_body_util::BodyExt;

use super::*;
use crate::call::Principal;
use crate::telemetry::record::capture::RecordCapture;

fn begin() -> AccessLine {
    begin_until(&Arc::default())
}

/// Begins a line that counts as cut off by the gateway once `stop` is cancelled.
fn begin_until(stop: &Arc<CancellationToken>) -> AccessLine {
    let client = "192.0.2.9".parse().ok();
    AccessLine::begin(&Method::POST, "/mcp/{name}", client, stop)
}

#[test]
fn a_whole_answer_makes_one_line_at_once() {
    let caught = RecordCapture::begin();
    let line = begin();
    let record = line.record().clone();
    record.message(Some("tools/call"), Some("7"), Some(&"é".repeat(500)));
    record.message(Some("ping"), Some("8"), None);
    record.principal(Principal::new("i", "alice@example.com", "", Vec::new(), None).owner());
    record.session(0xab);
    record.outcome("tool_error");
    record.outcome("later");
    let response = line.attach(Response::new(Body::from("four")));
    assert_eq!(response.status(), StatusCode::OK);
    record.outcome("too late");
    drop(response);
    let lines = caught.lines();
    assert_eq!(lines.len(), 1);
    let line = lines[0].as_object().unwrap();
    for (name, value) in [
        ("target", "access".into()),
        ("status", 200.into()),
        ("method", "POST".into()),
        ("path", "/mcp/{name}".into()),
        ("client", "192.0.2.9".into()),
        ("rpc_method", "tools/call".into()),
        ("rpc_id", "7".into()),
        ("name", "é".repeat(MAX_NAME_BYTES / 2).into()),
        ("session", "00000000000000ab".into()),
        ("outcome", "tool_error".into()),
        ("bytes_out", serde_json::Value::from(4)),
    ] {
        assert_eq!(line[name], value, "{name}");
    }
    assert!(!lines[0].to_string().contains("alice") && !line.contains_key("upstream"));
}

#[tokio::test]
async fn a_stream_makes_its_line_when_it_ends() {
    let caught = RecordCapture::begin();
    let chunks = ["one", "two"].map(|text| Ok::<_, std::io::Error>(Bytes::from(text)));
    let response = begin().attach(Response::new(Body::from_stream(stream::iter(chunks))));
    assert!(caught.lines().is_empty());
    response.into_body().collect().await.unwrap();
    let lines = caught.lines();
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["bytes_out"], 6);
    assert_eq!(lines[0]["outcome"], "ok");
}

#[tokio::test]
async fn a_client_that_leaves_is_noted() {
    let caught = RecordCapture::begin();
    let endless = stream::pending::<Result<Bytes, std::io::Error>>();
    drop(begin().attach(Response::new(Body::from_stream(endless))));
    drop(begin());
    let lines = caught.lines();
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line["outcome"] == "client_gone"));
}

#[tokio::test]
async fn what_our_own_stop_cuts_off_says_so() {
    let caught = RecordCapture::begin();
    let stop = Arc::new(CancellationToken::new());
    let endless = stream::pending::<Result<Bytes, std::io::Error>>();
    let streaming = begin_until(&stop).attach(Response::new(Body::from_stream(endless)));
    let (refused, cancelled) = (begin_until(&stop), begin_until(&stop));
    let socket = begin_until(&stop);
    let message = AccessLine::of_message(socket.record());
    stop.cancel();
    drop(streaming);
    refused.record().outcome("denied");
    drop(refused);
    cancelled.record().outcome(error_type::CANCELLED);
    drop((cancelled, message, socket));
    let lines = caught.lines();
    let outcomes: Vec<_> = lines.iter().map(|line| &line["outcome"]).collect();
    assert_eq!(
        outcomes,
        ["stopped", "denied", "stopped", "stopped", "stopped"]
    );
}

#[test]
fn a_message_of_a_socket_makes_a_line_of_its_own() {
    let caught = RecordCapture::begin();
    let opening = begin();
    let socket = opening.record().clone();
    socket.principal(Principal::new("i", "alice", "", Vec::new(), None).owner());
    drop(opening.attach(Response::new(Body::empty())));
    let answered = AccessLine::of_message(&socket);
    answered
        .record()
        .message(Some("tools/call"), Some("7"), None);
    answered.record().sent(9);
    answered.record().answered();
    drop(answered);
    drop(AccessLine::of_message(&socket));
    let lines = caught.lines();
    let outcomes: Vec<_> = lines.iter().map(|line| &line["outcome"]).collect();
    assert_eq!(outcomes, ["ok", "ok", "client_gone"]);
    let line = lines[1].as_object().unwrap();
    assert_eq!(line["path"], "/mcp/{name}");
    assert_eq!(line["principal"], lines[0]["principal"]);
    assert_eq!(line["bytes_out"], 9);
    assert!(!line.contains_key("status") && !line.contains_key("method"));
}

#[test]
fn a_method_that_clients_invent_is_not_written_down() {
    let caught = RecordCapture::begin();
    let invented = Method::from_bytes("x".repeat(5000).as_bytes()).unwrap();
    for method in [invented, Method::PUT] {
        drop(AccessLine::begin(&method, "other", None, &Arc::default()));
    }
    let lines = caught.lines();
    let methods: Vec<_> = lines.iter().map(|line| &line["method"]).collect();
    assert_eq!(methods, ["_OTHER", "PUT"]);
}

#[test]
fn the_line_of_a_response_has_an_id_and_no_method() {
    let caught = RecordCapture::begin();
    let line = begin();
    line.record().message(None, Some("7"), None);
    line.record().message(Some("ping"), Some("8"), None);
    drop(line);
    let lines = caught.lines();
    assert_eq!(lines[0]["rpc_id"], "7");
    assert!(!lines[0].as_object().unwrap().contains_key("rpc_method"));
}

#[test]
fn nothing_is_collected_when_nobody_reads() {
    assert!(begin().record().0.is_none());
}
