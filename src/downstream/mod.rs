//! Towards MCP clients: everything that speaks HTTP with the outside.

pub mod access_log;
pub mod admin;
pub mod cors;
pub mod guard;
pub mod listener;
pub mod peer;
#[cfg(test)]
pub(crate) mod samples;
