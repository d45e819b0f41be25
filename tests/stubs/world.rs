//! State shared by all sessions: options, prepared lists, counters, the session map.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::catalog::Catalog;
use crate::errands::Errands;
use crate::modern::Modern;
use crate::options::Options;
use crate::session::Session;

/// Live HTTP sessions at most; a further `initialize` gets 503.
const MAX_SESSIONS: usize = 50_000;
/// Numbers of notifications remembered.
const MAX_NUMBERS: usize = 1_000;
/// Cancellations remembered.
const MAX_CANCELS: usize = 1_000;

/// Shared by everything in the process.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) catalog: Catalog,
    pub(crate) modern: Modern,
    pub(crate) errands: Errands,
    /// Once set, nothing is read any more.
    pub(crate) stalled: AtomicBool,
    /// The file whose appearance ends the stall.
    pub(crate) stalled_until: Mutex<Option<PathBuf>>,
    /// Numbers of numbered notifications, in order of arrival.
    numbers: Mutex<Vec<u64>>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    counts: Mutex<BTreeMap<String, u64>>,
    cancels: Mutex<Vec<Value>>,
    /// Names and values of the headers that opened or used a duplex connection last.
    headers: Mutex<BTreeMap<String, String>>,
}

impl World {
    pub(crate) fn new(options: Options) -> Arc<Self> {
        Arc::new(Self {
            catalog: Catalog::new(&options),
            modern: Modern::new(),
            errands: Errands::default(),
            options,
            stalled: AtomicBool::new(false),
            stalled_until: Mutex::default(),
            numbers: Mutex::default(),
            sessions: Mutex::default(),
            counts: Mutex::default(),
            cancels: Mutex::default(),
            headers: Mutex::default(),
        })
    }

    /// Adds one to the counter `what`.
    pub(crate) fn count(&self, what: &str) {
        let mut counts = locked(&self.counts);
        if let Some(count) = counts.get_mut(what) {
            *count += 1;
        } else if counts.len() < 1_000 {
            counts.insert(what.to_owned(), 1);
        }
    }

    /// Remembers the number of a notification.
    pub(crate) fn note_number(&self, number: u64) {
        let mut numbers = locked(&self.numbers);
        if numbers.len() < MAX_NUMBERS {
            numbers.push(number);
        }
    }

    /// Whether nothing is to be read now.
    pub(crate) fn is_stalled(&self) -> bool {
        let until = locked(&self.stalled_until);
        if until.as_ref().is_some_and(|file| file.exists()) {
            self.stalled.store(false, Ordering::Relaxed);
        }
        self.stalled.load(Ordering::Relaxed)
    }

    /// Remembers the headers of a request on a duplex connection.
    pub(crate) fn remember_headers(&self, headers: &hyper::HeaderMap) {
        let pairs = headers.iter().map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        });
        *locked(&self.headers) = pairs.collect();
    }

    /// Remembers a cancellation.
    pub(crate) fn record_cancel(&self, params: &Value, known: bool) {
        self.count("cancelled");
        let mut cancels = locked(&self.cancels);
        if cancels.len() < MAX_CANCELS {
            cancels.push(json!({"params": params, "known": known}));
        }
    }

    /// Everything received so far.
    pub(crate) fn stats(&self) -> Value {
        let sessions = locked(&self.sessions);
        json!({
            "pid": std::process::id(),
            "sessions": sessions.len(),
            "open_get_streams": sessions.values().map(|s| s.open_gets()).sum::<usize>(),
            "running": sessions.values().map(|s| s.running()).sum::<usize>(),
            "stalled": self.stalled.load(Ordering::Relaxed),
            "counts": *locked(&self.counts),
            "numbers": *locked(&self.numbers),
            "cancels": *locked(&self.cancels),
            "headers": *locked(&self.headers),
        })
    }

    /// Keeps `session`; false when there is no room.
    pub(crate) fn add_session(&self, session: &Arc<Session>) -> bool {
        let mut sessions = locked(&self.sessions);
        if sessions.len() >= MAX_SESSIONS {
            return false;
        }
        sessions.insert(session.id.clone(), Arc::clone(session));
        true
    }

    /// The live session `id`.
    pub(crate) fn session(&self, id: &str) -> Option<Arc<Session>> {
        locked(&self.sessions).get(id).cloned()
    }

    /// Forgets the session `id`, ending its GET stream.
    pub(crate) fn remove_session(&self, id: &str) -> bool {
        let Some(session) = locked(&self.sessions).remove(id) else {
            return false;
        };
        session.close();
        true
    }
}

/// The content of a mutex, whatever happened to its last holder.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a line to stderr.
pub(crate) fn last_words(line: &str) {
    // Ignore a closed stderr: the error has no reader.
    writeln!(std::io::stderr(), "{line}").unwrap_or_default();
}
