//! Leaving a shared link: withdraws the level and subscriptions of the session, and ends a link without places.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{SharedLink, SharedMember};
use crate::call::UpstreamLink;
use crate::upstream::lock;

impl SharedMember {
    /// Leaves the link, which ends after `idle` without a place. Later calls have no effect.
    pub(super) fn leave(&self) -> impl Future<Output = ()> + Send + use<> {
        let is_first = !self.left.swap(true, Ordering::Relaxed);
        if is_first {
            self.listen(false);
        }
        let (pooled, number, idle) = (Arc::clone(&self.pooled), self.number, self.idle);
        if is_first {
            pooled.members.holders.remove(&self.session);
        }
        let (links, key, tasks) = (self.links.clone(), self.key.clone(), self.tasks.clone());
        async move {
            if !is_first {
                return;
            }
            pooled.leave_level(number).await;
            for uri in pooled.members.leave(number) {
                pooled.link.unsubscribe(&uri).await;
            }
            if !lock(&pooled.members.intakes).is_empty() {
                return;
            }
            tasks.spawn_service(async move {
                tokio::time::sleep(idle).await;
                links.close_unused(&key, &pooled).await;
            });
        }
    }
}

impl Drop for SharedMember {
    /// Leaves the link if `close` was not called, as after a call that had the place for itself.
    fn drop(&mut self) {
        let is_left = self.left.load(Ordering::Relaxed);
        if !is_left && tokio::runtime::Handle::try_current().is_ok() {
            self.tasks.spawn_service(self.leave());
        }
    }
}

impl SharedLink {
    /// Withdraws the level of a member that leaves.
    async fn leave_level(&self, member: u64) {
        let levels = &self.members.levels;
        if levels.want(member, None).is_none() {
            return;
        }
        let mut told = levels.told.lock().await;
        let wanted = levels.most_verbose();
        if told.is_some_and(|told| told != wanted) {
            self.link.set_level(wanted).await;
            *told = Some(wanted);
        }
    }
}
