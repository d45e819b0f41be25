//! What operators see of accounts, as tests read it: audit records, metrics, `check --online`.

use std::process::Stdio;

use serde_json::Value;

use crate::harness::{Gateway, Setup, eventually};

/// The audit records of accounts so far.
pub(super) fn records(gw: &Gateway) -> Vec<Value> {
    let mut records = gw.log_records();
    records.retain(|record| record["target"] == "audit" && record.get("event").is_some());
    records
}

/// The sum over the series of a metric whose labels contain `labels`.
pub(super) async fn count_of(gw: &Gateway, metric: &str, labels: &str) -> String {
    // The sum of no series is -0.
    (gw.metric(metric, labels).await + 0.0).to_string()
}

/// Waits for the audit record of this event after the first `seen` records.
pub(super) async fn audited(gw: &Gateway, seen: usize, event: &str) -> Value {
    eventually(event, async || {
        let mut later = records(gw).into_iter().skip(seen);
        later.find(|record| record["event"] == event)
    })
    .await
}

/// What `check --online` says of a gateway, with its exit code.
pub(super) async fn checked(setup: Setup) -> (Option<i32>, Value) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    std::fs::write(&file, setup.render()).unwrap();
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_drawbridge"))
        .args(["check", "--online", "--json", "--config"])
        .arg(&file)
        .env("XDG_STATE_HOME", directory.path())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let found = serde_json::from_slice(&output.stdout);
    (
        output.status.code(),
        found.unwrap_or_else(|_| panic!("{output:?}")),
    )
}
