//! Towards MCP servers: carriers, and the links on top of them.

pub mod stdio;
