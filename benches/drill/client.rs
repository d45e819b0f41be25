//! An MCP client on one connection: a session of 2025-11-25, or modern requests built by `modern.rs`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::said::Kind;
use crate::sse::{Decoder, Event};
use crate::wire::{Head, Wire, invalid};

/// Where an MCP endpoint is.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) addr: SocketAddr,
    pub(crate) path: String,
    /// The `Host` that names it.
    pub(crate) host: String,
}

impl Target {
    /// Takes a plain `http` URL with an address as host.
    pub(crate) fn parse(url: &str) -> anyhow::Result<Self> {
        let url = url::Url::parse(url)?;
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or(80);
        Ok(Self {
            addr: format!("{host}:{port}").parse()?,
            path: url.path().to_owned(),
            host: format!("{host}:{port}"),
        })
    }
}

/// Target of a session and the token of its caller.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) target: Target,
    /// A bearer token; `None` sends none.
    pub(crate) token: Option<Arc<str>>,
    /// How it describes itself.
    pub(crate) kind: Kind,
    /// What takes its requests in turn once it has a session; the target alone where there is none.
    pub(crate) entries: Arc<[SocketAddr]>,
}

impl Caller {
    /// Without a token.
    pub(crate) fn anonymous(target: Target) -> Self {
        Self {
            target,
            token: None,
            kind: Kind::default(),
            entries: Arc::default(),
        }
    }
}

/// One session.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) wire: Wire,
    /// Connections that get the next messages, before it is the turn of `wire` again.
    others: VecDeque<Wire>,
    pub(crate) caller: Caller,
    session: Option<String>,
    /// Head lines of the modern era.
    modern: String,
    /// Head lines common to all requests, without the request line.
    common: String,
    request: String,
    next_id: u64,
}

/// A reply, payload unread.
#[derive(Debug, Deserialize)]
pub(crate) struct Reply<'a> {
    #[serde(borrow)]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) result: Option<&'a RawValue>,
}

const REVISION: &str = "MCP-Protocol-Version: 2025-11-25\r\n";

impl Client {
    pub(crate) async fn connect(caller: Caller) -> io::Result<Self> {
        let wire = Wire::connect(caller.target.addr).await?;
        let mut client = Self {
            wire,
            others: VecDeque::new(),
            caller,
            session: None,
            modern: String::new(),
            common: String::new(),
            request: String::new(),
            next_id: 1,
        };
        client.compose();
        Ok(client)
    }

    /// Connects, and opens a session.
    pub(crate) async fn in_session(caller: Caller) -> io::Result<Self> {
        let mut client = Self::connect(caller).await?;
        client.open().await?;
        Ok(client)
    }

    /// A second connection to the same session.
    pub(crate) async fn beside(&self) -> io::Result<Self> {
        let mut other = Self::connect(self.caller.clone()).await?;
        other.session.clone_from(&self.session);
        // Ids must not meet those of the first connection.
        other.next_id = self.next_id + (1 << 32);
        other.compose();
        Ok(other)
    }

    fn set_session(&mut self, session: Option<String>) {
        self.session = session;
        self.compose();
    }

    fn compose(&mut self) {
        self.common = format!("Host: {}\r\n", self.caller.target.host);
        if let Some(token) = &self.caller.token {
            self.common.push_str("Authorization: Bearer ");
            self.common.push_str(token);
            self.common.push_str("\r\n");
        }
        if let Some(session) = &self.session {
            self.common.push_str("Mcp-Session-Id: ");
            self.common.push_str(session);
            self.common.push_str("\r\n");
            self.common.push_str(REVISION);
        }
        self.common.push_str(&self.modern);
    }

    /// From now on every request has these head lines, and no session.
    pub(crate) fn speak_modern(&mut self, lines: String) {
        self.modern = lines;
        self.set_session(None);
    }

    /// `initialize` and `notifications/initialized`.
    pub(crate) async fn open(&mut self) -> io::Result<()> {
        self.set_session(None);
        let (head, body) = self
            .request("initialize", &self.caller.kind.initialize())
            .await?;
        if head.status != 200 || head.session.is_none() {
            return Err(io::Error::other(format!(
                "initialize got {}: {}",
                head.status,
                String::from_utf8_lossy(&body)
            )));
        }
        self.set_session(head.session);
        let body = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let head = self.post(body).await?;
        if head.status != 202 {
            return Err(io::Error::other(format!("initialized got {}", head.status)));
        }
        self.spread().await
    }

    /// Connects to what takes the requests from now on.
    async fn spread(&mut self) -> io::Result<()> {
        let mut wires = VecDeque::new();
        for addr in self.caller.entries.iter() {
            wires.push_back(Wire::connect(*addr).await?);
        }
        if let Some(first) = wires.pop_front() {
            self.wire = first;
            self.others = wires;
        }
        Ok(())
    }

