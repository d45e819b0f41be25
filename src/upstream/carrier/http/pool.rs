//! Kept connections to an HTTP/1.1 upstream, each driven by the exchange that uses it.
//!
//! A connection has no task of its own: the call that it carries polls the connection too, so that a call crosses no
//! thread and wakes no other task. An idle connection is not polled; one closed by its upstream is detected when a call
//! takes it (`docs/adr/0007`). An upstream may close an idle connection while a request is on its way, so a connection
//! is reused only for as long as its upstream surely keeps it open.

mod dial;
mod keep;
mod stream;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper::rt::Executor;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::Instant;

pub(super) use self::dial::{Dial, Route};
pub(super) use self::keep::{Keep, LONGEST};
use self::stream::{Stream, Tally};
use crate::lock::lock;
use crate::runtime::wake::{Bell, quietly};
use crate::runtime::workers;

/// How often idle connections are looked through for those that are not used any more.
const SWEEP: Duration = Duration::from_secs(2);
/// A connection that was idle for less is trusted to the reactor: asking the kernel costs a system call.
const PROBE_AFTER: Duration = Duration::from_millis(100);
/// Idle connections kept per upstream and worker; more are closed when they become idle.
pub(super) const SIZE: usize = 512;

/// Why an exchange over a pooled connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PoolError {
    /// No connection could be made.
    #[error("cannot connect")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The connection broke before the upstream read the request: nothing has run.
    #[error("the connection ended before the request was read")]
    Unread(#[source] hyper::Error),
    /// The connection broke.
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// Workers that keep connections apart; more share.
const SHELVES: usize = 64;

/// The connections of one upstream. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    dial: Dial,
    /// Scheme and authority.
    origin: Uri,
}

#[derive(Debug)]
struct Shared {
    /// One shelf per worker: the reactor of the worker that opened a connection delivers its events.
    shelves: [Mutex<Kept>; SHELVES],
    size: usize,
    keep: Keep,
}

#[derive(Debug, Default)]
struct Kept {
    /// Idle connections; the last one was used last.
    idle: VecDeque<Idle>,
    /// Whether `sweep_until_empty` runs for this shelf.
    swept: bool,
}

#[derive(Debug)]
struct Idle {
    line: Box<Line>,
    since: Instant,
}

/// One open connection: its request sender, and the driver to poll.
#[derive(Debug)]
struct Line {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: http1::Connection<TokioIo<Stream>, Full<Bytes>>,
    tally: Arc<Tally>,
    /// The longest idle time after which the connection is still used.
    keep: Duration,
    /// Waker of the driver: holds a wake-up back before it reaches a set of futures around the call, which would rely
    /// on a poll for that wake-up.
    bell: Bell,
    ended: bool,
    /// The worker that opened the connection.
    home: usize,
}

impl Pool {
    /// Connections to `origin`; each worker keeps up to `size` idle ones.
    pub(super) fn new(dial: Dial, origin: Uri, size: usize, keep: Keep) -> Self {
        let shelves = std::array::from_fn(|_| Mutex::default());
        Self {
            shared: Arc::new(Shared {
                shelves,
                size,
                keep,
            }),
            dial,
            origin,
        }
    }

    /// Sends `request`, which names its host and is in origin form, and waits for the head of the
    /// response. Sent again here only when a kept connection turns out to have been closed before
    /// anything of the request was written to it.
    ///
    /// # Errors
    /// [`PoolError`] when no head arrives; with [`PoolError::Unread`] the caller may send the request again,
    /// which then finds no connection as old as the broken one.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<PooledBody>, PoolError> {
        while let Some(line) = self.shared.take() {
            match self.exchange(line, request).await {
                Ok(response) => return Ok(response),
                Err(Failed {
                    unsent: Some(unsent),
                    ..
                }) => request = unsent,
                Err(failed) => {
                    self.shared.evict();
                    return Err(failed.error);
                }
            }
        }
        // Larger, and seldom needed.
        let line = Box::pin(self.connect()).await?;
        self.exchange(line, request)
            .await
            .map_err(|failed| failed.error)
    }

    async fn connect(&self) -> Result<Box<Line>, PoolError> {
        let tally = Arc::<Tally>::default();
        let socket = self.dial.connect(&self.origin).await?;
        let stream = TokioIo::new(Stream::new(socket, Arc::clone(&tally)));
        let (sender, driver) = http1::handshake(stream).await?;
        Ok(Box::new(Line {
            sender,
            driver,
            tally,
            keep: Duration::ZERO,
            bell: Bell::new(),
            ended: false,
            home: workers::current(),
        }))
    }

    async fn exchange(
        &self,
        mut line: Box<Line>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<PooledBody>, Failed> {
        line.tally.begin();
        let mut response = pin!(line.sender.try_send_request(request));
        let response = poll_fn(|cx| {
            line.drive(cx);
            // Only the driver brings it on, and that has just been polled: no waker is needed.
            let mut quiet = Context::from_waker(Waker::noop());
            response.as_mut().poll(&mut quiet)
        })
        .await
        .map_err(|refused| Failed::new(refused, &line.tally))?;
        line.tally.end();
        line.keep = self.shared.keep.of(response.headers());
        Ok(response.map(|body| {
            let mut body = PooledBody {
                body,
                place: Some((line, Arc::clone(&self.shared))),
            };
            if body.body.is_end_stream() {
                body.give_back();
            }
            body
        }))
    }
}

