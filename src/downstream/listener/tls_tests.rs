mod renewal;

use std::sync::Arc;

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::tests::{Running, connect, rest, start, start_as};
use super::*;
use crate::telemetry::metrics::LABELED;

/// A running TLS listener, and a client configuration that trusts its certificate.
fn start_tls(
    change: impl FnOnce(&mut config::HttpServerConfig),
) -> (Running, ClientConfig, tempfile::TempDir) {
    start_tls_as(change, |_| ())
}

/// The same with protocols that are changed as those of the internal listener are.
fn start_tls_as(
    change: impl FnOnce(&mut config::HttpServerConfig),
    adjust: impl FnOnce(&mut HttpServers),
) -> (Running, ClientConfig, tempfile::TempDir) {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    std::fs::write(&cert, issued.cert.pem()).unwrap();
    std::fs::write(&key, issued.signing_key.serialize_pem()).unwrap();
    let with_tls = |settings: &mut config::HttpServerConfig| {
        settings.tls = Some(config::TlsConfig {
            cert,
            key,
            reload: Duration::from_millis(20),
        });
        change(settings);
    };
    let running = start_as(with_tls, adjust);
    let mut roots = RootCertStore::empty();
    roots.add(issued.cert.der().clone()).unwrap();
    let client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (running, client, folder)
}

async fn handshake(running: &Running, client: ClientConfig, alpn: &str) -> TlsStream<TcpStream> {
    handshake_over(connect(running).await, client, alpn).await
}

async fn handshake_over(
    stream: TcpStream,
    mut client: ClientConfig,
    alpn: &str,
) -> TlsStream<TcpStream> {
    client.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(client))
        .connect(name, stream)
        .await
        .unwrap()
}

#[tokio::test]
async fn http1_is_spoken_when_the_client_chooses_it() {
    let (running, client, _folder) = start_tls(|_| ());
    let mut stream = handshake(&running, client, "http/1.1").await;
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    drop(tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await);
    assert!(answer.ends_with("hello"), "{answer}");
}

/// Reads until the connection ends. Fails if it ends without the `close_notify` of TLS.
async fn rest_in_order(stream: &mut TlsStream<TcpStream>) -> String {
    let mut answer = String::new();
    let end = tokio::io::AsyncReadExt::read_to_string(stream, &mut answer);
    end.await.expect("a connection that ends in order");
    answer
}

