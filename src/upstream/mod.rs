//! Towards MCP servers: links, the carriers under them, and whose traffic may share one.

pub mod account;
mod activity;
pub mod carrier;
pub mod credentials;
pub mod error;
mod failures;
mod first_start;
mod health;
mod hearing;
pub mod isolation;
pub mod knowledge;
pub mod link;
mod not_reached;
mod remedy;
mod room;
mod salvage;

pub use first_start::FirstStart;
pub use isolation::{Seat, SetupError, Upstreams};

use bytes::Bytes;

use crate::lock::lock;

/// JSON text of our own `Implementation`, declared where no single client stands behind a link.
pub const OWN_INFO: Bytes = Bytes::from_static(OWN_INFO_TEXT.as_bytes());
/// The same as text.
const OWN_INFO_TEXT: &str = concat!(
    r#"{"name":"drawbridge","version":""#,
    env!("CARGO_PKG_VERSION"),
    "\"}"
);
