//! Upstreams over HTTP/2: a call that the upstream has provably not read is sent again, any other call is not. Spec:
//! RFC 9113 §8.7; SPEC M-44, U-12.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::to_bytes;
use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::Request;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::harness::tunnel::TlsFront;
use crate::harness::{Gateway, Session, Setup, eventually, within};
use crate::unsteady_upstream::usual;

/// Length of an HTTP/2 client's connection preface.
const PREFACE: usize = 24;
/// Types of frames.
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// A server over HTTP/2 that treats a call as the name of its tool says.
#[derive(Debug, Clone, Default)]
struct Server {
    /// How often each tool ran.
    runs: Arc<Mutex<HashMap<String, usize>>>,
    /// Calls that were turned away unread.
    unread: Arc<AtomicUsize>,
    /// Whether the next connection is told to leave before its first request.
    says_goodbye: Arc<AtomicBool>,
    /// Ends the present connections, with their running calls.
    leave: Arc<Notify>,
}

impl Server {
    /// A gateway before it.
    async fn behind(&self) -> (Gateway, TlsFront) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let front = TlsFront::over_http2(listener.local_addr().unwrap().port()).await;
        let this = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if this.says_goodbye.swap(false, Ordering::SeqCst) {
                    tokio::spawn(say_goodbye(stream, Arc::clone(&this.unread)));
                } else {
                    tokio::spawn(this.clone().converse(stream));
                }
            }
        });
        let url = format!("https://localhost:{}/mcp", front.port);
        let ca_file = front.ca_file();
        let keys = format!("era = \"legacy\"\nca_file = \"{}\"", ca_file.display());
        (Setup::open().url("up", &url, &keys).start().await, front)
    }

    async fn converse(self, stream: TcpStream) -> Result<(), h2::Error> {
        let mut connection = h2::server::handshake(stream).await?;
        loop {
            tokio::select! {
                exchange = connection.accept() => match exchange {
                    Some(exchange) => {
                        let (request, respond) = exchange?;
                        tokio::spawn(self.clone().answer(request, respond));
                    }
                    None => return Ok(()),
                },
                () = self.leave.notified() => connection.graceful_shutdown(),
            }
        }
    }

    async fn answer(
        self,
        request: Request<h2::RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) -> Result<(), h2::Error> {
        let (head, mut body) = request.into_parts();
        let mut text = Vec::new();
        while let Some(piece) = body.data().await {
            let piece = piece?;
            body.flow_control().release_capacity(piece.len())?;
            text.extend_from_slice(&piece);
        }
        let message: Value = serde_json::from_slice(&text).unwrap_or_default();
        let tool = message["params"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if tool.starts_with("refused") && !self.has_refused(&tool) {
            self.unread.fetch_add(1, Ordering::SeqCst);
            respond.send_reset(Reason::REFUSED_STREAM);
            return Ok(());
        }
        if !tool.is_empty() {
            *self.runs.lock().unwrap().entry(tool.clone()).or_default() += 1;
        }
        if tool.starts_with("broken") {
            respond.send_reset(Reason::INTERNAL_ERROR);
            return Ok(());
        }
        let (mut head, body) = usual(&head.method, &message).into_parts();
        head.version = http::Version::HTTP_2;
        let body = to_bytes(body, 1 << 20).await.unwrap();
        let response = http::Response::from_parts(head, ());
        let mut sending = respond.send_response(response, body.is_empty())?;
        if !body.is_empty() {
            sending.send_data(body, true)?;
        }
        if tool == "leave" {
            self.says_goodbye.store(true, Ordering::SeqCst);
            self.leave.notify_waiters();
        }
        Ok(())
    }

    /// Whether a call of this tool was refused before; records a refusal.
    fn has_refused(&self, tool: &str) -> bool {
        let mut runs = self.runs.lock().unwrap();
        let seen = runs.contains_key(tool);
        runs.entry(tool.to_owned()).or_default();
        seen
    }

    fn runs(&self, tool: &str) -> usize {
        self.runs
            .lock()
            .unwrap()
            .get(tool)
            .copied()
            .unwrap_or_default()
    }

    fn unread(&self) -> usize {
        self.unread.load(Ordering::SeqCst)
    }
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, 0, 0, 0, 0, 0], payload].concat()
}

/// Answers the first request with the news that none was read: the last stream is 0.
async fn say_goodbye(mut stream: TcpStream, unread: Arc<AtomicUsize>) -> std::io::Result<()> {
    stream.read_exact(&mut [0; PREFACE]).await?;
    stream.write_all(&frame(SETTINGS, &[])).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await?;
        if head[3] == HEADERS {
            unread.fetch_add(1, Ordering::SeqCst);
            // The last stream that was read, and NO_ERROR.
            stream.write_all(&frame(GOAWAY, &[0; 8])).await?;
        }
    }
}

async fn call(user: &Session, tool: &str) -> String {
    let reply = within(tool, user.call(tool, json!({}))).await;
    reply.map_or_else(|error| error.to_string(), |result| result.to_string())
}

#[tokio::test]
async fn call_on_a_refused_stream_is_sent_again() {
    let server = Server::default();
    let (gw, _front) = server.behind().await;
    let user = gw.anonymous().open("/mcp/up").await;
    for round in 1..=5 {
        let tool = format!("refused-{round}");
        let said = call(&user, &tool).await;
        assert!(said.contains("done"), "{said}");
        assert_eq!(server.runs(&tool), 1);
        assert_eq!(server.unread(), round, "it was refused once");
    }
    gw.stop().await;
}

#[tokio::test]
async fn call_behind_a_goodbye_is_sent_again() {
    let server = Server::default();
    let (gw, _front) = server.behind().await;
    let user = gw.anonymous().open("/mcp/up").await;
    let mut round = 0;
    eventually("a call on a connection that is ending", async || {
        assert!(call(&user, "leave").await.contains("done"));
        round += 1;
        let tool = format!("after-{round}");
        // If the older connection took the call, the next round tries again.
        let said = call(&user, &tool).await;
        assert!(said.contains("done"), "{said}");
        assert_eq!(server.runs(&tool), 1);
        (server.unread() > 0).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC M-44: it may have run.
#[tokio::test]
async fn call_on_a_broken_stream_is_not_sent_again() {
    let server = Server::default();
    let (gw, _front) = server.behind().await;
    let user = gw.anonymous().open("/mcp/up").await;
    let said = call(&user, "broken").await;
    assert!(
        said.contains("whether the request ran is unknown"),
        "{said}"
    );
    assert_eq!(server.runs("broken"), 1);
    assert!(call(&user, "next").await.contains("done"));
    gw.stop().await;
}