// A replica that has just sent a request then knows that the request was not begun.
#[tokio::test]
async fn connections_of_replicas_end_in_order_once_they_are_idle() {
    let (running, client, _folder) = start_tls_as(|_| (), HttpServers::end_in_order);
    let connected = || handshake(&running, client.clone(), "http/1.1");
    let (mut unused, mut used) = (connected().await, connected().await);
    let mut busy = connected().await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    used.write_all(get("/").as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    let head = tokio::io::AsyncReadExt::read_exact(&mut used, &mut answer);
    head.await.unwrap();
    busy.write_all(get("/slow").as_bytes()).await.unwrap();
    running.entered.notified().await;
    let drained = running.tasks.shut_down(Duration::from_secs(30));
    let ended = async {
        assert_eq!(rest_in_order(&mut unused).await, "");
        assert!(rest_in_order(&mut used).await.ends_with("hello"));
        running.release.notify_one();
        let answer = rest_in_order(&mut busy).await;
        assert!(answer.contains("connection: close"), "{answer}");
        assert!(answer.ends_with("done"), "what has begun is answered");
    };
    let (is_clean, ()) = tokio::join!(drained, ended);
    assert!(is_clean);
}

#[tokio::test]
async fn http2_is_spoken_when_the_client_chooses_it_and_drains() {
    let (running, client, _folder) = start_tls(|_| ());
    let stream = handshake(&running, client, "h2").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
        .await
        .unwrap();
    running
        .tasks
        .spawn_service(async { drop(connection.await) });
    let slow = Request::get("https://localhost/slow")
        .body(Body::empty())
        .unwrap();
    let answer = sender.send_request(slow);
    running.entered.notified().await;
    let tasks = running.tasks.clone();
    let release = async { running.release.notify_one() };
    let (clean, answer, ()) =
        tokio::join!(tasks.shut_down(Duration::from_secs(10)), answer, release);
    assert!(clean);
    let body = answer
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap()
        .to_bytes();
    assert_eq!(body, "done");
}

// The request follows a handshake that was under way when the drain began.
#[tokio::test]
async fn a_drain_finishes_a_handshake_under_way() {
    let (running, client, _folder) =
        start_tls(|settings| settings.drain_linger = Duration::from_mins(1));
    let opened = std::net::TcpStream::connect(running.address).unwrap();
    running.tasks.draining().cancel();
    opened.set_nonblocking(true).unwrap();
    let opened = TcpStream::from_std(opened).unwrap();
    let mut stream = handshake_over(opened, client, "http/1.1").await;
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    drop(tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await);
    assert!(answer.ends_with("hello"), "{answer}");
}

/// How often connections of clients have failed for this reason.
fn failed(reason: &str) -> u64 {
    let all = LABELED.connections_failed.get();
    let found = all.iter().find(|(word, _)| word == reason);
    found.map_or(0, |(_, count)| *count)
}

#[tokio::test]
async fn failed_handshakes_and_heads_are_counted() {
    let (running, _client, _folder) =
        start_tls(|settings| settings.handshake_timeout = Duration::from_millis(100));
    let before = (failed("tls_handshake"), failed("tls_timeout"));
    let mut plain = connect(&running).await;
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    rest_of(&mut plain).await;
    rest_of(&mut connect(&running).await).await;
    let after = (failed("tls_handshake"), failed("tls_timeout"));
    assert!(after.0 > before.0 && after.1 > before.1, "{after:?}");
    let running = start(|settings| settings.header_timeout = Duration::from_millis(100));
    let before = (failed("bad_head"), failed("head_timeout"));
    for bytes in ["no head\r\n\r\n", "GET / HT"] {
        let mut stream = connect(&running).await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
        rest_of(&mut stream).await;
    }
    // The end of the stream is seen before the task of the connection notes it.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let after = (failed("bad_head"), failed("head_timeout"));
    assert!(after.0 > before.0 && after.1 > before.1, "{after:?}");
}

/// Reads to the end; the bytes may be a TLS alert.
async fn rest_of(stream: &mut TcpStream) {
    drop(tokio::io::AsyncReadExt::read_to_end(stream, &mut Vec::new()).await);
}

#[tokio::test]
async fn a_handshake_that_does_not_come_is_cut_off() {
    let (running, _client, _folder) =
        start_tls(|settings| settings.handshake_timeout = Duration::from_millis(100));
    assert_eq!(rest(&mut connect(&running).await).await, "");
}

#[tokio::test]
async fn an_http2_preface_that_does_not_come_is_cut_off() {
    for begun in [&b""[..], b"PRI * HTTP/2.0\r\n"] {
        let (running, client, _folder) =
            start_tls(|settings| settings.header_timeout = Duration::from_millis(100));
        let mut stream = handshake(&running, client, "h2").await;
        stream.write_all(begun).await.unwrap();
        let mut answer = Vec::new();
        // A connection that is just dropped says no goodbye, which counts as an error.
        let end = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer);
        let ended = tokio::time::timeout(Duration::from_secs(10), end).await;
        assert!(ended.is_ok(), "still open");
    }
}

#[tokio::test]
async fn an_http2_connection_without_streams_is_ended_though_it_answers_pings() {
    let (running, client, _folder) =
        start_tls(|settings| settings.idle_timeout = Duration::from_millis(50));
    let io = TokioIo::new(handshake(&running, client, "h2").await);
    // Held, so that the client has no reason to close.
    let (_sender, connection) =
        hyper::client::conn::http2::handshake::<_, _, Body>(TokioExecutor::new(), io)
            .await
            .unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(10), connection).await;
    assert!(ended.is_ok(), "still open");
}

/// An HTTP/2 client with a window of `window` bytes per unread answer.
async fn narrow_client(
    running: &Running,
    client: ClientConfig,
    window: u32,
) -> (
    SendRequest<Body>,
    impl Future<Output = hyper::Result<()>> + Send + 'static,
) {
    let io = TokioIo::new(handshake(running, client, "h2").await);
    hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(io)
        .await
        .unwrap()
}

fn get(path: &str) -> Request<Body> {
    let url = format!("https://localhost{path}");
    Request::get(url).body(Body::empty()).unwrap()
}

/// Asserts that an unread response is dropped and its stream reset.
async fn assert_is_given_up(running: &Running, sender: &mut SendRequest<Body>, path: &str) {
    let unread = sender.send_request(get(path)).await.unwrap();
    let dropped = tokio::time::timeout(Duration::from_secs(10), running.dropped.notified()).await;
    assert!(dropped.is_ok(), "its answer is still there");
    let cut_off = unread.into_body().collect().await;
    assert!(cut_off.is_err(), "the stream was reset");
}

