//! `LoadedKeys`: the keys of an issuer as last loaded, and how old they are.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use tokio::time::Instant;

use super::load_error::LoadError;
use crate::auth::key_set::KeySet;
use crate::auth::token_policy::SKEW_SECS;

/// The keys as last loaded.
#[derive(Debug)]
pub(in crate::auth) struct LoadedKeys {
    pub(in crate::auth) set: KeySet,
    digest: Vec<u8>,
    /// When the load began: keys published before are included.
    loaded: Instant,
    /// The file or URL that they were read from.
    place: String,
}

impl LoadedKeys {
    /// Whether they may lack the key of a token issued at `issued`; both times in seconds since the Unix epoch. An issuer
    /// publishes a key before it signs with it. So a token older than these keys names a key that was withdrawn, or
    /// that never existed.
    pub(in crate::auth) fn may_lack_key(&self, issued: Option<f64>, now: f64) -> bool {
        let loaded = now - self.loaded.elapsed().as_secs_f64();
        issued.is_some_and(|issued| issued + SKEW_SECS > loaded)
    }

    /// How long ago they were loaded.
    pub(in crate::auth) fn age(&self) -> Duration {
        self.loaded.elapsed()
    }

    /// Whether they were not loaded before `instant`.
    pub(in crate::auth) fn are_of(&self, instant: Instant) -> bool {
        self.loaded >= instant
    }

    /// Whether they came from the same bytes as `other`.
    pub(super) fn are_same(&self, other: &Self) -> bool {
        self.digest == other.digest
    }

    /// Checks that at least one key is for signatures.
    ///
    /// # Errors
    /// [`LoadError::BadKeySet`] if none is.
    pub(super) fn usable(&self) -> Result<(), LoadError> {
        self.set.usable().map_err(|source| LoadError::BadKeySet {
            place: self.place.clone(),
            source,
        })
    }

    /// Reads a JWK set from `place`, whose load began at `loaded`.
    ///
    /// # Errors
    /// [`LoadError::BadKeySet`] if it is none.
    pub(super) fn read(json: &[u8], loaded: Instant, place: String) -> Result<Self, LoadError> {
        match KeySet::read(json) {
            Ok(set) => Ok(Self {
                set,
                digest: digest(&SHA256, json).as_ref().to_vec(),
                loaded,
                place,
            }),
            Err(source) => Err(LoadError::BadKeySet { place, source }),
        }
    }
}
