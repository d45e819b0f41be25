//! `OwnerCalls`: callers whose numbers here and in the shared store differ, and the loop that tells the store.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::calls::CallsUnderWay;
use super::retries::FailedWork;
use super::scripts::{ScriptCall, ScriptResult, ScriptRunner};
use crate::call::OwnerKey;
use crate::lock::lock;

/// How often a table looks through its callers.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// Callers that wait for a call, oldest first. A table lists each of them once: one call at a time is under way for a
/// caller.
#[derive(Debug, Default)]
pub(super) struct OwnerCalls {
    listed: Mutex<VecDeque<OwnerKey>>,
    work: Notify,
}

/// Numbers of callers, which calls of the shared store bring up to date.
pub(super) trait OwnerTable: Sync {
    /// What the reply to a call is needed with.
    type Sent: Send + 'static;

    /// Lists the callers that are due, and evicts callers that hold nothing.
    fn look(&self);

    /// The call for `owner`, which stays listed until the reply; `None` for an owner that the table does not have.
    fn call(&self, owner: OwnerKey) -> Option<(ScriptCall, Self::Sent)>;

    /// Takes in the reply to a call. An owner whose call failed is added to `failed`.
    fn settle(
        &self,
        sent: Self::Sent,
        result: Option<&ScriptResult>,
        failed: &mut FailedWork<OwnerKey>,
    );
}

impl OwnerCalls {
    /// Lists a caller, and wakes the loop.
    pub(super) fn push(&self, owner: OwnerKey) {
        lock(&self.listed).push_back(owner);
        self.work.notify_one();
    }

    /// Lists callers for the next round of the loop.
    pub(super) fn extend(&self, owners: impl IntoIterator<Item = OwnerKey>) {
        lock(&self.listed).extend(owners);
    }

    /// Makes the calls of `table`, for ever.
    pub(super) async fn run(&self, table: &impl OwnerTable, store: &dyn ScriptRunner) {
        let mut calls = CallsUnderWay::new(store);
        let mut failed = FailedWork::new();
        let mut next_look = Instant::now() + LOOK;
        loop {
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK;
                table.look();
            }
            if calls.begin_round() {
                self.extend(failed.take_due());
                while calls.has_room()
                    && let Some((call, sent)) = self.next_call(table)
                {
                    calls.send(sent, vec![call]);
                }
            }
            let more = async {
                tokio::select! {
                    () = self.work.notified() => {}
                    () = failed.due() => {}
                    () = sleep_until(next_look) => {}
                }
            };
            if let Some((sent, results)) = calls.next(more).await {
                table.settle(sent, results.first(), &mut failed);
            }
        }
    }

    fn next_call<T: OwnerTable>(&self, table: &T) -> Option<(ScriptCall, T::Sent)> {
        loop {
            let owner = lock(&self.listed).pop_front()?;
            if let Some(call) = table.call(owner) {
                return Some(call);
            }
        }
    }
}
