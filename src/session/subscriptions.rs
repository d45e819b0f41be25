//! The resources a session follows.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::lock;

/// The longest URI that can be subscribed to, in bytes.
pub(super) const LONGEST_URI: usize = 8 * 1024;

/// URIs that all sessions of a principal follow, in bytes: each is kept several times, as the links to upstreams have
/// it too.
const OF_PRINCIPAL: usize = 4 << 20;

/// Bytes of the URIs that the sessions of a principal follow, or ask for now.
#[derive(Debug, Default)]
pub(super) struct UriBytes(AtomicUsize);

impl UriBytes {
    /// Reserves `bytes`; `false` if the principal's limit would be exceeded.
    fn take(&self, bytes: usize) -> bool {
        let more = |held: usize| held.checked_add(bytes).filter(|all| *all <= OF_PRINCIPAL);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Subscribed URIs, keyed by upstream and the upstream's spelling (two upstreams may have the same
/// URI). Pending subscriptions count: a change notice may arrive before the answer.
#[derive(Debug)]
pub struct SessionSubscriptions {
    uris: Mutex<BTreeMap<String, FollowedResources>>,
    /// Shared by all sessions of the principal.
    bytes: Arc<UriBytes>,
}

#[derive(Debug, Default)]
struct FollowedResources {
    /// Requests without their answer.
    asking: usize,
    /// Whether one was granted.
    granted: bool,
}

/// A pending subscription; withdrawn when dropped without [`granted`](Self::granted).
#[derive(Debug)]
#[must_use = "dropping it gives it up"]
pub struct PendingSubscription<'a> {
    all: &'a SessionSubscriptions,
    key: String,
}

impl PendingSubscription<'_> {
    /// The upstream grants it.
    pub fn granted(self) {
        let mut uris = lock(&self.all.uris);
        if let Some(followed) = uris.get_mut(&self.key) {
            followed.granted = true;
        }
    }
}

impl Drop for PendingSubscription<'_> {
    fn drop(&mut self) {
        let change = |followed: &mut FollowedResources| followed.asking -= 1;
        self.all.change(&self.key, change);
    }
}

impl Drop for SessionSubscriptions {
    fn drop(&mut self) {
        let bytes = lock(&self.uris).keys().map(String::len).sum();
        self.bytes.give_back(bytes);
    }
}

impl SessionSubscriptions {
    /// An empty set for one session that shares `bytes` with the principal's other sessions.
    pub(super) fn new(bytes: &Arc<UriBytes>) -> Self {
        Self {
            uris: Mutex::default(),
            bytes: Arc::clone(bytes),
        }
    }

    /// Begins a subscription; `None` if the session has `max`, the URI is longer than 8 KiB, or the
    /// principal's sessions together hold 4 MiB of URIs.
    pub fn begin(&self, upstream: &str, uri: &str, max: usize) -> Option<PendingSubscription<'_>> {
        let key = key(upstream, uri);
        let mut uris = lock(&self.uris);
        if !uris.contains_key(&key) {
            let is_full = uris.len() >= max || uri.len() > LONGEST_URI;
            if is_full || !self.bytes.take(key.len()) {
                return None;
            }
        }
        uris.entry(key.clone()).or_default().asking += 1;
        Some(PendingSubscription { all: self, key })
    }

    /// Forgets a subscription.
    pub fn remove(&self, upstream: &str, uri: &str) {
        self.change(&key(upstream, uri), |followed| followed.granted = false);
    }

    /// Changes an entry, which is dropped where it is neither granted nor asked for.
    fn change(&self, key: &str, change: impl FnOnce(&mut FollowedResources)) {
        let mut uris = lock(&self.uris);
        let Some(followed) = uris.get_mut(key) else {
            return;
        };
        change(followed);
        if followed.asking == 0 && !followed.granted {
            uris.remove(key);
            self.bytes.give_back(key.len());
        }
    }

    /// The granted subscriptions: upstream, slash, URI.
    pub(super) fn granted(&self) -> Vec<String> {
        let uris = lock(&self.uris);
        let granted = uris.iter().filter(|(_, followed)| followed.granted);
        granted.map(|(key, _)| key.clone()).collect()
    }

    /// The granted subscriptions at one upstream, as the upstream spells them.
    #[must_use]
    pub fn granted_at(&self, upstream: &str) -> Vec<String> {
        let of = |key: &str| Some(key.strip_prefix(upstream)?.strip_prefix('/')?.to_owned());
        self.granted().iter().filter_map(|key| of(key)).collect()
    }

    /// Takes over subscriptions of a former owner, in the form of [`granted`](Self::granted), while there is room.
    pub(super) fn take_over(&self, granted: &[String]) {
        let split = granted.iter().filter_map(|key| key.split_once('/'));
        for (upstream, uri) in split {
            if let Some(pending) = self.begin(upstream, uri, usize::MAX) {
                pending.granted();
            }
        }
    }

    /// Whether a change of `uri` at `upstream` concerns the session: it may be below what was asked for
    /// (SPEC C-50).
    #[must_use]
    pub fn covers(&self, upstream: &str, uri: &str) -> bool {
        let changed = key(upstream, uri);
        lock(&self.uris)
            .keys()
            .any(|asked| is_below(asked, &changed))
    }
}