    /// Ends the session.
    pub(crate) async fn close(&mut self) -> io::Result<()> {
        let request = format!(
            "DELETE {} HTTP/1.1\r\n{}\r\n",
            self.caller.target.path, self.common
        );
        let head = self.wire.exchange(request.as_bytes()).await?;
        if !(200..300).contains(&head.status) {
            return Err(io::Error::other(format!("DELETE got {}", head.status)));
        }
        self.set_session(None);
        Ok(())
    }

    /// Posts one message; the response's body is still to be read.
    pub(crate) async fn post(&mut self, body: &str) -> io::Result<Head> {
        if let Some(next) = self.others.pop_front() {
            let last = std::mem::replace(&mut self.wire, next);
            self.others.push_back(last);
        }
        self.request.clear();
        let written = write!(
            self.request,
            "POST {} HTTP/1.1\r\n{}Accept: application/json, text/event-stream\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.caller.target.path,
            self.common,
            body.len()
        );
        written.map_err(io::Error::other)?;
        self.wire.exchange(self.request.as_bytes()).await
    }

    /// The id of the next request.
    pub(crate) fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Sends a request; its id is checked when the body is one JSON object.
    pub(crate) async fn request(
        &mut self,
        method: &str,
        params: &str,
    ) -> io::Result<(Head, Bytes)> {
        let id = self.take_id();
        let body = request_text(id, method, params);
        let head = self.post(&body).await?;
        let body = self.wire.rest().await?;
        Ok((head, body))
    }

    /// Calls `method` and returns the text of its `result`, from JSON or from an event stream.
    pub(crate) async fn result(&mut self, method: &str, params: &str) -> io::Result<String> {
        let id = self.next_id + 1;
        let (head, body) = self.request(method, params).await?;
        if head.status != 200 {
            let body = String::from_utf8_lossy(&body);
            return Err(io::Error::other(format!(
                "{method} got {}: {body}",
                head.status
            )));
        }
        if !head.is_events {
            return result_of(&body, id);
        }
        result_of(last_event(&body)?.as_bytes(), id)
    }

    /// The message that ends a response: a JSON body, or the last event of a stream, as which a
    /// late reply may come.
    pub(crate) async fn reply(&mut self, head: &Head) -> io::Result<Bytes> {
        let body = self.wire.rest().await?;
        if head.is_events {
            last_event(&body).map(Bytes::from)
        } else {
            Ok(body)
        }
    }

    /// Opens the GET stream, after `last` if given; the head's status is to be checked.
    pub(crate) async fn listen(&mut self, last: Option<&str>) -> io::Result<Head> {
        let last = last.map_or_else(String::new, |id| format!("Last-Event-ID: {id}\r\n"));
        let request = format!(
            "GET {} HTTP/1.1\r\n{}Accept: text/event-stream\r\n{last}\r\n",
            self.caller.target.path, self.common
        );
        self.wire.exchange(request.as_bytes()).await
    }

    /// The next event of an event stream; `None` at its proper end.
    pub(crate) async fn event(&mut self, decoder: &mut Decoder) -> io::Result<Option<Event>> {
        loop {
            if let Some(event) = decoder.next() {
                return Ok(Some(event));
            }
            match self.wire.chunk().await? {
                Some(bytes) => decoder.feed(&bytes),
                None => return Ok(None),
            }
        }
    }
}

/// The data of the last event that has any.
fn last_event(stream: &[u8]) -> io::Result<String> {
    let mut decoder = Decoder::default();
    decoder.feed(stream);
    std::iter::from_fn(|| decoder.next())
        .map(|event| event.data)
        .filter(|data| !data.is_empty())
        .last()
        .ok_or_else(|| invalid("the stream ended without a reply"))
}

/// The text of a request.
pub(crate) fn request_text(id: u64, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

/// The text of `result` in the reply to `id`.
pub(crate) fn result_of(body: &[u8], id: u64) -> io::Result<String> {
    result_slice(body, id).map(|result| result.get().to_owned())
}

/// `result` in the reply to `id`, borrowed.
pub(crate) fn result_slice(body: &[u8], id: u64) -> io::Result<&RawValue> {
    let reply: Reply<'_> =
        serde_json::from_slice(body).map_err(|_| invalid("the reply is not JSON"))?;
    if reply.id.is_none_or(|got| got.get() != id.to_string()) {
        return Err(invalid("the reply has another id"));
    }
    reply
        .result
        .ok_or_else(|| io::Error::other(format!("error reply: {}", String::from_utf8_lossy(body))))
}
