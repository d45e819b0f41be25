//! Filters useless wake-ups that a task would send to itself.
//!
//! Taking a frame of a hyper body wakes the connection of the body. Here the same task polls that
//! connection and is already running: the wake-up would only cause one more poll without effect.
//! [`defer_wakes`] defers such a wake-up until the caller knows whether the poll is needed.
//!
//! hyper polls a body up to three times per wake-up: again after the frame is taken, and again after the
//! flush. [`WakeFilter::poll_if_woken`] skips a part of the task that was not woken in between.
//!
//! Reasons and figures: `docs/adr/0030`.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

thread_local! {
    /// Set while [`defer_wakes`] runs on this thread.
    static DEFERRED: RefCell<Option<DeferredWake>> = const { RefCell::new(None) };
}

/// Waker of one task; its wake-ups are deferred while the thread runs [`defer_wakes`].
#[derive(Debug)]
pub struct WakeFilter {
    inner: Arc<FilterState>,
    waker: Waker,
}

#[derive(Debug)]
struct FilterState {
    task: AtomicWaker,
    /// Whether it has been woken since the part was last polled only for that; at first it has.
    woken: AtomicBool,
}

/// A deferred wake-up, if any; dropping it discards the wake-up.
#[derive(Debug, Default)]
pub struct DeferredWake(Option<Arc<FilterState>>);

impl WakeFilter {
    /// A wake filter for one task.
    #[must_use]
    pub fn new() -> Self {
        let inner = Arc::new(FilterState {
            task: AtomicWaker::new(),
            woken: AtomicBool::new(true),
        });
        Self {
            waker: Waker::from(Arc::clone(&inner)),
            inner,
        }
    }

    /// Polls a part of the task, whose wake-ups then come through this wake filter.
    pub fn poll<F: Future>(&self, part: Pin<&mut F>, cx: &Context<'_>) -> Poll<F::Output> {
        self.inner.task.register(cx.waker());
        part.poll(&mut Context::from_waker(&self.waker))
    }

    /// Polls a part of the task with this wake filter as its waker, but only on the first poll or after a wake-up
    /// since the last one; otherwise returns `Pending`.
    pub fn poll_if_woken<T>(
        &self,
        cx: &Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        // Registered first: a wake-up after that is seen now or wakes the task.
        self.inner.task.register(cx.waker());
        if !self.inner.woken.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        poll(&mut Context::from_waker(&self.waker))
    }
}

impl FilterState {
    fn wake_task(&self) {
        self.woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Default for WakeFilter {
    fn default() -> Self {
        Self::new()
    }
}

impl Wake for FilterState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let held = DEFERRED.with_borrow_mut(|quiet| match quiet {
            Some(held) => {
                held.0 = Some(Arc::clone(self));
                true
            }
            None => false,
        });
        if !held {
            self.wake_task();
        }
    }
}

impl DeferredWake {
    /// Wakes the task after all.
    pub fn release(self) {
        if let Some(inner) = self.0 {
            inner.wake_task();
        }
    }
}

/// Does `work`, which may ring the wake filter of one task, and holds the wake-up back. Other threads ring
/// as ever. The wake filter is to be what is woken first: a waker in between, like that of a set of futures,
/// passes nothing more on before it was polled for what is held back here.
pub fn defer_wakes<T>(work: impl FnOnce() -> T) -> (T, DeferredWake) {
    let before = DEFERRED.replace(Some(DeferredWake::default()));
    let done = work();
    let held = DEFERRED.replace(before).unwrap_or_default();
    (done, held)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A wake filter whose waker a task has left somewhere, and how often that task was woken.
    fn hung() -> (WakeFilter, Waker, Arc<Count>) {
        let (wake_filter, count) = (WakeFilter::new(), Arc::<Count>::default());
        let task = Waker::from(Arc::clone(&count));
        let mut left = None;
        let part = pin!(poll_fn(|cx| {
            left = Some(cx.waker().clone());
            Poll::<()>::Pending
        }));
        assert!(
            wake_filter
                .poll(part, &Context::from_waker(&task))
                .is_pending()
        );
        (wake_filter, left.unwrap(), count)
    }

    #[test]
    fn a_task_is_woken_through_its_filter() {
        let (_bell, waker, count) = hung();
        waker.wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_wake_up_held_back_comes_when_it_is_released_and_only_then() {
        let (_bell, waker, count) = hung();
        let ((), held) = defer_wakes(|| waker.wake_by_ref());
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        held.release();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_part_is_polled_once_for_each_wake_up_and_once_at_first() {
        let (wake_filter, count) = (WakeFilter::new(), Arc::<Count>::default());
        let task = Waker::from(Arc::clone(&count));
        let cx = Context::from_waker(&task);
        let mut left = None;
        let mut is_polled = || {
            let mut polled = false;
            let _: Poll<()> = wake_filter.poll_if_woken(&cx, |cx| {
                polled = true;
                left = Some(cx.waker().clone());
                Poll::Pending
            });
            (polled, left.clone())
        };
        let (first, waker) = is_polled();
        assert!(first && !is_polled().0);
        for _ in 0..2 {
            waker.as_ref().unwrap().wake_by_ref();
        }
        assert!(count.0.load(Ordering::Relaxed) > 0, "the task is woken");
        assert!(is_polled().0 && !is_polled().0);
    }

    #[test]
    fn a_part_that_wakes_itself_is_polled_again() {
        let wake_filter = WakeFilter::new();
        let cx = Context::from_waker(Waker::noop());
        let mut polls = 0;
        for _ in 0..3 {
            let _: Poll<()> = wake_filter.poll_if_woken(&cx, |cx| {
                polls += 1;
                cx.waker().wake_by_ref();
                Poll::Pending
            });
        }
        assert_eq!(polls, 3);
    }

    #[test]
    fn nothing_is_released_that_was_not_held_back() {
        let (_bell, _waker, count) = hung();
        let ((), held) = defer_wakes(|| ());
        held.release();
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn other_threads_ring_as_ever() {
        let (_bell, waker, count) = hung();
        let ((), _held) = defer_wakes(|| {
            let other = std::thread::spawn(move || waker.wake());
            other.join().unwrap();
        });
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
