//! The byte budgets: how much memory the messages of all callers may take, with a share for each caller, and
//! how much the replies to them. They are two, as a request keeps its bytes while its reply waits for some.
//!
//! Bytes are taken before they are read and given back when the last holder of the message drops it. Small
//! messages are exempt: running calls and connections are counted, and each has a read buffer anyway.

mod guarded_bytes;
mod lease;
mod process;
mod replies;
mod reserve;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

pub use lease::{BudgetLease, held_with};
pub use process::{BoundTerm, ProcessBound};
pub use replies::{KeptLeases, ReplyLease, ReplyRoom, ReplyShare};
pub use reserve::ReservePermit;

use self::reserve::ReservePermits;
use crate::address::ClientNetwork;
use crate::lock::lock;
use crate::telemetry::metrics::{COUNTERS, GAUGES, GaugeHandle};

/// Messages up to this size take nothing out of the budget, bytes: they fit into one read buffer.
pub const EXEMPT_BYTES: usize = 16 << 10;

/// A message weighs this many times its size: it is kept for as long as its call runs, beside the copy under
/// another id that is sent on. A reply is copied so, too.
const COPIES: usize = 2;

/// The part of the budget that is set aside for messages that are never refused.
const RESERVED_PART: usize = 8;

/// Who a share belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetHolder {
    /// A caller with a token: its principal's key.
    Owner([u8; 32]),
    /// A caller without one, where none is asked for.
    Address(ClientNetwork),
    /// An upstream, by its place in the configuration: for its messages that belong to no single caller.
    Upstream(usize),
}

/// What is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetExhausted {
    /// The caller's own share.
    Share,
    /// The whole budget.
    Total,
}

impl BudgetExhausted {
    /// Counts one refused message.
    pub fn count_refusal(self) {
        match self {
            Self::Share => COUNTERS.bytes_share_refused.add(1),
            Self::Total => COUNTERS.bytes_total_refused.add(1),
        }
    }
}

/// The budget. Taking and giving back is one short critical section; exempt messages never enter it.
#[derive(Debug)]
pub struct ByteBudget {
    /// Of all messages but those of the reserve.
    total: usize,
    per_holder: usize,
    used: Mutex<UsedBytes>,
    reserve: ReservePermits,
    /// Shows what is taken.
    gauge: &'static GaugeHandle,
    /// Told whenever bytes are given back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct UsedBytes {
    total: usize,
    /// Without entries of zero.
    by_holder: HashMap<BudgetHolder, usize>,
}

impl ByteBudget {
    /// A budget of `total` bytes with a share of `per_holder` bytes for each caller, for messages of clients of at
    /// most `largest` bytes. The reserve is an eighth of `total`, and holds one such message at least.
    #[must_use]
    pub fn new(total: usize, per_holder: usize, largest: usize) -> Arc<Self> {
        Self::shown_by(&GAUGES.bytes_held, total, per_holder, largest)
    }

    /// The same for replies, which take their bytes through a [`ReplyShare`].
    #[must_use]
    pub fn of_replies(total: usize, per_holder: usize, largest: usize) -> Arc<Self> {
        Self::shown_by(&GAUGES.replies_held, total, per_holder, largest)
    }

    fn shown_by(
        gauge: &'static GaugeHandle,
        total: usize,
        per_holder: usize,
        largest: usize,
    ) -> Arc<Self> {
        let one = weight(largest).max(1);
        let permits = (total / RESERVED_PART / one).max(1);
        Arc::new(Self {
            total: total.saturating_sub(permits.saturating_mul(one)),
            per_holder,
            used: Mutex::default(),
            reserve: ReservePermits::new(permits),
            gauge,
            freed: Notify::new(),
        })
    }

    /// Takes what a message of `len` bytes weighs out of the share of `holder`.
    ///
    /// # Errors
    /// What is used up; nothing is taken then.
    pub fn take(
        self: &Arc<Self>,
        holder: BudgetHolder,
        len: usize,
    ) -> Result<BudgetLease, BudgetExhausted> {
        let mut lease = BudgetLease::empty(Arc::clone(self), holder);
        lease.grow_to(len)?;
        Ok(lease)
    }

    /// Waits for a place in the reserve, which holds one message of any size: for messages that are never
    /// refused, such as answers and cancellations. One per holder at a time, in the order of asking.
    ///
    /// # Cancel safety
    /// A future that is dropped has left the line.
    pub async fn reserve(&self, holder: BudgetHolder) -> ReservePermit {
        self.reserve.enter(holder).await
    }

    /// Bytes that are taken now, without the reserve.
    #[must_use]
    pub fn used(&self) -> usize {
        lock(&self.used).total
    }

    fn add(&self, holder: BudgetHolder, bytes: usize) -> Result<(), BudgetExhausted> {
        let mut used = lock(&self.used);
        let own = used.by_holder.get(&holder).copied().unwrap_or_default();
        if own + bytes > self.per_holder {
            return Err(BudgetExhausted::Share);
        }
        if used.total + bytes > self.total {
            return Err(BudgetExhausted::Total);
        }
        used.by_holder.insert(holder, own + bytes);
        used.total += bytes;
        drop(used);
        self.gauge.add(signed(bytes));
        Ok(())
    }

    fn remove(&self, holder: BudgetHolder, bytes: usize) {
        let mut used = lock(&self.used);
        used.total = used.total.saturating_sub(bytes);
        if let Some(own) = used.by_holder.get_mut(&holder) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                used.by_holder.remove(&holder);
            }
        }
        drop(used);
        self.gauge.add(-signed(bytes));
        self.freed.notify_waiters();
    }
}

/// What a message of `len` bytes takes out of the budget.
fn weight(len: usize) -> usize {
    if len > EXEMPT_BYTES {
        len.saturating_mul(COPIES)
    } else {
        0
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
