//! Calls that were given up before their replies and may have become tasks all the same: nobody will ever ask
//! for such a task, so that it is cancelled when the reply comes. Spec: SPEC C-10, C-11; BRIDGING §3.8.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::lock;

/// Calls of one link that are remembered; the oldest gives way to one more. An upstream that stops when
/// it is told to never replies to them.
const MOST: usize = 64;

/// The calls by our ids, each with what its task is cancelled with.
#[derive(Debug)]
pub(super) struct GivenUp<T>(Mutex<BTreeMap<u64, T>>);

impl<T> Default for GivenUp<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> GivenUp<T> {
    /// The call `id` is given up.
    pub(super) fn note(&self, id: u64, with: T) {
        let mut calls = lock(&self.0);
        calls.insert(id, with);
        if calls.len() > MOST {
            calls.pop_first();
        }
    }

    /// Its reply has come; nothing for a call that was not given up, or long ago.
    pub(super) fn take(&self, id: u64) -> Option<T> {
        lock(&self.0).remove(&id)
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
    }
}
