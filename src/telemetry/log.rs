//! Log lines: formatted once, redacted, handed to a writer that never makes anybody wait.
//!
//! Own formatting instead of the subscriber's, so that every value passes the redaction. What is
//! written for every request is no event: see `telemetry::record`.

mod escape;
pub(super) mod export;
mod line;
mod stamp;
mod writer;

use std::cell::RefCell;

use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;

pub(super) use export::ExportLayer;
pub(super) use line::Line;
pub(super) use stamp::Stamp;
pub(super) use writer::{Kind, Writer, WriterGuard};

use crate::clock::{Clock, SystemClock};
use crate::config::LogFormat;

thread_local! {
    static LINE: RefCell<Line> = RefCell::default();
}

/// Writes every event as one line.
#[derive(Debug)]
pub(super) struct LineLayer {
    format: LogFormat,
    writer: Writer,
}

impl LineLayer {
    pub(super) fn new(format: LogFormat, writer: Writer) -> Self {
        Self { format, writer }
    }
}

impl<S: Subscriber> Layer<S> for LineLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        // Logging from inside a `Debug` that is being logged finds the buffer taken: such an
        // event is left out rather than mixed in.
        LINE.with(|line| {
            if let Ok(mut line) = line.try_borrow_mut() {
                line.write(self.format, SystemClock.now(), event);
                self.writer.put(Kind::Log, line.as_bytes());
            }
        });
    }
}

/// What is logged: everything of ours from INFO on, of others from WARN on.
pub(super) fn filter() -> Targets {
    use tracing::level_filters::LevelFilter;
    Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("drawbridge", LevelFilter::INFO)
}
