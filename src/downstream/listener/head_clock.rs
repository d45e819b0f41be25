//! How long an HTTP/1.1 connection may wait for a request head.
//!
//! hyper knows one deadline, and counts it from the end of the last exchange: an idle connection
//! that a proxy keeps for later would be closed after `header_timeout`. Here the deadline depends
//! on whether the head has begun, and one timer entry lasts for the whole connection instead of
//! one per request.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

use super::activity::ConnectionUse;
use super::stall::WriteStall;
use crate::lock::lock;
use crate::runtime::observed_stream::StreamObserver;
use crate::runtime::poll_time;
use crate::runtime::read_quantum::ReadQuantum;

/// The deadline of one connection; a [`Timer`] for hyper.
#[derive(Debug, Clone)]
pub(super) struct HeadClock {
    shared: Arc<Mutex<ClockState>>,
    born: Instant,
}

#[derive(Debug)]
struct ClockState {
    header_timeout: Duration,
    /// A connection that has served a request may wait this long for the next one.
    idle_timeout: Duration,
    /// Whether a head has been waited for before: then the connection may be idle.
    served: bool,
    /// When the present wait has to end.
    deadline: tokio::time::Instant,
    /// Whether bytes have come since the wait began.
    begun: bool,
    /// Whether the head that is waited for is the first: its deadline stands from the start.
    first: bool,
    /// How long instead, once its client was refused for its token.
    refused_timeout: Duration,
    client: TokenVerdict,
    writes: WriteProgress,
    /// Once a drain has begun: how long a connection may wait for bytes of the next head.
    linger: Option<Duration>,
    /// Registered once with the runtime, moved only when it fires.
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
}

/// Verdict on the last token of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenVerdict {
    Usual,
    Refused,
}

/// Whether the peer reads the bytes written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteProgress {
    Flow,
    Wait,
}

