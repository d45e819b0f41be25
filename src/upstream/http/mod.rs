//! Carrier: Streamable HTTP toward an upstream.

pub mod body;
pub mod client;
mod pool;
pub mod wire;
