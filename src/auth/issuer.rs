//! One trusted issuer and its keys: fetched once however many wait, seldom again, kept when the
//! issuer cannot be reached (SPEC A-23).

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::discovery::{self, DiscoveryError};
use super::fetch::{Fetcher, MAX_BYTES};
use super::introspection::Introspection;
use super::key_set::{BadKeySet, KeySet};
use super::terms::SKEW_SECS;
use crate::cause::{Cause, LastCause};
use crate::config;
use crate::lifecycle::Tasks;
use crate::lock::lock;
use crate::telemetry::metrics::LABELED;

/// Fetches that may follow each other within [`WINDOW`].
const BURST: usize = 3;
/// See [`BURST`]: a flood of unknown key ids costs the issuer three fetches in this time.
const WINDOW: Duration = Duration::from_secs(30);
/// After a fetch that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// For all documents of one fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Keys of this age are fetched again in the background, so that one which the issuer has
/// withdrawn does not stay.
const STALE: Duration = Duration::from_mins(5);

/// Why keys could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("the file cannot be read")]
    File(#[from] std::io::Error),
    #[error("the file is larger than 1 MiB")]
    TooLarge,
    #[error("the issuer's keys cannot be found")]
    Discovery(#[from] DiscoveryError),
    #[error("the issuer does not answer in time")]
    TimedOut,
    #[error(transparent)]
    BadKeySet(#[from] BadKeySet),
}

/// Where keys come from.
#[derive(Debug)]
enum Source {
    File(PathBuf),
    Discovery(Fetcher),
}

/// One issuer of the configuration.
#[derive(Debug)]
pub(super) struct Issuer {
    /// Compared byte for byte.
    pub(super) id: String,
    /// Audiences accepted on every endpoint.
    pub(super) audiences: Vec<String>,
    /// The claim that identifies the subject.
    pub(super) subject_claim: String,
    /// How it is asked about tokens, if it is.
    pub(super) introspection: Option<Introspection>,
    source: Source,
    keys: RwLock<Option<Arc<Keys>>>,
    /// Grows whenever the keys change.
    generation: AtomicU64,
    flight: Mutex<Flight>,
    /// Why the keys could not be loaded, or hold none for signatures.
    cause: LastCause,
}

/// The keys as last loaded.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) set: KeySet,
    digest: Vec<u8>,
    /// When the load began: they lack nothing that was published before.
    loaded: Instant,
}

/// What is known of fetches.
#[derive(Debug, Default)]
struct Flight {
    /// Starts of the last fetches, [`BURST`] at most, oldest first.
    started: VecDeque<Instant>,
    failed: Option<Instant>,
    /// Closed when the fetch under way is over.
    running: Option<watch::Receiver<()>>,
}

impl Issuer {
    /// Reads the key file if there is one; keys found by discovery are fetched when needed.
    ///
    /// # Errors
    /// The file holds no keys.
    pub(super) fn new(
        config: &config::Issuer,
        fetcher: &mut impl FnMut() -> Result<Fetcher, super::AuthError>,
    ) -> Result<Self, super::AuthError> {
        let (source, keys) = if let Some(path) = &config.jwks_file {
            let keys = std::fs::read(path)
                .map_err(LoadError::from)
                .and_then(|json| Keys::read(&json, Instant::now()))
                .and_then(|keys| {
                    keys.set.usable()?;
                    Ok(keys)
                })
                .map_err(|source| super::AuthError::Keys {
                    issuer: config.issuer.clone(),
                    source: source.into(),
                })?;
            (Source::File(path.clone()), Some(Arc::new(keys)))
        } else {
            (Source::Discovery(fetcher()?), None)
        };
        let introspection = match &config.introspection {
            Some(how) => Some(Introspection::new(how, &config.issuer, fetcher()?)),
            None => None,
        };
        // From the start: `increase` of Prometheus does not see the first count of a new series.
        for counter in [&LABELED.key_set_fetches, &LABELED.key_set_failures] {
            counter.add(&config.issuer, 0);
        }
        Ok(Self {
            id: config.issuer.clone(),
            introspection,
            audiences: config.audiences.clone(),
            subject_claim: config.subject_claim.clone().unwrap_or_else(|| "sub".into()),
            source,
            keys: RwLock::new(keys),
            generation: AtomicU64::new(0),
            flight: Mutex::default(),
            cause: LastCause::default(),
        })
    }

    /// The keys as last loaded; `None` before the first success.
    pub(super) fn keys(&self) -> Option<Arc<Keys>> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.clone()
    }

    /// Why its keys, or its answers about tokens, cannot be had; `None` while they can.
    pub(super) fn last_cause(&self) -> Option<Cause> {
        let asked = || self.introspection.as_ref()?.cause().snapshot();
        self.cause.snapshot().or_else(asked)
    }

    /// Differs from an earlier one when the keys have changed since.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Loads the keys again unless that was done too recently, and waits until it is over,
    /// however it ended. All callers share one fetch.
    ///
    /// # Cancel safety
    /// The fetch goes on without the caller.
    pub(super) async fn refresh(self: &Arc<Self>, tasks: &Tasks) {
        if let Some(mut running) = self.start_refresh(tasks) {
            // An error is the end of the fetch: the sender is gone.
            while running.changed().await.is_ok() {}
        }
    }

    /// Starts to load keys that are old or missing, and does not wait.
    pub(super) fn refresh_stale(self: &Arc<Self>, tasks: &Tasks) {
        let is_fresh = |keys: Arc<Keys>| keys.loaded.elapsed() < STALE;
        if !self.keys().is_some_and(is_fresh) {
            self.start_refresh(tasks);
        }
    }

    fn start_refresh(self: &Arc<Self>, tasks: &Tasks) -> Option<watch::Receiver<()>> {
        let mut flight = lock(&self.flight);
        if let Some(running) = &flight.running
            && running.has_changed().is_ok()
        {
            return Some(running.clone());
        }
        if !flight.may_start() {
            return None;
        }
        let (over, running) = watch::channel(());
        flight.running = Some(running.clone());
        drop(flight);
        let issuer = Arc::clone(self);
        tasks.spawn_service(async move {
            issuer.reload().await;
            drop(over);
        });
        Some(running)
    }

    #[cfg(test)]
    pub(super) fn loads_started(&self) -> usize {
        self.flight.lock().expect("no panic").started.len()
    }

    /// Loads the keys now, however often that was done.
    pub(super) async fn reload(&self) {
        LABELED.key_set_fetches.add(&self.id, 1);
        let result = timeout(FETCH_TIMEOUT, self.load())
            .await
            .unwrap_or(Err(LoadError::TimedOut));
        let failed = match result {
            Ok(keys) => {
                match keys.set.usable() {
                    Ok(()) => self.cause.clear(),
                    Err(error) => {
                        self.warn(&error, "an issuer has withdrawn every key for signatures");
                    }
                }
                self.store(keys);
                None
            }
            Err(error) => {
                self.warn(&error, "the keys of an issuer cannot be had");
                Some(Instant::now())
            }
        };
        let mut flight = lock(&self.flight);
        flight.failed = failed;
    }

    fn warn(&self, error: &(dyn std::error::Error + 'static), what: &str) {
        LABELED.key_set_failures.add(&self.id, 1);
        self.cause.set(error, None);
        tracing::warn!(issuer = self.id, error, "{what}");
    }

    async fn load(&self) -> Result<Keys, LoadError> {
        // What is published from now on may be missing.
        let begun = Instant::now();
        let json = match &self.source {
            Source::File(path) => read_file(path).await?,
            Source::Discovery(fetcher) => discovery::key_set(fetcher, &self.id).await?,
        };
        Keys::read(&json, begun)
    }

    fn store(&self, keys: Keys) {
        let mut held = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = held.as_ref().is_none_or(|old| old.digest != keys.digest);
        if is_new {
            tracing::info!(
                issuer = self.id,
                keys = keys.set.len(),
                "loaded the keys of an issuer"
            );
        }
        *held = Some(Arc::new(keys));
        if is_new {
            self.generation.fetch_add(1, Ordering::Release);
        }
    }
}

impl Keys {
    /// Whether they may lack the key of a token issued at `issued`, seconds since the Unix epoch, as it
    /// is `now`. An issuer publishes a key before it signs with it, so that a token older than the
    /// keys names one that was withdrawn, or never was.
    pub(super) fn may_lack_key(&self, issued: Option<f64>, now: f64) -> bool {
        let loaded = now - self.loaded.elapsed().as_secs_f64();
        issued.is_some_and(|issued| issued + SKEW_SECS > loaded)
    }

    /// How long ago they were loaded.
    pub(super) fn age(&self) -> Duration {
        self.loaded.elapsed()
    }

    /// Whether they were not loaded before `instant`.
    pub(super) fn are_of(&self, instant: Instant) -> bool {
        self.loaded >= instant
    }

    fn read(json: &[u8], loaded: Instant) -> Result<Self, LoadError> {
        Ok(Self {
            set: KeySet::read(json)?,
            digest: digest(&SHA256, json).as_ref().to_vec(),
            loaded,
        })
    }
}

impl Flight {
    /// Whether a fetch may start now; if so, notes that it does.
    fn may_start(&mut self) -> bool {
        let recently = |at: &Instant, pause: Duration| at.elapsed() < pause;
        if self.failed.is_some_and(|at| recently(&at, AFTER_FAILURE)) {
            return false;
        }
        if self.failed.is_none() && self.started.len() == BURST {
            let is_too_early = self.started.front().is_some_and(|at| recently(at, WINDOW));
            if is_too_early {
                return false;
            }
        }
        if self.started.len() == BURST {
            self.started.pop_front();
        }
        self.started.push_back(Instant::now());
        true
    }
}

async fn read_file(path: &Path) -> Result<Vec<u8>, LoadError> {
    let size = tokio::fs::metadata(path).await?.len();
    if size > MAX_BYTES as u64 {
        return Err(LoadError::TooLarge);
    }
    Ok(tokio::fs::read(path).await?)
}
