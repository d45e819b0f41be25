//! Towards MCP servers: links, the carriers under them, and whose traffic may share one.

pub mod account;
mod asserted_tokens;
mod breach_log;
pub mod carrier;
pub mod credentials;
mod deadlines;
pub mod declaration_cache;
pub mod error;
mod failure_log;
mod first_start;
mod health;
pub mod link;
pub mod link_caller;
mod not_reached;
mod notice_feed;
pub mod registry;
mod remedy;
mod room;
mod salvage;
mod user_accounts;
mod user_keys;
mod user_tokens;

pub use first_start::FirstStart;
pub use registry::{CallerAccounts, ClientContext, SetupError, SharedAccounts, Upstreams};
pub use user_accounts::{AccountKeeping, AccountState};

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
