//! How long a peer may take nothing of one HTTP/2 stream.
//!
//! A peer that answers pings and never opens the window of a stream keeps the call behind it, and
//! neither an idle connection nor a full one is seen. Here the streams of a connection are looked at
//! together, once in a while: what an answer was given and the connection has sent of it is all that is
//! counted meanwhile.

use std::collections::HashMap;
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

/// The windows of a connection's streams.
#[derive(Debug, Default)]
pub(super) struct Windows {
    open: Mutex<HashMap<u64, Arc<Window>>>,
    /// Bytes that were sent of all answers, of streams too that are over for us.
    sent: Arc<AtomicU64>,
}

/// The window of one stream, as far as it is felt here.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Bytes that were handed out to be sent.
    given: AtomicU64,
    sent: AtomicU64,
    sent_of_all: Arc<AtomicU64>,
    given_up: AtomicBool,
    stream: AtomicWaker,
}

impl Windows {
    /// The window of a stream that is to begin.
    pub(super) fn new_window(&self) -> Arc<Window> {
        Arc::new(Window {
            sent_of_all: Arc::clone(&self.sent),
            ..Window::default()
        })
    }

    /// Watches the window of the stream with this number until it is [forgotten](Self::forget).
    pub(super) fn enter(&self, number: u64, window: Arc<Window>) {
        lock(&self.open).insert(number, window);
    }

    pub(super) fn forget(&self, number: u64) {
        lock(&self.open).remove(&number);
    }

    /// Bytes that were sent of all answers.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Gives up each stream of which nothing was taken for `patience`, before twice that has passed.
    ///
    /// # Cancel safety
    /// Begins to watch anew.
    pub(super) async fn watch(&self, patience: Duration) {
        let mut before = HashMap::new();
        loop {
            tokio::time::sleep(patience).await;
            let open = lock(&self.open);
            let waiting = open.iter().filter(|(_, window)| window.owes());
            let now: HashMap<u64, u64> = waiting
                .map(|(number, window)| (*number, window.sent.load(Ordering::Relaxed)))
                .collect();
            for (number, sent) in &now {
                if before.get(number) == Some(sent)
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

impl Window {
    /// Whether something waits to be sent.
    fn owes(&self) -> bool {
        self.given.load(Ordering::Relaxed) != self.sent.load(Ordering::Relaxed)
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

/// The body of an answer, every piece of which says what was sent of it.
pub(super) struct WatchedBody {
    body: Body,
    window: Arc<Window>,
}

impl WatchedBody {
    pub(super) fn new(body: Body, window: Arc<Window>) -> Self {
        Self { body, window }
    }
}

impl http_body::Body for WatchedBody {
    type Data = Piece;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let watched = |frame: Frame<Bytes>| {
            frame.map_data(|bytes| {
                let window = Arc::clone(&self.window);
                window
                    .given
                    .fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Piece { bytes, window }
            })
        };
        Poll::Ready(frame.map(|frame| frame.map(watched)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes of an answer, taken by the connection as far as the window of their stream goes.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    window: Arc<Window>,
}

impl Buf for Piece {
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
        let count = count as u64;
        self.window.sent.fetch_add(count, Ordering::Relaxed);
        self.window.sent_of_all.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::time::{sleep, timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(10);

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_given_up_when_nothing_of_it_is_taken_any_more() {
        let windows = Windows::default();
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
        let watch = windows.watch(PATIENCE);
        tokio::pin!(watch);
        tokio::select! {
            () = &mut watch => {}
            () = window.given_up() => panic!("it is read"),
            () = reader => {}
        }
        assert_eq!((piece.chunk(), windows.sent()), (&b"9"[..], 9));
        let given_up = async {
            tokio::select! {
                () = &mut watch => {}
                () = window.given_up() => {}
            }
        };
        assert!(timeout(2 * PATIENCE, given_up).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_which_all_was_taken_waits_for_us_alone() {
        let windows = Windows::default();
        let window = windows.new_window();
        windows.enter(1, Arc::clone(&window));
        let mut body = WatchedBody::new(Body::from("all"), Arc::clone(&window));
        let frame = body.frame().await.unwrap().unwrap();
        frame.into_data().unwrap().advance(3);
        tokio::select! {
            done = timeout(10 * PATIENCE, windows.watch(PATIENCE)) => assert!(done.is_err()),
            () = window.given_up() => panic!("nothing is left to take"),
        }
    }
}
