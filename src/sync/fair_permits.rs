//! Permits for expensive work that go to callers in turn: a caller with a thousand requests waiting delays
//! another caller's first request by one permit, not by a thousand.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::lock::lock;

/// A fixed number of permits. Callers that wait get them in turn, each caller's requests in their order.
///
/// Every operation is O(1), apart from waiters that were dropped: each is passed over once.
#[derive(Debug)]
pub struct FairPermits<K: Eq + Hash + Copy> {
    queue: Mutex<PermitQueue<K>>,
}

#[derive(Debug)]
struct PermitQueue<K: Eq + Hash + Copy> {
    free: usize,
    /// Of callers that wait, each never empty.
    waiting: HashMap<K, VecDeque<oneshot::Sender<FairPermit<K>>>>,
    /// Each key of `waiting` once: who gets the next permit stands in front.
    turns: VecDeque<K>,
}

/// One permit; dropping it grants the permit to the next waiter.
#[derive(Debug)]
#[must_use = "the permit is given back when it is dropped"]
pub struct FairPermit<K: Eq + Hash + Copy> {
    /// `None` once it was given back.
    of: Option<Arc<FairPermits<K>>>,
}

impl<K: Eq + Hash + Copy> FairPermits<K> {
    /// `permits` permits, all free.
    #[must_use]
    pub fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(PermitQueue {
                free: permits,
                waiting: HashMap::new(),
                turns: VecDeque::new(),
            }),
        })
    }

    /// Permits that are free now.
    #[must_use]
    pub fn free(&self) -> usize {
        lock(&self.queue).free
    }

    /// Number of waiters, including dropped ones that are still in the queue.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        lock(&self.queue).waiting.values().map(VecDeque::len).sum()
    }

    /// A permit, if one is free now.
    pub fn try_permit(self: &Arc<Self>) -> Option<FairPermit<K>> {
        let mut queue = lock(&self.queue);
        queue.free = queue.free.checked_sub(1)?;
        Some(FairPermit {
            of: Some(Arc::clone(self)),
        })
    }

    /// Waits for the turn of `caller`.
    ///
    /// # Cancel safety
    /// A future that is dropped has left the queue, and keeps no permit.
    pub async fn permit(self: &Arc<Self>, caller: K) -> Option<FairPermit<K>> {
        if let Some(permit) = self.try_permit() {
            return Some(permit);
        }
        let granted = {
            let (grant, granted) = oneshot::channel();
            let mut queue = lock(&self.queue);
            let own = queue.waiting.entry(caller).or_default();
            own.push_back(grant);
            if own.len() == 1 {
                queue.turns.push_back(caller);
            }
            granted
        };
        // One may have been given back in between.
        self.grant();
        granted.await.ok()
    }

    /// Grants free permits to waiters in turn.
    fn grant(self: &Arc<Self>) {
        loop {
            let next = lock(&self.queue).next();
            let Some(waiter) = next else { return };
            let permit = FairPermit {
                of: Some(Arc::clone(self)),
            };
            if let Err(mut permit) = waiter.send(permit) {
                // The waiter was dropped. Return the permit here: `FairPermit::drop` would call `grant` again.
                permit.of = None;
                lock(&self.queue).free += 1;
            }
        }
    }
}

impl<K: Eq + Hash + Copy> PermitQueue<K> {
    /// Takes out the waiter whose turn it is, with a permit, if there are both.
    fn next(&mut self) -> Option<oneshot::Sender<FairPermit<K>>> {
        while self.free > 0 {
            let caller = self.turns.pop_front()?;
            let own = self.waiting.get_mut(&caller);
            let Some(waiter) = own.and_then(VecDeque::pop_front) else {
                continue;
            };
            if self.waiting.get(&caller).is_some_and(|own| !own.is_empty()) {
                self.turns.push_back(caller);
            } else {
                self.waiting.remove(&caller);
            }
            if !waiter.is_closed() {
                self.free -= 1;
                return Some(waiter);
            }
        }
        None
    }
}

impl<K: Eq + Hash + Copy> Drop for FairPermit<K> {
    fn drop(&mut self) {
        if let Some(of) = self.of.take() {
            lock(&of.queue).free += 1;
            of.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;

    use futures_util::FutureExt as _;

    use super::*;

    type Wait = Pin<Box<dyn Future<Output = Option<FairPermit<char>>>>>;

    /// A request of `caller`, which waits.
    fn wait(permits: &Arc<FairPermits<char>>, caller: char) -> Wait {
        let permits = Arc::clone(permits);
        let mut wait: Wait = Box::pin(async move { permits.permit(caller).await });
        assert!(wait.as_mut().now_or_never().is_none(), "none is free");
        wait
    }

    /// The order in which these callers get the one permit.
    fn order(permits: &Arc<FairPermits<char>>, callers: &str) -> String {
        let held = permits.try_permit().unwrap();
        let mut waits: Vec<_> = callers
            .chars()
            .map(|caller| (caller, wait(permits, caller)))
            .collect();
        drop(held);
        let mut order = String::new();
        while !waits.is_empty() {
            let ready = |(_, wait): &mut (char, Wait)| wait.as_mut().now_or_never().flatten();
            let (at, permit) = waits
                .iter_mut()
                .enumerate()
                .find_map(|(at, wait)| Some((at, ready(wait)?)))
                .expect("the permit was given to one of them");
            order.push(waits.remove(at).0);
            drop(permit);
        }
        order
    }

    #[test]
    fn callers_that_wait_get_permits_in_turn() {
        let permits = FairPermits::new(1);
        assert_eq!(order(&permits, "aaaabbc"), "abcabaa");
        assert_eq!(permits.free(), 1);
    }

    #[test]
    fn permit_passes_over_those_who_left() {
        let permits = FairPermits::new(1);
        let held = permits.try_permit().unwrap();
        let (left, mut stays) = (wait(&permits, 'a'), wait(&permits, 'a'));
        // The second one is given the permit, and goes without having seen it.
        let (given, mut last) = (wait(&permits, 'b'), wait(&permits, 'c'));
        drop(left);
        drop(held);
        assert!(last.as_mut().now_or_never().is_none());
        let turn = stays.as_mut().now_or_never();
        assert!(turn.is_none(), "the next one of its caller comes later");
        drop(given);
        let permit = last.as_mut().now_or_never().flatten().unwrap();
        drop(permit);
        assert!(stays.as_mut().now_or_never().flatten().is_some());
        assert_eq!((permits.free(), lock(&permits.queue).waiting.len()), (1, 0));
    }

    #[test]
    fn waiter_is_served_where_a_permit_came_back_meanwhile() {
        let permits = FairPermits::new(2);
        let (one, two) = (permits.try_permit().unwrap(), permits.try_permit().unwrap());
        let mut waits = [wait(&permits, 'a'), wait(&permits, 'a')];
        drop((one, two));
        let served = waits
            .iter_mut()
            .map(|wait| wait.as_mut().now_or_never().flatten());
        assert_eq!(served.flatten().count(), 2);
    }
}
