//! Transports towards clients.

mod arrays;
mod headers;
mod http_sse;
mod modern_socket;
mod replies;
mod revisions;
mod streams;
mod strict;
mod websocket;