/// Names of upstreams hold no slash.
fn key(upstream: &str, uri: &str) -> String {
    format!("{upstream}/{uri}")
}

/// Whether a change of `uri` concerns a subscription to `asked`: `uri` is `asked`, or a path below.
#[must_use]
pub fn is_below(asked: &str, uri: &str) -> bool {
    uri.strip_prefix(asked).is_some_and(|rest| {
        rest.is_empty() || asked.ends_with('/') || rest.starts_with(['/', '?', '#'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_covers_itself_and_what_is_below() {
        let subscriptions = SessionSubscriptions::new(&Arc::default());
        let asked = subscriptions.begin("up", "file:///a", 10).unwrap();
        assert!(
            subscriptions.covers("up", "file:///a"),
            "it may be told of now"
        );
        asked.granted();
        assert!(subscriptions.covers("up", "file:///a"));
        assert!(subscriptions.covers("up", "file:///a/b"));
        assert!(!subscriptions.covers("up", "file:///b"));
        assert!(!subscriptions.covers("up", "file:///ab"));
        subscriptions.remove("up", "file:///a");
        assert!(!subscriptions.covers("up", "file:///a"));
    }

    #[test]
    fn subscriptions_are_taken_over_as_they_were_granted() {
        let former = SessionSubscriptions::new(&Arc::default());
        for (upstream, uri) in [("up", "file:///a"), ("up-2", "file:///b")] {
            former.begin(upstream, uri, 10).unwrap().granted();
        }
        let pending = former.begin("up", "file:///c", 10);
        let next = SessionSubscriptions::new(&Arc::default());
        next.take_over(&former.granted());
        drop(pending);
        assert_eq!(next.granted(), former.granted());
        assert_eq!(next.granted_at("up"), ["file:///a"]);
        assert!(next.covers("up-2", "file:///b") && !next.covers("up", "file:///c"));
    }

    #[test]
    fn subscriptions_are_bounded() {
        let subscriptions = SessionSubscriptions::new(&Arc::default());
        let first = subscriptions.begin("up", "a:1", 1).unwrap();
        assert!(subscriptions.begin("up", "a:2", 1).is_none());
        assert!(subscriptions.begin("up", "a:1", 1).is_some());
        drop(first);
        assert!(subscriptions.begin("up", "a:2", 1).is_some());
        let longest = "a".repeat(LONGEST_URI);
        assert!(subscriptions.begin("up", &longest, 9).is_some());
        let longer = format!("{longest}a");
        assert!(subscriptions.begin("up", &longer, 9).is_none());
    }

    // Spec: SPEC O-01.
    #[test]
    fn sessions_of_a_principal_share_bytes_of_uris() {
        let bytes = Arc::new(UriBytes::default());
        let one = SessionSubscriptions::new(&bytes);
        let another = SessionSubscriptions::new(&bytes);
        let uri = |number: usize| format!("{number:08000}");
        let most = OF_PRINCIPAL / key("up", &uri(0)).len();
        for number in 0..most {
            one.begin("up", &uri(number), 1024).unwrap().granted();
        }
        assert!(another.begin("up", &uri(0), 1024).is_none());
        assert!(one.begin("up", &uri(0), 1024).is_some(), "it has that");
        one.remove("up", &uri(0));
        drop(another.begin("up", &uri(0), 1024).unwrap());
        another.begin("up", &uri(0), 1024).unwrap().granted();
        assert!(another.begin("up", &uri(1), 1024).is_none());
        drop(one);
        assert!(another.begin("up", &uri(1), 1024).is_some());
        drop(another);
        assert_eq!(bytes.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_not_granted_is_not_kept_unless_it_was_before() {
        let subscriptions = SessionSubscriptions::new(&Arc::default());
        drop(subscriptions.begin("up", "a:1", 9).unwrap());
        assert!(!subscriptions.covers("up", "a:1"));
        let (one, two) = (
            subscriptions.begin("up", "a:1", 9),
            subscriptions.begin("up", "a:1", 9),
        );
        one.unwrap().granted();
        drop(two);
        assert!(subscriptions.covers("up", "a:1"));
        drop(subscriptions.begin("up", "a:1", 9).unwrap());
        assert!(subscriptions.covers("up", "a:1"));
    }

    #[test]
    fn the_same_uri_of_another_upstream_is_another_one() {
        let subscriptions = SessionSubscriptions::new(&Arc::default());
        subscriptions.begin("a", "x:1", 9).unwrap().granted();
        assert!(!subscriptions.covers("b", "x:1"));
        subscriptions.begin("b", "x:1", 9).unwrap().granted();
        subscriptions.remove("a", "x:1");
        assert!(subscriptions.covers("b", "x:1"));
        assert!(!subscriptions.covers("a", "x:1"));
    }
}
