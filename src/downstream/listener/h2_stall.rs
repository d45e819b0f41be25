//! Resets HTTP/2 streams whose peer reads nothing for `patience`.
//!
//! A peer that answers pings but never opens the window of a stream keeps the call behind the stream alive, and neither
//! the idle timeout nor the stall timeout of the connection fires. `StreamWindows::watch` therefore compares, once per
//! `patience`, how much of each stream's answer was handed out and how much was sent; nothing else is counted.
//!
//! hyper drops a stream as soon as its last piece is queued, and a dropped stream cannot be reset. `WatchedBody`
//! therefore holds back the end of an answer until all of its bytes are sent, except for up to `MAX_LEFT_BEHIND` bytes
//! per connection.
//!
//! Accepted false positive: if a peer leaves one answer unread and its connection window is no larger than that answer,
//! the other waiting streams of the connection are reset too. Sent bytes may or may not have been read, so each
//! stream's share of the connection window is unknown; resetting one stream per round would keep 256 unread answers for
//! days. Reasons and costs: `docs/adr/0031`.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};

use crate::lock::lock;
use crate::telemetry::metrics::COUNTERS;

/// Bytes of ended answers still queued for the peer of one connection, at most: they stay while the connection has
/// another stream. Small answers that are read end without another poll of their stream.
const MAX_LEFT_BEHIND: u64 = 64 * 1024;

/// The windows of a connection's streams.
#[derive(Debug, Default)]
pub(super) struct StreamWindows {
    open: Mutex<HashMap<u64, Arc<StreamWindow>>>,
    totals: Arc<ResponseTotals>,
}

/// Bytes of all answers, including those of streams that hyper has dropped.
#[derive(Debug, Default)]
struct ResponseTotals {
    sent: AtomicU64,
    /// Handed out, and neither sent nor dropped.
    waiting: AtomicU64,
}

/// Bytes handed out and sent of one stream: the peer's window, seen from here.
#[derive(Debug, Default)]
pub(super) struct StreamWindow {
    /// Bytes handed to hyper.
    given: AtomicU64,
    sent: AtomicU64,
    totals: Arc<ResponseTotals>,
    /// Whether the end of the answer is held back until every byte is sent.
    is_end_held: AtomicBool,
    given_up: AtomicBool,
    stream: AtomicWaker,
}

impl StreamWindows {
    /// The window of a stream before its future is spawned.
    pub(super) fn new_window(&self) -> Arc<StreamWindow> {
        Arc::new(StreamWindow {
            totals: Arc::clone(&self.totals),
            ..StreamWindow::default()
        })
    }

    /// Watches the window of the stream with this number until it is [forgotten](Self::forget).
    pub(super) fn enter(&self, number: u64, window: Arc<StreamWindow>) {
        lock(&self.open).insert(number, window);
    }

    pub(super) fn forget(&self, number: u64) {
        lock(&self.open).remove(&number);
    }

    /// Bytes that were sent of all answers.
    pub(super) fn sent(&self) -> u64 {
        self.totals.sent.load(Ordering::Relaxed)
    }

    /// Resets each stream with unsent bytes and no progress for `patience`, which may grow; takes up to twice `patience`.
    ///
    /// # Cancel safety
    /// Restarts the watch: streams seen so far get another `patience`.
    pub(super) async fn watch(&self, patience: impl Fn() -> Duration) -> Infallible {
        let mut before = HashMap::new();
        loop {
            let waited = patience();
            tokio::time::sleep(waited).await;
            let is_over = patience() <= waited;
            let open = lock(&self.open);
            let now: HashMap<u64, u64> = open
                .iter()
                .filter_map(|(number, window)| Some((*number, window.owes_after()?)))
                .collect();
            for (number, sent) in &now {
                if is_over
                    && before.get(number) == Some(sent)
                    && let Some(window) = open.get(number)
                {
                    window.give_up();
                }
            }
            drop(open);
            before = now;
        }
    }
}

