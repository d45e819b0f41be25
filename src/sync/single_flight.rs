//! Single-flight: concurrent requests with equal keys share the first one's result. Results are not
//! cached.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::lock::lock;

type RunningRequests<K, V> = Mutex<HashMap<K, watch::Receiver<Option<V>>>>;

/// Running requests by key. Cloning shares them. One entry per live [`Leader`].
#[derive(Debug)]
pub struct SingleFlight<K, V>(Arc<RunningRequests<K, V>>);

/// The role of a caller in a flight.
#[derive(Debug)]
pub enum Joined<K: Eq + Hash, V> {
    /// Make the request and publish the result.
    Lead(Leader<K, V>),
    /// Wait for the leader's result.
    Join(Follower<V>),
}

/// The leader of a flight. Dropped before it [completes](Leader::complete), it wakes the joiners with `None`, and the
/// next caller leads.
#[derive(Debug)]
pub struct Leader<K: Eq + Hash, V> {
    key: K,
    running: Arc<RunningRequests<K, V>>,
    told: watch::Sender<Option<V>>,
}

/// A joiner of a flight. Dropping it affects no other caller.
#[derive(Debug)]
pub struct Follower<V>(watch::Receiver<Option<V>>);

impl<K, V> Default for SingleFlight<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, V> Clone for SingleFlight<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Eq + Hash + Clone, V> SingleFlight<K, V> {
    /// Joins the flight for `key`, or begins it.
    #[must_use]
    pub fn join(&self, key: K) -> Joined<K, V> {
        let mut running = lock(&self.0);
        if let Some(told) = running.get(&key) {
            return Joined::Join(Follower(told.clone()));
        }
        let (told, hears) = watch::channel(None);
        running.insert(key.clone(), hears);
        Joined::Lead(Leader {
            key,
            running: Arc::clone(&self.0),
            told,
        })
    }

    /// Joins the flight for `key`, if one is under way.
    #[must_use]
    pub fn follow(&self, key: &K) -> Option<Follower<V>> {
        let running = lock(&self.0);
        running.get(key).map(|told| Follower(told.clone()))
    }
}

impl<K: Eq + Hash + Clone, V: Clone> SingleFlight<K, V> {
    /// The result of the flight for `key`; `request` runs only if no other caller leads.
    ///
    /// # Cancel safety
    /// When the leader is dropped, one of the callers that wait makes its own request.
    pub async fn share(&self, key: K, request: impl Future<Output = V>) -> V {
        loop {
            match self.join(key.clone()) {
                Joined::Lead(leader) => {
                    let value = request.await;
                    leader.complete(value.clone());
                    return value;
                }
                Joined::Join(follower) => {
                    if let Some(value) = follower.result().await {
                        return value;
                    }
                }
            }
        }
    }
}

impl<K, V> SingleFlight<K, V> {
    /// The number of flights under way.
    #[cfg(test)]
    pub(crate) fn under_way(&self) -> usize {
        lock(&self.0).len()
    }
}

impl<K: Eq + Hash, V> Leader<K, V> {
    /// Joins the leader's own flight, which another task is to complete.
    #[must_use]
    pub fn follow(&self) -> Follower<V> {
        Follower(self.told.subscribe())
    }

    /// Publishes the result to all joiners. The flight is over before they hear of it: a joiner that joins again finds the
    /// next one.
    pub fn complete(self, value: V) {
        lock(&self.running).remove(&self.key);
        self.told.send_replace(Some(value));
    }
}

impl<K: Eq + Hash, V> Drop for Leader<K, V> {
    fn drop(&mut self) {
        // After a result, the key may be that of the next flight.
        if self.told.borrow().is_none() {
            lock(&self.running).remove(&self.key);
        }
    }
}

impl<V: Clone> Follower<V> {
    /// The leader's result; `None` if the leader was dropped without one.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn result(mut self) -> Option<V> {
        let told = self.0.wait_for(Option::is_some).await.ok()?;
        told.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;

    fn lead(flights: &SingleFlight<&'static str, u8>) -> Leader<&'static str, u8> {
        match flights.join("k") {
            Joined::Lead(lead) => lead,
            Joined::Join(_) => panic!("somebody leads already"),
        }
    }

    fn join(flights: &SingleFlight<&'static str, u8>) -> Follower<u8> {
        match flights.join("k") {
            Joined::Join(join) => join,
            Joined::Lead(_) => panic!("nobody leads"),
        }
    }

    #[tokio::test]
    async fn everybody_who_waits_gets_what_the_first_one_found() {
        let flights = SingleFlight::default();
        let first = lead(&flights);
        let (second, third) = (join(&flights), join(&flights));
        drop(third);
        assert!(matches!(flights.join("other"), Joined::Lead(_)));
        first.complete(7);
        assert_eq!(second.result().await, Some(7));
        // Nothing is kept.
        drop(lead(&flights));
    }

    /// Joins again as soon as it is woken.
    struct JoinsAgain {
        flights: SingleFlight<&'static str, u8>,
        joined: Mutex<Option<Joined<&'static str, u8>>>,
    }

    impl Wake for JoinsAgain {
        fn wake(self: Arc<Self>) {
            *self.joined.lock().unwrap() = Some(self.flights.join("k"));
        }
    }

    #[test]
    fn joiner_that_joins_again_is_in_the_next_flight() {
        let flights = SingleFlight::default();
        let first = lead(&flights);
        let again = Arc::new(JoinsAgain {
            flights: flights.clone(),
            joined: Mutex::default(),
        });
        let mut second = pin!(join(&flights).result());
        let waker = Waker::from(Arc::clone(&again));
        let mut context = Context::from_waker(&waker);
        assert!(second.as_mut().poll(&mut context).is_pending());
        first.complete(7);
        assert_eq!(second.as_mut().poll(&mut context), Poll::Ready(Some(7)));
        let joined = again.joined.lock().unwrap().take();
        assert!(matches!(joined, Some(Joined::Lead(_))));
        assert_eq!(
            flights.under_way(),
            1,
            "the first leader ends its own alone"
        );
        drop(joined);
        assert_eq!(flights.under_way(), 0);
    }

    #[tokio::test]
    async fn callers_share_the_request_of_the_first_that_stays() {
        let flights = SingleFlight::default();
        let mut first = Box::pin(flights.share("k", std::future::pending()));
        let answer = async {
            tokio::task::yield_now().await;
            7
        };
        let mut second = Box::pin(flights.share("k", answer));
        let mut third = Box::pin(flights.share("k", std::future::ready(8)));
        assert!(futures_util::poll!(&mut first).is_pending());
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(futures_util::poll!(&mut third).is_pending());
        // The first caller leads, and leaves while the others wait.
        drop(first);
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(futures_util::poll!(&mut third).is_pending());
        assert_eq!((second.await, third.await), (7, 7));
        assert_eq!(flights.under_way(), 0);
    }

    #[tokio::test]
    async fn whoever_gives_up_leaves_the_asking_to_the_next() {
        let flights = SingleFlight::default();
        let first = lead(&flights);
        let second = join(&flights);
        drop(first);
        assert_eq!(second.result().await, None);
        lead(&flights).complete(8);
    }
}
