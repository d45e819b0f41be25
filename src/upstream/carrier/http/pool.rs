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

pub(super) use self::dial::{TcpRoute, UpstreamDial};
pub(super) use self::keep::{KeepRule, LONGEST};
use self::stream::{ExchangeState, PooledStream};
use crate::lock::lock;
use crate::ownership::Fence;
use crate::runtime::poll_time;
use crate::runtime::wake::{WakeFilter, defer_wakes};
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
    /// Another replica may own the session of the request by now: nothing was sent.
    #[error("the session may belong to another replica")]
    Fenced,
    /// The connection broke before the upstream read the request: nothing has run.
    #[error("the connection ended before the request was read")]
    Unread(#[source] hyper::Error),
    /// The connection broke.
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// Workers that keep connections apart; more share.
const MAX_WORKERS: usize = 64;

/// The connections of one upstream. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct ConnectionPool {
    shared: Arc<PoolState>,
    dial: UpstreamDial,
    /// Scheme and authority.
    origin: Uri,
}

#[derive(Debug)]
struct PoolState {
    /// One idle set per worker: the reactor of the worker that opened a connection delivers its events.
    per_worker: [Mutex<IdleSet>; MAX_WORKERS],
    size: usize,
    keep: KeepRule,
}

#[derive(Debug, Default)]
struct IdleSet {
    /// Idle connections; the last one was used last.
    idle: VecDeque<IdleConnection>,
    /// Whether `sweep_until_empty` runs for this idle set.
    sweeping: bool,
}

#[derive(Debug)]
struct IdleConnection {
    line: Box<PooledConnection>,
    since: Instant,
}

/// One open connection: its request sender, and the driver to poll.
#[derive(Debug)]
struct PooledConnection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// `None` once the connection ended: dropped at once, so that a queued request fails instead of hanging.
    driver: Option<http1::Connection<TokioIo<PooledStream>, Full<Bytes>>>,
    exchange: Arc<ExchangeState>,
    /// The longest idle time after which the connection is still used.
    keep: Duration,
    /// Waker of the driver: holds a wake-up back before it reaches a set of futures around the call, which would rely
    /// on a poll for that wake-up.
    wake_filter: WakeFilter,
    /// The worker that opened the connection.
    worker: usize,
}

impl ConnectionPool {
    /// Connections to `origin`; each worker keeps up to `size` idle ones.
    pub(super) fn new(dial: UpstreamDial, origin: Uri, size: usize, keep: KeepRule) -> Self {
        let per_worker = std::array::from_fn(|_| Mutex::default());
        Self {
            shared: Arc::new(PoolState {
                per_worker,
                size,
                keep,
            }),
            dial,
            origin,
        }
    }

    /// Sends `request`, which names its host and is in origin form, and waits for the head of the
    /// response. Nothing is sent over a connection that is made while `fence` closes. Sent again here only when a kept
    /// connection turns out to have been closed before anything of the request was written to it.
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
        fence: &Fence,
    ) -> Result<Response<PooledBody>, PoolError> {
        while let Some(line) = self.shared.take() {
            match self.exchange(line, request).await {
                Ok(response) => return Ok(response),
                Err(FailedExchange {
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
        if !fence.is_open() {
            return Err(PoolError::Fenced);
        }
        self.exchange(line, request)
            .await
            .map_err(|failed| failed.error)
    }

    async fn connect(&self) -> Result<Box<PooledConnection>, PoolError> {
        let exchange = Arc::<ExchangeState>::default();
        let socket = self.dial.connect(&self.origin).await?;
        let stream = TokioIo::new(PooledStream::new(socket, Arc::clone(&exchange)));
        let (sender, driver) = http1::handshake(stream).await?;
        Ok(Box::new(PooledConnection {
            sender,
            driver: Some(driver),
            exchange,
            keep: Duration::ZERO,
            wake_filter: WakeFilter::new(),
            worker: workers::current(),
        }))
    }

    async fn exchange(
        &self,
        mut line: Box<PooledConnection>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<PooledBody>, FailedExchange> {
        line.exchange.begin();
        let mut response = pin!(line.sender.try_send_request(request));
        let response = poll_fn(|cx| {
            line.drive(cx);
            // Only the driver brings it on, and that has just been polled: no waker is needed.
            let mut quiet = Context::from_waker(Waker::noop());
            response.as_mut().poll(&mut quiet)
        })
        .await
        .map_err(|refused| FailedExchange::new(refused, &line.exchange))?;
        line.exchange.end();
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
struct FailedExchange {
    error: PoolError,
    /// The request, if hyper wrote no byte.
    unsent: Option<Request<Full<Bytes>>>,
}

impl FailedExchange {
    fn new(mut refused: TrySendError<Request<Full<Bytes>>>, exchange: &ExchangeState) -> Self {
        let unsent = refused.take_message();
        let error = refused.into_error();
        let error = if unsent.is_some() || exchange.is_unread() {
            PoolError::Unread(error)
        } else {
            PoolError::Http(error)
        };
        Self { error, unsent }
    }
}

impl PooledConnection {
    fn drive(&mut self, cx: &mut Context<'_>) {
        let Some(driver) = &mut self.driver else {
            return;
        };
        // How it ended, the exchange learns from hyper.
        if self.wake_filter.poll(Pin::new(driver), cx).is_ready() {
            self.driver = None;
        }
    }

    /// Whether it can take a request now. Leaves no waker behind: it would wake its last call, or
    /// the next one just because that sends a request.
    fn is_free(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && self.sender.is_ready()
    }
}

impl PoolState {
    /// The idle set of a worker.
    fn lock(&self, worker: usize) -> MutexGuard<'_, IdleSet> {
        #[expect(clippy::indexing_slicing, reason = "a remainder is below its divisor")]
        let kept = &self.per_worker[worker % MAX_WORKERS];
        lock(kept)
    }

    /// The connection of this worker that was used last and may still be used.
    fn take(&self) -> Option<Box<PooledConnection>> {
        let own = workers::current();
        loop {
            let IdleConnection { mut line, since } = self.lock(own).idle.pop_back()?;
            let idle = poll_time::now().saturating_duration_since(since);
            if idle >= line.keep {
                continue;
            }
            if idle >= PROBE_AFTER {
                line.exchange.probe();
            }
            if line.is_free() {
                return Some(line);
            }
        }
    }

    fn put(self: &Arc<Self>, line: Box<PooledConnection>) {
        if line.keep.is_zero() {
            return;
        }
        let (since, worker) = (poll_time::now(), line.worker);
        let mut kept = self.lock(worker);
        if kept.idle.len() >= self.size {
            return;
        }
        kept.idle.push_back(IdleConnection { line, since });
        let sweep = !std::mem::replace(&mut kept.sweeping, true);
        drop(kept);
        if sweep {
            // Not a task of the gateway: no shutdown waits for the sweep, which ends with the pool.
            TokioExecutor::new().execute(sweep_until_empty(Arc::downgrade(self), worker));
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
        kept.sweeping = !kept.idle.is_empty();
        if !kept.sweeping {
            kept.idle.shrink_to_fit();
        }
        let left = kept.sweeping;
        drop(kept);
        drop(closed);
        left
    }
}

async fn sweep_until_empty(shared: std::sync::Weak<PoolState>, worker: usize) {
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
    place: Option<(Box<PooledConnection>, Arc<PoolState>)>,
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
            defer_wakes(|| Pin::new(body).poll_frame(&mut quiet)).0
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
