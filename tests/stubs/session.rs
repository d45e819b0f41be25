//! State of one client: its settings, subscriptions and calls.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::outlet::Outlet;
use crate::rpc;
use crate::stream::Stream;
use crate::world::locked;

/// How long a question waits for its answer.
const ASK_TIMEOUT: Duration = Duration::from_mins(10);
/// POST streams kept for resumption.
const MAX_STREAMS: usize = 1_000;
/// Log levels, least severe first.
const LEVELS: [&str; 8] = [
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
];

/// One legacy session; over stdio there is exactly one.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    /// Outlet for messages that belong to no call.
    pub(crate) general: Outlet,
    gets: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub(crate) revision: String,
    /// The parameters of `initialize`.
    pub(crate) client: Value,
    pub(crate) subscriptions: BTreeSet<String>,
    pub(crate) values: BTreeMap<String, String>,
    /// Lists that currently show their extra entry.
    pub(crate) changed: BTreeSet<&'static str>,
    pub(crate) list_delay: Duration,
    /// Whether the page was visited that a tool wants visited first.
    pub(crate) visited: bool,
    level: usize,
    questions: HashMap<String, oneshot::Sender<Value>>,
    asked: u64,
    calls: HashMap<String, CancellationToken>,
    streams: BTreeMap<u64, Arc<Stream>>,
    opened: u64,
}

impl Session {
    pub(crate) fn new(id: String, general: Outlet) -> Arc<Self> {
        Arc::new(Self {
            id,
            general,
            gets: AtomicUsize::new(0),
            inner: Mutex::default(),
        })
    }

    /// Reads or changes the session's facts.
    pub(crate) fn with<T>(&self, use_it: impl FnOnce(&mut Inner) -> T) -> T {
        use_it(&mut locked(&self.inner))
    }

    /// Asks the client `method` on `outlet`; its answer as `{"result":…}` or `{"error":…}`.
    pub(crate) async fn ask(&self, outlet: &Outlet, method: &str, params: &Value) -> Value {
        let (answer, answered) = oneshot::channel();
        let id = self.with(|inner| {
            inner.asked += 1;
            let id = format!("question-{}", inner.asked);
            inner.questions.insert(id.clone(), answer);
            id
        });
        outlet.message(rpc::request(&id, method, params));
        match tokio::time::timeout(ASK_TIMEOUT, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => json!({"lost": true}),
            Err(_) => {
                self.with(|inner| inner.questions.remove(&id));
                json!({"timeout": true})
            }
        }
    }

    /// Settles the question `id`; false when it is not open.
    pub(crate) fn answer(&self, id: &str, answer: Value) -> bool {
        let question = self.with(|inner| inner.questions.remove(id));
        question.is_some_and(|question| question.send(answer).is_ok())
    }

    /// Notes that the call `id` runs.
    pub(crate) fn begin(&self, id: &str) -> CancellationToken {
        let token = CancellationToken::new();
        self.with(|inner| inner.calls.insert(id.to_owned(), token.clone()));
        token
    }

    pub(crate) fn finish(&self, id: &str) {
        self.with(|inner| inner.calls.remove(id));
    }

    /// Cancels the call `id`; false when it does not run.
    pub(crate) fn cancel(&self, id: &str) -> bool {
        let token = self.with(|inner| inner.calls.remove(id));
        token.is_some_and(|token| {
            token.cancel();
            true
        })
    }

    /// Cancels every call whose name begins like this.
    pub(crate) fn cancel_all(&self, prefix: &str) {
        self.with(|inner| {
            inner.calls.retain(|name, call| {
                let others = !name.starts_with(prefix);
                if !others {
                    call.cancel();
                }
                others
            });
        });
    }

    pub(crate) fn running(&self) -> usize {
        self.with(|inner| inner.calls.len())
    }

    /// Sets the minimum level that is logged; `false` if the name is unknown.
    pub(crate) fn set_level(&self, name: &str) -> bool {
        let level = LEVELS.iter().position(|level| *level == name);
        self.with(|inner| level.map(|level| inner.level = level).is_some())
    }

    /// Whether a message of this level is wanted.
    pub(crate) fn logs(&self, name: &str) -> bool {
        let level = LEVELS.iter().position(|level| *level == name);
        self.with(|inner| level.is_some_and(|level| level >= inner.level))
    }

    /// Opens a stream for one POST; kept for resumption when `keep`.
    pub(crate) fn open_stream(&self, keep: bool) -> Arc<Stream> {
        if !keep {
            return Stream::new(None);
        }
        self.with(|inner| {
            inner.opened += 1;
            let stream = Stream::new(Some(format!("p{}", inner.opened)));
            inner.streams.insert(inner.opened, Arc::clone(&stream));
            if inner.streams.len() > MAX_STREAMS {
                inner.streams.pop_first();
            }
            stream
        })
    }

    /// The stream that the event id belongs to, set back to just after it.
    pub(crate) fn resume(&self, event_id: &str) -> Option<Arc<Stream>> {
        let (tag, seen) = event_id.rsplit_once('-')?;
        let seen: u64 = seen.parse().ok()?;
        let stream = if let ("g", Outlet::Events(stream)) = (tag, &self.general) {
            Arc::clone(stream)
        } else {
            let number: u64 = tag.strip_prefix('p')?.parse().ok()?;
            self.with(|inner| inner.streams.get(&number).cloned())?
        };
        stream.rewind(seen);
        Some(stream)
    }

    pub(crate) fn open_gets(&self) -> usize {
        self.gets.load(Ordering::Relaxed)
    }

    /// Counts a GET stream until the guard is dropped.
    pub(crate) fn hold_get(self: &Arc<Self>) -> GetGuard {
        self.gets.fetch_add(1, Ordering::Relaxed);
        GetGuard(Arc::clone(self))
    }

    /// Ends the GET stream and every running call.
    pub(crate) fn close(&self) {
        if let Outlet::Events(stream) | Outlet::Shared(stream) = &self.general {
            stream.end();
        }
        self.with(|inner| {
            for (_, call) in inner.calls.drain() {
                call.cancel();
            }
        });
    }
}

/// An open GET stream.
#[derive(Debug)]
pub(crate) struct GetGuard(Arc<Session>);

impl Drop for GetGuard {
    fn drop(&mut self) {
        self.0.gets.fetch_sub(1, Ordering::Relaxed);
    }
}
