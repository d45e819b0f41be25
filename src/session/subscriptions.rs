//! The resources a session follows.

use std::collections::HashMap;
use std::sync::Mutex;

use super::lock;

/// The longest URI that is followed, in bytes: it is kept for as long as it is.
pub(super) const LONGEST_URI: usize = 8 * 1024;

/// Subscribed URIs, as their upstreams spell them, under their names, and those that are asked for
/// now: a change may be told of before the answer. Two upstreams may have the same URI.
#[derive(Debug, Default)]
pub struct Subscriptions(Mutex<HashMap<String, Followed>>);

#[derive(Debug, Default)]
struct Followed {
    /// Requests without their answer.
    asking: usize,
    /// Whether one was granted.
    granted: bool,
}

/// A subscription that is asked for; given up when dropped.
#[derive(Debug)]
#[must_use = "dropping it gives it up"]
pub struct Subscribing<'a> {
    all: &'a Subscriptions,
    key: String,
}

impl Subscribing<'_> {
    /// The upstream grants it.
    pub fn granted(self) {
        let mut uris = lock(&self.all.0);
        if let Some(followed) = uris.get_mut(&self.key) {
            followed.granted = true;
        }
    }
}

impl Drop for Subscribing<'_> {
    fn drop(&mut self) {
        let mut uris = lock(&self.all.0);
        if let Some(followed) = uris.get_mut(&self.key) {
            followed.asking -= 1;
        }
        uris.retain(|_, followed| followed.asking > 0 || followed.granted);
    }
}

impl Subscriptions {
    /// Begins a subscription; nothing when `max` are there already, or when nothing so long is followed.
    pub fn begin(&self, upstream: &str, uri: &str, max: usize) -> Option<Subscribing<'_>> {
        let key = key(upstream, uri);
        let mut uris = lock(&self.0);
        let full = uris.len() >= max && !uris.contains_key(&key);
        if full || uri.len() > LONGEST_URI {
            return None;
        }
        uris.entry(key.clone()).or_default().asking += 1;
        Some(Subscribing { all: self, key })
    }

    /// Forgets a subscription.
    pub fn remove(&self, upstream: &str, uri: &str) {
        let mut uris = lock(&self.0);
        if let Some(followed) = uris.get_mut(&key(upstream, uri)) {
            followed.granted = false;
        }
        uris.retain(|_, followed| followed.asking > 0 || followed.granted);
    }

    /// Whether a change of `uri` at `upstream` concerns the session: it may be below what was asked for
    /// (SPEC C-50).
    #[must_use]
    pub fn covers(&self, upstream: &str, uri: &str) -> bool {
        let changed = key(upstream, uri);
        lock(&self.0).keys().any(|asked| is_below(asked, &changed))
    }
}

/// Names of upstreams hold no slash.
fn key(upstream: &str, uri: &str) -> String {
    format!("{upstream}/{uri}")
}

/// Whether a change of `uri` concerns who follows `asked`: the same resource, or one below it.
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
        let subscriptions = Subscriptions::default();
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
    fn subscriptions_are_bounded() {
        let subscriptions = Subscriptions::default();
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

    #[test]
    fn what_is_not_granted_is_not_kept_unless_it_was_before() {
        let subscriptions = Subscriptions::default();
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
        let subscriptions = Subscriptions::default();
        subscriptions.begin("a", "x:1", 9).unwrap().granted();
        assert!(!subscriptions.covers("b", "x:1"));
        subscriptions.begin("b", "x:1", 9).unwrap().granted();
        subscriptions.remove("a", "x:1");
        assert!(subscriptions.covers("b", "x:1"));
        assert!(!subscriptions.covers("a", "x:1"));
    }
}
