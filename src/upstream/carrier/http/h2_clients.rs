//! Clients of one upstream side by side. Over HTTP/2 all exchanges of a client share a connection, which
//! carries no more of them at once than its other end allows, often 100: the next one would wait until
//! one is over, and streams for changes last for hours. Spec: DESIGN §6; RFC 9113 §5.1.2.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper_util::client::legacy::connect::Connect;
use hyper_util::client::legacy::{Builder, Client, Error};

use super::body::UpstreamBody;
use crate::lock::lock;

/// Exchanges of one client at once. No server should allow fewer than 100 (RFC 9113 §6.5.2).
pub(super) const AT_ONCE: u32 = 96;
/// Clients at most; beyond, the least busy one takes more.
const MOST: usize = 64;

/// The clients of one upstream. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct ClientSet<C> {
    builder: Builder,
    connector: C,
    all: Arc<Mutex<Vec<PooledClient<C>>>>,
}

#[derive(Debug, Clone)]
struct PooledClient<C> {
    client: Client<C, Full<Bytes>>,
    /// Held by each of its exchanges too.
    share: H2StreamPermit,
}

/// A place of an exchange at a client, which has room again when it is dropped.
#[derive(Debug, Clone, Default)]
pub struct H2StreamPermit(Arc<()>);

impl<C> PooledClient<C> {
    fn open(&self) -> usize {
        Arc::strong_count(&self.share.0) - 1
    }

    fn has_room(&self) -> bool {
        self.open() < AT_ONCE as usize
    }
}

impl<C: Connect + Clone + Send + Sync + 'static> ClientSet<C> {
    pub(super) fn new(builder: Builder, connector: C) -> Self {
        Self {
            builder,
            connector,
            all: Arc::default(),
        }
    }

    /// Sends a request over the first client that has room.
    ///
    /// # Errors
    /// [`Error`] when no head of a response arrives.
    ///
    /// # Cancel safety
    /// Dropping the future closes the exchange.
    pub(super) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<UpstreamBody>, Error> {
        let PooledClient { client, share } = self.choose();
        let response = client.request(request).await?;
        Ok(response.map(|body| UpstreamBody::Hyper(body, share)))
    }

    /// The first client that has room, or a new one. Of the idle clients behind it, one is kept for the next peak.
    fn choose(&self) -> PooledClient<C> {
        let mut lanes = lock(&self.all);
        if let Some(at) = lanes.iter().position(PooledClient::has_room) {
            let last_busy = lanes.iter().rposition(|lane| lane.open() > 0);
            lanes.truncate(last_busy.map_or(at, |last| last.max(at)) + 2);
        }
        let free = lanes.iter().find(|lane| lane.has_room());
        let least = || lanes.iter().min_by_key(|lane| lane.open());
        let full = lanes.len() >= MOST;
        if let Some(lane) = free.or_else(|| least().filter(|_| full)) {
            return lane.clone();
        }
        let lane = PooledClient {
            client: self.builder.build(self.connector.clone()),
            share: H2StreamPermit::default(),
        };
        lanes.push(lane.clone());
        lane
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use futures_util::future::{Either, join_all, select};
    use hyper::body::Incoming;
    use hyper::rt::Executor;
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::client::legacy::connect::HttpConnector;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::net::TcpListener;

    use super::*;

    /// Exchanges per connection that the test server allows, like most servers.
    const ALLOWED: u32 = 100;

    /// Never answers `/never`.
    async fn serve(listener: TcpListener) {
        let answer = async |request: Request<Incoming>| {
            if request.uri().path() == "/never" {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        };
        while let Ok((stream, _)) = listener.accept().await {
            let mut over_http2 = http2::Builder::new(TokioExecutor::new());
            over_http2.max_concurrent_streams(ALLOWED);
            let exchanges = over_http2.serve_connection(TokioIo::new(stream), service_fn(answer));
            TokioExecutor::new().execute(exchanges);
        }
    }

    // Spec: DESIGN §1; SPEC U-12.
    #[tokio::test]
    async fn exchanges_that_last_hold_up_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        TokioExecutor::new().execute(serve(listener));
        let mut builder = Client::builder(TokioExecutor::new());
        builder.http2_only(true);
        let lanes = ClientSet::new(builder, HttpConnector::new());
        let send = |path: &str| {
            let request = Request::get(format!("{origin}{path}"));
            lanes.send(request.body(Full::default()).unwrap())
        };
        send("/").await.unwrap();
        let task_progress = Box::pin(join_all((0..ALLOWED).map(|_| send("/never"))));
        let other = tokio::time::timeout(Duration::from_secs(10), send("/"));
        match select(task_progress, Box::pin(other)).await {
            Either::Left(_) => panic!("they are never answered"),
            Either::Right((other, _)) => assert!(other.unwrap().unwrap().status().is_success()),
        }
        assert_eq!(lock(&lanes.all).len(), 2);
        assert!(lock(&lanes.all).iter().all(|lane| lane.open() == 0));
    }

    #[test]
    fn clients_that_have_nothing_to_do_are_let_go() {
        let lanes = ClientSet::new(Client::builder(TokioExecutor::new()), HttpConnector::new());
        let count = || lock(&lanes.all).len();
        let mut busy: Vec<_> = (0..5 * AT_ONCE).map(|_| lanes.choose()).collect();
        assert_eq!(count(), 5);
        let last = busy.pop();
        busy.clear();
        drop(lanes.choose());
        assert_eq!(count(), 5, "the last one is busy");
        drop(last);
        drop(lanes.choose());
        assert_eq!(count(), 2, "one more than is needed");
    }
}
