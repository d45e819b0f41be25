//! A single connection for all messages of a client: HTTP+SSE and WebSocket.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::cells::{Cell, Front};
use crate::harness::Actor;
use crate::harness::connection::EventSession;
use crate::harness::http::initialize;
use crate::harness::socket::Socket;

/// Names the request that subscribed to the change.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// Capacity for unread messages of one exchange.
const UNREAD: usize = 1000;

/// One connection, of a legacy client with an initialized session. Dropping it breaks the
/// connection.
pub(super) struct Line {
    /// The result of `initialize`, if the client sends `initialize`.
    pub(super) hello: Option<Value>,
    sending: Sending,
    calls: Calls,
    /// Messages received while no call ran.
    pub(super) general: tokio::sync::Mutex<mpsc::Receiver<Value>>,
    reading: JoinHandle<()>,
}

/// How a message leaves.
enum Sending {
    /// By a POST to this URL.
    Post(Box<Actor>, String),
    /// On the socket.
    Frames(mpsc::Sender<Value>),
}

/// Running calls, the newest last.
type Calls = Arc<Mutex<Vec<(i64, mpsc::Sender<Value>)>>>;

impl Drop for Line {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Line {
    /// Connects, and initializes where the revision has that.
    pub(super) async fn open(actor: &Actor, base: &str, cell: Cell, capabilities: &Value) -> Self {
        let calls = Calls::default();
        let (sender, general) = mpsc::channel(UNREAD);
        let incoming = Incoming {
            calls: Arc::clone(&calls),
            general: sender,
        };
        let path = cell.path();
        let revision = cell.client.wire();
        let (hello, sending, reading) = if cell.front == Front::Socket {
            let mut socket = Socket::connect(base, &path, actor.token()).await;
            let hello = if cell.client.is_modern() {
                None
            } else {
                socket.tell(&initialize(1, revision, capabilities)).await;
                Some(socket.reply(1).await.1.expect("initialize succeeds"))
            };
            let (sender, mut outgoing) = mpsc::channel::<Value>(UNREAD);
            let reading = tokio::spawn(async move {
                loop {
                    tokio::select! {
                        Some(message) = outgoing.recv() => socket.tell(&message).await,
                        message = socket.message() => match message {
                            Some(message) => incoming.take(message),
                            None => return,
                        },
                    }
                }
            });
            (hello, Sending::Frames(sender), reading)
        } else {
            let opened = EventSession::open_as(actor, &path, revision, capabilities).await;
            let (
                EventSession {
                    mut stream,
                    post_to,
                    ..
                },
                hello,
            ) = opened;
            let reading = tokio::spawn(async move {
                while let Some(message) = stream.message().await {
                    incoming.take(message);
                }
            });
            (
                Some(hello),
                Sending::Post(Box::new(actor.clone()), post_to),
                reading,
            )
        };
        let line = Self {
            hello,
            sending,
            calls,
            general: tokio::sync::Mutex::new(general),
            reading,
        };
        if cell.front == Front::Socket && !cell.client.is_modern() {
            let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
            line.send(initialized).await;
        }
        line
    }

    /// The URL for POSTs, if the carrier has one.
    pub(super) fn url(&self) -> &str {
        match &self.sending {
            Sending::Post(_, url) => url,
            Sending::Frames(_) => panic!("a socket has no such URL"),
        }
    }

    /// Sends one message; its HTTP status, 202 where there is none.
    pub(super) async fn send(&self, message: Value) -> u16 {
        match &self.sending {
            Sending::Post(actor, url) => actor.post(url, &[], &message).await.status(),
            Sending::Frames(frames) => {
                frames.send(message).await.unwrap();
                202
            }
        }
    }

    /// Receiver of the messages of the call `id`.
    pub(super) fn expect(&self, id: i64) -> mpsc::Receiver<Value> {
        let (sender, messages) = mpsc::channel(UNREAD);
        self.calls.lock().unwrap().push((id, sender));
        messages
    }
}

/// Routes arriving messages.
struct Incoming {
    calls: Calls,
    general: mpsc::Sender<Value>,
}

impl Incoming {
    /// Sends a reply to its call, a change to its subscription, and a message that names neither to the newest running
    /// call.
    fn take(&self, message: Value) {
        let mut calls = self.calls.lock().unwrap();
        calls.retain(|(_, call)| !call.is_closed());
        let is_reply = message.get("method").is_none();
        let subscription = &message["params"]["_meta"][SUBSCRIPTION];
        let named = if is_reply {
            &message["id"]
        } else {
            subscription
        };
        let place = if named.is_null() {
            calls.len().checked_sub(1)
        } else {
            calls.iter().position(|(id, _)| named == id)
        };
        let sent = match place {
            Some(place) if is_reply => calls.remove(place).1.try_send(message),
            Some(place) => calls[place].1.try_send(message),
            None => self.general.try_send(message),
        };
        // The receiver may have been dropped.
        sent.unwrap_or_default();
    }
}
