use std::net::Ipv4Addr;
use std::sync::LazyLock;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::BodyExt;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::runtime::lifecycle::TaskSpawner;
use crate::upstream::carrier::http::body::UpstreamBody;

/// Idle connections that the pools of these tests keep.
const SMALL: usize = 2;
/// `pool_idle` in these tests.
const UNNAMED: Duration = Duration::from_secs(4);
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

static UNFENCED: LazyLock<Fence> = LazyLock::new(Fence::default);

/// An upstream that tests play by hand.
struct Upstream {
    listener: TcpListener,
    pool: ConnectionPool,
}

impl Upstream {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let dial = UpstreamDial::plain(TcpRoute::Direct(HttpConnector::new()));
        let keep = KeepRule { unnamed: UNNAMED };
        let pool = ConnectionPool::new(dial, origin.parse().unwrap(), SMALL, keep);
        Self { listener, pool }
    }

    /// Sends a request and plays its upstream on a new connection.
    async fn first(&self, reply: &[u8]) -> (TcpStream, Response<PooledBody>) {
        let play = async {
            let mut stream = self.listener.accept().await.unwrap().0;
            answer(&mut stream, reply).await;
            stream
        };
        let (stream, response) = tokio::join!(play, self.pool.send(request(), &UNFENCED));
        (stream, response.unwrap())
    }

    fn idle(&self) -> usize {
        self.pool.shared.lock(0).idle.len()
    }
}

fn request() -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(Bytes::from_static(b"{}")));
    *request.method_mut() = http::Method::POST;
    request
}

/// Reads one request and answers it.
async fn answer(stream: &mut TcpStream, reply: &[u8]) {
    let mut read = Vec::new();
    while !read.ends_with(b"{}") {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "it is gone");
    }
    stream.write_all(reply).await.unwrap();
}

async fn text(response: Response<PooledBody>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn a_connection_is_used_again_once_its_response_was_read() {
    let upstream = Upstream::start().await;
    let (mut stream, response) = upstream.first(REPLY).await;
    assert_eq!(upstream.idle(), 0, "the body is still to be read");
    assert_eq!(text(response).await, "ok");
    assert_eq!(upstream.idle(), 1);
    let (second, ()) = tokio::join!(
        upstream.pool.send(request(), &UNFENCED),
        answer(&mut stream, REPLY)
    );
    assert_eq!(text(second.unwrap()).await, "ok");
}

#[tokio::test]
async fn a_response_without_a_body_gives_its_connection_back_at_once() {
    let upstream = Upstream::start().await;
    let reply = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
    let (_stream, _response) = upstream.first(reply).await;
    assert_eq!(upstream.idle(), 1);
}

#[tokio::test]
async fn a_body_that_is_not_read_to_its_end_closes_its_connection() {
    let upstream = Upstream::start().await;
    let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok";
    let (mut stream, response) = upstream.first(reply).await;
    drop(response);
    assert_eq!(upstream.idle(), 0);
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "closed");
}

const OPEN: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n";

#[tokio::test]
async fn a_body_that_is_finished_gives_its_connection_back_at_its_end() {
    let upstream = Upstream::start().await;
    for end in [&b"0\r\n\r\n"[..], b"3\r\n:\n\n\r\n0\r\n\r\n"] {
        let (mut stream, response) = upstream.first(OPEN).await;
        let mut body = UpstreamBody::Plain(response.into_body());
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "ok"
        );
        body.finish();
        assert_eq!(upstream.idle(), 0, "its end is to come");
        stream.write_all(end).await.unwrap();
        while upstream.idle() == 0 {
            tokio::task::yield_now().await;
        }
        // Empties the pool, so that the next round opens a new connection.
        drop(upstream.pool.shared.take());
    }
}

#[tokio::test]
async fn a_finished_body_without_an_end_closes_its_connection_in_time() {
    let upstream = Upstream::start().await;
    let (mut stream, response) = upstream.first(OPEN).await;
    tokio::time::pause();
    UpstreamBody::Plain(response.into_body()).finish();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "closed");
    assert_eq!(upstream.idle(), 0);
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_is_replaced() {
    let upstream = Upstream::start().await;
    let (stream, response) = upstream.first(REPLY).await;
    text(response).await;
    drop(stream);
    while let Some(line) = upstream.pool.shared.take() {
        upstream.pool.shared.put(line);
        tokio::task::yield_now().await;
    }
    let (_second, response) = upstream.first(REPLY).await;
    assert_eq!(text(response).await, "ok");
}

