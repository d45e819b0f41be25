//! `DetachedLink`: the way back to the client of a request that may outlive the client's wait. Spec: SPEC G-03.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::call::{DownstreamLink, InputOutcome, InputRequests, Notice};

/// Link of a request that may outlive the client's wait: after the client was answered, nothing of this request reaches
/// it, and its call gets no event stream any more.
#[derive(Debug)]
pub(super) struct DetachedLink {
    link: Arc<dyn DownstreamLink>,
    gone: AtomicBool,
}

impl DetachedLink {
    /// The same way as `link`, until the client is answered.
    pub(super) fn of(link: &Arc<dyn DownstreamLink>) -> Self {
        Self {
            link: Arc::clone(link),
            gone: AtomicBool::new(false),
        }
    }

    /// The client is answered without this request.
    pub(super) fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl DownstreamLink for DetachedLink {
    fn notify(&self, notice: Notice) {
        if !self.is_gone() {
            self.link.notify(notice);
        }
    }

    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        if self.is_gone() {
            return Box::pin(std::future::ready(InputOutcome::Unanswered));
        }
        self.link.ask(round)
    }

    fn hang_up(&self, retry: Option<Duration>) {
        if !self.is_gone() {
            self.link.hang_up(retry);
        }
    }

    fn behind(&self) -> Option<&dyn DownstreamLink> {
        Some(&*self.link)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts what reaches the client.
    #[derive(Debug, Default)]
    struct Client(AtomicUsize);

    impl DownstreamLink for Client {
        fn notify(&self, _notice: Notice) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn hang_up(&self, _retry: Option<Duration>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    // SPEC G-03, T-27: a call that was answered would get an event stream that never ends.
    #[test]
    fn client_that_was_answered_hears_nothing_of_the_request() {
        let client = Arc::new(Client::default());
        let reached = || client.0.load(Ordering::Relaxed);
        let detached = DetachedLink::of(&(Arc::clone(&client) as _));
        let tell = || {
            detached.notify(Notice::list_changed("tools"));
            detached.hang_up(None);
        };
        tell();
        assert_eq!(reached(), 2);
        detached.leave();
        tell();
        assert_eq!(reached(), 2);
    }
}
