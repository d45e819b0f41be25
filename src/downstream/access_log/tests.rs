use std::fmt::Write;
use std::sync::{Arc, Mutex};

use futures_util::stream;
use http::StatusCode;
use http_body_util::BodyExt;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context as LayerContext, SubscriberExt};

use super::*;
use crate::call::Principal;

/// The lines as `name=value` texts.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Visit for Lines {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let mut lines = self.0.lock().unwrap();
        write!(lines.last_mut().unwrap(), "{}={value:?} ", field.name()).unwrap();
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: LayerContext<'_, S>) {
        assert_eq!(event.metadata().target(), ACCESS_TARGET);
        self.0.lock().unwrap().push(String::new());
        event.record(&mut self.clone());
    }
}

fn listen() -> (Lines, tracing::subscriber::DefaultGuard) {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    (lines, tracing::subscriber::set_default(subscriber))
}

fn begin() -> AccessLine {
    AccessLine::begin(&Method::POST, "/mcp/{name}", "192.0.2.9".parse().ok())
}

#[test]
fn a_whole_answer_makes_one_line_at_once() {
    let (lines, _guard) = listen();
    let line = begin();
    let record = line.record().clone();
    record.message("tools/call", Some("7"), Some(&"é".repeat(500)));
    record.message("ping", Some("8"), None);
    record.principal(Principal::new("i", "alice@example.com", "", Vec::new(), None).owner());
    record.session(0xab);
    record.outcome("tool_error");
    record.outcome("later");
    let response = line.attach(Response::new(Body::from("four")));
    assert_eq!(response.status(), StatusCode::OK);
    record.outcome("too late");
    drop(response);
    let lines = lines.0.lock().unwrap();
    assert_eq!(lines.len(), 1);
    for part in [
        "status=200",
        "path=\"/mcp/{name}\"",
        "client=192.0.2.9",
        "rpc_method=\"tools/call\" rpc_id=\"7\"",
        "session=00000000000000ab",
        "outcome=\"tool_error\"",
        "bytes_out=4",
    ] {
        assert!(lines[0].contains(part), "{part} is missing in {}", lines[0]);
    }
    assert!(!lines[0].contains("alice") && !lines[0].contains("upstream"));
    assert_eq!(lines[0].matches('é').count(), MAX_NAME_BYTES / 2);
}

#[tokio::test]
async fn a_stream_makes_its_line_when_it_ends() {
    let (lines, _guard) = listen();
    let chunks = ["one", "two"].map(|text| Ok::<_, std::io::Error>(Bytes::from(text)));
    let response = begin().attach(Response::new(Body::from_stream(stream::iter(chunks))));
    assert!(lines.0.lock().unwrap().is_empty());
    response.into_body().collect().await.unwrap();
    let lines = lines.0.lock().unwrap();
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].contains("bytes_out=6") && lines[0].contains("outcome=\"ok\""),
        "{}",
        lines[0]
    );
}

#[tokio::test]
async fn a_client_that_leaves_is_noted() {
    let (lines, _guard) = listen();
    let endless = stream::pending::<Result<Bytes, std::io::Error>>();
    drop(begin().attach(Response::new(Body::from_stream(endless))));
    drop(begin());
    let lines = lines.0.lock().unwrap();
    assert_eq!(lines.len(), 2);
    assert!(
        lines.iter().all(|line| line.contains("client_gone")),
        "{lines:?}"
    );
}

#[test]
fn nothing_is_collected_when_nobody_reads() {
    assert!(begin().record().0.is_none());
}
