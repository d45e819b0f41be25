//! `LogEntry`: consecutive events of one stream, as one sealed entry of the shared log.

use bytes::Bytes;

use super::super::{LoggedEvent, SessionKey};
use crate::seal::{SealPurpose, Sealer};

/// Bytes before the lengths: stream, position of the first event, flags, number of events. Behind the payloads the calls
/// of the stream follow, where a flag says so.
const HEAD: usize = 4 + 8 + 1 + 2;
/// The flag of an entry whose last event ends the stream.
const ENDS_STREAM: u8 = 1;
/// The flag of an entry that names the calls of its stream.
const NAMES_CALLS: u8 = 2;

/// Events of one stream with consecutive positions; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogEntry {
    /// The stream's number in the session.
    pub(super) stream: u32,
    /// The events, oldest first.
    pub(super) events: Vec<LoggedEvent>,
    /// JSON array of the ids of the calls whose stream it is; empty where they are not known, or need not be.
    pub(super) calls: Bytes,
}

impl LogEntry {
    /// The entry as it stands in the log of `session` under `number`; opens nowhere else. `None` for no events
    /// or more than 65,535.
    pub(super) fn seal(
        &self,
        sealer: &Sealer,
        session: SessionKey,
        number: u64,
    ) -> Option<Vec<u8>> {
        let plain = self.encode()?;
        Some(sealer.seal_bytes(SealPurpose::EventLog, &place(session, number), &plain))
    }

    /// Opens an entry that stands in the log of `session` under `number`. `None` if it was made for another place,
    /// by another key, or in a format that this release does not know.
    pub(super) fn open(
        sealer: &Sealer,
        session: SessionKey,
        number: u64,
        content: &[u8],
    ) -> Option<Self> {
        let place = place(session, number);
        Self::decode(&Bytes::from(sealer.open_bytes(
            SealPurpose::EventLog,
            &place,
            content,
        )?))
    }

    fn encode(&self) -> Option<Vec<u8>> {
        let first = self.events.first()?.seq;
        let count = u16::try_from(self.events.len()).ok()?;
        let ends_stream = self.events.last().is_some_and(|event| event.last);
        let payloads: usize = self.events.iter().map(|event| event.payload.len()).sum();
        let mut plain = Vec::with_capacity(HEAD + 4 * self.events.len() + payloads);
        plain.extend_from_slice(&self.stream.to_be_bytes());
        plain.extend_from_slice(&first.to_be_bytes());
        let names_calls = !self.calls.is_empty();
        plain.push(u8::from(ends_stream) * ENDS_STREAM + u8::from(names_calls) * NAMES_CALLS);
        plain.extend_from_slice(&count.to_be_bytes());
        for event in &self.events {
            let length = u32::try_from(event.payload.len()).ok()?;
            plain.extend_from_slice(&length.to_be_bytes());
        }
        for event in &self.events {
            plain.extend_from_slice(&event.payload);
        }
        plain.extend_from_slice(&self.calls);
        Some(plain)
    }

    fn decode(plain: &Bytes) -> Option<Self> {
        let (stream, rest) = plain.split_first_chunk()?;
        let (first, rest) = rest.split_first_chunk()?;
        let ([flags], rest) = rest.split_first_chunk()?;
        let (count, mut lengths) = rest.split_first_chunk()?;
        let count = usize::from(u16::from_be_bytes(*count));
        let first = u64::from_be_bytes(*first);
        let mut at = HEAD + 4 * count;
        let mut events = Vec::with_capacity(count);
        for seq in (first..).take(count) {
            let (length, rest) = lengths.split_first_chunk()?;
            lengths = rest;
            let end = at.checked_add(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
            if end > plain.len() {
                return None;
            }
            events.push(LoggedEvent {
                seq,
                payload: plain.slice(at..end),
                last: false,
            });
            at = end;
        }
        let last = events.last_mut()?;
        last.last = flags & ENDS_STREAM != 0;
        let calls = plain.slice(at..);
        (calls.is_empty() != (flags & NAMES_CALLS != 0)).then_some(Self {
            stream: u32::from_be_bytes(*stream),
            events,
            calls,
        })
    }
}

/// The place of an entry, authenticated with its content.
fn place(session: SessionKey, number: u64) -> [u8; 24] {
    let mut place = [0; 24];
    let (key, at) = place.split_at_mut(session.len());
    key.copy_from_slice(&session);
    at.copy_from_slice(&number.to_be_bytes());
    place
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SESSION: SessionKey = [3; 16];

    fn entry(stream: u32, first: u64, payloads: &[&'static str], ends: bool) -> LogEntry {
        let mut events: Vec<LoggedEvent> = payloads
            .iter()
            .zip(first..)
            .map(|(text, seq)| LoggedEvent {
                seq,
                ..LoggedEvent::of((*text).into())
            })
            .collect();
        if let Some(last) = events.last_mut() {
            last.last = ends;
        }
        LogEntry {
            stream,
            events,
            calls: Bytes::new(),
        }
    }

    #[test]
    fn sealed_entry_opens_at_its_own_place_only() {
        let sealer = Sealer::new(&[]).unwrap();
        let entry = entry(7, 1 << 37, &["a", "", "secret"], true);
        let content = entry.seal(&sealer, SESSION, 9).unwrap();
        assert!(!content.windows(6).any(|part| part == b"secret"));
        let open = |session, number| LogEntry::open(&sealer, session, number, &content);
        assert_eq!(open(SESSION, 9), Some(entry));
        assert_eq!(open(SESSION, 10), None);
        assert_eq!(open([4; 16], 9), None);
        let other = Sealer::new(&[]).unwrap();
        assert_eq!(LogEntry::open(&other, SESSION, 9, &content), None);
    }

    #[test]
    fn format_of_version_1_stays_as_it_is() {
        let entry = entry(2, 5, &["ab", "c"], true);
        let plain = entry.encode().unwrap();
        let expected = b"\0\0\0\x02\0\0\0\0\0\0\0\x05\x01\0\x02\0\0\0\x02\0\0\0\x01abc";
        assert_eq!(plain, expected);
        assert_eq!(LogEntry::decode(&Bytes::from_static(expected)), Some(entry));
    }

    #[test]
    fn calls_of_a_stream_read_back() {
        let entry = LogEntry {
            calls: Bytes::from_static(br#"[7,"x"]"#),
            ..entry(2, 5, &["ab"], false)
        };
        let plain = Bytes::from(entry.encode().unwrap());
        assert_eq!(LogEntry::decode(&plain), Some(entry));
        let without = plain.slice(..plain.len() - br#"[7,"x"]"#.len());
        assert_eq!(LogEntry::decode(&without), None);
    }

    #[test]
    fn truncated_and_overlong_entries_are_refused() {
        let plain = entry(2, 5, &["ab", "c"], false).encode().unwrap();
        for end in 0..plain.len() {
            assert_eq!(LogEntry::decode(&plain[..end].to_vec().into()), None);
        }
        let longer = [&plain[..], b"x"].concat();
        assert_eq!(LogEntry::decode(&longer.into()), None);
        assert_eq!(entry(2, 5, &[], false).encode(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(plain: Vec<u8>) {
            let plain = Bytes::from(plain);
            if let Some(entry) = LogEntry::decode(&plain) {
                prop_assert!(!entry.events.is_empty());
            }
        }
    }
}
