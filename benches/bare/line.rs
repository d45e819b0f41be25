//! Connections to upstreams, kept by each worker and driven by the exchange that uses them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

thread_local! {
    /// Idle connections of this worker; the last one was used last.
    static IDLE: RefCell<BTreeMap<SocketAddr, Vec<Line>>> = const { RefCell::new(BTreeMap::new()) };
}

/// One connection to an upstream.
pub(crate) struct Line {
    sender: http1::SendRequest<Incoming>,
    /// `None` once the connection ended, so that a waiting request fails.
    driver: Option<Box<http1::Connection<TokioIo<TcpStream>, Incoming>>>,
}

impl Line {
    async fn connect(upstream: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(upstream).await?;
        stream.set_nodelay(true)?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self {
            sender,
            driver: Some(Box::new(driver)),
        })
    }

    /// An idle connection that can take a request.
    fn idle(upstream: SocketAddr) -> Option<Self> {
        IDLE.with_borrow_mut(|idle| {
            let idle = idle.get_mut(&upstream)?;
            std::iter::from_fn(|| idle.pop()).find_map(|mut line| {
                // Without a waker: sending would wake the call that had the connection before.
                line.drive(&mut Context::from_waker(Waker::noop()));
                (line.driver.is_some() && line.sender.is_ready()).then_some(line)
            })
        })
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        // The exchange learns of an error, too.
        if let Some(driver) = &mut self.driver
            && Pin::new(driver).poll(cx).is_ready()
        {
            self.driver = None;
        }
    }
}

/// Sends a request on, as it is.
pub(crate) async fn forward(
    upstream: SocketAddr,
    mut request: Request<Incoming>,
) -> anyhow::Result<Response<Reply>> {
    let (response, line) = loop {
        let kept = Line::idle(upstream);
        let is_new = kept.is_none();
        let mut line = match kept {
            Some(line) => line,
            None => Line::connect(upstream).await?,
        };
        let mut response = pin!(line.sender.try_send_request(request));
        let response = poll_fn(|cx| {
            line.drive(cx);
            response.as_mut().poll(cx)
        });
        match response.await {
            Ok(response) => break (response, line),
            Err(mut refused) => match refused.take_message() {
                // The kept connection had been closed: nothing was written.
                Some(unsent) if !is_new => request = unsent,
                _ => return Err(refused.into_error().into()),
            },
        }
    };
    Ok(response.map(|body| {
        if body.is_end_stream() {
            keep(upstream, line);
            Reply::Empty
        } else {
            Reply::Of(body, Some((upstream, line)))
        }
    }))
}

fn keep(upstream: SocketAddr, line: Line) {
    IDLE.with_borrow_mut(|idle| idle.entry(upstream).or_default().push(line));
}

/// The body of a response. Drives its connection, keeps the connection at its end, and closes it when dropped before.
pub(crate) enum Reply {
    Empty,
    Of(Incoming, Option<(SocketAddr, Line)>),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self::Of(body, place) = &mut *self else {
            return Poll::Ready(None);
        };
        let mut polled = Pin::new(&mut *body).poll_frame(cx);
        if let (Poll::Pending, Some((_, line))) = (&polled, &mut *place) {
            line.drive(cx);
            polled = Pin::new(&mut *body).poll_frame(cx);
        }
        let is_over = matches!(polled, Poll::Ready(None)) || body.is_end_stream();
        if let Some((upstream, line)) = place.take_if(|_| is_over) {
            keep(upstream, line);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Of(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Of(body, _) => body.size_hint(),
        }
    }
}
