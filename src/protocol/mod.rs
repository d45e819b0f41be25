//! Bytes and rules of MCP: messages, revisions, methods, event streams. Imports nothing of ours.

mod decode_error;
mod id;
pub mod json;
mod message;
mod revision;

pub use decode_error::DecodeError;
pub use id::RequestId;
pub use message::{Editor, Kind, Message};
pub use revision::{Era, Revision};
