//! Transports towards clients, legacy revisions.

mod arrays;
mod headers;
mod http_sse;
mod replies;
mod revisions;
mod streams;
mod websocket;
