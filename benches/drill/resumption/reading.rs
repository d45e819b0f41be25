//! Reads a stream across several connections, and breaks the connections.

use std::io;
use std::time::Duration;

use serde_json::Value;

use super::worker::Worker;
use crate::client::Client;
use crate::sse::{Decoder, Event};
use crate::wire::{PATIENCE, invalid};

/// Where a connection is to be broken.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cut {
    Never,
    /// After so many bytes of the body.
    Bytes(usize),
    /// After so long.
    After(Duration),
}

/// One stream as the client has seen it, over all its connections.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) last_id: Option<String>,
    /// What the messages carried, in order of arrival.
    pub(super) numbers: Vec<u64>,
    pub(super) reply: Option<String>,
}

impl Worker {
    /// Reads until the stream ends (true) or is to be broken (false).
    pub(super) async fn read(
        &mut self,
        from: &mut Client,
        seen: &mut Seen,
        cut: Cut,
    ) -> io::Result<bool> {
        self.read_until(from, seen, cut, |_| false).await
    }

    /// The same, but stops (false) when `enough` says so.
    pub(super) async fn read_until(
        &mut self,
        from: &mut Client,
        seen: &mut Seen,
        cut: Cut,
        enough: impl Fn(&Seen) -> bool,
    ) -> io::Result<bool> {
        let (mut budget, patience) = match cut {
            Cut::Never => (usize::MAX, PATIENCE),
            Cut::Bytes(bytes) => (bytes, PATIENCE),
            Cut::After(after) => (usize::MAX, after),
        };
        let end = tokio::time::Instant::now() + patience;
        let mut decoder = Decoder::default();
        while !enough(seen) {
            let Ok(chunk) = tokio::time::timeout_at(end, from.wire.chunk()).await else {
                if matches!(cut, Cut::After(_)) {
                    return Ok(false);
                }
                return Err(invalid("the stream went silent"));
            };
            let Some(chunk) = chunk? else {
                return Ok(true);
            };
            let taken = chunk.len().min(budget);
            budget -= taken;
            decoder.feed(chunk.get(..taken).unwrap_or_default());
            while let Some(event) = decoder.next() {
                self.take(event, seen);
            }
            if budget == 0 {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn take(&mut self, event: Event, seen: &mut Seen) {
        self.totals.events += 1;
        if let Some(id) = event.id {
            // An event without data only says where the stream stands.
            let new = event.data.is_empty() || self.ids.insert(id.clone());
            self.outcome
                .check(new, || format!("event id {id} came twice"));
            seen.last_id = Some(id);
        }
        if event.data.is_empty() {
            return;
        }
        let Ok(message) = serde_json::from_str::<Value>(&event.data) else {
            self.outcome.violation(format!("not JSON: {}", event.data));
            return;
        };
        match message.get("method").and_then(Value::as_str) {
            Some("notifications/message") => {
                // "entry 5" on the session's stream, "5 of 20 xxx" on a call's.
                let text = message.pointer("/params/data").and_then(Value::as_str);
                let number = text.and_then(|text| {
                    let text = text.strip_prefix("entry ").unwrap_or(text);
                    text.split(' ').next()?.parse().ok()
                });
                seen.numbers.push(number.unwrap_or(0));
            }
            Some(method) => self.outcome.violation(format!("unexpected {method}")),
            None if seen.reply.is_some() => self.outcome.violation("a reply came twice"),
            None => seen.reply = Some(event.data),
        }
    }
}
