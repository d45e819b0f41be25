//! A part of the byte budget that one message holds.

use std::sync::Arc;

use bytes::Bytes;

use super::guarded_bytes::guarded;
use super::{BudgetExhausted, BudgetHolder, ByteBudget, EXEMPT_BYTES, weight};

/// The bytes of one message in its caller's share, given back on drop.
#[derive(Debug)]
#[must_use = "the bytes are given back when the lease is dropped"]
pub struct BudgetLease {
    budget: Arc<ByteBudget>,
    holder: BudgetHolder,
    /// Taken so far: the weight, not the length.
    taken: usize,
}

/// Wraps `copy`, bytes copied out of `sources`, so that sources which may hold a lease live until the
/// last slice of the copy is dropped.
#[must_use]
pub fn held_with(copy: Bytes, sources: Vec<Bytes>) -> Bytes {
    let is_large = |source: &Bytes| source.len() > EXEMPT_BYTES;
    if !sources.iter().any(is_large) {
        return copy;
    }
    guarded(copy, sources)
}

impl BudgetLease {
    /// A lease that holds nothing yet.
    pub fn empty(budget: Arc<ByteBudget>, holder: BudgetHolder) -> Self {
        Self {
            budget,
            holder,
            taken: 0,
        }
    }

    pub(super) fn budget(&self) -> &Arc<ByteBudget> {
        &self.budget
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    pub(super) fn holder(&self) -> BudgetHolder {
        self.holder
    }

    /// Takes what is missing for a message of `len` bytes; nothing for a shorter one.
    ///
    /// # Errors
    /// What is used up; the lease is unchanged then.
    pub fn grow_to(&mut self, len: usize) -> Result<(), BudgetExhausted> {
        let wanted = weight(len);
        if let Some(more) = wanted.checked_sub(self.taken).filter(|more| *more > 0) {
            self.budget.add(self.holder, more)?;
            self.taken = wanted;
        }
        Ok(())
    }

    /// Gives back what a message of `len` bytes does not need.
    pub fn shrink_to(&mut self, len: usize) {
        let wanted = weight(len);
        if let Some(less) = self.taken.checked_sub(wanted).filter(|less| *less > 0) {
            self.budget.remove(self.holder, less);
            self.taken = wanted;
        }
    }

    /// The message itself, which holds the lease until its last slice is dropped.
    #[must_use]
    pub fn hold(mut self, message: Bytes) -> Bytes {
        self.shrink_to(message.len());
        if self.taken == 0 {
            return message;
        }
        guarded(message, self)
    }
}

impl Drop for BudgetLease {
    fn drop(&mut self) {
        if self.taken > 0 {
            self.budget.remove(self.holder, self.taken);
        }
    }
}
