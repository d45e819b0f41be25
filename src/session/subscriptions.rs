//! The resources a session follows.

use std::collections::HashSet;
use std::sync::Mutex;

use super::lock;

/// Subscribed URIs, as their upstreams spell them.
#[derive(Debug, Default)]
pub struct Subscriptions(Mutex<HashSet<String>>);

impl Subscriptions {
    /// Remembers a subscription; `false` when `max` are there already.
    pub fn add(&self, uri: &str, max: usize) -> bool {
        let mut uris = lock(&self.0);
        if uris.len() >= max && !uris.contains(uri) {
            return false;
        }
        uris.insert(uri.to_owned());
        true
    }

    /// Forgets a subscription.
    pub fn remove(&self, uri: &str) {
        lock(&self.0).remove(uri);
    }

    /// Whether a change of `uri` concerns the session: it may be below what was asked for
    /// (SPEC C-50).
    #[must_use]
    pub fn covers(&self, uri: &str) -> bool {
        lock(&self.0).iter().any(|asked| is_below(asked, uri))
    }
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
        assert!(subscriptions.add("file:///a", 10));
        assert!(subscriptions.covers("file:///a"));
        assert!(subscriptions.covers("file:///a/b"));
        assert!(!subscriptions.covers("file:///b"));
        assert!(!subscriptions.covers("file:///ab"));
        subscriptions.remove("file:///a");
        assert!(!subscriptions.covers("file:///a"));
    }

    #[test]
    fn subscriptions_are_bounded() {
        let subscriptions = Subscriptions::default();
        assert!(subscriptions.add("a:1", 1));
        assert!(!subscriptions.add("a:2", 1));
        assert!(subscriptions.add("a:1", 1));
    }
}
