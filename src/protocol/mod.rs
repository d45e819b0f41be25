//! Bytes and rules of MCP. Imports nothing of ours.

mod revision;

pub use revision::{Era, Revision};

use bytes::Bytes;

/// stub
#[derive(Debug, Clone)]
pub struct Message(Bytes);

impl Message {
    /// stub
    pub fn result(&self) -> Option<&str> {
        None
    }
    /// stub
    pub fn error(&self) -> Option<&str> {
        None
    }
    /// stub
    pub fn with_id(&self, _id: &str) -> Bytes {
        self.0.clone()
    }
}
