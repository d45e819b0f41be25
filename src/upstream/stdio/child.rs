//! One child as the rest of the gateway sees it: the connection, and what its parts share.

use std::fmt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backoff::{Backoff, Crash};
use super::outbox::{Outbox, SendError};
use super::pool::ChildSlots;
use super::starts::StartPermit;
use super::stderr::Log;
use crate::call::OwnerKey;
use crate::lock::lock;
use crate::telemetry::metrics::LABELED;

/// Why we stopped a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    /// It ended or closed its output.
    Closed,
    /// Its user closed it or let go of it.
    Dropped,
    /// Nobody used it for `stdio.idle`.
    Idle,
    /// Its principal needed the place.
    Evicted,
    /// The gateway stops.
    ShutDown,
}

/// What the connection, the reader, the keeper and the pool share about a child.
pub(super) struct ChildState {
    pub(super) upstream: Arc<str>,
    pub(super) owner: OwnerKey,
    pub(super) pid: u32,
    pub(super) log: Log,
    backoff: Arc<Backoff>,
    slots: Arc<ChildSlots>,
    started: Instant,
    /// Uses that keep it from counting as idle.
    busy: AtomicU32,
    /// Reasons to let it live though it is not used; its place may still be taken.
    held: AtomicU32,
    /// Milliseconds from `started` to the last use.
    last_used: AtomicU64,
    has_spoken: AtomicBool,
    /// Held until the child spoke or `START_WINDOW` passed: bounds the spawns at once.
    start_permit: Mutex<Option<StartPermit>>,
    stop_reason: OnceLock<StopReason>,
    status: OnceLock<ExitStatus>,
    closed: CancellationToken,
    gone: CancellationToken,
    reaped: CancellationToken,
}

impl fmt::Debug for ChildState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Child({} of {}, {:?})",
            self.pid, self.upstream, self.owner
        )
    }
}

/// What a child is born with.
pub(super) struct Birth {
    pub(super) upstream: Arc<str>,
    pub(super) owner: OwnerKey,
    pub(super) pid: u32,
    pub(super) log: Log,
    pub(super) backoff: Arc<Backoff>,
    pub(super) slots: Arc<ChildSlots>,
    pub(super) start_permit: StartPermit,
}

impl ChildState {
    pub(super) fn new(birth: Birth) -> Self {
        Self {
            upstream: birth.upstream,
            owner: birth.owner,
            pid: birth.pid,
            log: birth.log,
            backoff: birth.backoff,
            slots: birth.slots,
            started: Instant::now(),
            busy: AtomicU32::new(0),
            held: AtomicU32::new(0),
            last_used: AtomicU64::new(0),
            has_spoken: AtomicBool::new(false),
            start_permit: Mutex::new(Some(birth.start_permit)),
            stop_reason: OnceLock::new(),
            status: OnceLock::new(),
            closed: CancellationToken::new(),
            gone: CancellationToken::new(),
            reaped: CancellationToken::new(),
        }
    }

    /// Asks for the stop ladder; the first reason stays.
    pub(super) fn stop(&self, reason: StopReason) {
        if !self.closed.is_cancelled() {
            let _ = self.stop_reason.set(reason);
            self.closed.cancel();
        }
    }

    /// Whether we ended it, and why.
    pub(super) fn stop_reason(&self) -> Option<StopReason> {
        self.stop_reason.get().copied()
    }

    /// Cancelled when the child is being stopped or gone.
    pub(super) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Cancelled when the process itself has ended and its last words are known.
    pub(super) fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// Cancelled when its whole group has ended and its place is free.
    pub(super) fn reaped(&self) -> &CancellationToken {
        &self.reaped
    }

    /// The process ended with `status`; only the first time counts.
    pub(super) fn ended(&self, status: Option<ExitStatus>) {
        if self.gone.is_cancelled() {
            return;
        }
        if let Some(status) = status {
            let _ = self.status.set(status);
        }
        self.release_start();
        self.account();
        self.tell_end();
        self.closed.cancel();
        self.gone.cancel();
    }

    fn tell_end(&self) {
        let (upstream, pid) = (&*self.upstream, self.pid);
        let status = self
            .status
            .get()
            .map(ToString::to_string)
            .unwrap_or_default();
        match self.stop_reason() {
            None => tracing::warn!(upstream, pid, status, "an upstream process ended by itself"),
            Some(reason) => {
                tracing::info!(
                    upstream,
                    pid,
                    status,
                    ?reason,
                    "an upstream process was stopped"
                );
            }
        }
    }

    /// It has written a message: it is up.
    pub(super) fn spoke(&self) {
        if !self.has_spoken.swap(true, Ordering::Relaxed) {
            self.release_start();
            self.backoff.spoke(&self.upstream);
        }
        self.touch();
    }

    /// Lets the next child start; from now on this one may be idle.
    pub(super) fn release_start(&self) {
        let permit = lock(&self.start_permit).take();
        if permit.is_some() {
            drop(permit);
            self.slots.went_idle(self.owner);
        }
    }

    fn is_starting(&self) -> bool {
        lock(&self.start_permit).is_some()
    }

    pub(super) fn touch(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_used.store(now, Ordering::Relaxed);
    }

    pub(super) fn last_used(&self) -> Instant {
        self.started + Duration::from_millis(self.last_used.load(Ordering::Relaxed))
    }

    /// Whether its end, once it has ended, was no wish of ours.
    fn ends_by_itself(&self) -> bool {
        matches!(self.stop_reason(), None | Some(StopReason::Closed))
    }

