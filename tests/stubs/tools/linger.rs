//! A long call that records its state in a file, for tests to read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::Call;
use crate::rpc::{Outcome, notification};

/// How often a lasting call looks whether it may end.
const LOOK: Duration = Duration::from_millis(20);

/// Announces itself, then lasts until the file `<key>.go` appears in the ledger. `<key>` says
/// `running`, `done`, or `dropped` when the call was cancelled.
pub(super) async fn run(call: &Call) -> Outcome {
    let (Some(ledger), Some(key)) = (&call.world.options.ledger, call.text("key")) else {
        return Outcome::Error(-32602, "a ledger and a key are needed".to_owned());
    };
    let mut entry = Entry::open(ledger, key);
    call.outlet.message(announcement(call));
    let go = ledger.join(format!("{key}.go"));
    while !go.exists() {
        tokio::time::sleep(LOOK).await;
    }
    entry.write("done");
    entry.is_done = true;
    Outcome::text("done")
}

fn announcement(call: &Call) -> String {
    let meta: Option<Value> = call
        .meta
        .as_deref()
        .and_then(|meta| serde_json::from_str(meta).ok());
    match meta.as_ref().and_then(|meta| meta.get("progressToken")) {
        Some(token) => notification(
            "notifications/progress",
            &json!({"progressToken": token, "progress": 1}),
        ),
        None => notification(
            "notifications/message",
            &json!({"level": "info", "logger": "linger", "data": "begun"}),
        ),
    }
}

/// One line of the ledger, a file.
struct Entry {
    file: PathBuf,
    is_done: bool,
}

impl Entry {
    fn open(ledger: &Path, key: &str) -> Self {
        let entry = Self {
            file: ledger.join(key),
            is_done: false,
        };
        entry.write("running");
        entry
    }

    fn write(&self, state: &str) {
        // Ignore a failure: a test that waits for the state fails then.
        std::fs::write(&self.file, state).unwrap_or_default();
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_done {
            self.write("dropped");
        }
    }
}
