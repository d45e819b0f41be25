//! Which events become lines, and the handle that changes it while the gateway runs.

use std::sync::{Arc, Mutex};

use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::{Layer, Registry, reload};

use crate::config::LogLevels;
use crate::lock::lock;
use crate::telemetry::exporter_health::is_repetition;

/// The filter of all events. Decides by callsite alone, so `tracing` caches the decision as the callsite's
/// `Interest`: a disabled event costs one load, and an enabled event is not checked again.
#[derive(Debug)]
pub(in crate::telemetry) struct EventFilter(Targets);

impl EventFilter {
    fn new(levels: &LogLevels) -> Self {
        let targets = levels.targets();
        Self(
            targets.fold(Targets::new(), |all, (name, level)| match name {
                "" => all.with_default(level),
                name => all.with_target(name, level),
            }),
        )
    }

    fn shows(&self, event: &Metadata<'_>) -> bool {
        self.0.would_enable(event.target(), event.level()) && !is_repetition(event)
    }
}

impl<S: Subscriber> Layer<S> for EventFilter {
    fn register_callsite(&self, event: &'static Metadata<'static>) -> Interest {
        if self.shows(event) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, event: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        self.shows(event)
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Layer::<S>::max_level_hint(&self.0)
    }
}

/// Shows and changes the levels of log lines; cheap to clone.
#[derive(Debug, Clone)]
pub struct LogControl {
    handle: reload::Handle<EventFilter, Registry>,
    levels: Arc<Mutex<LogLevels>>,
}

impl LogControl {
    /// The levels in force.
    #[must_use]
    pub fn levels(&self) -> LogLevels {
        lock(&self.levels).clone()
    }

    /// Puts `levels` in force for every event from now on.
    pub fn set(&self, levels: LogLevels) {
        let mut known = lock(&self.levels);
        // `reload` fails if the subscriber is gone: then no lines are logged at all.
        drop(self.handle.reload(EventFilter::new(&levels)));
        *known = levels;
    }
}

/// The filter for `levels`, directly on the registry, and what changes it.
pub(in crate::telemetry) fn filter(
    levels: LogLevels,
) -> (reload::Layer<EventFilter, Registry>, LogControl) {
    let (layer, handle) = reload::Layer::new(EventFilter::new(&levels));
    let levels = Arc::new(Mutex::new(levels));
    (layer, LogControl { handle, levels })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    struct Count(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, _event: &tracing::Event<'_>, _context: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn levels_change_while_the_gateway_runs() {
        let (layer, control) = filter("info,drawbridge::upstream=debug".parse().unwrap());
        let count = Arc::new(AtomicUsize::new(0));
        let subscriber = tracing_subscriber::registry()
            .with(layer)
            .with(Count(Arc::clone(&count)));
        let say = || {
            tracing::info!(target: "drawbridge::relay", "shown at info");
            tracing::debug!(target: "drawbridge::relay", "shown at debug");
            tracing::debug!(target: "drawbridge::upstream::carrier::http", "shown at debug");
            tracing::info!(target: "hyper", "a library");
            tracing::warn!(target: "hyper", "a library");
            count.swap(0, Ordering::Relaxed)
        };
        tracing::subscriber::with_default(subscriber, || {
            assert_eq!(say(), 3);
            control.set("debug".parse().unwrap());
            assert_eq!(say(), 4);
            control.set("debug,hyper=info".parse().unwrap());
            assert_eq!(say(), 5);
            control.set("off".parse().unwrap());
            assert_eq!(say(), 0);
            control.set(LogLevels::default());
            assert_eq!(say(), 2);
        });
        assert_eq!(control.levels(), LogLevels::default());
    }

    #[test]
    fn failed_exports_are_said_by_the_gateway_alone() {
        let (layer, _control) = filter(LogLevels::default());
        let count = Arc::new(AtomicUsize::new(0));
        let subscriber = tracing_subscriber::registry()
            .with(layer)
            .with(Count(Arc::clone(&count)));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(name: "BatchSpanProcessor.ExportError", target: "opentelemetry_sdk", "x");
            tracing::warn!(name: "BatchLogProcessor.Emit.AfterShutdown", target: "opentelemetry_sdk", "x");
            tracing::error!(name: "BatchLogProcessor.Shutdown.Timeout", target: "opentelemetry_sdk", "x");
            tracing::error!(name: "BatchSpanProcessor.Shutdown.Error", target: "opentelemetry_sdk", "x");
            tracing::warn!(name: "Other", target: "opentelemetry_sdk", "x");
        });
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
