//! Bytes and rules of MCP: messages, revisions, methods, event streams. Imports nothing of ours.

pub(crate) mod content;
mod decode_error;
pub mod error_codes;
pub mod extensions;
pub mod header_value;
pub mod headers;
pub mod icons;
mod id;
mod id_scan;
pub(crate) mod input_request_rules;
pub mod json;
pub(crate) mod links;
mod message;
pub mod meta;
pub mod methods;
mod names;
mod nulls;
mod number;
pub mod param_headers;
mod revision;
pub mod rpc;
pub(crate) mod salvage;
pub(crate) mod sampling;
pub mod sse;
pub mod websocket;

pub use decode_error::DecodeError;
pub use id::RequestId;
pub use id_scan::{IdScan, ScannedMessage};
pub use message::{Message, MessageBounds, MessageEditor, MessageKind, ProgressNotice};
pub(crate) use nulls::without_nulls;
pub use revision::{Era, Revision};
