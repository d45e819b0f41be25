//! `resources/subscribe`, followed to its reply even after its caller is gone: an upstream with a late reply must not
//! keep sending updates for a resource without subscribers. Spec: BRIDGING §3.4; SPEC C-50.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::LegacyLink;
use crate::call::{Call, Reply};
use crate::protocol::Message;
use crate::upstream::error::LinkError;
use crate::upstream::lock;

/// Subscriptions under way, by URI. At most as many as running calls.
#[derive(Debug, Default)]
pub(super) struct PendingSubscribes(Mutex<HashMap<String, SubscribeState>>);

#[derive(Debug, Default)]
struct SubscribeState {
    /// Requests without a reply.
    running: usize,
    /// Whether the upstream may hold a subscription that no caller knows of.
    stray: bool,
    /// Whether a caller was told of a new subscription.
    kept: bool,
}

/// The outcome of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubscribeEnd {
    /// The caller got the reply of a new subscription.
    Kept,
    /// The subscription may exist, and its caller did not get the reply.
    Stray,
    /// The subscription was refused, or existed before.
    Nothing,
}

impl PendingSubscribes {
    fn begin(&self, uri: &str) {
        lock(&self.0).entry(uri.to_owned()).or_default().running += 1;
    }

    /// Ends one request; returns whether to unsubscribe: after the last request, if the upstream may hold a
    /// subscription that no caller knows of.
    fn end(&self, uri: &str, end: SubscribeEnd) -> bool {
        let mut asking = lock(&self.0);
        let Some(asked) = asking.get_mut(uri) else {
            return false;
        };
        asked.running = asked.running.saturating_sub(1);
        asked.stray |= end == SubscribeEnd::Stray;
        asked.kept |= end == SubscribeEnd::Kept;
        if asked.running > 0 {
            return false;
        }
        let asked = asking.remove(uri);
        asked.is_some_and(|asked| asked.stray && !asked.kept)
    }
}

impl LegacyLink {
    /// Subscribes to a resource at the upstream.
    ///
    /// # Cancel safety
    /// When the future is dropped, the subscription is ended once its reply is known, unless another caller has it.
    pub(super) async fn subscribe(
        &self,
        uri: &str,
        request: &Message,
        call: &Call,
    ) -> Result<Reply, LinkError> {
        let link = self.own.upgrade().ok_or(LinkError::Cancelled)?;
        let (sender, receiver) = oneshot::channel();
        let mut waiting = SubscribeWaiter {
            link: Arc::clone(&link),
            uri: uri.to_owned(),
            receiver,
        };
        let (uri, request, call) = (uri.to_owned(), request.clone(), call.clone());
        link.asking.begin(&uri);
        self.settings.tasks.spawn_service(async move {
            let had = link.state.followed.contains(&uri);
            let reply = link.call_through(&request, &call).await;
            let is_refused = matches!(&reply, Ok(reply) if reply.error().is_some());
            let is_done = reply.is_ok();
            let is_taken = sender.send(reply).is_ok();
            let end = if is_refused || had {
                SubscribeEnd::Nothing
            } else if is_done && is_taken {
                SubscribeEnd::Kept
            } else {
                SubscribeEnd::Stray
            };
            if link.asking.end(&uri, end) {
                tracing::debug!(upstream = %link.settings.name, "dropped a late subscription");
                link.unsubscribe(&uri).await;
            }
        });
        let answer = (&mut waiting.receiver).await;
        answer.unwrap_or(Err(LinkError::Cancelled))
    }
}

/// A caller that waits for the reply to a subscription.
struct SubscribeWaiter {
    link: Arc<LegacyLink>,
    uri: String,
    receiver: oneshot::Receiver<Result<Reply, LinkError>>,
}

impl Drop for SubscribeWaiter {
    /// Unsubscribes if the reply was sent and never read.
    fn drop(&mut self) {
        self.receiver.close();
        let unread = self.receiver.try_recv();
        if matches!(unread, Ok(Ok(reply)) if reply.error().is_none()) {
            let (link, uri) = (Arc::clone(&self.link), std::mem::take(&mut self.uri));
            let tasks = self.link.settings.tasks.clone();
            tasks.spawn_service(async move { link.unsubscribe(&uri).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_behind_is_given_up_after_the_last_request() {
        let asking = PendingSubscribes::default();
        let two = |first, second| {
            asking.begin("a:1");
            asking.begin("a:1");
            assert!(!asking.end("a:1", first), "another is on its way");
            asking.end("a:1", second)
        };
        assert!(two(SubscribeEnd::Stray, SubscribeEnd::Nothing));
        assert!(two(SubscribeEnd::Nothing, SubscribeEnd::Stray));
        assert!(
            !two(SubscribeEnd::Stray, SubscribeEnd::Kept),
            "somebody has it"
        );
        assert!(
            !two(SubscribeEnd::Kept, SubscribeEnd::Stray),
            "somebody has it"
        );
        assert!(!two(SubscribeEnd::Nothing, SubscribeEnd::Nothing));
        assert!(lock(&asking.0).is_empty());
    }
}
