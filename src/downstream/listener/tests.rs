use std::sync::Arc;

use axum::Extension;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::*;
use crate::call::Principal;
use crate::downstream::samples;

/// A running listener with a slow route that ends when told to.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) tasks: TaskSpawner,
    pub(super) release: Arc<Notify>,
    pub(super) entered: Arc<Notify>,
    /// Told when an endless or a large answer is dropped.
    pub(super) dropped: Arc<Notify>,
}

/// Notifies on drop.
struct Told(Arc<Notify>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// An endless body; `dropped` is notified when hyper drops the body.
fn endless(dropped: &Arc<Notify>) -> Body {
    let told = Told(Arc::clone(dropped));
    let pieces = std::iter::repeat_with(move || {
        let _held = &told;
        Ok::<_, std::convert::Infallible>(Bytes::from_static(&[b'x'; 1024]))
    });
    Body::from_stream(futures_util::stream::iter(pieces))
}

/// An answer of one piece.
struct Large {
    bytes: Vec<u8>,
    _told: Told,
}

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn large(dropped: &Arc<Notify>) -> Body {
    let large = Large {
        bytes: vec![b'x'; 256 * 1024],
        _told: Told(Arc::clone(dropped)),
    };
    Body::from(Bytes::from_owner(large))
}

pub(super) fn start(change: impl FnOnce(&mut config::HttpServerConfig)) -> Running {
    start_as(change, |_| ())
}

/// The same with protocols that are changed as those of the internal listener are.
pub(super) fn start_as(
    change: impl FnOnce(&mut config::HttpServerConfig),
    adjust: impl FnOnce(&mut HttpServers),
) -> Running {
    let mut settings = samples::server("127.0.0.1:0", "http://127.0.0.1");
    change(&mut settings);
    let mut listener = Listener::bind(&settings, 16 * 1024).unwrap();
    adjust(&mut Arc::get_mut(&mut listener.settings).unwrap().protocols);
    let (release, entered) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let dropped = Arc::new(Notify::new());
    let (told, told_of_large) = (Arc::clone(&dropped), Arc::clone(&dropped));
    let (gate, notify) = (Arc::clone(&release), Arc::clone(&entered));
    let slow = move || async move {
        notify.notify_one();
        gate.notified().await;
        "done"
    };
    let service = Router::new()
        .route("/", get(|| async { "hello" }))
        .route(
            "/peer",
            get(|Extension(place): Extension<ConnectionPermit>| async move {
                place.client().unwrap().to_string()
            }),
        )
        .route(
            "/known",
            get(|Extension(place): Extension<ConnectionPermit>| async move {
                let owner = Principal::anonymous().owner();
                place.begin(owner, false).map_or("crowded", |_| "known")
            }),
        )
        .route("/echo", post(|body: String| async { body }))
        .route("/endless", get(move || async move { endless(&told) }))
        .route("/large", get(move || async move { large(&told_of_large) }))
        .route("/slow", get(slow));
    let address = listener.local_addr();
    let tasks = TaskSpawner::new();
    tasks.spawn(listener.run(service, tasks.clone(), Workers::only_this()));
    Running {
        address,
        tasks,
        release,
        entered,
        dropped,
    }
}

pub(super) async fn connect(running: &Running) -> TcpStream {
    TcpStream::connect(running.address).await.unwrap()
}

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Everything until the connection is closed.
pub(super) async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset after the answer is an end as well.
    drop(stream.read_to_end(&mut bytes).await);
    String::from_utf8(bytes).unwrap()
}

/// Reads until `text` has come.
async fn until(stream: &mut TcpStream, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        let mut chunk = [0; 4096];
        let n = stream.read(&mut chunk).await.unwrap();
        assert!(n > 0, "closed after {seen:?}");
        seen.push_str(std::str::from_utf8(&chunk[..n]).unwrap());
    }
    seen
}

fn short_deadline(settings: &mut config::HttpServerConfig) {
    settings.header_timeout = Duration::from_millis(200);
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let running = start(short_deadline);
    assert_eq!(rest(&mut connect(&running).await).await, "");
}

#[tokio::test]
async fn a_slow_head_is_cut_off() {
    let running = start(short_deadline);
    let mut stream = connect(&running).await;
    send(&mut stream, "GET / HTTP/1.1\r\nhost: a\r\n").await;
    assert!(!rest(&mut stream).await.contains("200 OK"));
}

