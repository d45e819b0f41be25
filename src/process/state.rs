//! `ChildState`, shared by the parts of a child: whether it is in use, its stop reason, its exit status.

use std::fmt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::admission::ChildSlots;
use super::backoff::{ChildCrash, CrashBackoff, CredentialMark};
use super::child_lines::ChildEvent;
use super::child_use::ChildUse;
use super::start_limiter::{StartLimiter, StartPermit};
use super::stderr::StderrLog;
use super::stop_reason::StopReason;
use crate::call::OwnerKey;
use crate::lock::lock;
use crate::telemetry::metrics::LABELED;

/// State of one child, shared by its connection, its reader, its `ChildKeeper` and the pool.
pub(super) struct ChildState {
    pub(super) upstream: Arc<str>,
    pub(super) owner: OwnerKey,
    pub(super) pid: u32,
    pub(super) log: StderrLog,
    backoff: Arc<CrashBackoff>,
    credential: CredentialMark,
    slots: Arc<ChildSlots>,
    pub(super) uses: ChildUse,
    has_spoken: AtomicBool,
    /// Lines that begin like messages, less the ones that failed to parse (`keep_stray`).
    messages: AtomicI64,
    starts: Arc<StartLimiter>,
    /// Held until the child spoke or `START_WINDOW` passed: bounds the spawns at once.
    start_permit: Mutex<Option<StartPermit>>,
    stop_reason: OnceLock<StopReason>,
    /// Whether the process outlived the wait for its own end; its exit status then reflects our signals.
    lingered: AtomicBool,
    status: OnceLock<ExitStatus>,
    /// Cancelled when the child takes no more requests: at `closed`, or at the end of its output.
    over: CancellationToken,
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

/// Arguments of [`ChildState::new`].
pub(super) struct ChildParams {
    pub(super) upstream: Arc<str>,
    pub(super) owner: OwnerKey,
    pub(super) pid: u32,
    pub(super) log: StderrLog,
    pub(super) backoff: Arc<CrashBackoff>,
    /// The mark of a credential of its own.
    pub(super) credential: CredentialMark,
    pub(super) slots: Arc<ChildSlots>,
    pub(super) start_permit: StartPermit,
}

impl ChildState {
    pub(super) fn new(birth: ChildParams) -> Self {
        Self {
            upstream: birth.upstream,
            owner: birth.owner,
            pid: birth.pid,
            log: birth.log,
            backoff: birth.backoff,
            credential: birth.credential,
            slots: birth.slots,
            uses: ChildUse::new(),
            has_spoken: AtomicBool::new(false),
            messages: AtomicI64::new(0),
            starts: Arc::clone(birth.start_permit.starts()),
            start_permit: Mutex::new(Some(birth.start_permit)),
            stop_reason: OnceLock::new(),
            lingered: AtomicBool::new(false),
            status: OnceLock::new(),
            over: CancellationToken::new(),
            closed: CancellationToken::new(),
            gone: CancellationToken::new(),
            reaped: CancellationToken::new(),
        }
    }

    /// Asks for the stop ladder; the first reason stays.
    pub(super) fn stop(&self, reason: StopReason) {
        if !self.closed.is_cancelled() {
            // Once `over`, the child has ended by itself: a connection dropped afterwards is not the reason.
            let is_over = self.over.is_cancelled();
            let reason = if is_over {
                StopReason::ClosedOutput
            } else {
                reason
            };
            let _ = self.stop_reason.set(reason);
            self.over.cancel();
            self.closed.cancel();
        }
    }

    /// The child has closed its output, so a request sent now would get no reply.
    pub(super) fn fell_silent(&self) {
        self.over.cancel();
    }

    /// The child still runs after the wait for its own end.
    pub(super) fn lingers(&self) {
        self.lingered.store(true, Ordering::Release);
    }

    /// The fault for which the gateway stopped the child, if that is why it ended.
    // Spec: SPEC D-05
    fn fault(&self) -> Option<&'static str> {
        let fault = match self.stop_reason()? {
            StopReason::ClosedOutput => "it closed its output",
            StopReason::ClosedInput => "it closed its input",
            _ => return None,
        };
        // A crash closes both pipes too, and is given a moment to yield an exit status.
        let lingered = self.lingered.load(Ordering::Acquire);
        (lingered || self.status.get().is_none()).then_some(fault)
    }

    /// Cancelled when the child takes no more requests.
    pub(super) fn over(&self) -> &CancellationToken {
        &self.over
    }

    /// The reason for which the gateway stopped the child, if it did.
    pub(super) fn stop_reason(&self) -> Option<StopReason> {
        self.stop_reason.get().copied()
    }