// A call that used up its share of polls finds a kept connection alive whose close has arrived; the connection then ends
// with the request still in its queue.
#[tokio::test]
async fn request_queued_in_an_ended_connection_takes_another() {
    let upstream = Upstream::start().await;
    let (stream, response) = upstream.first(REPLY).await;
    assert_eq!(text(response).await, "ok");
    drop(stream);
    // The reactor learns of the close.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let mut sending = pin!(upstream.pool.send(request(), &UNFENCED));
    poll_fn(|cx| {
        while pin!(tokio::task::coop::consume_budget())
            .poll(cx)
            .is_ready()
        {}
        assert!(sending.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    let play = async {
        let mut stream = upstream.listener.accept().await.unwrap().0;
        answer(&mut stream, REPLY).await;
    };
    let both = async { tokio::join!(sending, play) };
    let (response, ()) = tokio::time::timeout(Duration::from_secs(10), both)
        .await
        .expect("the request leaves");
    assert_eq!(text(response.unwrap()).await, "ok");
}

#[tokio::test]
async fn a_request_that_may_have_run_is_not_sent_again() {
    let upstream = Upstream::start().await;
    let (mut stream, response) = upstream.first(REPLY).await;
    text(response).await;
    let lost = async {
        answer(&mut stream, b"").await;
        drop(stream);
    };
    let (second, ()) = tokio::join!(upstream.pool.send(request(), &UNFENCED), lost);
    assert!(matches!(second, Err(PoolError::Http(_))), "{second:?}");
}

// The close arrives between the look at the connection and the request.
#[tokio::test]
async fn request_behind_a_close_may_have_run() {
    let upstream = Upstream::start().await;
    let mut open = Vec::new();
    for _ in 0..SMALL {
        open.push(upstream.first(REPLY).await);
    }
    let mut streams = Vec::new();
    for (stream, response) in open {
        text(response).await;
        streams.push(stream);
    }
    // Nothing is awaited in between: the reactor has not seen the close.
    drop(streams);
    let second = upstream.pool.send(request(), &UNFENCED).await;
    assert!(matches!(second, Err(PoolError::Http(_))), "{second:?}");
    assert_eq!(upstream.idle(), 0, "the others are as old");
    let (_stream, response) = upstream.first(REPLY).await;
    assert_eq!(text(response).await, "ok");
}

#[tokio::test]
async fn request_that_never_left_whole_is_unread() {
    let upstream = Upstream::start().await;
    let refuse = async {
        let mut stream = upstream.listener.accept().await.unwrap().0;
        // Unread bytes make the kernel reset the connection.
        assert_ne!(stream.read(&mut [0; 64]).await.unwrap(), 0);
    };
    let mut large = request();
    *large.body_mut() = Full::new(vec![b' '; 32 << 20].into());
    let (sent, ()) = tokio::join!(upstream.pool.send(large, &UNFENCED), refuse);
    assert!(matches!(sent, Err(PoolError::Unread(_))), "{sent:?}");
}

#[tokio::test]
async fn named_keep_alive_bounds_reuse() {
    let upstream = Upstream::start().await;
    let answered = async |seconds: u64| {
        let reply = format!(
            "HTTP/1.1 200 OK\r\nkeep-alive: timeout={seconds}\r\ncontent-length: 2\r\n\r\nok"
        );
        let (stream, response) = upstream.first(reply.as_bytes()).await;
        text(response).await;
        stream
    };
    let mut closed = answered(1).await;
    assert_eq!(closed.read(&mut [0]).await.unwrap(), 0, "not kept at all");
    let _kept = answered(8).await;
    let kept = upstream.pool.shared.take().expect("just used");
    upstream.pool.shared.put(kept);
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(6_900)).await;
    let kept = upstream
        .pool
        .shared
        .take()
        .expect("more than a second left");
    upstream.pool.shared.put(kept);
    tokio::time::advance(Duration::from_secs(7)).await;
    assert!(upstream.pool.shared.take().is_none(), "a second left");
}

#[tokio::test]
async fn unnamed_keep_alive_bounds_reuse() {
    let upstream = Upstream::start().await;
    let (_stream, response) = upstream.first(REPLY).await;
    text(response).await;
    tokio::time::pause();
    tokio::time::advance(UNNAMED).await;
    assert!(upstream.pool.shared.take().is_none());
}

#[tokio::test]
async fn kernel_is_asked_about_a_close() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    for says_something in [false, true] {
        let (ours, theirs) = tokio::join!(TcpStream::connect(at), listener.accept());
        let (socket, mut theirs) = (
            tokio_util::either::Either::Left(ours.unwrap()),
            theirs.unwrap().0,
        );
        assert!(!stream::is_over(&socket));
        if says_something {
            theirs.write_all(b"x").await.unwrap();
        } else {
            drop(theirs);
        }
        assert!(stream::is_over(&socket), "before the reactor has seen it");
    }
}

#[tokio::test]
async fn nobody_at_the_address_is_told_apart() {
    let upstream = Upstream::start().await;
    drop(upstream.listener);
    let refused = upstream.pool.send(request(), &UNFENCED).await;
    assert!(matches!(refused, Err(PoolError::Connect(_))), "{refused:?}");
}

#[tokio::test]
async fn idle_connections_are_capped_and_closed_in_time() {
    let upstream = Upstream::start().await;
    let mut open = Vec::new();
    for _ in 0..=SMALL {
        open.push(upstream.first(REPLY).await);
    }
    let mut streams = Vec::new();
    for (stream, response) in open {
        text(response).await;
        streams.push(stream);
    }
    assert_eq!(upstream.idle(), SMALL);
    let last = streams.last_mut().unwrap();
    assert_eq!(last.read(&mut [0]).await.unwrap(), 0, "one too many");
    tokio::time::pause();
    tokio::time::sleep(UNNAMED + SWEEP).await;
    assert_eq!(upstream.idle(), 0);
    assert_eq!(streams[0].read(&mut [0]).await.unwrap(), 0, "closed");
}

// A held-back wake-up must not leave a set of futures in between waiting: the set passes on no wake-up before it was
// polled for the last one.
#[tokio::test]
async fn a_call_among_others_hears_of_the_rest_of_its_answer() {
    let Upstream { listener, pool } = Upstream::start().await;
    let (first, rest) = REPLY.split_at(REPLY.len() - 1);
    let (heads, mut begun) = tokio::sync::mpsc::channel(3);
    let (texts, mut done) = tokio::sync::mpsc::channel(3);
    TaskSpawner::new().spawn(async move {
        let mut streams = Vec::new();
        for _ in 0..3 {
            streams.push(listener.accept().await.unwrap().0);
        }
        for stream in &mut streams {
            answer(stream, first).await;
            begun.recv().await.unwrap();
            stream.write_all(rest).await.unwrap();
            done.recv().await.unwrap();
        }
    });
    let calls: FuturesUnordered<_> = (0..3)
        .map(|_| async {
            let response = pool.send(request(), &UNFENCED).await.unwrap();
            heads.try_send(()).unwrap();
            assert_eq!(text(response).await, "ok");
            texts.try_send(()).unwrap();
        })
        .collect();
    let (wake_filter, mut calls) = (WakeFilter::new(), pin!(calls.count()));
    let calls = poll_fn(|cx| wake_filter.poll(calls.as_mut(), cx));
    let calls = tokio::time::timeout(Duration::from_secs(5), calls);
    assert_eq!(calls.await.expect("nobody was woken"), 3);
}

#[tokio::test]
async fn nothing_is_sent_over_a_connection_that_is_made_while_the_fence_closes() {
    let upstream = Upstream::start().await;
    let refused = upstream.pool.send(request(), &Fence::closed()).await;
    assert!(matches!(refused, Err(PoolError::Fenced)), "{refused:?}");
    let (mut stream, _) = upstream.listener.accept().await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "closed unused");
}
