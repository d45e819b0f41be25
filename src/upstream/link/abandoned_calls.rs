//! Calls dropped before their reply that may have become tasks all the same: no client knows such a task, so the
//! gateway cancels it when the reply comes. Spec: SPEC C-10, C-11; BRIDGING §3.8.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::upstream::lock;

/// Remembered calls of one link; the oldest is evicted. An upstream that obeys a cancellation never replies to the
/// call.
const MOST: usize = 64;

/// Dropped calls by our ids, each with the data to cancel its task.
#[derive(Debug)]
pub(super) struct GivenUp<T>(Mutex<BTreeMap<u64, T>>);

impl<T> Default for GivenUp<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> GivenUp<T> {
    /// Notes that the call `id` was dropped.
    pub(super) fn note(&self, id: u64, with: T) {
        let mut calls = lock(&self.0);
        calls.insert(id, with);
        if calls.len() > MOST {
            calls.pop_first();
        }
    }

    /// Its reply has come; nothing for a call that was not given up, or long ago.
    pub(super) fn take(&self, id: u64) -> Option<T> {
        self.take_if(id, |_| true)
    }

    /// The same where the reply `is_its`, by what was noted: else the note stays.
    pub(super) fn take_if(&self, id: u64, is_its: impl FnOnce(&T) -> bool) -> Option<T> {
        let mut calls = lock(&self.0);
        calls.get(&id).filter(|with| is_its(with))?;
        calls.remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_call_gives_way_and_each_is_told_of_once() {
        let calls = GivenUp::default();
        let most = u64::try_from(MOST).unwrap();
        for id in 0..=most {
            calls.note(id, id);
        }
        assert_eq!([calls.take(0), calls.take(1)], [None, Some(1)]);
        assert_eq!([calls.take(1), calls.take(most)], [None, Some(most)]);
        assert_eq!(calls.take_if(2, |_| false), None);
        assert_eq!(calls.take(2), Some(2));
    }
}
