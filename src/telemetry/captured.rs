//! Catches the events of a thread, for tests: as JSON lines, masked as the log writes them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use super::log::{Line, Look};
use crate::lock::lock;

type Lines = Arc<Mutex<Vec<Value>>>;

/// Catches while it lives.
pub(crate) struct Captured {
    lines: Lines,
    _guard: DefaultGuard,
}

struct Catch(Lines);

impl<S: Subscriber> Layer<S> for Catch {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut line = Line::default();
        line.write(Look::Json, Duration::ZERO, event);
        let line = serde_json::from_slice(line.as_bytes()).expect("a JSON line");
        lock(&self.0).push(line);
    }
}

impl Captured {
    pub(crate) fn begin() -> Self {
        let lines = Lines::default();
        let layer = Catch(Arc::clone(&lines));
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
