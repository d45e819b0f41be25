//! Carrier: Streamable HTTP toward an upstream.

pub mod body;
pub mod client;
pub(in crate::upstream) mod exchange_error;
pub(in crate::upstream) mod get_stream;
mod labels;
mod lanes;
pub(in crate::upstream) mod login;
mod pool;
mod reading;
pub(crate) mod sink;
mod targets;
mod unreachable;
mod ways;
mod whole;
pub mod wire;
