//! A WebSocket client with the upgrade written by hand, so that tests can spoil every part of the handshake.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};

use super::http::{everything, initialize};
use super::session::{Reply, reply_of};
use super::within;

/// The headers of a good upgrade.
pub(crate) const UPGRADE: &[(&str, &str)] = &[
    ("connection", "upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("sec-websocket-protocol", "mcp"),
];

/// An open socket.
pub(crate) struct Socket {
    stream: WebSocketStream<TcpStream>,
    next: AtomicI64,
}

/// Asks for an upgrade; the head of the answer, and the connection. `changes` replace headers.
pub(crate) async fn upgrade(
    base: &str,
    path: &str,
    token: Option<&str>,
    changes: &[(&str, &str)],
) -> (String, TcpStream) {
    let host = base.strip_prefix("http://").unwrap();
    let mut tcp = TcpStream::connect(host).await.unwrap();
    let mut head = format!("GET {path} HTTP/1.1\r\n");
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut headers: Vec<(&str, &str)> = vec![("host", host)];
    headers.extend(bearer.as_deref().map(|value| ("authorization", value)));
    headers.extend(UPGRADE);
    headers.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    headers.extend(changes.iter().filter(|(_, value)| !value.is_empty()));
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    tcp.write_all(format!("{head}\r\n").as_bytes())
        .await
        .unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let byte = within("the head of an answer", tcp.read_u8()).await;
        answer.push(byte.unwrap());
    }
    (String::from_utf8(answer).unwrap(), tcp)
}

impl Socket {
    /// Opens a socket and says nothing yet.
    pub(crate) async fn connect(base: &str, path: &str, token: Option<&str>) -> Self {
        let (head, tcp) = upgrade(base, path, token, &[]).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        Self::upgraded(tcp).await
    }

    /// The socket on a connection that was upgraded.
    pub(crate) async fn upgraded(tcp: TcpStream) -> Self {
        Self {
            stream: WebSocketStream::from_raw_socket(tcp, Role::Client, None).await,
            next: AtomicI64::new(2),
        }
    }

    /// An initialized session that can be asked everything.
    pub(crate) async fn open(base: &str, path: &str, token: Option<&str>) -> Self {
        let mut socket = Self::connect(base, path, token).await;
        socket.initialize().await;
        socket
    }

    /// Opens the session of a client that can be asked everything.
    pub(crate) async fn initialize(&mut self) {
        self.tell(&initialize(1, "2025-11-25", &everything())).await;
        self.reply(1).await.1.expect("initialize succeeds");
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.tell(&initialized).await;
    }

    /// The connection below the frames.
    pub(crate) fn raw(&mut self) -> &mut TcpStream {
        self.stream.get_mut()
    }

    /// Sends one frame.
    pub(crate) async fn send(&mut self, frame: Message) {
        within("sending a frame", self.stream.send(frame))
            .await
            .unwrap();
    }

    /// Sends one message.
    pub(crate) async fn tell(&mut self, message: &Value) {
        self.send(Message::text(message.to_string())).await;
    }

    /// The next frame; `None` when the connection broke without a close frame.
    pub(crate) async fn frame(&mut self) -> Option<Message> {
        within("the next frame", self.stream.next()).await?.ok()
    }

    /// The next JSON-RPC message; `None` at the end.
    pub(crate) async fn message(&mut self) -> Option<Value> {
        loop {
            match self.frame().await? {
                Message::Text(text) => return Some(serde_json::from_str(&text).unwrap()),
                Message::Close(_) => return None,
                _ => {}
            }
        }
    }

    /// The code that the gateway closes with.
    pub(crate) async fn closed(&mut self) -> Option<u16> {
        loop {
            if let Message::Close(close) = self.frame().await? {
                return Some(close?.code.into());
            }
        }
    }

    /// Sends a request; its id.
    pub(crate) async fn start(&mut self, method: &str, params: Value) -> i64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.tell(&request).await;
        id
    }

    /// Messages before the reply to `id`, and the reply.
    pub(crate) async fn reply(&mut self, id: i64) -> (Vec<Value>, Reply) {
        let mut before = Vec::new();
        while let Some(message) = self.message().await {
            if message["id"] == id && message.get("method").is_none() {
                return (before, reply_of(message));
            }
            before.push(message);
        }
        panic!("the socket ended without a reply, after {before:?}");
    }

    /// Calls a tool and waits for its reply.
    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> Reply {
        let params = json!({"name": tool, "arguments": arguments});
        let id = self.start("tools/call", params).await;
        self.reply(id).await.1
    }
}
