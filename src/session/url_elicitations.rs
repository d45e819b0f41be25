//! URL elicitations that upstreams reported complete. Spec: SPEC C-83; BRIDGING §3.6.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use tokio::sync::Notify;

use super::lock;
use crate::protocol::links::LONGEST_ELICITATION_ID;
use crate::sync::wait_until::wait_until;

/// Completed ids kept of each upstream, the newest.
const REMEMBERED: usize = 64;

/// Ids of completed elicitations, keyed by upstream, so that no upstream can complete another's.
#[derive(Debug, Default)]
pub struct UrlElicitationIds {
    ids: Mutex<BTreeMap<String, VecDeque<String>>>,
    added: Notify,
}

impl UrlElicitationIds {
    /// Records that an upstream's URL elicitation is complete. One with a very long id is not waited for.
    pub fn add(&self, upstream: &str, id: &str) {
        if id.len() > LONGEST_ELICITATION_ID {
            return;
        }
        {
            let mut ids = lock(&self.ids);
            let ids = ids.entry(upstream.to_owned()).or_default();
            if ids.len() >= REMEMBERED {
                ids.pop_front();
            }
            ids.push_back(id.to_owned());
        }
        self.added.notify_waiters();
    }

    /// Waits until `upstream` has reported all `wanted` URL elicitations complete.
    ///
    /// # Cancel safety
    /// Nothing is lost: ids stay in `ids` until evicted.
    pub async fn all(&self, upstream: &str, wanted: &[String]) {
        let are_over = || {
            let ids = lock(&self.ids);
            let ids = ids.get(upstream);
            let is_over = |id| ids.is_some_and(|ids| ids.contains(id));
            wanted.iter().all(is_over)
        };
        wait_until(&self.added, are_over).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn visits_are_waited_for_whether_they_end_before_or_after() {
        let completions = UrlElicitationIds::default();
        completions.add("up", "a");
        let wanted = ["a".to_owned(), "b".to_owned()];
        let both = completions.all("up", &wanted);
        let ((), ()) = tokio::join!(both, async { completions.add("up", "b") });
    }

    #[tokio::test]
    async fn only_the_newest_of_each_upstream_are_remembered() {
        let completions = UrlElicitationIds::default();
        completions.add("other", "a");
        for number in 0..=REMEMBERED {
            completions.add("up", &number.to_string());
        }
        let ids = || lock(&completions.ids)["up"].clone();
        assert_eq!(ids().len(), REMEMBERED);
        assert!(!ids().contains(&"0".to_owned()));
        completions.all("other", &["a".to_owned()]).await;
        completions.add("up", &"a".repeat(LONGEST_ELICITATION_ID + 1));
        let longest = ids().iter().map(String::len).max();
        assert!(
            longest < Some(LONGEST_ELICITATION_ID),
            "no very long one is"
        );
    }

    #[tokio::test]
    async fn an_upstream_ends_only_its_own() {
        let completions = UrlElicitationIds::default();
        completions.add("other", "a");
        let wanted = ["a".to_owned()];
        let mut own = Box::pin(completions.all("up", &wanted));
        assert!(own.as_mut().now_or_never().is_none());
        completions.add("up", "a");
        own.await;
    }
}
