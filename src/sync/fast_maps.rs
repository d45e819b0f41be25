//! Hash maps for the way of every call: with a fast hash, where callers do not choose what the keys are.
//!
//! The standard library's keyed hash withstands a caller who chooses keys that meet in one place, and costs about a
//! hundred instructions a look-up. Here the keys are counters, digests and ids of the gateway's own, or there are only
//! as many at once as a limit allows. Seeds are random all the same.

use std::collections::HashMap;

use dashmap::DashMap;

/// The hash of these maps.
pub type FastState = foldhash::fast::RandomState;

/// A map for one thread at a time.
pub type FastMap<K, V> = HashMap<K, V, FastState>;

/// A map for all threads.
pub type FastDashMap<K, V> = DashMap<K, V, FastState>;
