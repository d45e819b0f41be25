//! Change notices at a change of the upstream's era: subscriptions that are taken over, and refusals as evidence of the
//! other era. Spec: SPEC U-07, D-06.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::LinkNotices;
use crate::upstream::error::LinkError;

impl LinkNotices {
    /// Takes over the subscriptions of the preceding link of the other era. Announces their resources as changed once
    /// the stream is open, since changes in between were missed.
    // Spec: SPEC U-07
    pub(in crate::upstream) fn take_over(self: &Arc<Self>) {
        let mut uris = self.state.followed.all();
        if uris.is_empty() {
            return;
        }
        uris.truncate(self.most_uris());
        self.listening.missed.store(true, Ordering::Release);
        self.listening.wish(|wanted| wanted.uris.extend(uris));
        self.keep_listening();
    }

    /// Whether the upstream refused the latest stream with an error that satisfies `is_meant`.
    pub(in crate::upstream) fn is_refused(&self, is_meant: impl Fn(&LinkError) -> bool) -> bool {
        let settled = self.listening.settled.borrow();
        settled.failed.as_ref().is_some_and(is_meant)
    }

    /// Resolves when the upstream refuses the latest stream with an error that satisfies `is_meant`; never without such
    /// an error.
    ///
    /// # Cancel safety
    /// Reads only: nothing is lost.
    pub(in crate::upstream) async fn until_refused(&self, is_meant: impl Fn(&LinkError) -> bool) {
        let mut settled = self.listening.settled.subscribe();
        let refused = settled.wait_for(|settled| settled.failed.as_ref().is_some_and(&is_meant));
        let is_over = refused.await.is_err();
        if is_over {
            std::future::pending::<()>().await;
        }
    }
}
