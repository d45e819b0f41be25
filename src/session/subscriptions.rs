//! The resources a session follows.

use std::collections::HashMap;
use std::sync::Mutex;

use super::lock;

/// Subscribed URIs, as their upstreams spell them, and those that are asked for now: a change may be
/// told of before the answer.
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
    uri: &'a str,
}

impl Subscribing<'_> {
    /// The upstream grants it.
    pub fn granted(self) {
        let mut uris = lock(&self.all.0);
        if let Some(followed) = uris.get_mut(self.uri) {
            followed.granted = true;
        }
    }
}

impl Drop for Subscribing<'_> {
    fn drop(&mut self) {
        let mut uris = lock(&self.all.0);
        if let Some(followed) = uris.get_mut(self.uri) {
            followed.asking -= 1;
        }
        uris.retain(|_, followed| followed.asking > 0 || followed.granted);
    }
}

impl Subscriptions {
    /// Begins a subscription; nothing when `max` are there already.
    pub fn begin<'a>(&'a self, uri: &'a str, max: usize) -> Option<Subscribing<'a>> {
        let mut uris = lock(&self.0);
        if uris.len() >= max && !uris.contains_key(uri) {
            return None;
        }
        uris.entry(uri.to_owned()).or_default().asking += 1;
        Some(Subscribing { all: self, uri })
    }

    /// Forgets a subscription.
    pub fn remove(&self, uri: &str) {
        let mut uris = lock(&self.0);
        if let Some(followed) = uris.get_mut(uri) {
            followed.granted = false;
        }
        uris.retain(|_, followed| followed.asking > 0 || followed.granted);
    }

    /// Whether a change of `uri` concerns the session: it may be below what was asked for
    /// (SPEC C-50).
    #[must_use]
    pub fn covers(&self, uri: &str) -> bool {
        lock(&self.0).keys().any(|asked| is_below(asked, uri))
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
        let asked = subscriptions.begin("file:///a", 10).unwrap();
        assert!(subscriptions.covers("file:///a"), "it may be told of now");
        asked.granted();
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
        let first = subscriptions.begin("a:1", 1).unwrap();
        assert!(subscriptions.begin("a:2", 1).is_none());
        assert!(subscriptions.begin("a:1", 1).is_some());
        drop(first);
        assert!(subscriptions.begin("a:2", 1).is_some());
    }

    #[test]
    fn what_is_not_granted_is_not_kept_unless_it_was_before() {
        let subscriptions = Subscriptions::default();
        drop(subscriptions.begin("a:1", 9).unwrap());
        assert!(!subscriptions.covers("a:1"));
        let (one, two) = (subscriptions.begin("a:1", 9), subscriptions.begin("a:1", 9));
        one.unwrap().granted();
        drop(two);
        assert!(subscriptions.covers("a:1"));
        drop(subscriptions.begin("a:1", 9).unwrap());
        assert!(subscriptions.covers("a:1"));
    }
}
