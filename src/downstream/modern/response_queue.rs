//! Output of a running exchange: a bounded queue of notices, and one end. Spec: SPEC M-42, M-75; DESIGN §3 ("`notify`
//! is synchronous and never waits").

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::call::{Notice, NoticeKind};
use crate::lock::lock;
use crate::telemetry::metrics::COUNTERS;

/// Unread notices of one exchange.
const UNREAD_FRAMES: usize = 64;
/// Unread bytes of one exchange.
const UNREAD_BYTES: usize = 256 * 1024;

/// A queue written by calls and upstreams, read by one response; `E` is its end.
#[derive(Debug)]
pub(super) struct ResponseQueue<E>(Mutex<QueueState<E>>);

#[derive(Debug)]
struct QueueState<E> {
    unread: VecDeque<Notice>,
    bytes: usize,
    end: Option<E>,
    ended: bool,
    waker: Option<Waker>,
}

/// One step of the reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueueItem<E> {
    /// Notices to write, in order.
    Notices(Vec<Bytes>),
    /// The end; all notices were read.
    End(E),
}

impl<E> ResponseQueue<E> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(QueueState {
            unread: VecDeque::new(),
            bytes: 0,
            end: None,
            ended: false,
            waker: None,
        })))
    }

    /// Enqueues a notice. A change notice replaces an unread one of the same kind; when the queue is full, so does
    /// progress, and a notice that replaces nothing is dropped and counted.
    pub(super) fn notify(&self, notice: Notice) {
        let mut state = self.lock();
        if state.ended {
            return;
        }
        let size = notice.bytes.len();
        let crowded = state.unread.len() >= UNREAD_FRAMES || state.bytes + size > UNREAD_BYTES;
        let merges = match notice.kind {
            NoticeKind::ListChanged { .. } | NoticeKind::ResourceUpdated { .. } => true,
            NoticeKind::Progress { .. } => crowded,
            NoticeKind::Log | NoticeKind::ElicitationComplete | NoticeKind::Other => false,
        };
        let older = state
            .unread
            .iter_mut()
            .find(|unread| merges && unread.kind == notice.kind);
        if let Some(older) = older {
            let before = older.bytes.len();
            older.bytes = notice.bytes;
            state.bytes = state.bytes - before + size;
            COUNTERS.notices_coalesced.add(1);
            return;
        }
        if crowded {
            COUNTERS.notices_dropped.add(1);
            return;
        }
        state.bytes += size;
        state.unread.push_back(notice);
        wake(state);
    }

    /// Ends it; `false` when it had an end already.
    pub(super) fn end(&self, end: E) -> bool {
        let mut state = self.lock();
        if state.ended {
            return false;
        }
        state.ended = true;
        state.end = Some(end);
        wake(state);
        true
    }

    /// The next notices, or the end.
    ///
    /// # Cancel safety
    /// Nothing is lost between polls.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<QueueItem<E>> {
        let mut state = self.lock();
        if !state.unread.is_empty() {
            state.bytes = 0;
            let notices = state.unread.drain(..).map(|notice| notice.bytes);
            return Poll::Ready(QueueItem::Notices(notices.collect()));
        }
        if let Some(end) = state.end.take() {
            return Poll::Ready(QueueItem::End(end));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Forgets the waker until the next [`poll_next`](Self::poll_next). Called before work that may enqueue a notice,
    /// by a task about to call `poll_next`: waking itself would cost a second poll.
    pub(super) fn rest(&self) {
        self.lock().waker = None;
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<E>> {
        lock(&self.0)
    }
}

fn wake<E>(mut state: MutexGuard<'_, QueueState<E>>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    fn notice(kind: NoticeKind, text: &str) -> Notice {
        Notice {
            kind,
            bytes: Bytes::copy_from_slice(text.as_bytes()),
        }
    }

    fn progress(text: &str) -> Notice {
        let token = "1".into();
        notice(NoticeKind::Progress { token }, text)
    }

    fn read(response_queue: &ResponseQueue<u8>) -> Option<QueueItem<u8>> {
        let mut cx = Context::from_waker(Waker::noop());
        match response_queue.poll_next(&mut cx) {
            Poll::Ready(next) => Some(next),
            Poll::Pending => None,
        }
    }

    #[test]
    fn notices_come_before_the_end_and_nothing_after_it() {
        let response_queue = ResponseQueue::new();
        assert_eq!(read(&response_queue), None);
        response_queue.notify(progress("a"));
        response_queue.notify(progress("b"));
        assert!(response_queue.end(7));
        assert!(!response_queue.end(8));
        response_queue.notify(progress("c"));
        assert_eq!(
            read(&response_queue),
            Some(QueueItem::Notices(vec!["a".into(), "b".into()]))
        );
        assert_eq!(read(&response_queue), Some(QueueItem::End(7)));
    }

    #[test]
    fn a_reader_that_is_behind_gets_the_newest_progress_and_no_log_messages() {
        let response_queue = ResponseQueue::<u8>::new();
        for number in 0..UNREAD_FRAMES - 1 {
            response_queue.notify(notice(NoticeKind::Log, &number.to_string()));
        }
        response_queue.notify(progress("old"));
        response_queue.notify(progress("new"));
        response_queue.notify(notice(NoticeKind::Log, "lost"));
        let Some(QueueItem::Notices(read)) = read(&response_queue) else {
            panic!("no notices")
        };
        assert_eq!(read.len(), UNREAD_FRAMES);
        assert_eq!(read.last().unwrap(), "new");
    }

    #[test]
    fn change_notices_of_one_kind_are_one() {
        let response_queue = ResponseQueue::<u8>::new();
        for what in ["tools", "prompts", "tools"] {
            response_queue.notify(Notice::list_changed(what));
        }
        let Some(QueueItem::Notices(read)) = read(&response_queue) else {
            panic!("no notices")
        };
        assert_eq!(read.len(), 2);
    }

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_reader_that_rests_is_not_woken_and_misses_nothing() {
        let (response_queue, woken) = (ResponseQueue::new(), Arc::new(Count(AtomicUsize::new(0))));
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        assert!(response_queue.poll_next(&mut cx).is_pending());
        response_queue.rest();
        assert!(response_queue.end(7));
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        assert_eq!(
            response_queue.poll_next(&mut cx),
            Poll::Ready(QueueItem::End(7))
        );
    }

    #[test]
    fn bytes_are_bounded() {
        let response_queue = ResponseQueue::<u8>::new();
        let large = "x".repeat(UNREAD_BYTES / 2 + 1);
        response_queue.notify(notice(NoticeKind::Log, &large));
        response_queue.notify(notice(NoticeKind::Log, &large));
        assert!(matches!(read(&response_queue), Some(QueueItem::Notices(read)) if read.len() == 1));
    }
}
