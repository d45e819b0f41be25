//! Streamable HTTP towards clients, legacy revisions.

mod arrays;
mod headers;
mod replies;
mod revisions;
mod streams;