/// An exchange without an answer.
struct Failed {
    error: PoolError,
    /// The request, if hyper wrote no byte.
    unsent: Option<Request<Full<Bytes>>>,
}

impl Failed {
    fn new(mut refused: TrySendError<Request<Full<Bytes>>>, tally: &Tally) -> Self {
        let unsent = refused.take_message();
        let error = refused.into_error();
        let error = if unsent.is_some() || tally.is_unread() {
            PoolError::Unread(error)
        } else {
            PoolError::Http(error)
        };
        Self { error, unsent }
    }
}

impl Line {
    fn drive(&mut self, cx: &mut Context<'_>) {
        // How it ended, the exchange learns from hyper.
        self.ended = self.ended || self.bell.poll(Pin::new(&mut self.driver), cx).is_ready();
    }

    /// Whether it can take a request now. Leaves no waker behind: it would wake its last call, or
    /// the next one just because that sends a request.
    fn is_free(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        !self.ended && self.sender.is_ready()
    }
}

impl Shared {
    /// The shelf of a worker.
    fn lock(&self, worker: usize) -> MutexGuard<'_, Kept> {
        #[expect(clippy::indexing_slicing, reason = "a remainder is below its divisor")]
        let kept = &self.shelves[worker % SHELVES];
        lock(kept)
    }

    /// The connection of this worker that was used last and may still be used.
    fn take(&self) -> Option<Box<Line>> {
        let own = workers::current();
        loop {
            let Idle { mut line, since } = self.lock(own).idle.pop_back()?;
            let idle = since.elapsed();
            if idle >= line.keep {
                continue;
            }
            if idle >= PROBE_AFTER {
                line.tally.probe();
            }
            if line.is_free() {
                return Some(line);
            }
        }
    }

    fn put(self: &Arc<Self>, line: Box<Line>) {
        if line.keep.is_zero() {
            return;
        }
        let (since, home) = (Instant::now(), line.home);
        let mut kept = self.lock(home);
        if kept.idle.len() >= self.size {
            return;
        }
        kept.idle.push_back(Idle { line, since });
        let sweep = !std::mem::replace(&mut kept.swept, true);
        drop(kept);
        if sweep {
            // Not a task of the gateway: no shutdown waits for the sweep, which ends with the pool.
            TokioExecutor::new().execute(sweep_until_empty(Arc::downgrade(self), home));
        }
    }

    /// Closes the idle connections of this worker. One of them broke: the upstream has ended or its
    /// network is cut, and the others were idle for longer.
    fn evict(&self) {
        let closed = std::mem::take(&mut self.lock(workers::current()).idle);
        drop(closed);
    }

    /// Closes connections past their idle time; returns whether any are left.
    fn sweep(&self, worker: usize) -> bool {
        let mut kept = self.lock(worker);
        let (left, closed) = std::mem::take(&mut kept.idle)
            .into_iter()
            .partition::<VecDeque<_>, _>(|idle| idle.since.elapsed() < idle.line.keep);
        kept.idle = left;
        kept.swept = !kept.idle.is_empty();
        if !kept.swept {
            kept.idle.shrink_to_fit();
        }
        let left = kept.swept;
        drop(kept);
        drop(closed);
        left
    }
}

async fn sweep_until_empty(shared: std::sync::Weak<Shared>, worker: usize) {
    loop {
        tokio::time::sleep(SWEEP).await;
        if !shared.upgrade().is_some_and(|shared| shared.sweep(worker)) {
            return;
        }
    }
}

/// The body of a response; drives its connection and gives the connection back at the end. When dropped earlier, the
/// connection is closed.
#[derive(Debug)]
pub struct PooledBody {
    body: Incoming,
    place: Option<(Box<Line>, Arc<Shared>)>,
}

impl PooledBody {
    fn give_back(&mut self) {
        if let Some((mut line, shared)) = self.place.take()
            && line.is_free()
        {
            shared.put(line);
        }
    }
}

impl Body for PooledBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        // Without a frame the connection is driven here, so that no other task is woken.
        let poll_body = |body: &mut Incoming| {
            let mut quiet = Context::from_waker(Waker::noop());
            quietly(|| Pin::new(body).poll_frame(&mut quiet)).0
        };
        let mut polled = poll_body(&mut this.body);
        if polled.is_pending()
            && let Some((line, _)) = &mut this.place
        {
            line.drive(cx);
            polled = poll_body(&mut this.body);
        }
        if matches!(polled, Poll::Ready(None)) || this.body.is_end_stream() {
            this.give_back();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
