//! A first-in first-out list of messages with a bound.

use std::collections::VecDeque;

use crate::budget::EXEMPT_BYTES;

/// Messages, at most.
pub(super) const MAX_COUNT: usize = 64;
/// Their bytes, at most, of messages that the byte budget does not count; a single message may be larger.
pub(super) const MAX_BYTES: usize = MAX_COUNT * EXEMPT_BYTES;

/// Anything with a size.
pub(super) trait HasSize {
    /// Its bytes.
    fn size(&self) -> usize;
}

/// Up to [`MAX_COUNT`] entries of up to [`MAX_BYTES`] in all, or one of any size.
#[derive(Debug)]
pub(super) struct BoundedFifo<T> {
    entries: VecDeque<T>,
    bytes: usize,
}

impl<T> Default for BoundedFifo<T> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl<T: HasSize> BoundedFifo<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether an entry of `size` bytes may be pushed.
    pub(super) fn has_room(&self, size: usize) -> bool {
        self.is_empty()
            || self.entries.len() < MAX_COUNT && self.bytes.saturating_add(size) <= MAX_BYTES
    }

    pub(super) fn push(&mut self, entry: T) {
        self.bytes += entry.size();
        self.entries.push_back(entry);
    }

    pub(super) fn front(&self) -> Option<&T> {
        self.entries.front()
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let entry = self.entries.pop_front()?;
        self.bytes -= entry.size();
        Some(entry)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    /// Drops the entries that `keep` refuses; returns their number.
    pub(super) fn retain(&mut self, keep: impl Fn(&T) -> bool) -> usize {
        let before = self.entries.len();
        self.entries.retain(keep);
        self.bytes = self.entries.iter().map(T::size).sum();
        before - self.entries.len()
    }
}
