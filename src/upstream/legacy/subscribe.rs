//! `resources/subscribe`, which is followed to its end whoever still waits for it: an upstream whose
//! answer comes late must not go on telling of a resource that nobody counts.
//! Spec: BRIDGING §3.4; SPEC C-50.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::LegacyLink;
use crate::call::{Call, Reply};
use crate::protocol::Message;
use crate::upstream::error::LinkError;
use crate::upstream::lock;

/// Subscriptions that are asked for now, by URI. At most as many as calls run.
#[derive(Debug, Default)]
pub(super) struct Asking(Mutex<HashMap<String, Asked>>);

#[derive(Debug, Default)]
struct Asked {
    /// Requests without their answer.
    running: usize,
    /// Whether the upstream may follow it for nobody.
    stray: bool,
    /// Whether somebody was told that it is followed.
    kept: bool,
}

/// What one request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Who asked knows that the resource is followed.
    Kept,
    /// It may be followed, and who asked does not know.
    Stray,
    /// It is not followed, or was already before.
    Nothing,
}

impl Asking {
    fn begin(&self, uri: &str) {
        lock(&self.0).entry(uri.to_owned()).or_default().running += 1;
    }

    /// One request is over; whether the resource is to be given up now: after the last one, when
    /// nobody is left who knows that it is followed.
    fn end(&self, uri: &str, end: End) -> bool {
        let mut asking = lock(&self.0);
        let Some(asked) = asking.get_mut(uri) else {
            return false;
        };
        asked.running = asked.running.saturating_sub(1);
        asked.stray |= end == End::Stray;
        asked.kept |= end == End::Kept;
        if asked.running > 0 {
            return false;
        }
        let asked = asking.remove(uri);
        asked.is_some_and(|asked| asked.stray && !asked.kept)
    }
}

impl LegacyLink {
    /// Asks the upstream to follow a resource.
    ///
    /// # Cancel safety
    /// When the future is dropped, the subscription is ended as soon as its outcome is known, unless
    /// somebody else has it.
    pub(super) async fn subscribe(
        &self,
        uri: &str,
        request: &Message,
        call: &Call,
    ) -> Result<Reply, LinkError> {
        let link = self.own.upgrade().ok_or(LinkError::Cancelled)?;
        let (sender, receiver) = oneshot::channel();
        let mut waiting = Waiting {
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
                End::Nothing
            } else if is_done && is_taken {
                End::Kept
            } else {
                End::Stray
            };
            if link.asking.end(&uri, end) {
                tracing::debug!(upstream = %link.settings.name, "a subscription came too late");
                link.unsubscribe(&uri).await;
            }
        });
        let answer = (&mut waiting.receiver).await;
        answer.unwrap_or(Err(LinkError::Cancelled))
    }
}

/// Whoever waits for the answer to a subscription.
struct Waiting {
    link: Arc<LegacyLink>,
    uri: String,
    receiver: oneshot::Receiver<Result<Reply, LinkError>>,
}

impl Drop for Waiting {
    /// An answer that was given and not read is nobody's.
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
        let asking = Asking::default();
        let two = |first, second| {
            asking.begin("a:1");
            asking.begin("a:1");
            assert!(!asking.end("a:1", first), "another is on its way");
            asking.end("a:1", second)
        };
        assert!(two(End::Stray, End::Nothing));
        assert!(two(End::Nothing, End::Stray));
        assert!(!two(End::Stray, End::Kept), "somebody has it");
        assert!(!two(End::Kept, End::Stray), "somebody has it");
        assert!(!two(End::Nothing, End::Nothing));
        assert!(lock(&asking.0).is_empty());
    }
}
