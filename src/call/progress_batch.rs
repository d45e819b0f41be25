//! `ProgressBatch`: progress notifications of one call, handed on together.

use std::sync::Arc;

use bytes::Bytes;

use super::{Notice, NoticeKind};

/// Notifications in a burst before it is full.
const FULL: usize = 64;
/// Bytes in a burst before it is full. Notifications are slices of a shared buffer: a single kept
/// notification keeps the whole burst alive.
const FULL_BYTES: usize = 16 * 1024;
/// Notifications expected behind the first.
const USUAL: usize = 24;

/// Progress notifications of one call, oldest first, end to end in one buffer. Holds less than 16 KiB
/// besides the one that was pushed last.
#[derive(Debug, Default)]
pub struct ProgressBatch {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl ProgressBatch {
    /// Adds what `write` appends: one JSON-RPC message under the client's progress token.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        match self.ends.len() {
            // Positions are small: there is room for those of the usual burst at once.
            0 => self.ends.reserve(USUAL + 1),
            // A second notification predicts more of the same size.
            1 => self.text.reserve((self.text.len() * USUAL).min(FULL_BYTES)),
            _ => {}
        }
        write(&mut self.text);
        self.ends.push(self.text.len());
    }

    /// Whether the burst is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether the burst must be handed on before the next `push`.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.ends.len() >= FULL || self.text.len() >= FULL_BYTES
    }

    /// The notifications, for the client's progress token `token` (JSON text).
    pub fn notices(self, token: &Arc<str>) -> impl Iterator<Item = Notice> {
        let text = Bytes::from(self.text);
        let mut start = 0;
        self.ends.into_iter().map(move |end| Notice {
            kind: NoticeKind::Progress {
                token: Arc::clone(token),
            },
            bytes: text.slice(std::mem::replace(&mut start, end)..end),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burst(texts: &[&str]) -> ProgressBatch {
        let mut burst = ProgressBatch::default();
        for text in texts {
            burst.push(|out| out.extend_from_slice(text.as_bytes()));
        }
        burst
    }

    #[test]
    fn every_notification_comes_as_it_was_written() {
        let token: Arc<str> = "\"t\"".into();
        let notices: Vec<_> = burst(&["a", "", "ccc"]).notices(&token).collect();
        let kind = NoticeKind::Progress { token };
        let expected = ["a", "", "ccc"].map(|text| Notice {
            kind: kind.clone(),
            bytes: text.into(),
        });
        assert_eq!(notices, expected);
    }

    #[test]
    fn a_burst_is_full_at_a_number_and_at_a_size() {
        assert!(burst(&[]).is_empty() && !burst(&["a"]).is_empty());
        assert!(!burst(&["a"; FULL - 1]).is_full());
        assert!(burst(&["a"; FULL]).is_full());
        assert!(burst(&["a".repeat(FULL_BYTES).as_str()]).is_full());
    }
}
