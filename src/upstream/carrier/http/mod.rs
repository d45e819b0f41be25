//! Carrier: Streamable HTTP toward an upstream.

pub mod body;
pub mod client;
pub(in crate::upstream) mod exchange_error;
pub(in crate::upstream) mod get_stream;
mod h2_clients;
pub mod http_session;
pub(in crate::upstream) mod login;
mod non_mcp_response;
mod pool;
mod reading;
pub(crate) mod sink;
mod targets;
mod unreachable;
mod ways;
mod whole;
