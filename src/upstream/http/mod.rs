//! Carrier: Streamable HTTP toward an upstream.

pub mod client;
pub mod wire;