    /// Counts its end, unless we caused it.
    fn account(&self) {
        if self.ends_by_itself() {
            let spoke = self.has_spoken.load(Ordering::Relaxed);
            let crash = Crash {
                spoke,
                age: self.started.elapsed(),
            };
            let words = self.last_words();
            self.backoff
                .crashed(self.owner, &self.upstream, crash, words, Instant::now());
        }
    }

    /// Whether it may be stopped without hurting anybody.
    pub(super) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0 && !self.is_starting()
    }

    /// Whether somebody waits for what it may say by itself.
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0
    }

    /// A line that is no message.
    // Spec: SPEC D-02
    pub(super) fn stray(&self, text: &[u8]) {
        LABELED.upstream_garbage.add(&self.upstream, 1);
        self.log.stray(&self.upstream, self.pid, text);
    }

    /// A line beyond the bound.
    pub(super) fn too_long(&self, bytes: u64) {
        LABELED.upstream_garbage.add(&self.upstream, 1);
        tracing::error!(
            upstream = &*self.upstream,
            pid = self.pid,
            bytes,
            "a message from the upstream is too long and was skipped"
        );
    }

    /// How it ended and what it wrote on standard error last.
    pub(super) fn last_words(&self) -> Option<String> {
        let end = match (self.stop_reason(), self.status.get()) {
            (Some(StopReason::Idle), _) => Some("stopped: not used for a while".to_owned()),
            (Some(StopReason::Evicted), _) => Some("stopped: its place was needed".to_owned()),
            (Some(StopReason::ShutDown), _) => Some("stopped: the gateway stops".to_owned()),
            (_, Some(status)) => Some(status.to_string()),
            (_, None) => None,
        };
        match (end, self.log.tail()) {
            (end, None) => end,
            (None, Some(tail)) => Some(tail),
            (Some(end), Some(tail)) => Some(format!("{end}: {tail}")),
        }
    }
}

/// A running child. Clones share it; when the last one is dropped the child is stopped.
#[derive(Clone)]
pub struct StdioConnection(Arc<Handle>);

impl fmt::Debug for StdioConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.state.fmt(f)
    }
}

struct Handle {
    state: Arc<ChildState>,
    outbox: Arc<Outbox>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.state.stop(StopReason::Dropped);
    }
}

impl StdioConnection {
    pub(super) fn new(state: Arc<ChildState>, outbox: Arc<Outbox>) -> Self {
        Self(Arc::new(Handle { state, outbox }))
    }

    /// Sends one message, waiting while more than a bound is queued for the child. Raw line
    /// breaks between its tokens become spaces.
    ///
    /// # Errors
    /// The child takes nothing more, or the message is over `limits.upstream_message`.
    ///
    /// # Cancel safety
    /// A dropped send has sent either nothing or everything.
    pub async fn send(&self, message: Bytes) -> Result<(), SendError> {
        // Whoever saw the lines end must not find the way in still open.
        if self.0.state.closed().is_cancelled() {
            return Err(SendError::Gone);
        }
        self.0.state.touch();
        let sent = self.0.outbox.send(message).await;
        self.judge(sent)
    }

    /// Sends one message if that needs no waiting; tells whether it did. For destructors.
    #[must_use]
    pub fn try_send(&self, message: Bytes) -> bool {
        !self.0.state.closed().is_cancelled() && self.0.outbox.try_send(message)
    }

    /// A child that reads no more is of no use.
    fn judge(&self, sent: Result<(), SendError>) -> Result<(), SendError> {
        if sent == Err(SendError::Gone) {
            self.0.state.stop(StopReason::Closed);
        }
        sent
    }

    /// How the process ended and the end of its standard error, without secrets and control
    /// characters, about 2 KiB. Complete as soon as the lines have ended; `None` when there is
    /// nothing to tell.
    #[must_use]
    pub fn last_words(&self) -> Option<String> {
        self.0.state.last_words()
    }

    /// Whether the end of its lines was no wish of ours.
    #[must_use]
    pub fn broke_off(&self) -> bool {
        self.0.state.ends_by_itself()
    }

    /// Postpones the idle stop.
    pub fn touch(&self) {
        self.0.state.touch();
    }

    /// Keeps the child from being stopped as idle until the guard is dropped.
    pub fn busy(&self) -> BusyGuard {
        self.0.state.busy.fetch_add(1, Ordering::AcqRel);
        self.0.state.touch();
        BusyGuard(Arc::clone(&self.0.state))
    }

    /// Keeps the child from being stopped for being idle until the guard is dropped; when its
    /// principal needs the place it is stopped all the same.
    pub fn hold(&self) -> HoldGuard {
        self.0.state.held.fetch_add(1, Ordering::AcqRel);
        HoldGuard(Arc::clone(&self.0.state))
    }

    /// Cancelled as soon as the child is gone or being stopped.
    #[must_use]
    pub fn closed(&self) -> &CancellationToken {
        self.0.state.closed()
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
        self.0.touch();
        if self.0.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.slots.went_idle(self.0.owner);
        }
    }
}

/// Lets one child live though nobody uses it.
#[derive(Debug)]
#[must_use = "the child may be stopped as idle when this is dropped"]
pub struct HoldGuard(Arc<ChildState>);

impl Drop for HoldGuard {
    fn drop(&mut self) {
        self.0.touch();
        self.0.held.fetch_sub(1, Ordering::AcqRel);
    }
}
