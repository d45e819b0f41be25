//! What the parts of a child share: whether it is used, why it was stopped, how it ended.

use std::fmt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backoff::{Backoff, Crash};
use super::child_lines::Event;
use super::pool::ChildSlots;
use super::starts::{StartPermit, Starts};
use super::stderr::Log;
use super::stop_reason::StopReason;
use crate::call::OwnerKey;
use crate::lock::lock;
use crate::telemetry::metrics::LABELED;

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
    /// Lines that begin as messages do, less those of them that turned out to be none.
    messages: AtomicI64,
    /// Whether it is only asked whether it lives.
    is_asked: AtomicBool,
    starts: Arc<Starts>,
    /// Held until the child spoke or `START_WINDOW` passed: bounds the spawns at once.
    start_permit: Mutex<Option<StartPermit>>,
    stop_reason: OnceLock<StopReason>,
    /// Whether it lived on when it was to be gone: its status says more of us than of it.
    lingered: AtomicBool,
    status: OnceLock<ExitStatus>,
    /// Cancelled when it is of no use any more: from `closed` on, or from the end of its output.
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
            messages: AtomicI64::new(0),
            is_asked: AtomicBool::new(false),
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
            // Whoever lets go of one that has ended by itself is not why it ends.
            let is_over = self.over.is_cancelled();
            let reason = if is_over { StopReason::Closed } else { reason };
            let _ = self.stop_reason.set(reason);
            self.over.cancel();
            self.closed.cancel();
        }
    }

    /// It has closed its output: nothing that is sent to it now would be answered.
    pub(super) fn fell_silent(&self) {
        self.over.cancel();
    }

    /// It lives on though it was to be gone.
    pub(super) fn lingers(&self) {
        self.lingered.store(true, Ordering::Release);
    }

    /// What it did before we stopped it, if that is why it ended.
    // Spec: SPEC D-05
    fn fault(&self) -> Option<&'static str> {
        let fault = match self.stop_reason()? {
            StopReason::Closed => "it closed its output",
            StopReason::Deaf => "it closed its input",
            _ => return None,
        };
        // One that crashes closes both, and is waited for a moment.
        let lingered = self.lingered.load(Ordering::Acquire);
        (lingered || self.status.get().is_none()).then_some(fault)
    }

    /// Cancelled when it is of no use any more.
    pub(super) fn over(&self) -> &CancellationToken {
        &self.over
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
        let told = || self.starts.lines.admit(&self.upstream, Event::End);
        let warn = |what: &str| {
            if let Some(muted) = told() {
                tracing::warn!(upstream, pid, status, muted, "{what}");
            }
        };
        match (self.stop_reason(), self.fault()) {
            (_, Some(fault)) => warn(&format!("an upstream process was stopped: {fault}")),
            (None | Some(StopReason::Closed | StopReason::Deaf), None) => {
                warn("an upstream process ended by itself");
            }
            // One of many that never spoke is no news.
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

    /// It has written a message: it is up.
    pub(super) fn spoke(&self) {
        let before = self.messages.fetch_add(1, Ordering::Relaxed);
        if !self.has_spoken.swap(true, Ordering::Relaxed) {
            self.note_start();
            self.release_start();
            self.backoff.spoke(&self.upstream);
        } else if before <= 0 {
            self.note_start();
        }
        self.touch();
    }

    /// Its start has used up its time: others start now, and before the next one of its upstream.
    pub(super) fn start_took_long(&self) {
        if self.is_starting() {
            self.note_start();
            self.release_start();
        }
    }

    /// Notes whether its start gave a sign of life.
    fn note_start(&self) {
        self.starts.note(&self.upstream, self.has_spoken());
    }

    /// From now on what it says counts, or does not count, as use.
    pub(super) fn set_asked(&self, asked: bool) {
        self.is_asked.store(asked, Ordering::Relaxed);
    }

    /// Whether it has written more than lines that only look like messages.
    fn has_messages(&self) -> bool {
        self.messages.load(Ordering::Relaxed) > 0
    }

    /// Whether it has written a message.
    pub(super) fn has_spoken(&self) -> bool {
        self.has_spoken.load(Ordering::Relaxed)
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

    /// Notes that something was sent or said, unless that is but a question whether it lives.
    pub(super) fn touch(&self) {
        if !self.is_asked.load(Ordering::Relaxed) {
            self.note_use();
        }
    }

    fn note_use(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_used.store(now, Ordering::Relaxed);
    }

    pub(super) fn last_used(&self) -> Instant {
        self.started + Duration::from_millis(self.last_used.load(Ordering::Relaxed))
    }

    /// Whether its end, once it has ended, was no wish of ours.
    pub(super) fn ends_by_itself(&self) -> bool {
        matches!(
            self.stop_reason(),
            None | Some(StopReason::Closed | StopReason::Deaf)
        )
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

    /// Notes a use, which keeps it from counting as idle until it ends.
    pub(super) fn begin_use(&self) {
        self.busy.fetch_add(1, Ordering::AcqRel);
        self.note_use();
    }

    /// A use of it is over.
    pub(super) fn end_use(&self) {
        self.note_use();
        if self.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.slots.went_idle(self.owner);
        }
    }

    /// Notes a reason to let it live though it is not used.
    pub(super) fn hold(&self) {
        self.held.fetch_add(1, Ordering::AcqRel);
    }

    /// Such a reason is gone.
    pub(super) fn let_go(&self) {
        self.note_use();
        self.held.fetch_sub(1, Ordering::AcqRel);
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
        self.note_stray(text);
    }

    /// A line that looked like a message and is none.
    pub(super) fn keep_stray(&self, text: &[u8]) {
        if self.messages.fetch_sub(1, Ordering::Relaxed) <= 1 {
            self.starts.note_silent(&self.upstream);
        }
        self.note_stray(text);
    }

    fn note_stray(&self, text: &[u8]) {
        self.log.keep_stray(text);
        if let Some(muted) = self.starts.lines.admit(&self.upstream, Event::Stray) {
            self.log.tell_stray(&self.upstream, self.pid, text, muted);
        }
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