#[tokio::test]
async fn an_http2_stream_that_is_not_read_is_given_up_and_its_connection_is_not() {
    let (running, client, _folder) =
        start_tls(|settings| settings.stall_timeout = Duration::from_millis(100));
    let (mut sender, connection) = narrow_client(&running, client, 512).await;
    running
        .tasks
        .spawn_service(async { drop(connection.await) });
    assert_is_given_up(&running, &mut sender, "/endless").await;
    let other = sender.send_request(get("/")).await.unwrap();
    let body = other.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "hello");
}

// A body that hyper has taken in one piece is not polled again: without the watch only the peer could end its stream.
#[tokio::test]
async fn a_large_answer_that_is_not_read_is_given_up_beside_an_open_stream() {
    let (running, client, _folder) =
        start_tls(|settings| settings.stall_timeout = Duration::from_millis(100));
    let (mut sender, connection) = narrow_client(&running, client, 512).await;
    running
        .tasks
        .spawn_service(async { drop(connection.await) });
    let open = sender.send_request(get("/slow"));
    running.entered.notified().await;
    assert_is_given_up(&running, &mut sender, "/large").await;
    running.release.notify_one();
    let body = open.await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "done");
}

#[tokio::test]
async fn a_large_answer_is_read_to_its_end() {
    let (running, client, _folder) = start_tls(|_| ());
    let (mut sender, connection) = narrow_client(&running, client, 512).await;
    running
        .tasks
        .spawn_service(async { drop(connection.await) });
    let answer = sender.send_request(get("/large")).await.unwrap();
    assert_eq!(answer.headers()["content-length"], "262144");
    let body = answer.into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes().len(), 256 * 1024);
}

#[tokio::test]
async fn the_rest_of_an_answer_that_is_not_read_does_not_keep_a_connection() {
    for is_short_for_all in [true, false] {
        let (running, client, _folder) = start_tls(|settings| {
            // Long enough that the request comes before the end is announced.
            settings.idle_timeout = Duration::from_secs(1);
            let short = Duration::from_millis(50);
            if is_short_for_all {
                settings.stall_timeout = short;
            } else {
                // That of a client without a good token.
                settings.refused_idle_timeout = short;
            }
        });
        let (mut sender, connection) = narrow_client(&running, client, 1).await;
        let (told, ended) = tokio::sync::oneshot::channel();
        running.tasks.spawn_service(async {
            drop(connection.await);
            drop(told);
        });
        let _unread = sender.send_request(get("/")).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(10), ended);
        let told: Result<(), _> = ended.await.expect("still open");
        assert!(told.is_err(), "nothing is sent, only dropped");
    }
}

#[tokio::test]
async fn an_answer_that_a_stranger_does_not_read_is_given_up_soon() {
    let (running, client, _folder) =
        start_tls(|settings| settings.refused_idle_timeout = Duration::from_millis(100));
    let (mut sender, connection) = narrow_client(&running, client, 512).await;
    running
        .tasks
        .spawn_service(async { drop(connection.await) });
    assert_is_given_up(&running, &mut sender, "/endless").await;
}

#[tokio::test]
async fn an_answer_may_be_left_unread_after_a_good_token() {
    let (running, client, _folder) =
        start_tls(|settings| settings.refused_idle_timeout = Duration::from_millis(50));
    let (mut sender, connection) = narrow_client(&running, client, 512).await;
    running
        .tasks
        .spawn_service(async { drop(connection.await) });
    let known = sender.send_request(get("/known")).await.unwrap();
    let body = known.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "known");
    let _unread = sender.send_request(get("/endless")).await.unwrap();
    let dropped = tokio::time::timeout(Duration::from_secs(1), running.dropped.notified()).await;
    assert!(dropped.is_err(), "its answer is given up");
}

#[tokio::test]
async fn a_missing_certificate_is_named() {
    let mut settings = crate::downstream::samples::server("127.0.0.1:0", "https://localhost");
    settings.tls = Some(config::TlsConfig {
        cert: "/nowhere/cert.pem".into(),
        key: "/nowhere".into(),
        reload: Duration::from_secs(10),
    });
    let error = Listener::bind(&settings, 16 * 1024).unwrap_err();
    assert!(error.to_string().contains("/nowhere/cert.pem"), "{error}");
}
