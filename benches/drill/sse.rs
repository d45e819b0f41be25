//! Reading an event stream.

use bytes::{Buf as _, BytesMut};

/// One event.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) data: String,
}

/// Cuts bytes into events.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    input: BytesMut,
}

impl Decoder {
    /// Takes bytes as they come.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// The next complete event; comments alone are none.
    pub(crate) fn next(&mut self) -> Option<Event> {
        loop {
            let end = self.input.windows(2).position(|window| window == b"\n\n")?;
            let block = self.input.split_to(end);
            self.input.advance(2);
            let text = String::from_utf8_lossy(&block);
            let mut event = Event::default();
            let mut is_event = false;
            for line in text.lines() {
                let (name, value) = line.split_once(':').unwrap_or((line, ""));
                let value = value.strip_prefix(' ').unwrap_or(value);
                is_event |= !name.is_empty();
                match name {
                    "id" => event.id = Some(value.to_owned()),
                    "data" => event.data.push_str(value),
                    _ => {}
                }
            }
            if is_event {
                return Some(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_any_cut_and_comments_are_skipped() {
        let text = b": hi\n\nid: a-1\nretry: 5\ndata: \n\nevent: message\ndata: {\"a\":1}\n\n";
        for cut in 0..text.len() {
            let mut decoder = Decoder::default();
            let mut events = Vec::new();
            for part in [&text[..cut], &text[cut..]] {
                decoder.feed(part);
                events.extend(std::iter::from_fn(|| decoder.next()));
            }
            assert_eq!(events.len(), 2, "cut at {cut}");
            assert_eq!(events[0].id.as_deref(), Some("a-1"));
            assert_eq!(events[1].data, r#"{"a":1}"#);
        }
    }
}
