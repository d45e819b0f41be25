//! Visits to URLs that upstreams say are over. Spec: SPEC C-83; BRIDGING §3.6.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::Notify;

use super::lock;

/// Ids of visits that are remembered, the newest.
const REMEMBERED: usize = 64;

/// Elicitation ids, as the upstreams spell them.
#[derive(Debug, Default)]
pub struct Completions {
    ids: Mutex<VecDeque<String>>,
    added: Notify,
}

impl Completions {
    /// A visit is over.
    pub fn add(&self, id: String) {
        {
            let mut ids = lock(&self.ids);
            if ids.len() >= REMEMBERED {
                ids.pop_front();
            }
            ids.push_back(id);
        }
        self.added.notify_waiters();
    }

    /// Waits until all of these visits are over.
    ///
    /// # Cancel safety
    /// Nothing is taken: what is over stays so.
    pub async fn all(&self, wanted: &[String]) {
        loop {
            let added = self.added.notified();
            tokio::pin!(added);
            // Registered before the look, so that nothing slips in between.
            added.as_mut().enable();
            let over = {
                let ids = lock(&self.ids);
                wanted.iter().all(|id| ids.contains(id))
            };
            if over {
                return;
            }
            added.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn visits_are_waited_for_whether_they_end_before_or_after() {
        let completions = Completions::default();
        completions.add("a".to_owned());
        let wanted = ["a".to_owned(), "b".to_owned()];
        let both = completions.all(&wanted);
        let ((), ()) = tokio::join!(both, async { completions.add("b".to_owned()) });
    }

    #[tokio::test]
    async fn only_the_newest_are_remembered() {
        let completions = Completions::default();
        for number in 0..=REMEMBERED {
            completions.add(number.to_string());
        }
        assert_eq!(lock(&completions.ids).len(), REMEMBERED);
        assert!(!lock(&completions.ids).contains(&"0".to_owned()));
    }
}
