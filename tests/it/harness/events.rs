//! Server-sent events as a client reads them.

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use super::within;

/// One event, or a comment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) data: Option<String>,
    pub(crate) retry: Option<u64>,
    pub(crate) comment: Option<String>,
}

impl Event {
    /// The JSON-RPC message it carries.
    pub(crate) fn message(&self) -> Option<Value> {
        let data = self.data.as_deref().filter(|data| !data.is_empty())?;
        Some(serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data:?}")))
    }
}

/// An open event stream. Dropping it drops the connection.
pub(crate) struct EventStream {
    body: Incoming,
    buffer: Vec<u8>,
    /// How much of the buffer is known to hold no end of an event: a large event comes in many pieces.
    searched: usize,
    /// The newest id received.
    pub(crate) last_id: Option<String>,
    /// The newest reconnection time received.
    pub(crate) retry: Option<u64>,
}

impl EventStream {
    pub(crate) fn new(body: Incoming) -> Self {
        Self {
            body,
            buffer: Vec::new(),
            searched: 0,
            last_id: None,
            retry: None,
        }
    }

    /// The next event or comment; `None` when the stream ended properly or broke.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        within("the next event", self.read()).await
    }

    /// The next JSON-RPC message, comments and empty events skipped.
    pub(crate) async fn message(&mut self) -> Option<Value> {
        // Comments come as long as the stream lives: they do not prolong the wait.
        within("the next message", async {
            while let Some(event) = self.read().await {
                if let Some(message) = event.message() {
                    return Some(message);
                }
            }
            None
        })
        .await
    }

    /// The next message with this method; others are dropped.
    pub(crate) async fn until(&mut self, method: &str) -> Value {
        loop {
            let message = self.message().await;
            let message = message.unwrap_or_else(|| panic!("the stream ended before {method}"));
            if message["method"] == method {
                return message;
            }
        }
    }

    async fn read(&mut self) -> Option<Event> {
        loop {
            if self.buffer.first() == Some(&b':')
                && let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n')
            {
                // A comment is a line of its own.
                self.searched = 0;
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(parse(std::str::from_utf8(&line).unwrap()));
            }
            // The end may stand across two pieces.
            let from = self.searched.saturating_sub(1);
            let mut pairs = self.buffer[from..].windows(2);
            if let Some(end) = pairs.position(|pair| pair == b"\n\n") {
                let end = from + end;
                self.searched = 0;
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let event = parse(std::str::from_utf8(&block).unwrap());
                self.last_id = event.id.clone().or(self.last_id.take());
                self.retry = event.retry.or(self.retry);
                return Some(event);
            }
            self.searched = self.buffer.len();
            let frame = self.body.frame().await?.ok()?;
            self.buffer.extend_from_slice(&frame.into_data().ok()?);
        }
    }
}

fn parse(block: &str) -> Event {
    let mut event = Event::default();
    for line in block.lines().filter(|line| !line.is_empty()) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
        match field {
            "" => event.comment = Some(value),
            "id" => event.id = Some(value),
            "event" => event.name = Some(value),
            "retry" => event.retry = Some(value.parse().unwrap()),
            "data" => {
                event.data = Some(match event.data.take() {
                    Some(before) => format!("{before}\n{value}"),
                    None => value,
                });
            }
            other => panic!("an unknown field {other:?} in {block:?}"),
        }
    }
    event
}
