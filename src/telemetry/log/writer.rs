//! Writer thread for standard output; logging only copies into a buffer. Audit lines have a separate
//! buffer and are written first, so that other lines cannot displace them (`docs/adr/0032`).

use std::io::{ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::lock::lock;
use crate::telemetry::metrics::{COUNTERS, CounterHandle};

/// Lines waiting to be written; what comes on top is dropped and counted.
const MAX_WAITING_BYTES: usize = 1024 * 1024;
/// Audit lines waiting to be written, in a buffer of their own: some 10,000.
const MAX_AUDIT_BYTES: usize = 4 * 1024 * 1024;
/// Room that both buffers keep.
const KEPT_BYTES: usize = 64 * 1024;
/// The writer collects for this long, so that a busy gateway wakes it 50 times a second and not
/// once per line.
const COLLECT: Duration = Duration::from_millis(20);

/// Bytes per write: progress per chunk shows whether the output is being read.
const CHUNK: usize = 16 * 1024;
/// Timeout per chunk at exit; an output without a reader must not delay the exit.
const LAST_LINES: Duration = Duration::from_millis(500);
/// Timeout for all chunks at exit, however slow the reader.
const LONGEST: Duration = Duration::from_secs(5);

/// Where lines are put; cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::telemetry) struct LogWriter {
    shared: Arc<WriterState>,
}

/// A guard that flushes waiting lines when dropped, while the output is being read and for at most five
/// seconds, then ends the thread.
#[derive(Debug)]
pub(in crate::telemetry) struct WriterGuard {
    shared: Arc<WriterState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct WriterState {
    state: Mutex<WriterQueue>,
    wake: Condvar,
    ended: Condvar,
}

/// What a line belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::telemetry) enum LineKind {
    /// The audit.
    Audit,
    /// Everything else.
    Log,
}

impl LineKind {
    /// Where lines that are lost are counted.
    fn dropped(self) -> &'static CounterHandle {
        match self {
            Self::Audit => &COUNTERS.audit_dropped,
            Self::Log => &COUNTERS.log_lines_dropped,
        }
    }
}

/// Whole lines.
#[derive(Debug, Default)]
struct LineBatch {
    audit: Vec<u8>,
    log: Vec<u8>,
}

impl LineBatch {
    fn is_empty(&self) -> bool {
        self.audit.is_empty() && self.log.is_empty()
    }

    /// Empties it; what a burst needed is not kept.
    fn clear(&mut self) {
        for lines in [&mut self.audit, &mut self.log] {
            lines.clear();
            lines.shrink_to(KEPT_BYTES);
        }
    }
}

#[derive(Debug, Default)]
struct WriterQueue {
    waiting: LineBatch,
    /// The writer sleeps and has to be woken.
    asleep: bool,
    closed: bool,
    /// Chunks so far.
    written: u64,
    /// All is written.
    ended: bool,
}

impl LogWriter {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(in crate::telemetry) fn start(
        out: impl Write + Send + 'static,
    ) -> std::io::Result<(Self, WriterGuard)> {
        let shared = Arc::new(WriterState::default());
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || theirs.write_all_to(out))?;
        let guard = WriterGuard {
            shared: Arc::clone(&shared),
            thread: Some(thread),
        };
        Ok((Self { shared }, guard))
    }

    /// Queues one line, or drops and counts it where the buffer of its kind is full.
    pub(in crate::telemetry) fn put(&self, kind: LineKind, line: &[u8]) {
        let mut state = self.shared.lock();
        let (lines, most) = match kind {
            LineKind::Audit => (&mut state.waiting.audit, MAX_AUDIT_BYTES),
            LineKind::Log => (&mut state.waiting.log, MAX_WAITING_BYTES),
        };
        if lines.len() + line.len() > most {
            drop(state);
            kind.dropped().add(1);
            return;
        }
        lines.extend_from_slice(line);
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.shared.wake.notify_one();
        }
    }
}

impl WriterState {
    fn lock(&self) -> MutexGuard<'_, WriterQueue> {
        lock(&self.state)
    }

    fn write_all_to(&self, mut out: impl Write) {
        let mut batch = LineBatch::default();
        let mut is_cut = false;
        loop {
            let mut state = self.lock();
            while state.waiting.is_empty() && !state.closed {
                state.asleep = true;
                state = self
                    .wake
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if !state.closed {
                let collected = self.wake.wait_timeout(state, COLLECT);
                state = collected.unwrap_or_else(PoisonError::into_inner).0;
            }
            let last = state.closed;
            std::mem::swap(&mut batch, &mut state.waiting);
            drop(state);
            self.write(LineKind::Audit, &batch.audit, &mut out, &mut is_cut);
            self.write(LineKind::Log, &batch.log, &mut out, &mut is_cut);
            while would_block(out.flush()) {
                thread::sleep(COLLECT);
            }
            batch.clear();
            if last {
                self.lock().ended = true;
                self.ended.notify_one();
                return;
            }
        }
    }

    /// Writes lines. A failure of standard output cannot be logged, so lines not written in full are counted.
    /// `is_cut` says whether the output ends within such a line: the next one begins a new line.
    fn write(&self, kind: LineKind, lines: &[u8], out: &mut impl Write, is_cut: &mut bool) {
        if lines.is_empty() {
            return;
        }
        if *is_cut && self.taken(b"\n", out) > 0 {
            *is_cut = false;
        }
        // As long as the output does not take the line break, it takes nothing behind it either.
        let taken = if *is_cut { 0 } else { self.taken(lines, out) };
        let rest = lines.get(taken..).unwrap_or_default();
        if !rest.is_empty() {
            let lost = memchr::memchr_iter(b'\n', rest).count();
            kind.dropped().add(lost.try_into().unwrap_or(u64::MAX));
            let taken = lines.get(..taken).unwrap_or_default();
            *is_cut |= taken.last().is_some_and(|last| *last != b'\n');
        }
    }

    /// Writes `bytes` in chunks, and returns how many the output took before it failed.
    fn taken(&self, bytes: &[u8], out: &mut impl Write) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            let chunk = rest.get(..CHUNK).unwrap_or(rest);
            match out.write(chunk) {
                Ok(taken @ 1..) => rest = rest.get(taken..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(COLLECT);
                    continue;
                }
                Ok(0) | Err(_) => break,
            }
            self.lock().written += 1;
        }
        bytes.len().saturating_sub(rest.len())
    }
}

/// Whether an output is full that another process has made non-blocking: a pipe or terminal has one such setting for all
/// processes that share it.
fn would_block(outcome: std::io::Result<()>) -> bool {
    outcome.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        self.shared.wake.notify_all();
        let began = Instant::now();
        let ended = loop {
            let before = state.written;
            let waited = self
                .shared
                .ended
                .wait_timeout_while(state, LAST_LINES, |state| !state.ended);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.ended || state.written == before || began.elapsed() >= LONGEST {
                break state.ended;
            }
        };
        drop(state);
        // A thread that is stuck in its output ends with the process.
        if let Some(thread) = self.thread.take().filter(|_| ended) {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests;
