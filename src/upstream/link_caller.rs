//! `LinkCaller`: the caller whose tokens the requests of a link carry that belong to no call, such as its streams, and
//! how long such streams may last.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::sleep_until;

use crate::call::CallerAccess;

/// The caller that opened the link; once its token has ended, the last one that made a call on the link. All are the same
/// person with the same client, at most with other scopes.
#[derive(Debug)]
pub struct LinkCaller(watch::Sender<Arc<CallerAccess>>);

impl LinkCaller {
    /// `opened` by a caller.
    #[must_use]
    pub fn new(opened: Arc<CallerAccess>) -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(opened)))
    }

    /// The caller now.
    #[must_use]
    pub fn current(&self) -> Arc<CallerAccess> {
        Arc::clone(&self.0.borrow())
    }

    /// Notes that `caller` makes a call.
    pub(super) fn called(&self, caller: &Arc<CallerAccess>) {
        let stands =
            |current: &Arc<CallerAccess>| Arc::ptr_eq(current, caller) || current.token().is_some();
        if stands(&self.0.borrow()) {
            return;
        }
        self.0.send_if_modified(|current| {
            let replaced = !stands(current);
            if replaced {
                *current = Arc::clone(caller);
            }
            replaced
        });
    }

    /// Resolves while the caller has a token: at once, or when the next call has brought one.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn ready(&self) {
        let mut callers = self.0.subscribe();
        loop {
            let caller = Arc::clone(&callers.borrow_and_update());
            let mut tokens = caller.subscribe();
            tokens.mark_unchanged();
            if caller.token().is_some() {
                return;
            }
            // Neither sender is gone: both are held here.
            tokio::select! {
                _ = callers.changed() => {}
                _ = tokens.changed() => {}
            }
        }
    }

    /// Resolves when the caller's token has ended and no call with the same scopes has brought another one.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn ended(&self) {
        let mut callers = self.0.subscribe();
        let caller = Arc::clone(&callers.borrow_and_update());
        let mut tokens = caller.subscribe();
        loop {
            tokens.mark_unchanged();
            let Some(token) = caller.token() else {
                return;
            };
            let end = async {
                match token.ends {
                    Some(ends) => sleep_until(ends).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = end => {}
                // Another one stands in only after the end.
                _ = callers.changed() => return,
                _ = tokens.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use tokio::time::{Instant, advance};

    use super::*;
    use crate::call::Principal;

    fn access(scope: &str) -> Arc<CallerAccess> {
        let scopes = vec![scope.to_owned()];
        let alice = Principal::new("https://issuer", "alice", "c", scopes, None);
        CallerAccess::new(
            alice.access_key("https://gw"),
            alice.issuer(),
            alice.owner(),
        )
    }

    fn bring(access: &CallerAccess, token: &str, seconds: u64) {
        access.bring(token, Some(Instant::now() + Duration::from_secs(seconds)));
    }

    #[tokio::test(start_paused = true)]
    async fn stream_lasts_as_long_as_calls_bring_tokens() {
        let opened = access("r");
        bring(&opened, "one", 60);
        let link = LinkCaller::new(Arc::clone(&opened));
        let mut ended = Box::pin(link.ended());
        assert!(ended.as_mut().now_or_never().is_none());
        bring(&opened, "two", 100);
        advance(Duration::from_secs(99)).await;
        assert!(ended.as_mut().now_or_never().is_none());
        advance(Duration::from_secs(2)).await;
        assert!(ended.as_mut().now_or_never().is_some());
        let mut ready = Box::pin(link.ready());
        assert!(ready.as_mut().now_or_never().is_none());
        bring(&opened, "three", 60);
        assert!(ready.as_mut().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn caller_with_other_scopes_stands_in_only_after_the_end() {
        let (opened, other) = (access("r"), access("w"));
        bring(&opened, "one", 60);
        bring(&other, "two", 600);
        let link = LinkCaller::new(Arc::clone(&opened));
        link.called(&other);
        assert!(Arc::ptr_eq(&link.current(), &opened));
        advance(Duration::from_mins(1)).await;
        let mut ready = Box::pin(link.ready());
        assert!(ready.as_mut().now_or_never().is_none());
        link.called(&other);
        assert!(ready.as_mut().now_or_never().is_some());
        assert!(Arc::ptr_eq(&link.current(), &other));
    }
}
