//! How deep a message may nest that the gateway has edited.

use bytes::Bytes;

use crate::fault::Fault;
use crate::protocol::Message;

/// Depth limit for edited messages: an edit wraps what arrived within `limits.json_depth` at most twice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EditDepth(usize);

impl EditDepth {
    /// The limit where messages arrive with at most `json_depth` levels.
    pub(crate) fn new(json_depth: usize) -> Self {
        Self(json_depth + 2)
    }

    /// Parses an edited message.
    ///
    /// # Errors
    /// An internal [`Fault`] if the edit made no message of it.
    pub(crate) fn parse(self, bytes: Bytes) -> Result<Message, Fault> {
        Message::parse(bytes, self.0).map_err(Fault::internal)
    }
}