impl HeadClock {
    pub(super) fn new(
        header_timeout: Duration,
        idle_timeout: Duration,
        refused_timeout: Duration,
    ) -> Self {
        let born = tokio::time::Instant::now();
        let deadline = born + header_timeout;
        Self {
            born: born.into(),
            shared: Arc::new(Mutex::new(ClockState {
                header_timeout,
                idle_timeout,
                served: false,
                deadline,
                begun: false,
                first: true,
                refused_timeout,
                client: TokenVerdict::Usual,
                writes: WriteProgress::Flow,
                linger: None,
                sleep: None,
            })),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ClockState> {
        lock(&self.shared)
    }

    /// hyper waits for a head from now on.
    fn arm(&self) {
        let mut shared = self.lock();
        let wait = match (shared.linger, shared.served) {
            (Some(linger), _) => linger,
            (None, true) if shared.client == TokenVerdict::Refused => shared.refused_timeout,
            (None, true) => shared.idle_timeout.max(shared.header_timeout),
            (None, false) => shared.header_timeout,
        };
        shared.deadline = poll_time::now() + wait;
        shared.begun = false;
        shared.first = !shared.served;
        shared.served = true;
    }

    /// A drain begins: a connection without a request closes after `linger` without bytes.
    ///
    /// The connection has to be polled afterwards. Not closed at once, as hyper's `graceful_shutdown`
    /// would: a request may lie unread in the socket.
    pub(super) fn linger(&self, linger: Duration) {
        let mut shared = self.lock();
        shared.linger = Some(linger);
        if !shared.begun {
            let end = tokio::time::Instant::now() + linger;
            shared.deadline = shared.deadline.min(end);
        }
    }

    /// Whether the head that is waited for has not begun.
    pub(super) fn is_idle(&self) -> bool {
        !self.lock().begun
    }

    /// Whether the connection is idle or busy now.
    pub(super) fn activity(&self) -> ConnectionUse {
        let shared = self.lock();
        if shared.writes == WriteProgress::Wait {
            ConnectionUse::Unread
        } else if shared.begun {
            ConnectionUse::Busy
        } else {
            ConnectionUse::Idle(Some(shared.deadline))
        }
    }

    /// Notes whether the client's token was refused; a refused client gets a shorter idle timeout.
    pub(super) fn refused(&self, is_refused: bool) {
        self.lock().client = if is_refused {
            TokenVerdict::Refused
        } else {
            TokenVerdict::Usual
        };
    }

    fn writes(&self, writes: WriteProgress) {
        self.lock().writes = writes;
    }

    /// Bytes came: a head that has begun has to be finished.
    fn bytes_came(&self) {
        let mut shared = self.lock();
        if !shared.begun {
            shared.begun = true;
            if !shared.first || shared.linger.is_some() {
                shared.deadline = poll_time::now() + shared.header_timeout;
            }
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut shared = self.lock();
        let deadline = shared.deadline;
        let sleep = shared
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        // A head that began during an idle wait brings the deadline forward.
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            // The timer fired for an earlier wait.
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

/// hyper asks for a sleep exactly when it begins to wait for a head; the time it wants is ours
/// to choose.
impl Timer for HeadClock {
    fn sleep(&self, _duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.arm();
        Box::pin(HeadSleep(self.clone()))
    }

    fn sleep_until(&self, _deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.arm();
        Box::pin(HeadSleep(self.clone()))
    }

    /// Only the start of the sleep that hyper asks for, which is ours to choose: no clock is read.
    fn now(&self) -> Instant {
        self.born
    }
}

/// Ends when the present wait has lasted too long.
struct HeadSleep(HeadClock);

impl Future for HeadSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll(cx)
    }
}

impl Sleep for HeadSleep {}

/// Tells the clock of a stream when bytes come, fails when its peer takes none, and yields after each quantum read.
#[derive(Debug)]
pub(super) struct ClockedUse {
    clock: HeadClock,
    writes: WriteStall,
    /// TLS accepts writes into its buffer and waits in flush.
    flushes: WriteStall,
    last: WriteProgress,
    quantum: ReadQuantum,
}

impl ClockedUse {
    /// `stall_timeout` is how long the peer may take nothing.
    pub(super) fn new(clock: HeadClock, stall_timeout: Duration) -> Self {
        Self {
            clock,
            writes: WriteStall::new(stall_timeout),
            flushes: WriteStall::new(stall_timeout),
            last: WriteProgress::Flow,
            quantum: ReadQuantum::default(),
        }
    }

    /// Tells the clock when a wait for the peer begins or is over.
    fn note<T>(&mut self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let now = if self.writes.is_waiting() || self.flushes.is_waiting() {
            WriteProgress::Wait
        } else {
            WriteProgress::Flow
        };
        if now != self.last {
            self.last = now;
            self.clock.writes(now);
        }
        outcome
    }
}

impl StreamObserver for ClockedUse {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.quantum.poll_ready(cx)
    }

    fn on_read(
        &mut self,
        _cx: &mut Context<'_>,
        bytes: usize,
        outcome: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        if outcome.is_ready() {
            self.quantum.add(bytes);
            self.clock.bytes_came();
        }
        outcome
    }

    fn on_write(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let outcome = self.writes.watch(cx, outcome);
        self.note(outcome)
    }

    fn on_flush(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        let outcome = self.flushes.watch(cx, outcome);
        self.note(outcome)
    }

    fn on_shutdown(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        self.on_flush(cx, outcome)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::runtime::observed_stream::ObservedStream;
    use crate::runtime::read_quantum::QUANTUM;
    use crate::telemetry::metrics::COUNTERS;

    fn watched<S>(stream: S) -> ObservedStream<S, ClockedUse> {
        let clock = HeadClock::new(
            Duration::from_secs(10),
            Duration::from_secs(75),
            Duration::from_secs(10),
        );
        ObservedStream::new(stream, ClockedUse::new(clock, Duration::from_mins(10)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut stream = watched(ours);
        let began = tokio::time::Instant::now();
        // The reader is slow, but takes 8 bytes a minute, well within the deadline.
        let reader = async {
            let mut some = [0; 8];
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_mins(1)).await;
                theirs.read_exact(&mut some).await.unwrap();
            }
            theirs
        };
        let (written, mut theirs) = tokio::join!(stream.write_all(&[7; 48]), reader);
        assert!(written.is_ok());
        assert_eq!(began.elapsed(), Duration::from_mins(5));
        let error = stream.write_all(&[7; 48]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), Duration::from_mins(15));
        theirs.read_exact(&mut [0; 8]).await.unwrap();
    }

    #[tokio::test]
    async fn body_of_megabytes_is_read_in_many_polls() {
        // Always ready, like the socket of a peer that writes as fast as it is read.
        let mut stream = watched(tokio::io::repeat(b'x'));
        let mut buffer = vec![0; QUANTUM / 4];
        let mut reading = std::pin::pin!(async {
            for _ in 0..64 {
                stream.read_exact(&mut buffer).await.unwrap();
            }
        });
        let mut polls = 0;
        std::future::poll_fn(|cx| {
            polls += 1;
            reading.as_mut().poll(cx)
        })
        .await;
        assert_eq!(polls, 16);
    }

    // As TLS does it: written to a buffer of its own at once, and flushed from there.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_lets_a_buffer_fill_is_given_up_too() {
        let (ours, _theirs) = tokio::io::duplex(8);
        let buffered = tokio::io::BufWriter::new(ours);
        let mut stream = watched(buffered);
        stream.write_all(&[7; 48]).await.unwrap();
        let before = COUNTERS.connections_stalled.get();
        let error = stream.flush().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(COUNTERS.connections_stalled.get() > before);
    }
}
