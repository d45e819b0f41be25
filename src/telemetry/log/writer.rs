//! Bytes to standard output from a thread of their own; whoever logs only copies.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::lock::lock;
use crate::telemetry::metrics::COUNTERS;

/// Lines waiting to be written; what comes on top is dropped and counted.
const MAX_WAITING_BYTES: usize = 1024 * 1024;
/// Room that both buffers keep.
const KEPT_BYTES: usize = 64 * 1024;
/// The writer collects for this long, so that a busy gateway wakes it 50 times a second and not
/// once per line.
const COLLECT: Duration = Duration::from_millis(20);

/// Written at once: whether somebody reads is seen by how they go.
const CHUNK: usize = 16 * 1024;
/// For the next of the last chunks; an output that nobody reads must not hold up the exit.
const LAST_LINES: Duration = Duration::from_millis(500);
/// For all of them, however slowly they are read.
const LONGEST: Duration = Duration::from_secs(5);

/// Where lines are put; cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::telemetry) struct Writer {
    shared: Arc<Shared>,
}

/// Writes what is waiting when it is dropped, for as long as somebody reads and at most for five
/// seconds, then ends the thread.
#[derive(Debug)]
pub(in crate::telemetry) struct WriterGuard {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// The writer sleeps and has to be woken.
    asleep: bool,
    closed: bool,
    /// Chunks so far.
    written: u64,
    /// All is written.
    ended: bool,
}

impl Writer {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(in crate::telemetry) fn start(
        out: impl Write + Send + 'static,
    ) -> std::io::Result<(Self, WriterGuard)> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || theirs.write_all_to(out))?;
        let guard = WriterGuard {
            shared: Arc::clone(&shared),
            thread: Some(thread),
        };
        Ok((Self { shared }, guard))
    }

    /// Queues one line.
    pub(in crate::telemetry) fn put(&self, line: &[u8]) {
        let mut state = self.shared.lock();
        if state.waiting.len() + line.len() > MAX_WAITING_BYTES {
            drop(state);
            COUNTERS.log_lines_dropped.add(1);
            return;
        }
        state.waiting.extend_from_slice(line);
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.shared.wake.notify_one();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn write_all_to(&self, mut out: impl Write) {
        let mut batch = Vec::new();
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
            // Nobody is left to tell when standard output is gone.
            for chunk in batch.chunks(CHUNK) {
                drop(out.write_all(chunk));
                self.lock().written += 1;
            }
            drop(out.flush());
            batch.clear();
            // What a burst needed is not kept.
            batch.shrink_to(KEPT_BYTES);
            if last {
                self.lock().ended = true;
                self.ended.notify_one();
                return;
            }
        }
    }
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
mod tests {
    use super::*;

    /// An output that can be held up.
    #[derive(Clone, Default)]
    struct Gate(Arc<Mutex<Vec<u8>>>);

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn everything_put_before_the_end_is_written_in_order() {
        let gate = Gate::default();
        let (writer, guard) = Writer::start(gate.clone()).unwrap();
        for n in 0..1000 {
            writer.put(format!("{n}\n").as_bytes());
        }
        drop(guard);
        let written = String::from_utf8(gate.0.lock().unwrap().clone()).unwrap();
        let numbers: Vec<u32> = written.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn an_output_that_blocks_costs_lines_and_nobody_waits() {
        let gate = Gate::default();
        let held = Arc::clone(&gate.0);
        let held = held.lock().unwrap();
        let before = COUNTERS.log_lines_dropped.get();
        let (writer, guard) = Writer::start(gate.clone()).unwrap();
        let line = [b'x'; 1024];
        for _ in 0..4096 {
            writer.put(&line);
        }
        assert!(COUNTERS.log_lines_dropped.get() > before);
        drop(held);
        drop(guard);
        assert!(gate.0.lock().unwrap().len() <= 3 * MAX_WAITING_BYTES);
    }

    /// An output whose reader takes a chunk every tenth of a second.
    struct Slow(Gate);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            std::thread::sleep(LAST_LINES / 5);
            self.0.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_output_that_is_read_slowly_gets_everything() {
        let out = Gate::default();
        let (writer, guard) = Writer::start(Slow(out.clone())).unwrap();
        let line = [b'x'; CHUNK];
        for _ in 0..8 {
            writer.put(&line);
        }
        drop(guard);
        assert_eq!(out.0.lock().unwrap().len(), 8 * CHUNK);
    }

    #[test]
    fn an_output_that_nobody_reads_does_not_hold_up_the_end() {
        let gate = Gate::default();
        let held = Arc::clone(&gate.0);
        let held = held.lock().unwrap();
        let (writer, guard) = Writer::start(gate).unwrap();
        writer.put(b"never read\n");
        let ended = std::thread::spawn(move || drop(guard));
        let deadline = Instant::now() + Duration::from_secs(10);
        while !ended.is_finished() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(ended.is_finished());
        drop(held);
    }
}