    /// Cancelled when the child is being stopped or gone.
    pub(super) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Cancelled when the process itself has ended and its last standard error has been read.
    pub(super) fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// Cancelled when the whole process group has ended and the place is free.
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
        if self.ends_by_itself() {
            self.note_start();
        }
        if !self.has_messages() {
            self.starts.note_silent(&self.upstream);
        }
        self.release_start();
        self.account();
        self.tell_end();
        self.over.cancel();
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
        let told = || self.starts.lines.admit(&self.upstream, ChildEvent::End);
        let warn = |what: &str| {
            if let Some(muted) = told() {
                tracing::warn!(upstream, pid, status, muted, "{what}");
            }
        };
        match (self.stop_reason(), self.fault()) {
            (_, Some(fault)) => warn(&format!("an upstream process was stopped: {fault}")),
            (None | Some(StopReason::ClosedOutput | StopReason::ClosedInput), None) => {
                warn("an upstream process ended by itself");
            }
            // A stop of a child that never wrote a message is rate-limited, as there may be many.
            (Some(_), None) if !self.has_messages() && told().is_none() => {}
            (Some(reason), None) => {
                tracing::info!(
                    upstream,
                    pid,
                    status,
                    reason = reason.as_str(),
                    "an upstream process was stopped"
                );
            }
        }
    }

    /// The child has written a message: it is up.
    pub(super) fn spoke(&self) {
        let before = self.messages.fetch_add(1, Ordering::Relaxed);
        if !self.has_spoken.swap(true, Ordering::Relaxed) {
            self.note_start();
            self.release_start();
            self.backoff.spoke(&self.upstream);
        } else if before <= 0 {
            self.note_start();
        }
        self.uses.touch();
    }

    /// The start has used up `START_WINDOW` without a message: counts as failed and releases its permit.
    pub(super) fn start_took_long(&self) {
        if self.is_starting() {
            self.note_start();
            self.release_start();
        }
    }

    /// Notes whether the start gave a sign of life.
    fn note_start(&self) {
        self.starts.note(&self.upstream, self.has_spoken());
    }

    /// Whether the child has written a message, beyond lines that only looked like one.
    fn has_messages(&self) -> bool {
        self.messages.load(Ordering::Relaxed) > 0
    }

    /// Whether the child has written a message.
    pub(super) fn has_spoken(&self) -> bool {
        self.has_spoken.load(Ordering::Relaxed)
    }

    /// Releases the start permit, so that the next child can start; from now on this child may be idle.
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

    /// Whether the end is the child's own doing rather than a stop by the gateway.
    pub(super) fn ends_by_itself(&self) -> bool {
        matches!(
            self.stop_reason(),
            None | Some(StopReason::ClosedOutput | StopReason::ClosedInput)
        )
    }

    /// Counts the end as a crash, unless the gateway caused it.
    fn account(&self) {
        if self.ends_by_itself() {
            let spoke = self.has_spoken.load(Ordering::Relaxed);
            let crash = ChildCrash {
                spoke,
                age: self.uses.age(),
            };
            let words = self.last_words();
            let of = (self.owner, &self.upstream, self.credential);
            self.backoff.crashed(of, crash, words, Instant::now());
        }
    }

    /// Ends a use of the child. After the last one, its place may be needed.
    pub(super) fn end_use(&self) {
        if self.uses.end() {
            self.slots.went_idle(self.owner);
        }
    }

    /// Whether the child can be stopped without failing a call or a start.
    pub(super) fn is_idle(&self) -> bool {
        self.uses.is_over() && !self.is_starting()
    }

    /// Notes a line that is no message.
    // Spec: SPEC D-02
    pub(super) fn stray(&self, text: &[u8]) {
        LABELED.upstream_garbage.add(&self.upstream, 1);
        self.note_stray(text);
    }

    /// Notes a line that looked like a message and failed to parse.
    pub(super) fn keep_stray(&self, text: &[u8]) {
        if self.messages.fetch_sub(1, Ordering::Relaxed) <= 1 {
            self.starts.note_silent(&self.upstream);
        }
        self.note_stray(text);
    }

    fn note_stray(&self, text: &[u8]) {
        self.log.keep_stray(text);
        if let Some(muted) = self.starts.lines.admit(&self.upstream, ChildEvent::Stray) {
            self.log.tell_stray(&self.upstream, self.pid, text, muted);
        }
    }

    /// Notes a line longer than `limits.upstream_message`.
    pub(super) fn too_long(&self, bytes: u64) {
        LABELED.upstream_garbage.add(&self.upstream, 1);
        tracing::error!(
            upstream = &*self.upstream,
            pid = self.pid,
            bytes,
            "a message from the upstream is too long and was skipped"
        );
    }

    /// The way the process ended, followed by the end of its standard error.
    pub(super) fn last_words(&self) -> Option<String> {
        let end = match (self.stop_reason(), self.status.get()) {
            (Some(StopReason::Idle), _) => Some("stopped: not used for a while".to_owned()),
            (Some(StopReason::Evicted), _) => Some("stopped: its place was needed".to_owned()),
            (Some(StopReason::ShutDown), _) => Some("stopped: the gateway stops".to_owned()),
            (_, status) => {
                let status = || status.map(ToString::to_string);
                self.fault().map(str::to_owned).or_else(status)
            }
        };
        match (end, self.log.tail()) {
            (end, None) => end,
            (None, Some(tail)) => Some(tail),
            (Some(end), Some(tail)) => Some(format!("{end}: {tail}")),
        }
    }
}