#[tokio::test]
async fn a_slow_second_head_is_cut_off() {
    let running = start(short_deadline);
    let mut stream = connect(&running).await;
    send(&mut stream, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    until(&mut stream, "hello").await;
    send(&mut stream, "GET / HTTP/1.1\r\n").await;
    assert!(!rest(&mut stream).await.contains("200 OK"));
}

#[tokio::test]
async fn an_idle_connection_outlives_the_head_deadline() {
    let running = start(short_deadline);
    let mut stream = connect(&running).await;
    for _ in 0..2 {
        send(&mut stream, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        until(&mut stream, "hello").await;
        let closed = tokio::time::timeout(Duration::from_millis(400), stream.readable()).await;
        assert!(closed.is_err(), "closed while idle");
    }
}

// SPEC T-17.
#[tokio::test]
async fn a_large_head_is_431() {
    let running = start(|_| ());
    let mut stream = connect(&running).await;
    let filler = "x".repeat(17 * 1024);
    send(
        &mut stream,
        &format!("GET / HTTP/1.1\r\nhost: a\r\nx-fill: {filler}\r\n\r\n"),
    )
    .await;
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 431 "));
}

#[tokio::test]
async fn the_cap_refuses_with_503_and_frees_its_places() {
    let running = start(|settings| settings.max_connections = 1);
    let mut first = connect(&running).await;
    send(&mut first, "GET /known HTTP/1.1\r\nhost: a\r\n\r\n").await;
    until(&mut first, "known").await;
    send(&mut first, "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    running.entered.notified().await;
    let mut second = connect(&running).await;
    send(&mut second, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    second.shutdown().await.unwrap();
    let refusal = rest(&mut second).await;
    assert!(refusal.starts_with("HTTP/1.1 503 ") && refusal.contains("retry-after: 1"));
    drop(first);
    // The place is free as soon as the first connection's end has been seen.
    let served = async {
        loop {
            let mut third = connect(&running).await;
            send(
                &mut third,
                "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
            )
            .await;
            if rest(&mut third).await.contains("hello") {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), served)
        .await
        .unwrap();
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let running = start(|_| ());
    let mut stream = connect(&running).await;
    let post =
        |text: &str| format!("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n{text}");
    send(
        &mut stream,
        &format!("{}{}{}", post("one"), post("two"), post("six")),
    )
    .await;
    let seen = until(&mut stream, "six").await;
    assert!(seen.find("one").unwrap() < seen.find("two").unwrap());
}

// SPEC O-02.
#[tokio::test]
async fn a_drain_lets_a_running_exchange_finish() {
    let running = start(|_| ());
    let mut busy = connect(&running).await;
    let mut idle = connect(&running).await;
    send(&mut idle, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    until(&mut idle, "hello").await;
    send(&mut busy, "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    running.entered.notified().await;
    let tasks = running.tasks.clone();
    let (clean, answer, ()) = tokio::join!(
        tasks.shut_down(Duration::from_secs(10)),
        rest(&mut busy),
        async {
            assert_eq!(rest(&mut idle).await, "", "an idle connection is closed");
            assert!(TcpStream::connect(running.address).await.is_err());
            running.release.notify_one();
        },
    );
    assert!(clean);
    assert!(answer.contains("done"), "{answer}");
}

/// A request whose bytes are in the system before this returns: the runtime has not run meanwhile.
fn send_unseen(stream: std::net::TcpStream) -> TcpStream {
    let mut stream = stream;
    io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    stream.set_nonblocking(true).unwrap();
    TcpStream::from_std(stream).unwrap()
}

// SPEC O-02: a client that sent its request before it could know has an answer.
#[tokio::test]
async fn a_drain_answers_what_waits_in_the_backlog() {
    let running = start(|_| ());
    let mut early = send_unseen(std::net::TcpStream::connect(running.address).unwrap());
    let drain = running.tasks.shut_down(Duration::from_secs(10));
    let (clean, answer) = tokio::join!(drain, rest(&mut early));
    assert!(clean && answer.ends_with("hello"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}

#[tokio::test]
async fn a_drain_answers_bytes_unread_in_a_socket() {
    let running = start(|_| ());
    let mut idle = connect(&running).await;
    send(&mut idle, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    until(&mut idle, "hello").await;
    let mut idle = send_unseen(idle.into_std().unwrap());
    let drain = running.tasks.shut_down(Duration::from_secs(10));
    let (clean, answer) = tokio::join!(drain, rest(&mut idle));
    assert!(clean && answer.ends_with("hello"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}

#[tokio::test]
async fn a_lingering_connection_is_served_later_too() {
    let running = start(|settings| settings.drain_linger = Duration::from_mins(1));
    let mut stream = connect(&running).await;
    send(&mut stream, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    until(&mut stream, "hello").await;
    let mut unseen = send_unseen(std::net::TcpStream::connect(running.address).unwrap());
    running.tasks.draining().cancel();
    // The drain has reached the first connection once the second has its answer.
    rest(&mut unseen).await;
    send(&mut stream, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(rest(&mut stream).await.contains("connection: close"));
}

#[tokio::test]
async fn no_handshake_begins_during_a_drain() {
    let running = start(|settings| settings.drain_linger = Duration::from_millis(300));
    let drain = running.tasks.shut_down(Duration::from_secs(10));
    let late = async {
        // The drain has to begin first.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        TcpStream::connect(running.address).await
    };
    let (clean, late) = tokio::join!(drain, late);
    assert!(clean && late.is_err(), "{late:?}");
}

#[tokio::test]
async fn a_hard_stop_ends_what_does_not_finish() {
    let running = start(|_| ());
    let mut busy = connect(&running).await;
    send(&mut busy, "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    running.entered.notified().await;
    assert!(!running.tasks.shut_down(Duration::from_millis(50)).await);
    assert_eq!(rest(&mut busy).await, "");
}

#[tokio::test]
async fn the_peer_behind_a_trusted_proxy_is_seen() {
    let running = start(|settings| settings.trusted_proxies.push("127.0.0.0/8".to_owned()));
    let mut stream = connect(&running).await;
    let head =
        "GET /peer HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.9\r\nconnection: close\r\n\r\n";
    send(&mut stream, head).await;
    assert!(rest(&mut stream).await.ends_with("192.0.2.9"));
}

#[tokio::test]
async fn prior_knowledge_http2_is_not_spoken_in_plaintext() {
    let running = start(|_| ());
    let mut stream = connect(&running).await;
    send(&mut stream, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(!rest(&mut stream).await.contains("200"));
}

#[tokio::test]
async fn a_taken_address_is_named() {
    let running = start(|_| ());
    let settings = samples::server(&running.address.to_string(), "http://127.0.0.1");
    let error = Listener::bind(&settings, 16 * 1024).unwrap_err();
    assert!(error.to_string().contains(&running.address.to_string()));
}
