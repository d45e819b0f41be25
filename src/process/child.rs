//! `StdioConnection`: one child as seen by the rest of the gateway.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::state::ChildState;
use super::stdin_writer::{SendError, StdinWriter};
use super::stop_reason::StopReason;

/// A running child. Clones share it; when the last one is dropped the child is stopped.
#[derive(Clone)]
pub struct StdioConnection(Arc<ProcessHandle>);

impl fmt::Debug for StdioConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.state.fmt(f)
    }
}

struct ProcessHandle {
    state: Arc<ChildState>,
    outbox: Arc<StdinWriter>,
}

impl Drop for ProcessHandle {
    fn drop(&mut self) {
        self.state.stop(StopReason::Dropped);
    }
}

impl StdioConnection {
    pub(super) fn new(state: Arc<ChildState>, outbox: Arc<StdinWriter>) -> Self {
        Self(Arc::new(ProcessHandle { state, outbox }))
    }

    /// Sends one message, waiting while more than a bound is queued for the child. Raw line
    /// breaks between its tokens become spaces. Returns the number of its line, from 1 on.
    ///
    /// # Errors
    /// The child takes nothing more, or the message is over `limits.upstream_message`.
    ///
    /// # Cancel safety
    /// A dropped send has sent nothing or the whole message.
    pub async fn send(&self, message: Bytes) -> Result<u64, SendError> {
        // `over` is cancelled before the lines end, so a reader that saw the end cannot send (SPEC D-05).
        if self.0.state.over().is_cancelled() {
            return Err(SendError::Gone);
        }
        self.0.state.uses.touch();
        let sent = self.0.outbox.send(message).await;
        self.judge(sent)
    }

    /// Sends one message unless the queue is full; returns whether it was sent. For destructors.
    #[must_use]
    pub fn try_send(&self, message: Bytes) -> bool {
        !self.0.state.over().is_cancelled() && self.0.outbox.try_send(message)
    }

    /// Sends the cancellation of a request that has left, however full the queue is.
    pub fn cancel(&self, message: Bytes) {
        if !self.0.state.over().is_cancelled() {
            self.0.outbox.cancel(message);
        }
    }

    /// Takes a queued line back; `false` where the child has its first byte.
    #[must_use]
    pub fn withdraw(&self, line: u64) -> bool {
        self.0.outbox.withdraw(line)
    }

    /// Stops a child that no longer reads its input.
    fn judge(&self, sent: Result<u64, SendError>) -> Result<u64, SendError> {
        if sent == Err(SendError::Gone) {
            self.0.state.stop(StopReason::ClosedInput);
        }
        sent
    }

    /// The exit status and the end of standard error, without secrets and control characters, about 2 KiB. Complete as
    /// soon as the lines have ended; `None` without either.
    #[must_use]
    pub fn last_words(&self) -> Option<String> {
        self.0.state.last_words()
    }

    /// Logs an output line that failed to parse, and keeps it for [`strays`](Self::strays).
    pub fn keep_stray(&self, line: &[u8]) {
        self.0.state.keep_stray(line);
    }

    /// The last output lines after `since` that are no messages: five at most, each cut to 200 characters, without
    /// secrets.
    #[must_use]
    pub fn strays(&self, since: Instant) -> Option<String> {
        self.0.state.log.strays(since)
    }

    /// Whether the lines ended without a stop by the gateway.
    #[must_use]
    pub fn broke_off(&self) -> bool {
        self.0.state.ends_by_itself()
    }

    /// Whether the process, or a descendant that inherited its input, has read everything that was sent. A process that
    /// is still starting has not.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.0.outbox.is_read()
    }

    /// Postpones the idle stop.
    pub fn touch(&self) {
        self.0.state.uses.touch();
    }

    /// Keeps the child from being stopped as idle until the guard is dropped.
    pub fn busy(&self) -> BusyGuard {
        self.0.state.uses.begin();
        BusyGuard(Arc::clone(&self.0.state))
    }

    /// Keeps the child from being stopped as idle until the guard is dropped; it is evicted all the same when its
    /// principal needs the place.
    pub fn hold(&self) -> HoldGuard {
        self.0.state.uses.hold();
        HoldGuard(Arc::clone(&self.0.state))
    }

    /// While the guard lives, output does not postpone the idle stop; `None` while the child is in use.
    #[must_use]
    pub fn unused(&self) -> Option<UnusedGuard> {
        let state = &self.0.state;
        state.is_idle().then(|| {
            state.uses.set_asked(true);
            UnusedGuard(Arc::clone(state))
        })
    }

    /// Cancelled as soon as the child is gone, is being stopped, or has closed its output.
    #[must_use]
    pub fn closed(&self) -> &CancellationToken {
        self.0.state.over()
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.state.pid
    }

    /// Stops the child by the ladder and waits until its whole group has ended.
    ///
    /// # Cancel safety
    /// Once polled, the child is stopped in any case.
    pub async fn close(&self) {
        self.0.state.stop(StopReason::Dropped);
        self.0.state.reaped().cancelled().await;
    }
}

/// Keeps one child from counting as idle.
#[derive(Debug)]
#[must_use = "the child counts as idle again when this is dropped"]
pub struct BusyGuard(Arc<ChildState>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.end_use();
    }
}

/// Keeps the output of one child from counting as use.
#[derive(Debug)]
#[must_use = "what the child says counts as use when this is dropped"]
pub struct UnusedGuard(Arc<ChildState>);

impl Drop for UnusedGuard {
    fn drop(&mut self) {
        self.0.uses.set_asked(false);
    }
}

/// Spares one unused child from the idle stop.
#[derive(Debug)]
#[must_use = "the child may be stopped as idle when this is dropped"]
pub struct HoldGuard(Arc<ChildState>);

impl Drop for HoldGuard {
    fn drop(&mut self) {
        self.0.uses.release_hold();
    }
}
