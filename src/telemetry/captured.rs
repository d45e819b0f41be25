//! Catches the events of a thread, for tests: as JSON lines, masked as the log writes them.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use serde_json::Value;
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use super::log::{LineBuffer, LineFormat};
use crate::lock::lock;

type CapturedLines = Arc<Mutex<Vec<Value>>>;

/// A subscriber that is never dropped. With a single one alive, `tracing` asks the subscriber of the thread that first
/// reaches an event whether the event is wanted, and remembers the answer for all threads: a test without a subscriber
/// would switch the event off for the test that captures.
static ALWAYS: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));

/// Catches while it lives.
pub(crate) struct LogCapture {
    lines: CapturedLines,
    _guard: DefaultGuard,
}

struct CaptureWriter(CapturedLines);

impl<S: Subscriber> Layer<S> for CaptureWriter {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut line = LineBuffer::default();
        line.write(LineFormat::Json, Duration::ZERO, event);
        let line = serde_json::from_slice(line.as_bytes()).expect("a JSON line");
        lock(&self.0).push(line);
    }
}

impl LogCapture {
    pub(crate) fn begin() -> Self {
        LazyLock::force(&ALWAYS);
        let lines = CapturedLines::default();
        let layer = CaptureWriter(Arc::clone(&lines));
        let subscriber = tracing_subscriber::registry().with(layer);
        Self {
            lines,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// Captured lines of `level`.
    pub(crate) fn of_level(&self, level: &str) -> Vec<Value> {
        let lines = lock(&self.lines);
        let of_level = lines.iter().filter(|line| line["level"] == level);
        of_level.cloned().collect()
    }
}
