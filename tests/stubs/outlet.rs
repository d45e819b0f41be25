//! Destination of messages to the client: lines on stdout, or one event stream.

use std::io::{Stdout, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use crate::modern::Listens;
use crate::stream::{Event, Stream};
use crate::world::locked;

/// Destination of messages to the client.
#[derive(Debug, Clone)]
pub(crate) enum Outlet {
    /// The one line stream of a stdio server.
    Lines(Arc<Mutex<Stdout>>),
    /// An event stream.
    Events(Arc<Stream>),
    /// The one stream of an HTTP+SSE session or a socket, which outlives calls.
    Shared(Arc<Stream>),
    /// All streams of `subscriptions/listen`.
    Listens(Arc<Listens>),
}

impl Outlet {
    /// Sends one message.
    pub(crate) fn message(&self, json: String) {
        match self {
            Self::Lines(_) => self.raw((json + "\n").as_bytes()),
            Self::Events(stream) | Self::Shared(stream) => {
                stream.push(Event::Message(json.into()));
            }
            Self::Listens(listens) => listens.announce(&json),
        }
    }

    /// Sends the last message of a call, if there is one, and ends its stream.
    pub(crate) fn finish(&self, json: Option<String>) {
        if let Some(json) = json {
            self.message(json);
        }
        if let Self::Events(stream) = self {
            stream.end();
        }
    }

    /// Sends raw bytes.
    pub(crate) fn raw(&self, bytes: &[u8]) {
        match self {
            Self::Lines(stdout) => {
                let mut stdout = locked(stdout);
                // A reader that has gone shows as end of input.
                let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
                written.unwrap_or_default();
            }
            Self::Events(stream) | Self::Shared(stream) => {
                stream.push(Event::Raw(Bytes::copy_from_slice(bytes)));
            }
            Self::Listens(_) => {}
        }
    }

    /// Sends one message in many small writes.
    pub(crate) fn message_in_pieces(&self, json: &str) {
        let size = json.len().div_ceil(50).max(1);
        match self {
            Self::Lines(stdout) => {
                // Hold the lock of stdout: another thread must not write in the middle of the line.
                let mut stdout = locked(stdout);
                for piece in json.as_bytes().chunks(size).chain([&b"\n"[..]]) {
                    let written = stdout.write_all(piece).and_then(|()| stdout.flush());
                    written.unwrap_or_default();
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Self::Events(stream) | Self::Shared(stream) => {
                let framed = format!("event: message\ndata: {json}\n\n");
                for piece in framed.as_bytes().chunks(size) {
                    stream.push(Event::Raw(Bytes::copy_from_slice(piece)));
                    stream.push(Event::Pause);
                }
            }
            Self::Listens(_) => {}
        }
    }

    /// Sends `event` on an event stream; nothing on stdio.
    pub(crate) fn event(&self, event: Event) {
        if let Self::Events(stream) | Self::Shared(stream) = self {
            stream.push(event);
        }
    }
}