impl StreamWindow {
    /// Bytes sent so far, if handed-out bytes are still unsent. `sent` is loaded first and once: otherwise a stream
    /// that is sent and refilled between the loads would seem to have unsent bytes after everything was sent.
    fn owes_after(&self) -> Option<u64> {
        let sent = self.sent.load(Ordering::SeqCst);
        (self.given.load(Ordering::Relaxed) != sent).then_some(sent)
    }

    /// Whether handed-out bytes are still unsent.
    fn owes(&self) -> bool {
        self.owes_after().is_some()
    }

    /// Whether the answer may end now, although an ended stream cannot be reset.
    fn may_end(&self) -> bool {
        self.totals.waiting.load(Ordering::Relaxed) <= MAX_LEFT_BEHIND || !self.owes()
    }

    /// Ready when every byte of the answer is sent.
    fn poll_taken(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.owes() {
            return Poll::Ready(());
        }
        self.stream.register(cx.waker());
        // SeqCst store, then load: pairs with `sent()`, so one side always sees the other and no wake-up is lost.
        self.is_end_held.store(true, Ordering::SeqCst);
        if self.owes() {
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    fn given(&self, count: u64) {
        self.given.fetch_add(count, Ordering::Relaxed);
        self.totals.waiting.fetch_add(count, Ordering::Relaxed);
    }

    fn sent(&self, count: u64) {
        self.totals.sent.fetch_add(count, Ordering::Relaxed);
        self.totals.waiting.fetch_sub(count, Ordering::Relaxed);
        self.sent.fetch_add(count, Ordering::SeqCst);
        if self.is_end_held.load(Ordering::SeqCst) && !self.owes() {
            self.stream.wake();
        }
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.stream.wake();
    }

    /// Resolves when the stream is given up.
    pub(super) async fn given_up(&self) {
        poll_fn(|cx| {
            self.stream.register(cx.waker());
            if self.given_up.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
        COUNTERS.streams_stalled.add(1);
    }
}

/// The body of an answer, in pieces that report to the `StreamWindow` when sent.
pub(super) struct WatchedBody {
    body: Body,
    is_over: bool,
    window: Arc<StreamWindow>,
}

impl WatchedBody {
    pub(super) fn new(body: Body, window: Arc<StreamWindow>) -> Self {
        Self {
            body,
            is_over: false,
            window,
        }
    }
}

impl http_body::Body for WatchedBody {
    type Data = CountedBytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<CountedBytes>, axum::Error>>> {
        if !self.is_over {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            let watched = |frame: Frame<Bytes>| {
                frame.map_data(|bytes| {
                    let window = Arc::clone(&self.window);
                    window.given(bytes.len() as u64);
                    CountedBytes { bytes, window }
                })
            };
            if let Some(frame) = frame {
                return Poll::Ready(Some(frame.map(watched)));
            }
            // Drop the inner body now: its producer need not wait until the bytes are sent.
            (self.is_over, self.body) = (true, Body::empty());
        }
        self.window.poll_taken(cx).map(|()| None)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.window.may_end()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes of an answer; `advance` reports to the `StreamWindow` how many were sent.
#[derive(Debug)]
pub(super) struct CountedBytes {
    bytes: Bytes,
    window: Arc<StreamWindow>,
}

impl Buf for CountedBytes {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        self.bytes.chunks_vectored(into)
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.window.sent(count as u64);
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        let left = self.bytes.len() as u64;
        self.window
            .totals
            .waiting
            .fetch_sub(left, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::BodyExt;
    use tokio::task::JoinSet;
    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(10);

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_given_up_when_nothing_of_it_is_taken_any_more() {
        let windows = StreamWindows::default();
        let window = windows.new_window();
        windows.enter(1, Arc::clone(&window));
        let mut body = WatchedBody::new(Body::from("0123456789"), Arc::clone(&window));
        let frame = body.frame().await.unwrap().unwrap();
        let mut piece = frame.into_data().unwrap();
        let reader = async {
            for _ in 0..9 {
                sleep(PATIENCE * 3 / 4).await;
                piece.advance(1);
            }
        };
        let watch = windows.watch(|| PATIENCE);
        tokio::pin!(watch);
        tokio::select! {
            never = &mut watch => match never {},
            () = window.given_up() => panic!("it is read"),
            () = reader => {}
        }
        assert_eq!((piece.chunk(), windows.sent()), (&b"9"[..], 9));
        let given_up = async {
            tokio::select! {
                never = &mut watch => match never {},
                () = window.given_up() => {}
            }
        };
        assert!(timeout(2 * PATIENCE, given_up).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_which_all_was_taken_waits_for_us_alone() {
        let windows = StreamWindows::default();
        let window = windows.new_window();
        windows.enter(1, Arc::clone(&window));
        let mut body = WatchedBody::new(Body::from("all"), Arc::clone(&window));
        let frame = body.frame().await.unwrap().unwrap();
        frame.into_data().unwrap().advance(3);
        tokio::select! {
            done = timeout(10 * PATIENCE, windows.watch(|| PATIENCE)) => assert!(done.is_err()),
            () = window.given_up() => panic!("nothing is left to take"),
        }
    }

    // The connection has brought a good token between two looks.
    #[tokio::test(start_paused = true)]
    async fn grown_patience_counts_from_the_next_look() {
        let windows = StreamWindows::default();
        let window = windows.new_window();
        windows.enter(1, Arc::clone(&window));
        let mut body = WatchedBody::new(Body::from("left"), Arc::clone(&window));
        let _piece = body.frame().await.unwrap().unwrap();
        let began = Instant::now();
        let short = PATIENCE / 10;
        let watch = windows.watch(|| {
            if began.elapsed() < short * 3 / 2 {
                short
            } else {
                PATIENCE
            }
        });
        tokio::pin!(watch);
        let given_up = async {
            tokio::select! {
                never = &mut watch => match never {},
                () = window.given_up() => {}
            }
        };
        given_up.await;
        assert!(began.elapsed() >= PATIENCE, "{:?}", began.elapsed());
    }

    /// An answer of one piece, already handed out.
    async fn answer(windows: &StreamWindows, len: u64) -> (WatchedBody, CountedBytes) {
        let bytes = vec![b'x'; usize::try_from(len).unwrap()];
        let mut body = WatchedBody::new(Body::from(bytes), windows.new_window());
        let frame = body.frame().await.unwrap().unwrap();
        (body, frame.into_data().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_answer_ends_when_all_of_it_is_taken() {
        let windows = StreamWindows::default();
        let (mut body, mut piece) = answer(&windows, MAX_LEFT_BEHIND + 1).await;
        assert!(!body.is_end_stream());
        piece.advance(piece.remaining() - 1);
        let waits = timeout(PATIENCE, body.frame()).await;
        assert!(waits.is_err(), "a byte of it is left");
        let mut end = JoinSet::new();
        end.spawn(async move { body.frame().await.is_none() });
        assert!(timeout(PATIENCE, end.join_next()).await.is_err());
        piece.advance(1);
        let ended = timeout(PATIENCE, end.join_next()).await;
        assert!(ended.unwrap().unwrap().unwrap());
    }

    #[tokio::test]
    async fn small_answers_end_at_once_while_little_of_them_is_left() {
        let windows = StreamWindows::default();
        let mut left = Vec::new();
        for _ in 0..4 {
            let (body, piece) = answer(&windows, MAX_LEFT_BEHIND / 4).await;
            assert!(body.is_end_stream());
            left.push(piece);
        }
        let (body, _piece) = answer(&windows, 1).await;
        assert!(!body.is_end_stream());
        let empty = WatchedBody::new(Body::empty(), windows.new_window());
        assert!(empty.is_end_stream(), "nothing of it can be left");
        // Its peer has reset the stream.
        drop(left.pop());
        assert!(body.is_end_stream());
    }
}
