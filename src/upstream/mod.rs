//! Towards MCP servers: links, the carriers under them, and whose traffic may share one.

pub mod account;
mod activity;
mod attempts;
mod cancellation;
mod carrier;
pub mod credentials;
mod duplex;
mod era;
pub mod error;
mod failures;
mod first_start;
mod given_up;
mod health;
mod hearing;
pub mod holders;
pub mod http;
pub mod isolation;
pub mod knowledge;
pub mod legacy;
mod modern;
mod not_reached;
mod observe;
mod remedy;
mod room;
mod session_state;
mod shared;
pub mod stdio;
mod unread;

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
