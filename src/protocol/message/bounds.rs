//! `MessageBounds`: how deep a message may be, and how many values it may have.

use super::super::json::{self, JsonScanner};

/// Bounds of a message beside its size in bytes. A plain number is the bound of its depth, with any number of values.
#[derive(Debug, Clone, Copy)]
pub struct MessageBounds {
    /// How deep its containers may nest; never deeper than [`json::MAX_DEPTH`].
    pub depth: usize,
    /// How many values a message may have below the members that are read. A value of two bytes costs about ten times as
    /// much time as two bytes of a string.
    pub values: usize,
}

impl From<usize> for MessageBounds {
    fn from(depth: usize) -> Self {
        Self {
            depth,
            values: usize::MAX,
        }
    }
}

impl MessageBounds {
    /// A scanner of `text` within the bounds, with `more` levels around each message.
    pub(super) fn scanner(self, text: &str, more: usize) -> JsonScanner<'_> {
        let depth = self.depth.min(json::MAX_DEPTH) + more;
        JsonScanner::new(text, depth).with_values(self.values)
    }
}
