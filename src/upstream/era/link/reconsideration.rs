//! The change of a link to the other era, after evidence against the one it speaks. Spec: SPEC U-07.

use std::sync::atomic::Ordering;

use super::{EraLink, Inner};
use crate::upstream::carrier::Settings;
use crate::upstream::lock;

impl EraLink {
    /// Asks again what the upstream speaks, after evidence against the era of `was`; not where another
    /// link has just found it out. Returns a link of the other era, `None` where nothing has changed.
    pub(super) async fn reconsider(&self, was: &Inner) -> Option<Inner> {
        if self.cell.pin.is_some() {
            return None;
        }
        let Settings { client, owner, .. } = *self.settings;
        let is_known = self.cell.has_moved_on(was.era(), client, owner);
        if !is_known && !self.cell.may_reconsider() {
            return None;
        }
        let _resolving = self.resolving.turn().await;
        let current = self.current()?;
        if current.era() != was.era() {
            return Some(current);
        }
        match self.resolve(!is_known).await {
            Ok(fresh) if fresh.era() != was.era() => {
                was.close().await;
                Some(fresh)
            }
            Ok(fresh) => {
                // As before: the link that knows its sessions goes on.
                *lock(&self.current) = Some(was.clone());
                self.listening.make_so(|wanted| was.listen(*wanted));
                fresh.close().await;
                None
            }
            Err(_) => None,
        }
    }

    /// Uses the stateless legacy side, since the modern one refused the form of the first call.
    // Spec: `docs/adr/0008`
    pub(super) async fn fall_back(&self, was: &Inner) -> Option<Inner> {
        let _resolving = self.resolving.turn().await;
        let current = self.current()?;
        if current.era() != was.era() {
            return Some(current);
        }
        self.cell
            .prefer_legacy("the modern era refused the form of a call");
        self.stands_by.store(false, Ordering::Relaxed);
        let fresh = self.legacy(None, false);
        *lock(&self.current) = Some(fresh.clone());
        self.listening.make_so(|wanted| fresh.listen(*wanted));
        was.close().await;
        // The session ended meanwhile: nothing else would close it.
        if self.ended.load(Ordering::Acquire) {
            self.close_inner().await;
            return None;
        }
        Some(fresh)
    }
}
