//! Log lines: formatted once, redacted, handed to a writer that never makes anybody wait.
//!
//! Own formatting instead of the subscriber's, so that every value passes the redaction. What is
//! written for every request is no event: see `telemetry::record`. Reasons and figures: `docs/adr/0032`.

mod escape;
pub(super) mod export;
mod level;
mod line;
mod stamp;
mod writer;

use std::cell::RefCell;

use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

pub(super) use export::ExportLayer;
pub use level::LogControl;
pub(super) use level::filter;
pub(super) use line::{LineBuffer, LineFormat};
pub(super) use stamp::TimeStamps;
pub(super) use writer::{LineKind, LogWriter, WriterGuard};

use crate::clock::{Clock, SystemClock};

thread_local! {
    static LINE: RefCell<LineBuffer> = RefCell::default();
}

/// Writes every event as one line.
#[derive(Debug)]
pub(super) struct LineLayer {
    look: LineFormat,
    writer: LogWriter,
}

impl LineLayer {
    pub(super) fn new(look: LineFormat, writer: LogWriter) -> Self {
        Self { look, writer }
    }
}

impl<S: Subscriber> Layer<S> for LineLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        // Logging from inside a `Debug` that is being logged finds the buffer taken: such an
        // event is left out rather than mixed in.
        LINE.with(|line| {
            if let Ok(mut line) = line.try_borrow_mut() {
                line.write(self.look, SystemClock.now(), event);
                self.writer.put(LineKind::Log, line.as_bytes());
            }
        });
    }
}
