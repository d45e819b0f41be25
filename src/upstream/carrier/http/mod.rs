//! Carrier: Streamable HTTP toward an upstream.

pub mod body;
pub mod client;
pub mod client_error;
pub(in crate::upstream) mod exchange_error;
pub(in crate::upstream) mod get_stream;
mod h2_clients;
pub mod http_session;
pub(in crate::upstream) mod login;
pub mod message_headers;
mod non_mcp_response;
mod opening_attempts;
mod pool;
mod prepared_request;
mod reading;
mod request_credentials;
pub(crate) mod response_head;
pub(crate) mod sink;
pub(in crate::upstream) mod sticky_cookies;
mod stream_cursor;
mod targets;
mod token_memo;
mod unreachable;
mod ways;
mod whole;
