//! The end of a place at a shared link: nobody needs any more what its session alone has wanted, and
//! a link without places is ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Place, Pooled};
use crate::call::UpstreamLink;
use crate::upstream::lock;

impl Place {
    /// Leaves the link, which ends when nobody has come back for a while. Only the first time does
    /// anything.
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

impl Drop for Place {
    /// A call that had the place for itself ends in many ways, and none of them closes it.
    fn drop(&mut self) {
        let is_left = self.left.load(Ordering::Relaxed);
        if !is_left && tokio::runtime::Handle::try_current().is_ok() {
            self.tasks.spawn_service(self.leave());
        }
    }
}

impl Pooled {
    /// Nobody needs what only this member wanted to have logged.
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
