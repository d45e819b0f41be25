//! Single-flight: concurrent requests with equal keys share the first one's result. Results are not
//! cached.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::lock::lock;

type Running<K, V> = Mutex<HashMap<K, watch::Receiver<Option<V>>>>;

/// Running requests by key. Cloning shares them. One entry per live [`Lead`].
#[derive(Debug)]
pub struct Flights<K, V>(Arc<Running<K, V>>);

/// The role of a caller in a flight.
#[derive(Debug)]
pub enum Boarded<K: Eq + Hash, V> {
    /// Make the request and publish the result.
    Lead(Lead<K, V>),
    /// Wait for the leader's result.
    Join(Join<V>),
}

/// The leader of a flight. Dropped before it [lands](Lead::land), it wakes the joiners with `None`, and the
/// next caller leads.
#[derive(Debug)]
pub struct Lead<K: Eq + Hash, V> {
    key: K,
    running: Arc<Running<K, V>>,
    told: watch::Sender<Option<V>>,
}

/// A joiner of a flight. Dropping it affects no other caller.
#[derive(Debug)]
pub struct Join<V>(watch::Receiver<Option<V>>);

impl<K, V> Default for Flights<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, V> Clone for Flights<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Eq + Hash + Clone, V> Flights<K, V> {
    /// Joins the flight for `key`, or begins it.
    #[must_use]
    pub fn board(&self, key: K) -> Boarded<K, V> {
        let mut running = lock(&self.0);
        if let Some(told) = running.get(&key) {
            return Boarded::Join(Join(told.clone()));
        }
        let (told, hears) = watch::channel(None);
        running.insert(key.clone(), hears);
        Boarded::Lead(Lead {
            key,
            running: Arc::clone(&self.0),
            told,
        })
    }
}

impl<K: Eq + Hash, V> Lead<K, V> {
    /// Publishes the result to all joiners.
    pub fn land(self, value: V) {
        self.told.send_replace(Some(value));
    }
}

impl<K: Eq + Hash, V> Drop for Lead<K, V> {
    fn drop(&mut self) {
        lock(&self.running).remove(&self.key);
    }
}

impl<V: Clone> Join<V> {
    /// The leader's result; `None` if the leader was dropped without one.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn landed(mut self) -> Option<V> {
        let told = self.0.wait_for(Option::is_some).await.ok()?;
        told.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lead(flights: &Flights<&'static str, u8>) -> Lead<&'static str, u8> {
        match flights.board("k") {
            Boarded::Lead(lead) => lead,
            Boarded::Join(_) => panic!("somebody leads already"),
        }
    }

    fn join(flights: &Flights<&'static str, u8>) -> Join<u8> {
        match flights.board("k") {
            Boarded::Join(join) => join,
            Boarded::Lead(_) => panic!("nobody leads"),
        }
    }

    #[tokio::test]
    async fn everybody_who_waits_gets_what_the_first_one_found() {
        let flights = Flights::default();
        let first = lead(&flights);
        let (second, third) = (join(&flights), join(&flights));
        drop(third);
        assert!(matches!(flights.board("other"), Boarded::Lead(_)));
        first.land(7);
        assert_eq!(second.landed().await, Some(7));
        // Nothing is kept.
        drop(lead(&flights));
    }

    #[tokio::test]
    async fn whoever_gives_up_leaves_the_asking_to_the_next() {
        let flights = Flights::default();
        let first = lead(&flights);
        let second = join(&flights);
        drop(first);
        assert_eq!(second.landed().await, None);
        lead(&flights).land(8);
    }
}
