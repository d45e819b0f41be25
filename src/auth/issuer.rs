//! One trusted issuer and its keys: fetched once however many wait, seldom again, kept when the
//! issuer cannot be reached (SPEC A-23).

mod key_fetches;
mod load_error;
mod loaded_keys;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use self::key_fetches::KeyFetches;
use self::load_error::LoadError;
use self::loaded_keys::LoadedKeys;
use super::discovery;
use super::fetch::{IssuerClients, MAX_BYTES};
use super::introspection::IntrospectionClient;
use super::setup_error::AuthError;
use crate::cause::{ErrorCause, LastCause};
use crate::config;
use crate::lock::lock;
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::line_limit::LineLimit;
use crate::telemetry::metrics::LABELED;
use crate::telemetry::redact::shown;

/// For all documents of one fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Keys of this age are fetched again in the background, so that a key that the issuer has withdrawn does not stay.
const STALE: Duration = Duration::from_mins(5);

/// Bytes of the address of a key set that are kept.
const MAX_PLACE: usize = 512;

/// Where keys come from.
#[derive(Debug)]
enum KeySource {
    File(PathBuf),
    Discovery(IssuerClients),
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
    pub(super) introspection: Option<IntrospectionClient>,
    source: KeySource,
    keys: RwLock<Option<Arc<LoadedKeys>>>,
    /// Grows whenever the keys change.
    generation: AtomicU64,
    fetches: Mutex<KeyFetches>,
    /// Why the keys could not be loaded, or hold none for signatures.
    cause: LastCause,
    lines: LineLimit,
}

impl Issuer {
    /// Reads `jwks_file` if configured; keys found by discovery are fetched when needed.
    ///
    /// # Errors
    /// The file holds no keys.
    pub(super) fn new(
        config: &config::IssuerConfig,
        fetcher: &mut impl FnMut() -> Result<IssuerClients, AuthError>,
    ) -> Result<Self, AuthError> {
        let (source, keys) = if let Some(path) = &config.jwks_file {
            let file = path.display().to_string();
            let keys = std::fs::read(path)
                .map_err(|source| unreadable(path, source))
                .and_then(|json| LoadedKeys::read(&json, Instant::now(), file))
                .and_then(|keys| {
                    keys.usable()?;
                    Ok(keys)
                })
                .map_err(|source| AuthError::Keys {
                    issuer: config.issuer.clone(),
                    source: source.into(),
                })?;
            (KeySource::File(path.clone()), Some(Arc::new(keys)))
        } else {
            (KeySource::Discovery(fetcher()?), None)
        };
        let introspection = match &config.introspection {
            Some(how) => Some(IntrospectionClient::new(how, &config.issuer, fetcher()?)),
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
            fetches: Mutex::default(),
            cause: LastCause::default(),
            lines: LineLimit::default(),
        })
    }

    /// The keys as last loaded; `None` before the first success.
    pub(super) fn keys(&self) -> Option<Arc<LoadedKeys>> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.clone()
    }

    /// Why its keys, or its answers about tokens, cannot be had; `None` while they can.
    pub(super) fn last_cause(&self) -> Option<ErrorCause> {
        let asked = || self.introspection.as_ref()?.cause().snapshot();
        self.cause.snapshot().or_else(asked)
    }

    /// Forgets why keys could not be loaded, if none ever were: the issuer may have none.
    pub(super) fn excuse_missing_keys(&self) {
        if self.keys().is_none() {
            self.cause.clear();
        }
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
    pub(super) async fn refresh(self: &Arc<Self>, tasks: &TaskSpawner) {
        if let Some(mut running) = self.start_refresh(tasks) {
            // An error is the end of the fetch: the sender is gone.
            while running.changed().await.is_ok() {}
        }
    }

    /// Starts to load keys that are old or missing, and does not wait.
    pub(super) fn refresh_stale(self: &Arc<Self>, tasks: &TaskSpawner) {
        let is_fresh = |keys: Arc<LoadedKeys>| keys.age() < STALE;
        if !self.keys().is_some_and(is_fresh) {
            self.start_refresh(tasks);
        }
    }

    fn start_refresh(self: &Arc<Self>, tasks: &TaskSpawner) -> Option<watch::Receiver<()>> {
        let mut fetches = lock(&self.fetches);
        if let Some(running) = &fetches.running
            && running.has_changed().is_ok()
        {
            return Some(running.clone());
        }
        if !fetches.may_start() {
            return None;
        }
        let (over, running) = watch::channel(());
        fetches.running = Some(running.clone());
        drop(fetches);
        let issuer = Arc::clone(self);
        tasks.spawn_service(async move {
            issuer.reload().await;
            drop(over);
        });
        Some(running)
    }

    #[cfg(test)]
    pub(super) fn loads_started(&self) -> usize {
        self.fetches.lock().expect("no panic").started.len()
    }

    /// Loads the keys now, however often that was done.
    pub(super) async fn reload(&self) {
        LABELED.key_set_fetches.add(&self.id, 1);
        let result = timeout(FETCH_TIMEOUT, self.load())
            .await
            .unwrap_or_else(|_| Err(LoadError::TimedOut(self.id.clone())));
        let failed = match result {
            Ok(keys) => {
                match keys.usable() {
                    Ok(()) => self.cause.clear(),
                    Err(error) => self.fail(&error, "issuer publishes no key for signatures"),
                }
                self.store(keys);
                None
            }
            Err(error) => {
                self.fail(&error, "cannot load the keys of an issuer");
                Some(Instant::now())
            }
        };
        let mut fetches = lock(&self.fetches);
        fetches.failed = failed;
    }

    /// Counts and keeps a failure, and logs it unless the same remedy was logged within a minute.
    fn fail(&self, error: &LoadError, what: &str) {
        LABELED.key_set_failures.add(&self.id, 1);
        let remedy = error.remedy();
        self.cause.set(error, Some(remedy.into()));
        if let Some(muted) = self.lines.admit(remedy) {
            let error: &(dyn std::error::Error + 'static) = error;
            tracing::warn!(issuer = self.id, error, remedy, muted, "{what}");
        }
    }

    async fn load(&self) -> Result<LoadedKeys, LoadError> {
        // What is published from now on may be missing.
        let begun = Instant::now();
        let (place, json) = match &self.source {
            KeySource::File(path) => (path.display().to_string(), read_file(path).await?),
            KeySource::Discovery(fetcher) => {
                let (url, json) = discovery::key_set(fetcher, &self.id).await?;
                (shown(url.as_str(), MAX_PLACE).into_owned(), json)
            }
        };
        LoadedKeys::read(&json, begun, place)
    }

    fn store(&self, keys: LoadedKeys) {
        let mut held = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = held.as_ref().is_none_or(|old| !old.are_same(&keys));
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

async fn read_file(path: &Path) -> Result<Vec<u8>, LoadError> {
    let read = async {
        if tokio::fs::metadata(path).await?.len() > MAX_BYTES as u64 {
            return Ok(None);
        }
        tokio::fs::read(path).await.map(Some)
    };
    match read.await {
        Ok(Some(json)) => Ok(json),
        Ok(None) => Err(LoadError::TooLarge(path.to_owned())),
        Err(source) => Err(unreadable(path, source)),
    }
}

fn unreadable(path: &Path, source: std::io::Error) -> LoadError {
    let path = path.to_owned();
    LoadError::File { path, source }
}
