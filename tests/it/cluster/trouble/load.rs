//! Users who call and listen at all replicas in turn.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{join, join_all};

use super::front::Front;
use super::user::User;
use crate::harness::{Gateway, eventually};

/// Users with one load balancer.
pub(super) struct Load {
    pub(super) front: Arc<Front>,
    pub(super) users: Vec<User>,
}

impl Load {
    /// Opens so many sessions, at all replicas in turn.
    pub(super) async fn open(replicas: &[Gateway], count: usize) -> Self {
        let mut load = Self {
            front: Front::new(replicas),
            users: Vec::new(),
        };
        load.add(count).await;
        load
    }

    /// Opens so many more.
    pub(super) async fn add(&mut self, count: usize) {
        for _ in 0..count {
            self.users.push(User::open(&self.front).await);
            // A user begins with three requests: the next one is not to begin at the same replica.
            self.front.skip();
        }
    }

    /// All call and listen for as long as `trouble` takes.
    pub(super) async fn during<T>(&self, trouble: impl Future<Output = T>) -> T {
        self.front.is_over.store(false, Ordering::Relaxed);
        let load = self.users.iter();
        let load = join_all(load.map(|user| join(user.keep_calling(), user.keep_listening())));
        let trouble = async {
            let outcome = trouble.await;
            self.front.is_over.store(true, Ordering::Relaxed);
            outcome
        };
        join(load, trouble).await.1
    }

    /// Waits until events have ids again, in every session.
    pub(super) async fn logs_events(&self) {
        for user in &self.users {
            eventually("events have ids", async || {
                user.call_twice().await.filter(|has_ids| *has_ids)
            })
            .await;
        }
    }
}
